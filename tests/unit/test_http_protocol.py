"""What a connection may ask: heads, trailers and requests before an answer have bounds, and framing is strict."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from manager.serving.exchange import EXCHANGE
from manager.serving.http_protocol import HEAD_BYTES
from manager.serving.server import HttpServer, Lanes

ENDLESS_BYTES = 64 * 1024 * 1024
GET = b"GET /quick HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Echo:
    """Answers with method, path and body; ``/slow`` once it is ``released``."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        exchange = environ[EXCHANGE]
        exchange.limit_bytes = 2 * HEAD_BYTES
        self.asked.set()
        if environ["PATH_INFO"] == "/slow":
            self.released.wait(120)
        text = f"<{environ['REQUEST_METHOD']} {environ['PATH_INFO']} ".encode() + environ["wsgi.input"].read() + b">"
        start_response("200 OK", [("Content-Length", str(len(text)))])
        return [text]


@pytest.fixture
def app() -> Echo:
    return Echo()


@pytest.fixture
def opened(app: Echo) -> Iterator[socket.socket]:
    with ExitStack() as stack:
        server = HttpServer(app, "127.0.0.1", 0, Lanes(2))
        stack.callback(server.close)
        server.start()
        yield stack.enter_context(closing(socket.create_connection(server.addresses[0], timeout=120)))


def read_until(opened: socket.socket, end: bytes) -> bytes:
    """What is answered up to some bytes, or until the connection ends."""
    answer = b""
    while not answer.endswith(end) and (more := opened.recv(10_000)):
        answer += more
    return answer


def all_of(opened: socket.socket) -> bytes:
    """What is answered until the server ends the connection, which it may do while more was sent than it reads."""
    answer = b""
    try:
        while more := opened.recv(10_000):
            answer += more
    except ConnectionResetError:
        pass
    return answer


def send(opened: socket.socket, data: bytes) -> None:
    """Send, also to a server that has ended the connection meanwhile."""
    with suppress(OSError):
        opened.sendall(data)


def flood(opened: socket.socket, begin: bytes, endless: bytes) -> int:
    """Send without an end until the connection does; returns how many bytes the kernel took, of which it keeps some."""
    opened.sendall(begin)
    sent = 0
    try:
        while sent < ENDLESS_BYTES:
            sent += opened.send(endless)
    except OSError:
        pass
    return sent


def test_one_request_after_the_other(opened: socket.socket) -> None:
    for _ in range(2):
        opened.sendall(GET + b"\r\n")
        assert read_until(opened, b">").endswith(b"<GET /quick >")
    opened.sendall(CHUNKED + b"3\r\nabc\r\n2;some=thing\r\nde\r\n0\r\nTrailer: x\r\n\r\n")
    assert read_until(opened, b">").endswith(b"<POST /quick abcde>")
    opened.sendall(b"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\n\r\n" + b"b" * 40_000)
    assert read_until(opened, b">").endswith(b"b>")


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    ("begin", "unit"), [(b"GET /", b"a"), (GET, b"X-Some: thing\r\n"), (GET + b"X: ", b"a"), (GET, b"A")]
)
def test_a_long_head_is_refused_however_it_comes(opened: socket.socket, begin: bytes, unit: bytes, pieces: int) -> None:
    text = begin + unit * (HEAD_BYTES // len(unit) + 1)
    if pieces == 1:
        text += b": x" if unit == b"A" else b" HTTP/1.1\r\nHost: x" if begin == b"GET /" else b""
        text += b"\r\n\r\n"
    for start in range(0, len(text), len(text) // pieces + 1):
        send(opened, text[start : start + len(text) // pieces + 1])
    assert all_of(opened).startswith(b"HTTP/1.1 400 ")


def test_a_head_within_the_limit_is_answered(opened: socket.socket) -> None:
    opened.sendall(GET + b"X: " + b"a" * (HEAD_BYTES - 100) + b"\r\n\r\n")
    assert read_until(opened, b">").endswith(b"<GET /quick >")


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        pytest.param(GET, b"X-Some: thing\r\n" * 100, id="headers"),
        pytest.param(b"", b"\r\n" * 1000, id="empty lines"),
        pytest.param(CHUNKED + b"1\r\nx\r\n0\r\n", b"X-Some: thing\r\n" * 100, id="trailers"),
        pytest.param(CHUNKED + b"1\r\nx\r\n0\r\nX: ", b"a" * 1000, id="a trailer"),
        pytest.param(CHUNKED + b"1;", b"a" * 1000, id="an extension of a chunk"),
    ],
)
def test_nothing_but_a_body_is_endless(opened: socket.socket, begin: bytes, endless: bytes) -> None:
    assert flood(opened, begin, endless) < ENDLESS_BYTES


def test_a_request_before_the_answer_to_another_one_ends_the_connection_after_that(
    opened: socket.socket, app: Echo
) -> None:
    opened.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + (GET + b"\r\n") * 1000)
    assert app.asked.wait(120)
    opened.sendall(GET + b"\r\n")
    app.released.set()
    answer = all_of(opened)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"<GET /slow >")


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET /quick HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(GET + b"Host: y\r\n\r\n", id="two hosts"),
        pytest.param(GET + b"X : y\r\n\r\n", id="a space before a colon"),
        pytest.param(GET + b"X: y\r\n z\r\n\r\n", id="a folded line"),
        pytest.param(GET + b"X: y\0z\r\n\r\n", id="a zero byte"),
        pytest.param(GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(GET + b"Content-Length: +1\r\n\r\na", id="a length with a sign"),
        pytest.param(GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="length and chunks"),
        pytest.param(GET + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", id="chunks within something"),
        pytest.param(CHUNKED + b"x\r\n", id="a chunk without a length"),
        pytest.param(CHUNKED + b"1\r\nabc\r\n", id="a chunk longer than it says"),
        pytest.param(b"GET /quick HTTP/1.1\nHost: x\n\n", id="lines without a carriage return"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", id="bytes in a path"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="TLS"),
        pytest.param(
            b"POST /quick HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 35\r\n\r\n"
            + GET
            + b"\r\n",
            id="an upgrade whose body is a request",
        ),
    ],
)
def test_what_is_no_request_is_refused_once(opened: socket.socket, request_: bytes) -> None:
    opened.sendall(request_)
    answer = all_of(opened)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_an_upgrade_is_not_made_and_old_clients_are_answered(opened: socket.socket) -> None:
    opened.sendall(GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert read_until(opened, b">").startswith(b"HTTP/1.1 200 ")
    opened.sendall(b"GET http://x/quick HTTP/1.0\r\n\r\n")
    assert all_of(opened).endswith(b"<GET /quick >")
