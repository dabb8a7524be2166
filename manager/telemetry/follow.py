"""Following a log file through rotation and truncation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator

from manager.model.source import NginxFile
from manager.telemetry.feed import Feed
from manager.telemetry.nginx import take_line

POLL_S = 0.2
MAX_LINE = 64 * 1024
_CHUNK = 256 * 1024
_OLD_FILE_S = 10.0


class _Tail:
    """An open log file, read from where it was left."""

    def __init__(self, path: str, at_end: bool) -> None:
        """Raises OSError, also for what is not a regular file."""
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._fd)
            raise OSError(0, "it is not a regular file", path)
        self.identity = (found.st_dev, found.st_ino)
        self._position = found.st_size if at_end else 0
        self._partial = b""
        self._skipping = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def lines(self) -> Iterator[bytes | None]:
        """Complete lines of up to one chunk; None for each that is too long. Raises OSError."""
        if os.fstat(self._fd).st_size < self._position:  # truncated: what is there now is new
            self._position, self._partial, self._skipping = 0, b"", False
        data = os.pread(self._fd, _CHUNK, self._position)
        self._position += len(data)
        *complete, rest = (self._partial + data).split(b"\n")
        for line in complete:
            if self._skipping or len(line) > MAX_LINE:
                self._skipping = False
                yield None
            else:
                yield line
        if self._skipping or len(rest) > MAX_LINE:
            self._skipping, rest = True, b""
        self._partial = rest


class Follower:
    """The lines that are appended to a file, whatever happens to it.

    It begins at the end of a file that exists, and reads one that appears later from its beginning. The old file of a
    rotation is read on for a while, as NGINX writes to it until each of its workers has opened the new one.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is a monotonic one, in seconds."""
        self._path = path
        self._clock = clock
        self._tail: _Tail | None = None
        self._old: list[tuple[_Tail, float]] = []  # with when to let go
        self._begin_at_end = True

    def close(self) -> None:
        """Close all files."""
        for tail in [self._tail, *(old for old, _ in self._old)]:
            if tail is not None:
                tail.close()
        self._tail, self._old = None, []

    def read(self) -> list[bytes | None]:
        """The complete lines since the last call, of a bounded amount of data; None for each that is too long.

        Raises OSError when the file is not there or cannot be read, after which it can be called again.
        """
        found: list[bytes | None] = []
        missing: OSError | None = None
        try:
            self._reopen()
        except OSError as error:
            missing = error
        for tail, _ in self._old:
            found += tail.lines()
        if self._tail is not None:
            found += self._tail.lines()
        now_s = self._clock()
        for old in [old for old in self._old if old[1] <= now_s]:
            old[0].close()
            self._old.remove(old)
        if missing is not None and not found:
            raise missing
        return found

    def _reopen(self) -> None:
        """Open the file unless it is the one that is open. Raises OSError."""
        try:
            there = os.stat(self._path)  # noqa: PTH116 - beside os.open and os.fstat
        except FileNotFoundError:
            self._begin_at_end = False
            raise
        if self._tail is not None and self._tail.identity == (there.st_dev, there.st_ino):
            return
        opened = _Tail(self._path, self._begin_at_end)
        if self._tail is not None:
            self._old.append((self._tail, self._clock() + _OLD_FILE_S))
        self._tail = opened
        self._begin_at_end = False


class FileSource:
    """An access log on this machine."""

    def __init__(self, spec: NginxFile, feed: Feed, clock: Callable[[], float]) -> None:
        """``clock`` tells seconds since the epoch."""
        self._spec = spec
        self._feed = feed
        self._clock = clock

    async def run(self) -> None:
        """Follow until cancelled."""
        with contextlib.closing(Follower(self._spec.path)) as follower:
            while True:
                lines: list[bytes | None] = []
                try:
                    lines = follower.read()
                except OSError as error:
                    self._feed.failing(f"{self._spec.path}: {error.strerror or error}")
                else:
                    self._feed.working()
                for line in lines:
                    self._take(line)
                await asyncio.sleep(0 if lines else POLL_S)

    def _take(self, line: bytes | None) -> None:
        if line is None:
            self._feed.malformed(f"a line longer than {MAX_LINE} bytes")
            return
        if not line.strip():
            return
        take_line(self._feed, line.decode("utf-8", "replace"), self._spec.time, self._clock())
