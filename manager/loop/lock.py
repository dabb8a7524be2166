"""One agent a host: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from manager.errors import AlreadyRunning


class HostLock:
    """An exclusive flock(2) on a file that holds the owner's process id."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises AlreadyRunning when another process holds it or the file cannot be made."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:
            raise AlreadyRunning(f"the lock {path} cannot be opened: {error.strerror}; run as root") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise AlreadyRunning(f"an agent already controls this host: process {owner}") from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        """Let go."""
        self._file.close()
