"""The client over real connections. What it makes of answers is in tests/loop/test_link.py."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from manager.errors import ManagerUnavailable
from manager.protocol import http_answer
from manager.protocol.client import Answer, Connection, ManagerClient


class Handler(BaseHTTPRequestHandler):
    """Notes what it is asked and redirects what is asked below /old."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, str | None, bytes]]
    connections: set[tuple[str, int]]
    closed: threading.Semaphore
    """Released for each connection that the server has closed."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, self.headers["Authorization"], body))
        self.connections.add(self.client_address)
        self.send_response(302 if self.path.startswith("/old") else 200)
        self.send_header("Location", "/api/v1/health")
        self.send_header("Content-Length", "2")
        self.close_connection = self.path.endswith("/last")  # without a word
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *_: object) -> None:
        """Silent."""


class Server(ThreadingHTTPServer):
    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        super().shutdown_request(request)
        Handler.closed.release()


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked, Handler.connections, Handler.closed = [], set(), threading.Semaphore(0)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_requests_use_one_connection_and_the_path_of_the_url(server: str) -> None:
    client = ManagerClient(f"{server}/equipoise/", "s3cret")
    assert client.get("/vms", limit="2", cursor="a b") == {}
    client.request("POST", "/hosts/a/release", body={"vm": "ü"})
    client.close()
    assert Handler.asked == [
        ("GET", "/equipoise/api/v1/vms?limit=2&cursor=a+b", "Bearer s3cret", b""),
        ("POST", "/equipoise/api/v1/hosts/a/release", "Bearer s3cret", b'{"vm": "\\u00fc"}'),
    ]
    assert len(Handler.connections) == 1


def test_a_redirect_is_not_followed(server: str) -> None:
    client = ManagerClient(f"{server}/old", "s3cret")
    with pytest.raises(ManagerUnavailable, match="302 Found"):
        client.get("/health")
    client.close()
    assert len(Handler.asked) == 1, "a token is told to the manager alone"


def test_a_connection_that_the_manager_has_closed_is_opened_anew(server: str) -> None:
    client = ManagerClient(server, "")
    for path in ("/last", "/last"):
        assert client.get(path) == {}
        assert Handler.closed.acquire(timeout=120)
    assert client.get("/health") == {}
    client.close()
    assert (len(Handler.asked), len(Handler.connections)) == (3, 3), "each was asked once"


def test_of_several_managers_of_a_name_one_that_is_gone_is_passed_over(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(server.rpartition(":")[2])
    asked: list[str] = []

    def answer(host: str, *given: object, **named: object) -> object:
        asked.append(host)
        places = [("127.0.0.9", port), ("127.0.0.1", port)]  # nobody listens at the first one
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    client = ManagerClient(f"http://managers.example:{port}", "s3cret")
    assert client.get("/health") == {}
    client.close()
    assert asked == ["managers.example"]
    assert len(Handler.asked) == 1


def test_an_answer_that_came_too_late_is_not_that_to_the_next_question() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            first, _ = listening.accept()
            second, _ = listening.accept()
            with first, second:
                second.recv(65536)
                second.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n2")

        thread = threading.Thread(target=answer)
        thread.start()
        connection = Connection(f"http://127.0.0.1:{listening.getsockname()[1]}", answer_s=0.2)
        with pytest.raises(TimeoutError):
            connection.exchange("GET", "/1", {}, None)
        assert connection.exchange("GET", "/2", {}, None).content == b"2"
        connection.close()
        thread.join()


@contextlib.contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """The URL of one that says this to the first request, byte by byte, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def say() -> None:
            with listening.accept()[0] as asked, contextlib.suppress(OSError):  # the client may hang up first
                asked.recv(65536)
                for byte in answer:
                    asked.sendall(bytes([byte]))

        thread = threading.Thread(target=say)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"is": "it"}',
        b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{"is": "it"}',
        b'HTTP/1.0 200 OK\r\n\r\n{"is": "it"}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{"\r\na\r\nis": "it"}\r\n0\r\n\r\n',
        b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"is": "it"}',
    ],
    ids=["with a length", "and the end of the connection", "until the end", "in chunks", "after another one"],
)
def test_however_an_answer_comes_it_is_read(answer: bytes) -> None:
    with saying(answer) as url:
        client = ManagerClient(url, "")
        assert client.get("/health") == {"is": "it"}
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n{}",
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with saying(answer) as url:
        client = ManagerClient(url, "")
        with pytest.raises(ManagerUnavailable, match="does not answer"):
            client.get("/health")
        client.close()


def test_two_answers_to_one_question_are_none() -> None:
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(one + one)
        with pytest.raises(HTTPException):
            http_answer.ParsedAnswer(ours).begin()


@dataclass
class Other:
    """Something that answers, and is no manager."""

    content: bytes

    def exchange(self, *_: object) -> Answer:
        return Answer(200, Message(), self.content)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("content", [b"", b"hello", b"[]", b"null", b'{"hello": 1}', b'{"items": {}, "next": ""}'])
def test_what_is_no_list_of_a_managers(content: bytes) -> None:
    with pytest.raises(ManagerUnavailable, match="http://m answers, but not as a manager does"):
        ManagerClient("http://m", "", Other(content)).items("/vms")


@pytest.mark.parametrize("content", [b"", b"hello", b"[]", b"null"])
def test_a_change_that_is_answered_by_something_else(content: bytes) -> None:
    with pytest.raises(ManagerUnavailable, match="http://m answers, but not as a manager does"):
        ManagerClient("http://m", "", Other(content)).change("POST", "/proposals/1/approve")


def test_nobody_there() -> None:
    client = ManagerClient("http://127.0.0.1:9", "")
    with pytest.raises(ManagerUnavailable, match=r"the manager at http://127.0.0.1:9 does not answer: .*refused"):
        client.get("/health")


@pytest.mark.parametrize("url", ["manager:8750", "ftp://manager", "http://", "http://[::1", "/manager", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ManagerUnavailable, match="is not the URL of a manager"):
        ManagerClient(url, "")


@pytest.mark.parametrize(
    "url", ["http://a:secret@manager", "http://a:secret@", "a:secret@manager", "http://secret@m:x"]
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ManagerUnavailable, match="no name or password") as refused:
        ManagerClient(url, "")
    assert "secret" not in str(refused.value)


def test_an_answer_that_is_too_long_is_not_read(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answer, "MOST_BYTES", 1)
    client = ManagerClient(server, "s3cret")
    with pytest.raises(ManagerUnavailable, match="longer than 1 bytes"):
        client.get("/vms")
    client.close()


class Endless(BaseHTTPRequestHandler):
    """Answers with more than anybody should hold."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(100):
                self.wfile.write(b" " * 2**20)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


def test_a_manager_cannot_fill_an_agents_memory_with_an_answer() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as endless:
        threading.Thread(target=endless.serve_forever, daemon=True).start()
        client = ManagerClient(f"http://127.0.0.1:{endless.server_address[1]}", "s3cret")
        tracemalloc.start()
        try:
            with pytest.raises(ManagerUnavailable):
                client.get("/vms")
            assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        finally:
            tracemalloc.stop()
            client.close()
            endless.shutdown()


@pytest.mark.parametrize("name", ["ü", "a b", "shop-cache?x", "a#b", "\udcff"])
def test_what_is_no_name_is_sent_as_it_is_given(server: str, name: str) -> None:
    client = ManagerClient(server, "")
    assert client.get(f"/vms/{name}", host=name) == {}
    client.close()
    [(_, target, _, _)] = Handler.asked
    sent = urlsplit(target)
    assert unquote(sent.path, errors="surrogateescape") == f"/api/v1/vms/{name}"
    assert parse_qs(sent.query, errors="surrogateescape") == {"host": [name]}


def test_answers_leave_no_garbage(server: str) -> None:
    client = ManagerClient(server, "")
    client.get("/health")
    gc.collect()
    gc.disable()
    try:
        client.get("/health")
        assert not [found for found in gc.get_objects() if isinstance(found, http_answer.ParsedAnswer)][1:]
    finally:
        gc.enable()
        client.close()
