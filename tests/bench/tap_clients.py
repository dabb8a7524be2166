"""Clients that say of each request when they sent it and had its answer: the load generator, and one with TLS.

The load generator is that of ``manager.load`` with ears: what it sends, and when, is not changed. It knows
neither TLS nor connections for one request of memcached; for these there are threads, which take turns by the same
random arrivals.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from manager.load import LoadError, LoadResult, LoadSpec, MemcachedOptions, Phase
from manager.load.engine import Address, Engine
from manager.load.http1 import Http
from manager.load.memcached_text import Memcached
from manager.load.protocol import AnswerParser, Verdict, WireProtocol
from manager.load.recorder import Recorder
from manager.load.request_times import arrivals
from tests.bench.tap_capture import TapPacket, Turn, opened

TIMEOUT_S = 10.0


class NumberedTurn(NamedTuple):
    """A turn of the load generator: of its how manieth connection, from 0, and of its first."""

    connection: int
    first: bool
    sent_ns: int
    done_ns: int

    def at(self, ports: Sequence[int]) -> Turn:
        """With the port of its connection, of all in the order in which they were opened."""
        return Turn(ports[self.connection], self.first, self.sent_ns, self.done_ns)


class _TurnRecorder(Recorder):
    """Counts as the load generator does, and notes each turn.

    The load generator sends requests in the order in which they fall due, so that of intended times the oldest is
    that of the next request. An answer ends on the connection whose parser said so last.
    """

    def __init__(self, spec: LoadSpec) -> None:
        super().__init__(spec, None)
        self.turns: list[NumberedTurn] = []
        self.answering = 0
        self._due_s: deque[float] = deque()
        self._sent_ns: dict[float, int] = {}
        self._seen: set[int] = set()

    def due(self, intended_s: float, now_s: float) -> None:
        """See Recorder."""
        super().due(intended_s, now_s)
        self._due_s.append(intended_s)

    def sent(self) -> None:
        """The next request is about to be sent."""
        self._sent_ns[self._due_s.popleft()] = time.monotonic_ns()

    def answered(self, intended_s: float, now_s: float) -> None:
        """See Recorder."""
        super().answered(intended_s, now_s)
        number = self.answering
        self.turns.append(
            NumberedTurn(number, number not in self._seen, self._sent_ns.pop(intended_s), int(now_s * 1e9) + 1)
        )
        self._seen.add(number)


class _HeardParser:
    """Says on which connection an answer ends; see AnswerParser."""

    def __init__(self, parser: AnswerParser, number: int, recorder: _TurnRecorder) -> None:
        self._parser = parser
        self._number = number
        self._recorder = recorder
        self.must_close = False
        self.rest = b""

    def feed(self, data: bytes) -> Verdict:
        """See AnswerParser."""
        verdict = self._parser.feed(data)
        self.must_close = self._parser.must_close
        self.rest = self._parser.rest
        self._recorder.answering = self._number
        return verdict

    def end(self) -> Verdict:
        """See AnswerParser."""
        return self._parser.end()


class _HeardProtocol:
    """Says when a request is sent; see WireProtocol."""

    def __init__(self, protocol: WireProtocol, recorder: _TurnRecorder) -> None:
        self._protocol = protocol
        self._recorder = recorder
        self._opened = 0
        self.events = protocol.events

    def prepare(self, connection: socket.socket, stopped: Callable[[], bool]) -> None:
        """See WireProtocol."""
        self._protocol.prepare(connection, stopped)

    def next_request(self) -> bytes:
        """See WireProtocol."""
        request = self._protocol.next_request()
        self._recorder.sent()
        return request

    def new_parser(self) -> _HeardParser:
        """See WireProtocol."""
        self._opened += 1
        return _HeardParser(self._protocol.new_parser(), self._opened - 1, self._recorder)


class ClientLoad(Protocol):
    """A load that has ended, as the client says."""

    @property
    def requests(self) -> int:
        """Those that were answered."""

    def timed(self, packets: Sequence[TapPacket]) -> list[Turn]:
        """The turns that can be timed at the tap, whose packets on the way may say which connection is whose."""


@dataclass(frozen=True, slots=True)
class HeardLoad:
    """What the load generator says itself, and each of its turns; see ClientLoad."""

    result: LoadResult
    turns: list[NumberedTurn]

    @property
    def requests(self) -> int:
        """See ClientLoad."""
        return self.result.answered

    def timed(self, packets: Sequence[TapPacket]) -> list[Turn]:
        """All."""
        ports = opened(packets)
        return [turn.at(ports) for turn in self.turns]


@dataclass(frozen=True, slots=True)
class ThreadsLoad:
    """The turns of threads; see ClientLoad. Of TLS the first answer of a connection is not timed: see the program."""

    turns: list[Turn]
    first_is_timed: bool

    @property
    def requests(self) -> int:
        """See ClientLoad."""
        return len(self.turns)

    def timed(self, _packets: Sequence[TapPacket]) -> list[Turn]:
        """See ClientLoad."""
        return [turn for turn in self.turns if self.first_is_timed or not turn.first]


class HeardLoadgen:
    """The load generator; ``prepare`` comes before what is measured. The target is an IPv4 address."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._recorder = _TurnRecorder(spec)
        options = spec.protocol
        of_spec = Memcached(options, spec.seed) if isinstance(options, MemcachedOptions) else Http(options, spec.host)
        self._protocol = _HeardProtocol(of_spec, self._recorder)

    def prepare(self) -> None:
        """Store memcached's keys. Raises LoadError and OSError."""
        with socket.create_connection((self._spec.host, self._spec.port), TIMEOUT_S) as connection:
            self._protocol.prepare(connection, lambda: False)

    def run(self) -> HeardLoad:
        """Produce the load. Raises LoadError when not all connections can be opened."""
        spec, recorder = self._spec, self._recorder
        address = Address(socket.AF_INET, (spec.host, spec.port))
        with closing(Engine(spec, address, self._protocol, recorder)) as engine:
            give_up_s = time.monotonic() + spec.connect_timeout_s
            while engine.connected < spec.connections:
                engine.turn()
                if time.monotonic() > give_up_s:
                    raise LoadError(f"{engine.connected} of {spec.connections} connections to {spec.address_text}")
            begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
            recorder.begin(begin_s)
            engine.begin(begin_s, arrivals(spec.phases, spec.seed))
            while time.monotonic() < begin_s + spec.schedule_s or not engine.drained:
                engine.turn()
            end_s, cpu_s = time.monotonic(), time.thread_time() - begin_cpu_s
            result = recorder.finish(end_s, cpu_s, cpu_s / (end_s - begin_s), engine.events + self._protocol.events)
        return HeardLoad(result, recorder.turns)


class TurnClient(Protocol):
    """A connection."""

    @property
    def port(self) -> int:
        """The client's own."""

    def turn(self) -> None:
        """Send a request and take the whole answer. Raises OSError."""

    def close(self) -> None:
        """End the connection."""


class HttpsUrl(NamedTuple):
    """What is requested over TLS."""

    host: str
    port: int
    path: str


class HttpsClient:
    """GET of one path over TLS. ``notify``: it says that it ends the connection, as RFC 8446 wants it."""

    def __init__(self, url: HttpsUrl, context: ssl.SSLContext, *, notify: bool) -> None:
        """Connect, handshake included."""
        self._url = url
        self._notify = notify
        self._socket = context.wrap_socket(
            socket.create_connection((url.host, url.port), TIMEOUT_S), server_hostname=url.host
        )

    @property
    def port(self) -> int:
        """See TurnClient."""
        return int(self._socket.getsockname()[1])

    def turn(self) -> None:
        """See TurnClient."""
        self._socket.sendall(f"GET {self._url.path} HTTP/1.1\r\nHost: {self._url.host}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(self._socket, method="GET")
        answer.begin()
        answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"{self._url.path}: status {answer.status}")

    def close(self) -> None:
        """See TurnClient."""
        if self._notify:
            self._socket.unwrap()
        self._socket.close()


class MemcachedClient:
    """``get`` of one key."""

    def __init__(self, host: str, port: int, key: str) -> None:
        """Connect."""
        self._socket = socket.create_connection((host, port), TIMEOUT_S)
        self._request = f"get {key}\r\n".encode()

    @property
    def port(self) -> int:
        """See TurnClient."""
        return int(self._socket.getsockname()[1])

    def turn(self) -> None:
        """See TurnClient."""
        self._socket.sendall(self._request)
        answer = b""
        while not answer.endswith(b"END\r\n"):
            data = self._socket.recv(65536)
            if not data:
                raise OSError("memcached closed the connection")
            answer += data

    def close(self) -> None:
        """See TurnClient."""
        self._socket.close()


def by_threads(connect: Callable[[], TurnClient], phase: Phase, threads: int, *, keep: bool) -> list[Turn]:
    """Turns at random times, each by a thread that has no other; on its connection, or one of their own.

    A request that falls due while all threads wait for answers is sent late. Raises OSError.
    """
    due_s = arrivals((phase,), seed=1)
    lock, turns, failures = threading.Lock(), list[Turn](), list[OSError]()
    begin_s = time.monotonic() + 0.1

    def work() -> None:
        try:
            turns.extend(_turns_of_one(connect, lambda: _next(lock, due_s), begin_s, keep=keep))
        except OSError as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return turns


def _next(lock: threading.Lock, due_s: Iterator[float]) -> float | None:
    with lock:
        return next(due_s, None)


def _turns_of_one(
    connect: Callable[[], TurnClient], next_due_s: Callable[[], float | None], begin_s: float, *, keep: bool
) -> Iterator[Turn]:
    client = connect() if keep else None
    first = True
    try:
        while (at_s := next_due_s()) is not None:
            time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            used = client or connect()
            try:
                sent_ns = time.monotonic_ns()
                used.turn()
                yield Turn(used.port, first or not keep, sent_ns, time.monotonic_ns())
            finally:
                if not keep:
                    used.close()
            first = False
    finally:
        if client is not None:
            client.close()
