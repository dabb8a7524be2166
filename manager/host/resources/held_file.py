"""A kernel file that is read again and again, and may come and go."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_BYTES = 16_384


class HeldFile:
    """Opened when it is first read, and again after it went: as PSI's do when it is switched off for a group."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self._path = str(path)
        self._descriptor = -1

    def read(self, most: int = _MOST_BYTES) -> bytes | None:
        """Its first bytes; None where it cannot be opened or read now."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, most, 0)
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """Close it; may be called twice, and it may be read again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
