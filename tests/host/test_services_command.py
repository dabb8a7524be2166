"""`equipoise services` on libvirt's test driver, whose domain has the loopback for a tap."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from manager.cli.main import main

XML = """<node><domain type='test'>
  <name>web</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid><memory unit='KiB'>8388608</memory>
  <os><type arch='i686'>hvm</type></os>
  <devices><interface type='bridge'>
    <mac address='52:54:00:00:00:01'/><source bridge='br0'/><target dev='lo'/>
  </interface>
  <interface type='user'><mac address='52:54:00:00:00:02'/></interface></devices>
</domain></node>"""
ASKED = 50

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bpftool") is None, reason="NOT TESTED: needs root and bpftool"
)


@pytest.fixture(autouse=True)
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.xml").write_text(XML)
    monkeypatch.setenv("EQUIPOISE_LIBVIRT_URI", f"test://{tmp_path}/node.xml")


@pytest.fixture
def port() -> Iterator[int]:
    """A server on the loopback that is asked again and again while the test runs."""
    ended = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=answer_all, args=(server,), daemon=True).start()
        asking = threading.Thread(target=ask, args=(server.getsockname(), ended), daemon=True)
        asking.start()
        yield server.getsockname()[1]
        ended.set()
        asking.join()


def answer_all(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test has ended
        while True:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


def ask(address: tuple[str, int], ended: threading.Event) -> None:
    """On a new connection each time: of one that is older, a port as high as this one shows no service."""
    while not ended.wait(1 / ASKED):
        with socket.create_connection(address) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.recv(1000)


def test_what_serves_is_shown_with_what_cannot_be_seen(port: int) -> None:
    shown = CliRunner().invoke(main, ["services", "--duration", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    body = json.loads(shown.stdout)
    [row] = [row for row in body["services"] if row["port"] == port]
    assert (row["vm"], row["interface"], row["protocol"], row["protocol_share"]) == ("web", "lo", "http", 1.0)
    assert row["requests"] >= row["answers"] > 0
    assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert (row["errors"], row["unanswered"]) == (0, 0)
    assert [(each["vm"], each["why"].partition(":")[0]) for each in body["not_visible"]] == [
        ("web", "is connected by QEMU itself")
    ]
    assert body["lost"] == {"services": 0, "times": 0}


def test_as_a_table(port: int) -> None:
    del port
    shown = CliRunner().invoke(main, ["services", "--duration", "0.5", "web"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0, shown.output
    assert "http" in shown.output
    assert "is connected by QEMU itself: it has no tap" in shown.output


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["nobody"], 1, "no running domain with a network interface: nobody"),
        (["--duration", "0"], 2, "0.0 is not in the range 0.1<=x<=3600"),
    ],
)
def test_wrong_use(words: list[str], status: int, says: str) -> None:
    shown = CliRunner().invoke(main, ["services", *words])
    assert (shown.exit_code, says in shown.output) == (status, True), shown.output
