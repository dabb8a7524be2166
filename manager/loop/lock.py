"""One agent a host: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from manager.errors import AlreadyRunning, UnsafeFile
from manager.private import FILE_MODE, claim_folder, is_private

_TRIES = 10


class HostLock:
    """An exclusive flock(2) on a file that holds the owner's process id, in a folder that nobody else can enter.

    Whoever may open a file may lock it: nobody else may open this one, nor have opened it before.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises AlreadyRunning when another process holds it or the file cannot be made; UnsafeFile where others could
        have opened the file, and somebody holds it who need be no agent, or could exchange it.
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
        found = os.fstat(file)
        if not _try_lock(file):
            raise _held(path, file, found)
        with suppress(FileNotFoundError):
            if os.path.samestat(found, path.lstat()):
                if is_private(found):
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


def _held(path: Path, file: int, found: os.stat_result) -> AlreadyRunning | UnsafeFile:
    if not is_private(found):
        return UnsafeFile(
            f"the lock {path} is held, and others could open it (mode {stat.S_IMODE(found.st_mode):04o}): when no agent"
            f" runs here, `rm {path}`"
        )
    owner = os.pread(file, 100, 0).decode(errors="replace").strip() or "unknown"
    return AlreadyRunning(f"an agent already controls this host: process {owner}")
