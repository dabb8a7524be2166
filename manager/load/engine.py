"""The event loop: one thread, one epoll over all connections and a timer.

Open loop: a request that falls due goes to the connection that has been idle longest, or waits in one queue for the
next that becomes free; either way its response time runs from the moment it was due. Nothing here waits for an answer
before the next request is due. Between any two events the loop looks whether a request fell due meanwhile, so that a
burst of answers does not delay the requests.

Closed loop: a connection sends a request for each answer. Requests for answers that came together go out together.

With pipelining a connection takes several requests before the first is answered, and is idle once for each.
"""

from __future__ import annotations

import errno
import math
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from manager.load.load_errors import LoadError
from manager.load.protocol import AnswerParser, BadAnswer, WireProtocol
from manager.load.recorder import Recorder
from manager.load.spec import LoadSpec
from manager.load.timer import AbsoluteTimer

TICK_S = 0.02
"""How often time-outs and reconnects are looked for."""

_RECEIVE_BYTES = 65536
_EVENTS_PER_POLL = 256
_FIRST_BACKOFF_S = 0.01
_LAST_BACKOFF_S = 1.0
_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT
_CONNECTED = select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is, as getaddrinfo gives it."""

    family: int
    sockaddr: tuple[str | int | bytes, ...]


class _Connection:
    """A place for a connection; its socket is replaced when it is lost."""

    __slots__ = (
        "backoff_s",
        "connecting",
        "deadline_s",
        "outstanding",
        "parser",
        "recv",
        "send",
        "sock",
        "unsent",
        "was_connected",
    )
    # set with every new socket
    parser: AnswerParser
    send: Callable[[bytes], int]
    recv: Callable[[int], bytes]

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.connecting = False
        self.was_connected = False
        self.deadline_s = 0.0  # without a socket: of the next attempt; connecting: when to give up
        self.backoff_s = 0.0
        self.outstanding: deque[float] = deque()  # intended times of requests without an answer, ascending
        self.unsent = b""  # what the socket did not take of them


class Engine:
    """Connections to one address and the requests on them. Call ``turn`` again and again; it blocks at most TICK_S.

    Times are those of ``time.monotonic()``. Raises LoadError when the system gives no more sockets.
    """

    def __init__(self, spec: LoadSpec, address: Address, protocol: WireProtocol, recorder: Recorder) -> None:
        self._spec = spec
        self._address = address
        self._protocol = protocol
        self._next_request = protocol.next_request
        self._recorder = recorder
        self._timer = AbsoluteTimer()
        self._timer_s = 0.0
        self._epoll = select.epoll()
        self._epoll.register(self._timer.fd, _READ)
        self._poll = self._epoll.poll
        self._connections = [_Connection() for _ in range(spec.connections)]
        self._by_fd: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()  # once for each request that they could take
        self._closed_loop = False
        self._waiting: deque[float] = deque()  # intended times, ascending
        self._begin_s = 0.0
        self._arrivals: Iterator[float] = iter(())
        self._next_due_s = math.inf
        self._next_tick_s = monotonic()
        self.events: Counter[str] = Counter()

    @property
    def connected(self) -> int:
        """Number of connections that stand."""
        return sum(connection.sock is not None and not connection.connecting for connection in self._connections)

    @property
    def drained(self) -> bool:
        """No request is outstanding, waiting or still to fall due."""
        if self._next_due_s != math.inf or self._waiting:
            return False
        return not any(connection.outstanding for connection in self._connections)

    def begin(self, begin_s: float, arrivals: Iterator[float]) -> None:
        """Send requests from now on: ``arrivals`` are seconds after ``begin_s``, ascending."""
        self._begin_s = begin_s
        self._arrivals = arrivals
        self._next_due_s = begin_s + next(arrivals, math.inf)

    def begin_closed_loop(self) -> None:
        """Send as many requests as may be outstanding, and one more for each answer, from now on."""
        self._closed_loop = True
        slots = Counter(self._idle)
        self._idle.clear()
        for connection, count in slots.items():
            self._free(connection, count)

    def end_closed_loop(self) -> None:
        """Send nothing more for answers."""
        self._closed_loop = False

    def turn(self) -> None:
        """Wait until something happens or falls due, and handle it."""
        wake_s = min(self._next_due_s, self._next_tick_s)
        if wake_s != self._timer_s:
            self._timer.set(wake_s)
            self._timer_s = wake_s
        for fd, mask in self._poll(-1, _EVENTS_PER_POLL):
            connection = self._by_fd.get(fd)  # None: the timer, or lost earlier in this turn
            if connection is not None:
                self._handle(connection, mask)
            now_s = monotonic()
            if now_s >= self._next_due_s:
                self._hand_over(now_s)
        now_s = monotonic()
        if now_s >= self._next_tick_s:
            self._tick(now_s)

    def interrupt(self) -> None:
        """Give up what is outstanding or waiting: it counts as an error at its present age."""
        now_s = monotonic()
        outstanding = [intended_s for connection in self._connections for intended_s in connection.outstanding]
        for intended_s in [*outstanding, *self._waiting]:
            self._recorder.failed(intended_s, "interrupted", now_s - intended_s)
        self._recorder.left_waiting(self._waiting)

    def close(self) -> None:
        """Close all sockets."""
        for connection in self._connections:
            if connection.sock is not None:
                connection.sock.close()
        self._epoll.close()
        self._timer.close()

    def _hand_over(self, now_s: float) -> None:
        due_s = self._next_due_s
        while due_s <= now_s:
            self._recorder.due(due_s, now_s)
            if self._idle:
                self._send(self._idle.popleft(), (due_s,))
            else:
                self._waiting.append(due_s)
            due_s = self._begin_s + next(self._arrivals, math.inf)
            now_s = monotonic()
        self._next_due_s = due_s

    def _handle(self, connection: _Connection, mask: int) -> None:
        if connection.connecting:
            if mask & _CONNECTED:
                self._finish_connecting(connection)
        elif connection.unsent and mask & _WRITE:
            self._send_rest(connection)
        elif mask & ~_WRITE:
            self._receive(connection)

    def _send(self, connection: _Connection, intended_s: Sequence[float]) -> None:
        """Send a request for each of these times."""
        connection.outstanding.extend(intended_s)
        data = self._next_request() if len(intended_s) == 1 else b"".join(self._next_request() for _ in intended_s)
        if connection.unsent:
            connection.unsent += data
            return
        try:
            count = connection.send(data)
        except BlockingIOError:
            count = 0
        except OSError:
            self._fail(connection, "reset")
            return
        if count < len(data):
            connection.unsent = data[count:]
            self._watch(connection, _READ | _WRITE)

    def _send_rest(self, connection: _Connection) -> None:
        try:
            count = connection.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._fail(connection, "reset")
            return
        connection.unsent = connection.unsent[count:]
        if not connection.unsent:
            self._watch(connection, _READ)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._fail(connection, "reset")
            return
        # After the receive: a response time may hold some delay of ours, but never misses any of the server's.
        now_s = monotonic()
        if not connection.outstanding:
            if data:
                self.events["unsolicited"] += 1
            self._lose(connection)
            return
        try:
            answers, ended = self._read_answers(connection, data, now_s)
        except BadAnswer:
            self._fail(connection, "bad_answer")
            return
        if answers:
            connection.backoff_s = 0.0
        # unsent: answered before it had the whole request
        if ended or (answers and connection.unsent and not connection.outstanding):
            self._fail(connection, "closed")  # those that it will not answer
            if answers:
                self._open(connection)
        elif answers:
            self._free(connection, answers)

    def _read_answers(self, connection: _Connection, data: bytes, now_s: float) -> tuple[int, bool]:
        """Record what these bytes answer: how many requests, and whether the connection ends. Raises BadAnswer."""
        parser, outstanding = connection.parser, connection.outstanding
        answers, ended = 0, not data
        while True:
            verdict = parser.feed(data) if data else parser.end()
            if verdict is None:
                return answers, ended
            data = parser.rest
            if data and len(outstanding) == 1:
                raise BadAnswer("bytes after the last answer")
            if verdict:
                self._recorder.failed(outstanding.popleft(), verdict)
            else:
                self._recorder.answered(outstanding.popleft(), now_s)
            answers += 1
            if parser.must_close:
                return answers, True
            if not data:
                return answers, ended

    def _free(self, connection: _Connection, count: int) -> None:
        """A connection can take so many more requests."""
        if self._closed_loop:
            now_s = monotonic()
            for _ in range(count):
                self._recorder.due(now_s, now_s)
            self._send(connection, [now_s] * count)
            return
        while count and self._waiting:
            self._recorder.dequeued(monotonic())
            self._send(connection, (self._waiting.popleft(),))
            if connection.sock is None:
                return
            count -= 1
        self._idle.extend([connection] * count)

    def _fail(self, connection: _Connection, kind: str, now_s: float | None = None) -> None:
        """The connection is of no use any more, and with it the requests outstanding, if there are any.

        With ``now_s`` they count at their age, at most at the time-out.
        """
        for intended_s in connection.outstanding:
            after_s = None if now_s is None else min(now_s - intended_s, self._spec.timeout_s)
            self._recorder.failed(intended_s, kind, after_s)
        self._lose(connection)

    def _lose(self, connection: _Connection) -> None:
        if connection.sock is not None:
            del self._by_fd[connection.sock.fileno()]
            connection.sock.close()  # and leaves the epoll with it
            connection.sock = None
        if connection in self._idle:
            self._idle = deque(other for other in self._idle if other is not connection)
        connection.connecting = False
        connection.outstanding.clear()
        connection.unsent = b""
        # Doubled until an answer comes, so that a server that accepts only to close is not flooded.
        connection.backoff_s = min(max(_FIRST_BACKOFF_S, 2 * connection.backoff_s), _LAST_BACKOFF_S)
        connection.deadline_s = monotonic() + connection.backoff_s

    def _open(self, connection: _Connection) -> None:
        try:
            sock = socket.socket(self._address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise LoadError(
                f"cannot open {len(self._connections)} connections: {error.strerror}; "
                "use fewer with --connections, or allow more open files (ulimit -n)"
            ) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = sock
        connection.send, connection.recv = sock.send, sock.recv
        connection.parser = self._protocol.new_parser()
        connection.connecting = True
        connection.deadline_s = monotonic() + self._spec.connect_timeout_s
        self._by_fd[sock.fileno()] = connection
        if sock.connect_ex(self._address.sockaddr) in {0, errno.EINPROGRESS}:
            self._epoll.register(sock.fileno(), _WRITE)
        else:
            self._refuse(connection)

    def _finish_connecting(self, connection: _Connection) -> None:
        if connection.sock is None or connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            self._refuse(connection)
            return
        connection.connecting = False
        self.events["reconnects"] += connection.was_connected
        connection.was_connected = True
        self._watch(connection, _READ)
        self._free(connection, self._spec.pipeline)

    def _refuse(self, connection: _Connection) -> None:
        self.events["connect_failures"] += 1
        self._lose(connection)

    def _watch(self, connection: _Connection, mask: int) -> None:
        if connection.sock is not None:
            self._epoll.modify(connection.sock.fileno(), mask)

    def _tick(self, now_s: float) -> None:
        timeout_s = self._spec.timeout_s
        while self._waiting and now_s - self._waiting[0] >= timeout_s:
            self._recorder.failed(self._waiting.popleft(), "queue_timeout", timeout_s)
        for connection in self._connections:
            if connection.outstanding:
                if now_s - connection.outstanding[0] >= timeout_s:
                    self._fail(connection, "timeout", now_s)  # and those behind it
            elif connection.sock is None:
                if now_s >= connection.deadline_s:
                    self._open(connection)
            elif connection.connecting and now_s >= connection.deadline_s:
                self._refuse(connection)
        self._recorder.close_until(now_s)
        self._next_tick_s = min(now_s + TICK_S, self._recorder.next_close_s)
