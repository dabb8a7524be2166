"""Sources that read the packets at taps, by the real program; the loopback stands for the tap of a VM."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from contextlib import closing

import pytest

from manager.model.source import SourceState, Tap
from manager.model.traffic import SeenService
from manager.telemetry.source_thread import Sources
from tests.telemetry.conftest import free_port, shop, until

VM, LOOPBACK = "shop-web", 1
UUID = "00000000-0000-4000-8000-000000000001"
ASKED = 30


def configure(sources: Sources, tap: Tap, window_s: float) -> None:
    sources.configure([shop(tap, vm=VM)], window_s, {}, {VM: frozenset({LOOPBACK})})


def counted(sources: Sources) -> int:
    return sum(window.histogram.count for windows in sources.slots().values() for window in windows)


def requested(sources: Sources) -> float:
    return sum(window.requests or 0 for windows in sources.slots().values() for window in windows)


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bpftool") is None, reason="NOT TESTED: needs root and bpftool"
)


def ask(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.recv(1000)


@pytest.mark.parametrize("window_s", [1.0, 0.05])
def test_requests_that_a_server_answers(window_s: float) -> None:
    """From when it is attached on."""
    with (
        closing(Sources("127.0.0.1", free_port(socket.SOCK_DGRAM))) as sources,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        sources.start()
        configure(sources, Tap("wire", server.getsockname()[1]), window_s)
        threading.Thread(target=answer_all, args=(server,), daemon=True).start()

        def asked() -> bool:
            ask(server)
            return counted(sources) >= ASKED

        until(asked, "answers to be counted")
        until(lambda: requested(sources) == counted(sources), "all answers")
        assert sources.statuses()[0].state is SourceState.OK


def test_a_service_that_no_source_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("source_thread", "tap_reader"):
        monkeypatch.setattr(f"manager.telemetry.{module}.FIND_S", 0.6)
    with (
        closing(Sources("127.0.0.1", free_port(socket.SOCK_DGRAM))) as sources,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        sources.start()
        sources.configure([], 1.0, {})
        sources.find_services({UUID: frozenset({LOOPBACK})})
        threading.Thread(target=answer_all, args=(server,), daemon=True).start()
        port = server.getsockname()[1]

        def found() -> list[SeenService]:
            ask(server)
            return [service for service in sources.services().services if service.port == port]

        until(found, "the service")
        [service] = found()
        assert (service.libvirt_uuid, service.protocol, service.error_share) == (UUID, "http", 0)
        assert service.rate_rps > 0
        assert service.p95_ms is not None


def answer_all(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test has ended
        while True:
            client, _ = server.accept()
            with client:
                while client.recv(1000):
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
