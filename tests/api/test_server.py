"""The server: listening, serving, and ending without dropping a request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from flask import Flask, request

from manager.api.manager_server import make_server
from manager.errors import SettingsError
from manager.serving.server import HttpServer, Lanes
from manager.settings import load_settings
from manager.store.database import Database

LONG_S = 120.0
"""What a busy machine may take."""


@pytest.fixture
def slow() -> tuple[Flask, threading.Event]:
    """An application that answers once its server listens no more, and an event that tells it was asked."""
    app = Flask("slow")
    asked = threading.Event()

    @app.get("/")
    def answer() -> bytes:
        asked.set()
        host, port = request.host.split(":")
        deadline_s = time.monotonic() + LONG_S
        while time.monotonic() < deadline_s:
            try:
                socket.create_connection((host, int(port))).close()
            except ConnectionError:
                return b"x" * 800_000
        return b"it still listens"

    return app, asked


def test_a_request_under_way_is_answered_before_the_end(
    slow: tuple[Flask, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manager.serving.server._DRAIN_S", 2 * LONG_S)
    app, asked = slow
    server = HttpServer(app, "127.0.0.1", 0, Lanes(2))
    server.start()
    [(host, port)] = server.addresses
    idle = socket.create_connection((host, port))  # keeps a connection open and asks for nothing
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(httpx.get(f"http://{host}:{port}/", timeout=LONG_S)))
    client.start()
    assert asked.wait(LONG_S)
    began_s = time.monotonic()
    server.close()
    assert time.monotonic() - began_s < LONG_S
    client.join(LONG_S)
    assert [(one.status_code, len(one.content)) for one in answers] == [(200, 800_000)]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, port))
    assert idle.recv(1) == b""
    idle.close()


def test_it_listens_before_it_serves_and_a_taken_port_is_an_error(slow: tuple[Flask, threading.Event]) -> None:
    server = HttpServer(slow[0], "127.0.0.1", 0, Lanes(1))
    [(host, port)] = server.addresses
    with pytest.raises(SettingsError, match=f"port {port}: .*in use"):
        HttpServer(slow[0], host, port, Lanes(1))
    with pytest.raises(SettingsError, match="cannot listen on nowhere"):
        HttpServer(slow[0], "nowhere.invalid", port, Lanes(1))
    server.start()
    server.close()


def test_the_manager_serves_what_its_settings_say(
    migrated: Callable[[str], Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    flags = {"listen_port": port, "state_dir": str(tmp_path), "trusted_proxy": "::ffff:127.0.0.1"}
    server = make_server(load_settings(None, {}, flags), migrated("sqlite"), {})
    server.start()
    try:
        assert server.addresses == [("127.0.0.1", port)]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/api/v1/health").json()["status"] == "ok"
            assert client.get("/api/v1/vms").status_code == 401
            assert "server" not in client.get("/metrics").headers
            by_proxy = client.get("/api/v1/health", headers={"X-Forwarded-Proto": "https"})
            assert "strict-transport-security" in by_proxy.headers
    finally:
        server.close()
