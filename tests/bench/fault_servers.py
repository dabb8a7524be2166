"""Two PostgreSQL servers whose disk can be slow or full, of which one follows the other: for ``fleet_faults``.

The first confirms a commit once the second has it on its disk, too (``synchronous_standby_names``). So whatever was
acknowledged is there when the second is promoted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from tests.postgres import PostgresServer, server_programs, server_user

_SLOW_FLUSH = Path(__file__).with_name("slow_flush.c")
_BALLAST = "ballast"
_LEFT_KIB = 64
"""What is left on a full disk."""
_WRITTEN_BLOCKS = 256
"""So many of these sizes are taken one by one."""
_OPTIONS = "-c listen_addresses= -c max_connections=100 -c max_wal_size=96MB -c wal_keep_size=64MB"


class ServerPair:
    """The first one serves until it is killed; ``promote`` makes the second one its successor."""

    def __init__(self, folder: Path, first_disk: Path) -> None:
        """``folder`` belongs to the servers' user; the data of the first is on ``first_disk``."""
        self._folder = folder
        self.first, self.second = PostgresServer(first_disk), PostgresServer(folder / "second")
        self._disk = first_disk
        self._delay = folder / "delay_ms"
        self._library = folder / "slow_flush.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", self._library, _SLOW_FLUSH, "-ldl"], check=True)

    def create(self, database: str) -> str:
        """Start both, make an empty database, and return its URL, which names both."""
        self.first.folder.mkdir(exist_ok=True)
        self.second.folder.mkdir()
        for server in (self.first, self.second):
            if (user := server_user()) is not None:
                shutil.chown(server.folder, user)
        self._run("initdb", "-D", self.first.folder / "data", "--username=tester", "--auth=trust", "--encoding=UTF8")
        self.start_first()
        url = self.first.create(database)
        self._run(
            *("pg_basebackup", "-h", self.first.folder, "-U", "tester", "-D", self.second.folder / "data"),
            *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"),
        )
        self._start(self.second, "")
        self._follow()
        both = f"{self.first.folder},{self.second.folder}"
        return url.replace(f"host={self.first.folder}", f"host={both}&target_session_attrs=read-write")

    def _follow(self) -> None:
        """From now on the first one waits for the second."""
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        with psycopg.connect(self.first.url("postgres"), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")  # not in the second's copy
            connection.execute("SELECT pg_reload_conf()")
            deadline_s = time.monotonic() + 30
            while connection.execute(query).fetchone() != (1,):
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the second server does not follow the first within 30 s")
                time.sleep(0.1)

    def start_first(self) -> None:
        """Start the first one, also after its disk was full."""
        self._start(self.first, f"-c unix_socket_permissions=0777 {_OPTIONS}", slow=True)

    def first_runs(self) -> bool:
        """Whether it accepts connections."""
        done = subprocess.run(
            [server_programs() / "pg_isready", "-q", "-h", self.first.folder, "-U", "tester"], check=False
        )
        return done.returncode == 0

    def slow(self, delay_ms: int) -> None:
        """Let each flush of the first one's disk take so much longer."""
        self._delay.write_text(f"{delay_ms}\n")

    def fill_disk(self) -> None:
        """Leave next to nothing of the first one's disk, which is small."""
        block = _LEFT_KIB * 1024
        most = shutil.disk_usage(self._disk).free - _WRITTEN_BLOCKS * block  # the server writes meanwhile
        with (self._disk / _BALLAST).open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, max(most, 1))
            file.seek(0, os.SEEK_END)
            with contextlib.suppress(OSError):  # at its end
                while file.write(bytes(block)):
                    pass
            file.truncate(file.tell() - block)

    def free_disk(self) -> None:
        """Give it back; and start the first one, should it have ended."""
        (self._disk / _BALLAST).unlink(missing_ok=True)
        deadline_s = time.monotonic() + 20
        while not self.first_runs() and time.monotonic() < deadline_s:
            time.sleep(0.5)
        if not self.first_runs():
            (self.first.folder / "data/postmaster.pid").unlink(missing_ok=True)
            self.start_first()

    def kill_first(self) -> None:
        """kill -9 of all its processes."""
        self.first.crash()

    def promote(self) -> None:
        """Let the second one serve, which waits for nobody. Call it once the first one does not run."""
        self._run("pg_ctl", "-D", self.second.folder / "data", "promote", "--wait", "--silent")

    def close(self) -> None:
        """End both."""
        for server in (self.second, self.first):
            with contextlib.suppress(subprocess.CalledProcessError):
                self._run("pg_ctl", "-D", server.folder / "data", "stop", "--silent", "--mode=immediate")

    def _start(self, server: PostgresServer, options: str, *, slow: bool = False) -> None:
        options = f"-k {server.folder} {options or _OPTIONS}"
        words = ("-D", server.folder / "data", "start", "--wait", "--silent", "-t", "60", "-l", server.folder / "log")
        preload = {"LD_PRELOAD": str(self._library), "SLOW_FLUSH_FILE": str(self._delay)} if slow else {}
        self._run("pg_ctl", *words, "-o", options, more=preload)

    def _run(self, program: str, *words: str | Path, more: dict[str, str] | None = None) -> None:
        subprocess.run(
            [server_programs() / program, *words],
            user=server_user(),
            cwd=self._folder,
            env=dict(os.environ) | (more or {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )


@contextmanager
def server_pair(small_disk_mib: int) -> Iterator[ServerPair]:
    """Both, started by ``create``. The first has a disk of its own: memory of so many MiB, mounted by root."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="eqp-pair-"))
        stack.callback(shutil.rmtree, folder)
        if (user := server_user()) is not None:
            shutil.chown(folder, user)
        disk = folder / "first"
        disk.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={small_disk_mib}m,mode=0755", "equipoise-bench", disk]
        subprocess.run(words, check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
        pair = ServerPair(folder, disk)
        stack.callback(pair.close)
        yield pair
