"""HTTP/1.1 GET on connections that are kept alive (RFC 9112): Content-Length, chunked, and bodies that end by close.

A line may end with a line feed alone, as that of some small servers does (RFC 9112, 2.2).
"""

from __future__ import annotations

import random
import re
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from manager.load.keys import key_chooser
from manager.load.protocol import GOOD, BadAnswer, Verdict
from manager.load.spec import KEY_FIELD, HttpOptions

MAX_HEAD_BYTES = 65536
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """What matters of an answer's head. ``body_bytes`` is None when chunks or the connection's end delimit the body."""

    verdict: str
    interim: bool
    chunked: bool
    body_bytes: int | None
    must_close: bool


def parse_head(head: bytes) -> Head:
    """Read status line and headers, given without the blank line that ends them. Raises BadAnswer."""
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    status_line = _STATUS_LINE.fullmatch(lines[0])
    if status_line is None:
        raise BadAnswer(f"not an HTTP/1 status line: {lines[0][:80]!r}")
    status = int(status_line[2])
    lengths: set[bytes] = set()
    codings: list[bytes] = []
    connection: list[bytes] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadAnswer(f"not a header line: {line[:80]!r}")
        match name.lower():
            case b"content-length":
                lengths.update(part.strip() for part in value.split(b","))
            case b"transfer-encoding":
                codings += [part.strip() for part in value.lower().split(b",")]
            case b"connection":
                connection += [part.strip() for part in value.lower().split(b",")]
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise BadAnswer(f"unusable Content-Length: {sorted(lengths)}")
    chunked = bool(codings) and codings[-1] == b"chunked"
    body_bytes: int | None = None
    if status < 200 or status in _NO_BODY:
        chunked, body_bytes = False, 0
    elif lengths and not codings:  # RFC 9112, 6.3: Transfer-Encoding overrides Content-Length
        body_bytes = int(lengths.pop())
    keeps_alive = b"close" not in connection and (status_line[1] == b"1" or b"keep-alive" in connection)
    return Head(
        verdict=f"http_{status}" if status >= 400 else GOOD,
        interim=status < 200,
        chunked=chunked,
        body_bytes=body_bytes,
        must_close=not keeps_alive or (body_bytes is None and not chunked),
    )


def _head_end(data: bytes) -> tuple[int, int]:
    """Where the first head ends, and how many bytes end it; -1: not in ``data``."""
    crlf = data.find(b"\n\r\n")
    bare = data.find(b"\n\n", 0, crlf) if crlf >= 0 else data.find(b"\n\n")
    return (bare, 2) if bare >= 0 else (crlf, 3)


class ChunkReader:
    """Finds the end of one chunked body (RFC 9112, 7.1); the data itself is only counted."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data_left = 0
        self._expect = "size"
        self.rest = b""

    def feed(self, data: bytes) -> bool:
        """Take bytes; True once the body is complete: ``rest`` is what came after it. Raises BadAnswer."""
        buffer = self._buffer + data
        position = 0
        while True:
            skipped = min(self._data_left, len(buffer) - position)
            self._data_left -= skipped
            position += skipped
            line_end = buffer.find(b"\n", position)
            if self._data_left or line_end < 0:
                break
            complete = self._line(buffer[position:line_end].removesuffix(b"\r"))
            position = line_end + 1
            if complete:
                self.rest = buffer[position:]
                return True
        self._buffer = buffer[position:]
        if len(self._buffer) > MAX_HEAD_BYTES:
            raise BadAnswer("a chunk's size line or trailer is too long")
        return False

    def _line(self, line: bytes) -> bool:
        if self._expect == "trailer":
            return not line
        if self._expect == "data end":
            if line:
                raise BadAnswer("a chunk is longer than its size")
            self._expect = "size"
            return False
        size = line.partition(b";")[0].strip()
        if not _HEX.fullmatch(size):
            raise BadAnswer(f"not a chunk size: {line[:80]!r}")
        self._data_left = int(size, 16)
        self._expect = "data end" if self._data_left else "trailer"
        return False


class HttpParser:
    """Answers of one connection; see AnswerParser."""

    __slots__ = ("_body_left", "_buffer", "_chunks", "_head", "_read_head", "must_close", "rest")

    def __init__(self, read_head: Callable[[bytes], Head]) -> None:
        self._read_head = read_head
        self._buffer = b""  # an incomplete head
        self._head: Head | None = None  # set while a body is being read
        self._body_left = 0
        self._chunks: ChunkReader | None = None
        self.must_close = False
        self.rest = b""

    def feed(self, data: bytes) -> Verdict:
        """See AnswerParser."""
        if self._head is None:
            if self._buffer:
                data = self._buffer + data
            while True:
                head_end, end_bytes = _head_end(data)
                if head_end < 0:
                    if len(data) > MAX_HEAD_BYTES:
                        raise BadAnswer(f"no end of the headers in {MAX_HEAD_BYTES} bytes")
                    self._buffer = data
                    return None
                head = self._read_head(data[:head_end])
                data = data[head_end + end_bytes :]
                if not head.interim:  # such as 103 Early Hints
                    break
            self._buffer = b""
            self._head = head
            self.must_close = head.must_close
            self._body_left = head.body_bytes or 0
            self._chunks = ChunkReader() if head.chunked else None
        return self._feed_body(self._head, data)

    def _feed_body(self, head: Head, data: bytes) -> Verdict:
        if self._chunks is not None:
            if not self._chunks.feed(data):
                return None
            self.rest = self._chunks.rest
        elif head.body_bytes is None:
            return None  # until the server closes
        else:
            self._body_left -= len(data)
            if self._body_left > 0:
                return None
            self.rest = data[self._body_left :] if self._body_left < 0 else b""
        self._head = None
        return head.verdict

    def end(self) -> Verdict:
        """See AnswerParser."""
        head = self._head
        if head is None or head.chunked or head.body_bytes is not None:
            return None
        self._head = None
        self.rest = b""
        return head.verdict


class Http:
    """GET of one path; see WireProtocol. ``authority`` is the ``host:port`` of the Host header."""

    def __init__(self, options: HttpOptions, authority: str, seed: int = 1) -> None:
        given = {name.lower() for name, _ in options.headers}
        defaults = (("Host", authority), ("User-Agent", "equipoise-load"))
        headers = [header for header in defaults if header[0].lower() not in given] + list(options.headers)
        end = "".join(f"{name}: {value}\r\n" for name, value in headers)
        paths = [options.path.replace(KEY_FIELD, str(key)) for key in range(options.keys)]
        self._requests = [f"GET {path} HTTP/1.1\r\n{end}\r\n".encode("ascii") for path in paths]
        # A generator of its own: the arrivals must not depend on the keys. Reproducible load, not a secret.
        self._next_key = key_chooser(options.keys, options.zipf, random.Random(f"keys {seed}"))  # noqa: S311
        self._last: tuple[bytes, Head] = (b"", Head(GOOD, False, False, 0, False))
        self.events: Counter[str] = Counter()

    def prepare(self, connection: socket.socket, stopped: Callable[[], bool]) -> None:
        """Nothing comes before the load."""

    def next_request(self) -> bytes:
        """See WireProtocol."""
        return self._requests[self._next_key()]

    def new_parser(self) -> HttpParser:
        """See WireProtocol."""
        return HttpParser(self._read_head)

    def _read_head(self, head: bytes) -> Head:
        # Heads repeat, byte for byte, for the second that their Date stands: parse each but once in a row.
        if head != self._last[0]:
            self._last = (head, parse_head(head))
        return self._last[1]
