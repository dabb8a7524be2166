"""Following a log file through rotation and truncation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

from manager.host.log_file import DEFAULT_LOG_DIRS, look_at_log, open_log
from manager.model.source import NginxFile
from manager.telemetry.feed import Feed
from manager.telemetry.nginx import take_line

POLL_S = 0.2
MAX_LINE = 64 * 1024
MOST_BEHIND = 64 * 1024 * 1024
"""Of a log that grows faster than it may be read, what is further behind than this is left out."""
MOST_BYTES_S = 4 * 1024 * 1024
_CHUNK = 256 * 1024
_OLD_FILE_S = 10.0
_MOST_OLD = 4


class _Tail:
    """An open log file, read from where it was left."""

    def __init__(self, looked_at: int, at_end: bool) -> None:
        """``looked_at`` is what ``look_at_log`` returned. Raises OSError."""
        self._fd = open_log(looked_at)
        status = os.fstat(self._fd)
        self.identity = (status.st_dev, status.st_ino)
        self._position = status.st_size if at_end else 0
        self._partial = b""
        self._skipping = False
        self.taken = 0
        self.left_out = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def lines(self) -> Iterator[bytes | None]:
        """Complete lines of up to one chunk; None for each that is too long. Raises OSError.

        ``taken`` are the bytes that were read, ``left_out`` those that were passed over.
        """
        size = os.fstat(self._fd).st_size
        if size < self._position:  # truncated: what is there now is new
            self._position, self._partial, self._skipping = 0, b"", False
        self.left_out = max(size - MOST_BEHIND - self._position, 0)
        if self.left_out:
            self._position, self._partial, self._skipping = self._position + self.left_out, b"", True
        data = os.pread(self._fd, _CHUNK, self._position)
        self.taken = len(data)
        self._position += self.taken
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

    def __init__(self, path: str, folders: Sequence[str], steady: Callable[[], float] = time.monotonic) -> None:
        """``folders`` are those that logs may be in. ``steady`` returns seconds that only grow."""
        self._path = path
        self._folders = folders
        self.taken = 0  # bytes, at the last call of ``read``
        self.left_out = 0
        self._steady = steady
        self._tail: _Tail | None = None
        self._old: list[tuple[_Tail, float]] = []  # with when to let go
        self._begin_at_end = True

    def close(self) -> None:
        """Close all files."""
        for tail in self._tails():
            tail.close()
        self._tail, self._old = None, []

    def _tails(self) -> list[_Tail]:
        return [tail for tail, _ in self._old] + ([self._tail] if self._tail else [])

    def read(self) -> list[bytes | None]:
        """The complete lines since the last call, of a bounded amount of data; None for each that is too long.

        Raises OSError when the file is not there or cannot be read, after which it can be called again.
        """
        lines: list[bytes | None] = []
        missing: OSError | None = None
        try:
            self._reopen()
        except OSError as error:
            missing = error
        tails = self._tails()
        for tail in tails:
            lines += tail.lines()
        self.taken = sum(tail.taken for tail in tails)
        self.left_out = sum(tail.left_out for tail in tails)
        now_s = self._steady()
        while self._old and self._old[0][1] <= now_s:
            self._old.pop(0)[0].close()
        if missing is not None and not lines:
            raise missing
        return lines

    def _reopen(self) -> None:
        """Open the file unless it is the one that is open. Raises OSError."""
        try:
            looked_at = look_at_log(self._path, self._folders)
        except FileNotFoundError:
            self._begin_at_end = False
            raise
        try:
            there = os.fstat(looked_at)
            if self._tail is not None and self._tail.identity == (there.st_dev, there.st_ino):
                return
            opened = _Tail(looked_at, self._begin_at_end)
        finally:
            os.close(looked_at)
        if self._tail is not None:
            self._old.append((self._tail, self._steady() + _OLD_FILE_S))
        while len(self._old) > _MOST_OLD:  # it is renamed again and again
            self._old.pop(0)[0].close()
        self._tail = opened
        self._begin_at_end = False


async def follow_file(
    spec: NginxFile, feed: Feed, folders: Sequence[str] = DEFAULT_LOG_DIRS, lines_per_s: float = 0.0
) -> None:
    """Follow an access log in one of ``folders`` until cancelled; ``lines_per_s`` in the long run, 0: any number."""
    with contextlib.closing(Follower(spec.path, folders)) as follower:
        while True:
            lines: list[bytes | None] = []
            try:
                lines = follower.read()
            except OSError as error:
                feed.failing(f"{spec.path}: {error.strerror or 'it cannot be read'}")
            else:
                feed.working()
            for line in lines:
                if line is None:
                    feed.malformed(f"a line longer than {MAX_LINE} bytes")
                elif line.strip():
                    take_line(feed, line.decode("utf-8", "replace"), spec.time)
            if follower.left_out:
                feed.malformed("a part of the log was left out: it grows faster than it may be read")
            await asyncio.sleep(_pause_s(len(lines), follower.taken, lines_per_s))


def _pause_s(lines: int, read_bytes: int, lines_per_s: float) -> float:
    """As long as the log may take for what was read, and until there can be more: a log is no reason to be busy."""
    least_s = POLL_S if read_bytes < _CHUNK else 0.0
    return max(least_s, lines / lines_per_s if lines_per_s else 0.0, read_bytes / MOST_BYTES_S)
