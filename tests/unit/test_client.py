"""The client over real connections. What it makes of answers is in tests/loop/test_link.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from manager.client import ManagerClient
from manager.errors import ManagerUnavailable


class Handler(BaseHTTPRequestHandler):
    """Notes what it is asked and redirects what is asked below /old."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, str | None, bytes]]
    connections: set[tuple[str, int]]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, self.headers["Authorization"], body))
        self.connections.add(self.client_address)
        self.send_response(302 if self.path.startswith("/old") else 200)
        self.send_header("Location", "/api/v1/health")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked, Handler.connections = [], set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
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


def test_nobody_there() -> None:
    client = ManagerClient("http://127.0.0.1:9", "")
    with pytest.raises(ManagerUnavailable, match=r"the manager at http://127.0.0.1:9 does not answer: .*refused"):
        client.get("/health")


@pytest.mark.parametrize("url", ["manager:8750", "ftp://manager", "http://", "http://[::1", "/manager", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ManagerUnavailable, match="is not the URL of a manager"):
        ManagerClient(url, "")
