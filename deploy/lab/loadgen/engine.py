"""The event loop: one thread, one epoll over all connections and a timer.

A request that falls due goes to the connection that has been idle longest, or waits in one queue for the next that
becomes free; either way its response time runs from the moment it was due. Nothing here waits for an answer before
the next request is due. Between any two events the loop looks whether a request fell due meanwhile, so that a burst
of answers does not delay the requests.
"""

from __future__ import annotations

import errno
import math
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from deploy.lab.loadgen.load_errors import LoadError
from deploy.lab.loadgen.protocol import AnswerParser, BadAnswer, WireProtocol
from deploy.lab.loadgen.recorder import Recorder
from deploy.lab.loadgen.spec import LoadSpec
from deploy.lab.loadgen.timer import AbsoluteTimer

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
        "intended_s",
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
        self.intended_s: float | None = None  # of the request outstanding
        self.unsent = b""  # what the socket did not take of that request


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
        self._idle: deque[_Connection] = deque()
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
        return all(connection.intended_s is None for connection in self._connections)

    def begin(self, begin_s: float, arrivals: Iterator[float]) -> None:
        """Send requests from now on: ``arrivals`` are seconds after ``begin_s``, ascending."""
        self._begin_s = begin_s
        self._arrivals = arrivals
        self._next_due_s = begin_s + next(arrivals, math.inf)

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
        outstanding = [c.intended_s for c in self._connections if c.intended_s is not None]
        for intended_s in [*outstanding, *self._waiting]:
            self._recorder.failed(intended_s, "interrupted", now_s - intended_s)

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
                self._send(self._idle.popleft(), due_s)
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

    def _send(self, connection: _Connection, intended_s: float) -> None:
        connection.intended_s = intended_s
        request = self._next_request()
        try:
            count = connection.send(request)
        except BlockingIOError:
            count = 0
        except OSError:
            self._fail(connection, "reset")
            return
        if count < len(request):
            connection.unsent = request[count:]
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
        intended_s = connection.intended_s
        parser = connection.parser
        if intended_s is None:
            if data:
                self.events["unsolicited"] += 1
            self._lose(connection)
            return
        try:
            verdict = parser.feed(data) if data else parser.end()
        except BadAnswer:
            self._fail(connection, "bad_answer")
            return
        if verdict is None:
            if not data:
                self._fail(connection, "closed")
            return
        if verdict:
            self._recorder.failed(intended_s, verdict)
        else:
            self._recorder.answered(intended_s, now_s)
        connection.intended_s = None
        connection.backoff_s = 0.0
        if parser.must_close or not data or connection.unsent:  # unsent: answered before it had the whole request
            self._lose(connection)
            self._open(connection)
        else:
            self._free(connection)

    def _free(self, connection: _Connection) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    def _fail(self, connection: _Connection, kind: str, after_s: float | None = None) -> None:
        """The connection is of no use any more, and with it the request outstanding, if there is one."""
        if connection.intended_s is not None:
            self._recorder.failed(connection.intended_s, kind, after_s)
        self._lose(connection)

    def _lose(self, connection: _Connection) -> None:
        if connection.sock is not None:
            del self._by_fd[connection.sock.fileno()]
            connection.sock.close()  # and leaves the epoll with it
            connection.sock = None
        if connection in self._idle:
            self._idle.remove(connection)
        connection.connecting = False
        connection.intended_s = None
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
        self._free(connection)

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
            if connection.intended_s is not None:
                if now_s - connection.intended_s >= timeout_s:
                    self._fail(connection, "timeout", timeout_s)
            elif connection.sock is None:
                if now_s >= connection.deadline_s:
                    self._open(connection)
            elif connection.connecting and now_s >= connection.deadline_s:
                self._refuse(connection)
        self._recorder.close_until(now_s)
        self._next_tick_s = min(now_s + TICK_S, self._recorder.next_close_s)
