"""memcached's text protocol: ``get`` and ``set`` (doc/protocol.txt of memcached)."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Callable

from deploy.lab.loadgen.load_errors import LoadError
from deploy.lab.loadgen.protocol import GOOD, BadAnswer, Verdict
from deploy.lab.loadgen.spec import MemcachedOptions

MAX_LINE_BYTES = 2048
_VALUE_END = b"\r\nEND\r\n"
_ERRORS = {b"ERROR": "memcached_error", b"CLIENT_ERROR": "client_error", b"SERVER_ERROR": "server_error"}
_PRELOAD_BYTES = 1_000_000
_PRELOAD_COMMANDS = 500  # their answers must fit the socket buffers: nobody reads them meanwhile


class MemcachedParser:
    """Answers of one connection; see AnswerParser."""

    __slots__ = ("_buffer", "_events", "_left", "_tail", "must_close")

    def __init__(self, events: Counter[str]) -> None:
        self._events = events
        self._buffer = b""  # an incomplete first line
        self._left = 0  # bytes of the value still to come, with what ends the answer
        self._tail = b""  # the last bytes of the value so far
        self.must_close = False

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
            if not size.isdigit():
                raise BadAnswer(f"not a VALUE line: {line[:80]!r}")
            self._left = int(size) + len(_VALUE_END)
            self._tail = b""
        self._left -= len(data)
        if self._left > 0:
            self._tail = (self._tail + data)[-len(_VALUE_END) :]
            return None
        if self._left < 0 or not (self._tail + data).endswith(_VALUE_END):
            raise BadAnswer("a value does not end where its size says")
        return GOOD

    def _line(self, line: bytes, rest: bytes) -> Verdict:
        if rest:
            raise BadAnswer(f"bytes after {line[:80]!r}")
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
        # A generator of its own: the arrivals must not depend on the keys. Reproducible load, not a secret.
        generator = random.Random(f"keys {seed}")  # noqa: S311
        self._random = generator.random
        self._set_share = options.set_share
        self._keys = options.keys
        self._value = generator.randbytes(options.value_bytes) + b"\r\n"  # does not compress
        names = [b"equipoise:%d" % number for number in range(options.keys)]
        self._gets = [b"get %b\r\n" % name for name in names]
        self._sets = [b"set %b 0 0 %d\r\n" % (name, options.value_bytes) for name in names]
        self.events: Counter[str] = Counter()

    def prepare(self, connection: socket.socket, stopped: Callable[[], bool]) -> None:
        """Store all keys. Raises LoadError with the server's words, OSError if the connection fails."""
        batch = max(1, min(_PRELOAD_COMMANDS, _PRELOAD_BYTES // len(self._value)))
        with connection.makefile("rb") as answers:
            for begin in range(0, self._keys, batch):
                if stopped():
                    return
                commands = self._sets[begin : begin + batch]
                connection.sendall(b"".join(command + self._value for command in commands))
                for _ in commands:
                    answer = answers.readline(MAX_LINE_BYTES)
                    if answer != b"STORED\r\n":
                        text = answer.decode("ascii", "replace").strip() or "closed the connection"
                        raise LoadError(f"storing the keys failed: the server answered: {text}")

    def next_request(self) -> bytes:
        """See WireProtocol."""
        key = int(self._random() * self._keys)
        if self._random() < self._set_share:
            return self._sets[key] + self._value
        return self._gets[key]

    def new_parser(self) -> MemcachedParser:
        """See WireProtocol."""
        return MemcachedParser(self.events)
