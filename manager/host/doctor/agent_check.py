"""The agent of this host, from the outside: its lock, its journal and its folder."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing

from manager.host.doctor.check import CheckResult, Subject, degraded, missing, unknown, warning, works
from manager.host.files import text_of

AREA = "Equipoise"
_LITTLE_BYTES = 256 << 20


def agent(subject: Subject) -> CheckResult:
    """Whether a process holds the agent's lock; looked up and not tried, which could keep a starting agent from it."""
    try:
        lock = subject.lock_file.stat()
    except PermissionError:
        return unknown(f"only root may look at the lock {subject.lock_file}", "run it as root")
    except FileNotFoundError:
        return warning(f"not running: there is no lock {subject.lock_file}", "systemctl start equipoise-agent")
    file = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    named = text_of(subject.lock_file) or ""
    for line in subject.paths.locks.read_text().splitlines():
        fields = line.split()  # 1: FLOCK  ADVISORY  WRITE PID MAJOR:MINOR:INODE 0 EOF; "->" marks one that waits
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        # Some file systems show another device here than stat(2): then the process in the file decides.
        if fields[5] == file or (fields[5].endswith(f":{lock.st_ino}") and fields[4] == named):
            return works(f"running: process {fields[4]} holds {subject.lock_file}")
    return warning(f"not running: no process holds {subject.lock_file}", "systemctl start equipoise-agent")


def journal(subject: Subject) -> CheckResult:
    """Read without opening it as the agent does, which would forget the entries of an earlier boot."""
    path = subject.state_dir / subject.journal_name
    if not path.exists():
        return works(f"there is no {path}: nothing was ever changed")
    boot_id = subject.paths.boot_id.read_text().strip()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            query = "SELECT count(*), coalesce(sum(is_external), 0) FROM owned WHERE boot_id = ?"
            owned, external = database.execute(query, (boot_id,)).fetchone()
    except sqlite3.Error as error:
        return degraded(
            f"{path} cannot be read: {error}",
            "restart the agent: it sets the file aside and goes on with what can be read of it",
        )
    if external:
        return warning(
            f"{owned} settings are changed, {external} of them were changed again by another tool and are left alone",
            "find out who with `equipoise status` and `equipoise decisions`; `equipoise release` forgets them",
        )
    return works(f"readable; {owned} settings of this boot are changed")


def set_aside(subject: Subject) -> CheckResult:
    """Files that the agent or the manager found damaged and renamed."""
    names = sorted(file.name for file in subject.state_dir.glob("*.broken-*") if not file.name.endswith("-wal"))
    if not names:
        return works("no damaged file was set aside")
    return warning(
        f"set aside as damaged in {subject.state_dir}: {', '.join(names)}",
        "look at the disk and its file system; then see docs/how-to/recovery.md, and remove or archive them",
    )


def state_dir(subject: Subject) -> CheckResult:
    folder = subject.state_dir
    if not folder.is_dir():
        return warning(f"there is no folder {folder}", "the agent makes it at its first start; or set state_dir")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"equipoise")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return missing(
            f"{folder} cannot be written to: {error.strerror}",
            "free space, mount it writable, or set state_dir to another folder: without a journal nothing is changed",
        )
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    seen = f"{folder} can be written to, {free / (1 << 20):,.0f} MiB are free"
    if free < _LITTLE_BYTES:
        return degraded(seen, f"free at least {_LITTLE_BYTES >> 20} MiB")
    if system.f_files and not system.f_favail:
        return degraded(f"{seen}, but no inodes", "remove files")
    return works(seen)


def limits(subject: Subject) -> CheckResult:
    """What the agent's own settings say: nothing of it is the manager's."""
    allowed = "; ".join(subject.limits.in_words()) or "everything is allowed"
    logs, asked = subject.log_dirs or "none", subject.probe_networks or "nothing"
    return works(
        f"{allowed}; logs are read in: {logs}; sources may ask: {asked}",
        "what is missing is said in this host's settings: allow, deny, max_mode, min_pcpus, log_dirs, probe_networks (a"
        " Prometheus on this host needs loopback)",
    )
