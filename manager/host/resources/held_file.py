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
            return self._part(most, 0)
        except OSError:
            self.close()
            return None

    def read_in_parts(self, most: int) -> bytes | None:
        """The same of a file that lists: the kernel answers with a page of whole lines at a time (fs/seq_file.c)."""
        text = b""
        try:
            while part := self._part(most - len(text), len(text)):
                text += part
        except OSError:
            self.close()
            return None
        return text

    def _part(self, most: int, offset: int) -> bytes:
        """Raises OSError."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, most, offset)

    def close(self) -> None:
        """Close it; may be called twice, and it may be read again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
