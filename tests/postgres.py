"""A PostgreSQL server of the tests' own, on a socket in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

_UNPRIVILEGED = ("postgres", "nobody")  # initdb and postgres refuse to run as root


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server; its superuser needs no password."""

    folder: Path

    def url(self, database: str) -> str:
        return f"postgresql://tester@/{database}?host={self.folder}"

    def create(self, database: str) -> str:
        """Make an empty database and return its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def crash(self) -> None:
        """kill -9 of all its processes."""
        pid = (self.folder / "data/postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *children):
            with suppress(ProcessLookupError):
                os.kill(int(one), signal.SIGKILL)
        while any(_lives(one) for one in (pid, *children)):
            time.sleep(0.01)
        # Where nobody waits for orphans, as in many containers, it still looks as if it ran.
        for lock in (self.folder / "data/postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink(missing_ok=True)

    def start(self) -> None:
        """Start it again, from now on such that what it acknowledges survives ``crash``."""
        options = f"-k {self.folder} -c listen_addresses= -c max_connections=60"
        command = [server_programs() / "pg_ctl", "-D", self.folder / "data", "start", "--wait", "--silent"]
        subprocess.run(
            [*command, "-o", options, "-l", self.folder / "log"], user=server_user(), cwd=self.folder, check=True
        )


def _lives(pid: str) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def server_user() -> str | None:
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _UNPRIVILEGED if name in known)


@contextmanager
def postgres_server(*, durable: bool = False, preload: str = "") -> Iterator[PostgresServer]:
    """Start a server, and stop and remove it at the end. Raises FileNotFoundError where PostgreSQL is not installed.

    ``durable``: it waits for the disk, as one that is not for tests does. ``preload``: a library that it loads.
    """
    programs = server_programs()
    user = server_user()
    folder = Path(tempfile.mkdtemp(prefix="eqp-pg-"))  # short: a socket's path has at most 107 bytes
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, "-D", data, *arguments],
            user=user,
            cwd=folder,
            stdout=(output := tempfile.TemporaryFile()),  # noqa: SIM115 - a pipe would be held open by the server
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode != 0:
            output.seek(0)
            raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")
        output.close()

    try:
        run("initdb", "--username=tester", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c max_connections=60"
        if preload:
            options += f" -c shared_preload_libraries={preload}"
        if not durable:
            options += " -c fsync=off -c synchronous_commit=off"
        run("pg_ctl", "start", "--wait", "--silent", "-o", options, "-l", str(folder / "log"))
        try:
            yield PostgresServer(folder)
        finally:
            run("pg_ctl", "stop", "--wait", "--silent", "--mode=immediate")
    finally:
        shutil.rmtree(folder)


def server_programs() -> Path:
    """The folder of the server's programs: the newest that Debian installed, or the one on the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = str(installed[-1]) if installed else shutil.which("initdb")
    if found is None:
        raise FileNotFoundError("the tests need a PostgreSQL server: apt install postgresql")
    return Path(found).parent
