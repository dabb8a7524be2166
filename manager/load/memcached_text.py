"""memcached's text protocol: ``get`` and ``set`` (doc/protocol.txt of memcached)."""

from __future__ import annotations

import random
import re
import socket
from collections import Counter
from collections.abc import Callable

from manager.load.keys import key_chooser
from manager.load.load_errors import LoadError
from manager.load.protocol import GOOD, BadAnswer, Verdict
from manager.load.spec import MemcachedOptions, sizes_of

MAX_LINE_BYTES = 2048
_VALUE_END = b"\r\nEND\r\n"
_SIZE = re.compile(rb"[0-9]{1,18}")
_ERRORS = {b"ERROR": "memcached_error", b"CLIENT_ERROR": "client_error", b"SERVER_ERROR": "server_error"}
_PRELOAD_BYTES = 1_000_000
_PRELOAD_COMMANDS = 500  # their answers must fit the socket buffers: nobody reads them meanwhile


class MemcachedParser:
    """Answers of one connection; see AnswerParser."""

    __slots__ = ("_buffer", "_events", "_left", "_tail", "must_close", "rest")

    def __init__(self, events: Counter[str]) -> None:
        self._events = events
        self._buffer = b""  # an incomplete first line
        self._left = 0  # bytes of the value still to come, with what ends the answer
        self._tail = b""  # the last bytes of the value so far
        self.must_close = False
        self.rest = b""

    def feed(self, data: bytes) -> Verdict:
        """See AnswerParser."""
        if not self._left:
            if self._buffer:
                data = self._buffer + data
            line_end = data.find(b"\r\n")
            if line_end < 0:
                if len(data) > MAX_LINE_BYTES:
                    raise BadAnswer(f"no end of the line in {MAX_LINE_BYTES} bytes")
                self._buffer = data
                return None
            self._buffer = b""
            line = data[:line_end]
            data = data[line_end + 2 :]
            if not line.startswith(b"VALUE "):
                return self._line(line, data)
            size = line[line.rfind(b" ") + 1 :]
            if not _SIZE.fullmatch(size):
                raise BadAnswer(f"not a VALUE line: {line[:80]!r}")
            self._left = int(size) + len(_VALUE_END)
            self._tail = b""
        self._left -= len(data)
        if self._left > 0:
            self._tail = (self._tail + data)[-len(_VALUE_END) :]
            return None
        self.rest = b""
        if self._left < 0:
            self.rest = data[self._left :]
            data = data[: self._left]
            self._left = 0
        if not (self._tail + data).endswith(_VALUE_END):
            raise BadAnswer("a value does not end where its size says")
        return GOOD

    def _line(self, line: bytes, rest: bytes) -> Verdict:
        self.rest = rest
        if line == b"STORED":
            return GOOD
        if line == b"END":
            self._events["misses"] += 1
            return GOOD
        kind = _ERRORS.get(line.partition(b" ")[0])
        if kind is None:
            raise BadAnswer(f"not an answer to get or set: {line[:80]!r}")
        return kind

    def end(self) -> Verdict:
        """Every answer has its own end, so a close always cuts it off."""
        return None


class Memcached:
    """A mix of ``get`` and ``set``; see WireProtocol."""

    def __init__(self, options: MemcachedOptions, seed: int) -> None:
        sizes = sizes_of(options.value_bytes)
        # A generator of its own: the arrivals must not depend on the keys. Reproducible load, not a secret.
        generator = random.Random(f"keys {seed}")  # noqa: S311
        self._random = generator.random
        self._set_share = options.set_share
        # Shuffled, as how often a key is chosen says nothing of its size.
        bytes_of = [sizes((number + 0.5) / options.keys) for number in range(options.keys)]
        random.Random(f"sizes {seed}").shuffle(bytes_of)  # noqa: S311
        content = generator.randbytes(max(bytes_of))  # does not compress
        values = {size: content[:size] + b"\r\n" for size in set(bytes_of)}
        names = [b"equipoise:%d" % number for number in range(options.keys)]
        self._gets = [b"get %b\r\n" % name for name in names]
        self._sets = [b"set %b 0 0 %d\r\n" % (name, size) for name, size in zip(names, bytes_of, strict=True)]
        self._values = [values[size] for size in bytes_of]
        self._next_key = key_chooser(options.keys, options.zipf, generator)
        self.events: Counter[str] = Counter()

    def prepare(self, connection: socket.socket, stopped: Callable[[], bool]) -> None:
        """Store all keys. Raises LoadError with the server's words, OSError if the connection fails."""
        most = max(map(len, self._values))
        batch = max(1, min(_PRELOAD_COMMANDS, _PRELOAD_BYTES // most))
        with connection.makefile("rb") as answers:
            for begin in range(0, len(self._sets), batch):
                if stopped():
                    return
                pairs = list(zip(self._sets[begin : begin + batch], self._values[begin : begin + batch], strict=True))
                connection.sendall(b"".join(command + value for command, value in pairs))
                for _ in pairs:
                    answer = answers.readline(MAX_LINE_BYTES)
                    if answer != b"STORED\r\n":
                        text = answer.decode("ascii", "replace").strip() or "closed the connection"
                        raise LoadError(f"storing the keys failed: the server answered: {text}")

    def next_request(self) -> bytes:
        """See WireProtocol."""
        key = self._next_key()
        if self._random() < self._set_share:
            return self._sets[key] + self._values[key]
        return self._gets[key]

    def new_parser(self) -> MemcachedParser:
        """See WireProtocol."""
        return MemcachedParser(self.events)
