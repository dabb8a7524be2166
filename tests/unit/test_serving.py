"""The HTTP server: who stays connected, and when bodies are read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from manager.serving.door import DoorSocket, GuestLimits, Guests
from manager.serving.edge import EdgeLimits
from manager.serving.exchange import EXCHANGE, Exchange, Lane, OpenedBody
from manager.serving.pool import Pool
from manager.serving.server import HttpServer, Lanes, ServerLimits

LIMIT = 1000
StartServer = Callable[..., int]


class Seen(DoorSocket):
    """A guest that tells whether it was cut off."""

    cut_off = False

    def cut(self) -> None:
        self.cut_off = True


class Party:
    """Guests, and a clock that is set by hand."""

    def __init__(self, limits: GuestLimits, free: str = "") -> None:
        self.now_s = 0.0
        self.guests = Guests(limits, frozenset({free}), lambda: self.now_s)
        self.all: list[Seen] = []

    def enter(self, address: str) -> Seen:
        guest = Seen()
        guest.key = (address, len(self.all))
        self.all.append(guest)
        self.now_s += 1
        self.guests.enter(guest)
        return guest

    def cut_off(self) -> list[int]:
        return [number for number, guest in enumerate(self.all) if guest.cut_off]

    def close(self) -> None:
        for guest in self.all:
            guest.close()


@pytest.fixture
def party() -> Iterator[Callable[..., Party]]:
    with ExitStack() as stack:

        def make(*limits: Any, **named: Any) -> Party:
            made = Party(GuestLimits(*limits, **named), free="proxy")
            stack.callback(made.close)
            return made

        yield make


def test_the_address_with_too_many_displaces_its_own(party: Callable[..., Party]) -> None:
    found = party(address=2, all=10)
    for address in ("a", "b", "a", "a", "b", "proxy", "proxy", "proxy"):
        found.enter(address)
    assert found.cut_off() == [0]
    found.enter("a")
    assert found.cut_off() == [0, 2]


def test_all_addresses_that_a_subscriber_has_count_as_one(party: Callable[..., Party]) -> None:
    found = party(address=2, all=10)
    for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"):
        found.enter(address)
    assert found.cut_off() == []
    found.enter("2001:db8::3%eth0")
    assert found.cut_off() == [0]
    found.enter("10.0.0.1")
    assert found.cut_off() == [0, 3]
    found.all[1].close()
    found.enter("2001:db8::4")
    assert found.cut_off() == [0, 3]


def test_a_proxy_does_not_count_with_its_neighbours() -> None:
    found = Party(GuestLimits(address=2, all=20), free="2001:db8::9")
    for address in ("2001:db8::9", "2001:db8::9", "2001:db8::9", "2001:db8::1", "2001:db8::2"):
        found.enter(address)
    assert found.cut_off() == []
    found.enter("2001:db8::3")
    assert found.cut_off() == [3]
    found.close()


def test_of_too_many_together_the_address_with_the_most_gives_way(party: Callable[..., Party]) -> None:
    found = party(address=9, all=4)
    for address in ("a", "b", "b", "c", "d"):
        found.enter(address)
    assert found.cut_off() == [1]


def test_a_request_under_way_gives_way_last_and_one_that_was_answered_waits_anew(party: Callable[..., Party]) -> None:
    found = party(address=2, all=10)
    first, second = found.enter("a"), found.enter("a")
    found.guests.begin(first)
    found.enter("a")
    assert found.cut_off() == [1]
    second.close()
    found.guests.end(first)
    found.enter("a")
    assert found.cut_off() == [1, 2], "the third has waited for longer than the first since its answer"


def test_one_whose_sender_is_known_gives_way_to_nobody_and_may_be_idle(party: Callable[..., Party]) -> None:
    found = party(address=1, all=1, wait_s=10, idle_s=100, known=2)
    for _ in range(2):
        found.guests.trust(found.enter("a"))
    found.enter("a")
    assert found.cut_off() == []
    found.now_s += 20
    found.guests.sweep()
    assert found.cut_off() == [2]
    found.guests.trust(found.enter("b"))
    assert found.cut_off() == [0, 2], "above their own limit the one that was idle for longest"
    found.now_s += 200
    found.guests.begin(found.all[1])
    found.guests.sweep()
    assert found.cut_off() == [0, 2, 3], "a request that is answered has no end here"


def test_what_was_closed_counts_no_more(party: Callable[..., Party]) -> None:
    found = party(address=2, all=2)
    for _ in range(10):
        found.enter("a").close()
        found.enter("b").close()
    assert found.cut_off() == []
    assert found.guests.find(("a", 0)) is None
    assert found.guests.find(None) is None


class Asked:
    """A WSGI application: allows bodies on ``/allowed``, streams on ``/stream``, opens ``/opened`` and ``/torn``.

    The rest of ``/opened`` is made once ``opened`` is set.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool, int]] = []
        self.left = threading.Event()
        self.opened = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        exchange: Exchange = environ[EXCHANGE]
        path, length = environ["PATH_INFO"], int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read()
        self.calls.append((path, exchange.undecided, len(body)))
        if path == "/stream":
            start_response("200 OK", [])
            return self._stream(exchange)
        if path in {"/opened", "/torn"}:
            start_response("200 OK", [])
            return OpenedBody(b"opening ", self._rest if path == "/opened" else self._torn)
        if path == "/allowed":
            exchange.trusted = True
            if exchange.undecided:
                exchange.limit_bytes = LIMIT
        status = "401 Unauthorized" if path == "/refused" else "200 OK" if length <= LIMIT else "413 Too Large"
        start_response(status, [("Content-Length", "2")])
        return [b"ok"]

    def _rest(self) -> bytes:
        return b"and rest" if self.opened.wait(120) else b"was not read"

    def _torn(self) -> bytes:
        raise ValueError("no rest")

    def _stream(self, exchange: Exchange) -> Iterator[bytes]:
        try:
            while not exchange.gone:
                yield b"still here\n"
        finally:
            self.left.set()


@pytest.fixture
def app() -> Asked:
    return Asked()


@pytest.fixture
def start(app: Asked) -> Iterator[StartServer]:
    with ExitStack() as stack:

        def begin(**limits: Any) -> int:
            lanes = Lanes(2, 1, lambda path: Lane.STREAM if path == "/stream" else Lane.WORK)
            few = ServerLimits(GuestLimits(address=2), EdgeLimits(**limits))
            server = HttpServer(app, "127.0.0.1", 0, lanes, limits=few)
            stack.callback(server.close)
            server.start()
            return server.addresses[0][1]

        yield begin


def asked(port: int, *parts: bytes, close: bool = True) -> bytes:
    """All that is answered to what is sent in parts, after each the answer being waited for."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as opened:
        for part in parts:
            opened.sendall(part)
            answer += opened.recv(10_000)
            if answer.endswith(b"content-length: 2\r\n\r\n"):
                answer += opened.recv(10_000)
        while close and (more := opened.recv(10_000)):
            answer += more
    return answer


def head(path: str, *more: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: x", *more, "", "")).encode()


def test_a_body_is_read_only_where_the_application_allows_it(start: StartServer, app: Asked) -> None:
    port = start()
    answer = asked(port, head("/refused", "Content-Length: 33554432"))
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert app.calls == [("/refused", True, 0)]
    answer = asked(port, head("/refused", "Content-Length: 900", "Expect: 100-continue"))
    assert b" 401 " in answer and b" 100 " not in answer
    end = b"x" * 899 + b"y"
    answer = asked(port, head("/allowed", "Content-Length: 900", "Expect: 100-continue", "Connection: close"), end)
    assert answer.startswith(b"HTTP/1.1 100 ") and b" 200 OK" in answer
    assert app.calls[-2:] == [("/allowed", True, 0), ("/allowed", False, 900)]


def test_a_small_body_from_a_known_sender_is_read_at_once(start: StartServer, app: Asked) -> None:
    port = start(at_once_bytes=900)
    known, more = head("/allowed", "Content-Length: 3") + b"abc", head("/allowed", "Content-Length: 901") + b"x" * 901
    last = head("/allowed", "Content-Length: 900", "Connection: close") + b"x" * 900
    assert asked(port, known, known, more, last).count(b"200 OK") == 4
    assert app.calls == [
        ("/allowed", True, 0),
        ("/allowed", False, 3),
        ("/allowed", False, 3),
        ("/allowed", True, 0),
        ("/allowed", False, 901),
        ("/allowed", False, 900),
    ]


def test_a_body_that_turns_out_too_large_is_refused_by_the_application(start: StartServer, app: Asked) -> None:
    chunks = b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n0\r\n\r\n"
    answer = asked(start(), head("/allowed", "Transfer-Encoding: chunked", "Connection: close") + chunks)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert app.calls[-1] == ("/allowed", False, 0)


def test_a_body_that_trickles_is_given_up(start: StartServer, app: Asked) -> None:
    answer = asked(start(body_s=0.2), head("/allowed", "Content-Length: 900") + b"x")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert app.calls == [("/allowed", True, 0)]


def test_bodies_have_a_limit_together(start: StartServer) -> None:
    answer = asked(start(held_bytes=100), head("/allowed", "Content-Length: 101") + b"x" * 101)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after" in answer


def test_a_stream_is_told_that_its_reader_left_and_another_has_no_room(start: StartServer, app: Asked) -> None:
    port = start()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as reader:
        reader.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        begun = reader.recv(1000)
        while b"still here" not in begun:
            begun += reader.recv(1000)
        assert b"200 OK" in begun
        assert b" 503 " in asked(port, b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert not app.left.is_set()
    assert app.left.wait(120)


def test_what_opens_a_body_is_sent_before_the_rest_is_made(start: StartServer, app: Asked) -> None:
    with socket.create_connection(("127.0.0.1", start()), timeout=120) as reader:
        reader.sendall(b"GET /opened HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        begun = b""
        while b"opening " not in begun:
            begun += reader.recv(1000)
        app.opened.set()
        rest = b"".join(iter(lambda: reader.recv(1000), b""))
    assert b"200 OK" in begun and b"transfer-encoding: chunked" in begun
    assert rest.strip(b"\r\n") == b"8\r\nand rest\r\n0"


def test_who_reads_no_chunks_or_no_body_gets_an_opened_one_accordingly(start: StartServer, app: Asked) -> None:
    port = start()
    app.opened.set()
    whole = asked(port, b"GET /opened HTTP/1.0\r\n\r\n")
    assert b"content-length: 16\r\n" in whole and whole.endswith(b"\r\n\r\nopening and rest")
    app.opened.clear()
    assert b"opening" not in asked(port, b"HEAD /opened HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def test_a_rest_that_fails_cuts_the_connection(start: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = asked(start(), b"GET /torn HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.endswith(b"opening \r\n"), "it does not look as if that were all"
    assert "no rest" in caplog.text


def test_one_that_was_recognized_stays_while_others_displace_each_other(start: StartServer) -> None:
    port = start()
    known = head("/allowed", "Content-Length: 0")
    with socket.create_connection(("127.0.0.1", port), timeout=120) as kept, ExitStack() as stack:
        for _ in range(2):
            kept.sendall(known)
            answer = b""
            while not answer.endswith(b"ok"):
                answer += kept.recv(1000)
            others = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120)) for _ in range(4)]
            assert others[0].recv(1) == others[1].recv(1) == b""


def test_a_thread_that_cannot_begin_is_no_thread_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the unit's limit of tasks is reached for a moment."""
    pool = Pool("x", 1, 0)
    with monkeypatch.context() as patched:

        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            pool.submit(lambda: 1)
    assert not pool.full
    assert pool.submit(lambda: 2).result(120) == 2
    pool.close()
