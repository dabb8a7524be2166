"""One agent per host: a lock that the kernel drops when its holder dies, and the agent's id.

By the id a manager distinguishes an agent from another one with the same host name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from manager.errors import AlreadyRunning, UnsafeFile
from manager.private import FILE_MODE, claim_folder, is_private, replace_file

INSTANCE_FILE = "instance"
_TRIES = 10


class HostLock:
    """An exclusive flock(2) on a file that holds the owner's process id, in a folder that no other user can enter.

    Whoever may open a file may lock it: no other user may open this one, nor have opened it before.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises AlreadyRunning when another process holds it or the file cannot be made; UnsafeFile where others could
        have opened the file, and who holds it need be no agent, or could exchange it.
        """
        try:
            claim_folder(path.parent, (path.name,), files=False)
            for _ in range(_TRIES):
                locked = _locked(path)
                if locked is not None:
                    self._file = locked
                    return
        except OSError as error:
            raise AlreadyRunning(f"the lock {path} cannot be opened: {error.strerror}; run as root") from error
        raise AlreadyRunning(f"the lock {path} is made anew again and again by another process")

    def close(self) -> None:
        """Let go."""
        os.close(self._file)


def _locked(path: Path) -> int | None:
    """The file, locked; None: what was there is removed, or another process made it anew. Raises AlreadyRunning."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise
        path.unlink(missing_ok=True)
        return None
    try:
        status = os.fstat(file)
        if not _try_lock(file):
            raise _held(path, file, status)
        with suppress(FileNotFoundError):
            if os.path.samestat(status, path.lstat()):
                if is_private(status):
                    os.truncate(file, 0)
                    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                    return os.dup(file)  # the same lock
                path.unlink()
        return None
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(path: Path, file: int, status: os.stat_result) -> AlreadyRunning | UnsafeFile:
    if not is_private(status):
        return UnsafeFile(
            f"the lock {path} is held, and others could open it (mode {stat.S_IMODE(status.st_mode):04o}): when no"
            f" agent runs here, `rm {path}`"
        )
    owner = os.pread(file, 100, 0).decode(errors="replace").strip() or "unknown"
    return AlreadyRunning(f"an agent already controls this host: process {owner}")


def instance_id(folder: Path) -> str:
    """The id that the state directory keeps, made on the first start. Raises OSError."""
    path = folder / INSTANCE_FILE
    try:
        text = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        text = ""
    if re.fullmatch(r"[0-9a-f-]{36}", text):
        return text
    made = str(uuid.uuid4())
    replace_file(path, made.encode() + b"\n")
    return made
