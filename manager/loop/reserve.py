"""Space on the disk that is given back when it is full, so that the journal can be written and settings be put back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from manager.private import open_new

RESERVE_FILE = "reserve"
RESERVE_BYTES = 512 << 10
_PLENTY_BYTES = 16 * RESERVE_BYTES


class Reserve:
    """A file of zeros, kept where there is plenty of space."""

    def __init__(self, path: Path | None) -> None:
        """``path`` None: there is no disk."""
        self._path = path
        self._kept = False

    def keep(self) -> None:
        """Make the file where it is missing and there is space for it."""
        if self._kept or self._path is None:
            return
        with suppress(OSError):
            if not self._path.exists():
                space = os.statvfs(self._path.parent)
                if space.f_bavail * space.f_frsize < _PLENTY_BYTES:
                    return
                self._write(self._path)
            self._kept = True

    def give_back(self) -> bool:
        """Whether there was a file, and its space is free now."""
        kept, self._kept = self._kept, False
        if not kept or self._path is None:
            return False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    @staticmethod
    def _write(path: Path) -> None:
        """Zeros that were written, not a hole. Raises OSError, and then there is no file."""
        try:
            with open_new(path) as file:
                file.write(bytes(RESERVE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
