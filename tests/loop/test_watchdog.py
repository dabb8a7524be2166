"""What systemd is told, and that it is told nothing any more once ticks, or all threads of the manager, hang."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from manager.notify import Notifier, Watchdog
from manager.serving.server import HttpServer, Lanes

TOP = Path(__file__).parents[2]
WAIT_S = 200.0

HANGING = """
import sys, time
from manager.cli.main import main
from manager.loop.tick import ControlLoop
tick = ControlLoop.tick
def hang(loop, *given, **named):
    if loop.number == 5:
        time.sleep(600)
    return tick(loop, *given, **named)
ControlLoop.tick = hang
main(sys.argv[1:])
"""


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """As systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inlet:
        inlet.bind("\0" + address[1:] if address.startswith("@") else address)
        inlet.settimeout(WAIT_S)
        yield inlet


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@equipoise-{secrets.token_hex(8)}"


def told(inlet: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in inlet.recv(4096).decode().splitlines())


def test_systemd_is_told_in_its_words(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address})
    assert notifier.watchdog_s is None
    with listening(address) as inlet:
        notifier.ready("controlling\nREADY=0")
        notifier.alive()
        notifier.status("fine")
        notifier.stopping()
        wanted = [{"READY": "1", "STATUS": "controlling READY=0"}, {"WATCHDOG": "1"}, {"STATUS": "fine"}]
        assert [told(inlet) for _ in range(4)] == [*wanted, {"STOPPING": "1"}]


@pytest.mark.parametrize(
    ("pid", "usec", "seconds"),
    [
        ("", "5000000", 5.0),
        ("this", "250000", 0.25),
        ("1", "5000000", None),
        ("", "0", None),
        ("", "soon", None),
        ("", "", None),
    ],
)
def test_who_is_watched_knows_it(pid: str, usec: str, seconds: float | None) -> None:
    pid = str(os.getpid()) if pid == "this" else pid
    assert Notifier({"WATCHDOG_PID": pid, "WATCHDOG_USEC": usec}).watchdog_s == seconds


def test_without_systemd_or_with_a_dead_one_nothing_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).ready("x")
    assert caplog.text == ""
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "systemd cannot be notified of ['READY=1']" in caplog.text


def test_pings_end_while_something_hangs_and_come_again(address: str) -> None:
    trouble = [""]
    with listening(address) as inlet:
        watchdog = Watchdog(Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "40000"}), lambda: trouble[0])
        watchdog.start()
        assert [told(inlet) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
        trouble[0] = "no tick"
        while (said := told(inlet)) == {"WATCHDOG": "1"}:
            pass
        assert said == {"STATUS": "no tick"}
        inlet.settimeout(0.2)
        with pytest.raises(TimeoutError):
            inlet.recv(100)
        inlet.settimeout(WAIT_S)
        trouble[0] = ""
        assert told(inlet) == {"WATCHDOG": "1", "STATUS": "recovered"}
        watchdog.close()


def test_a_server_whose_threads_all_hang_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manager.serving.server._HUNG_S", 2.5)
    go_on = threading.Event()

    def app(_environ: object, start_response):
        go_on.wait(WAIT_S)
        start_response("200 OK", [])
        return [b"done"]

    server = HttpServer(app, "127.0.0.1", 0, Lanes(2))
    with closing(server):
        server.start()
        assert server.hanging() == ""
        [(host, port)] = server.addresses
        clients = [socket.create_connection((host, port)) for _ in range(2)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        deadline_s = time.monotonic() + WAIT_S
        while not server.hanging():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert "no thread of the HTTP server was free" in server.hanging()
        go_on.set()
        while server.hanging():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        for client in clients:
            client.close()


def test_an_agent_whose_tick_hangs_is_not_alive_any_more_and_its_log_tells_where(tmp_path: Path) -> None:
    """The whole agent on a simulated host, and the test in place of systemd."""
    address = str(tmp_path / "notify")
    variables = os.environ | {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "1000000",
        "EQUIPOISE_TOKEN": "x",
        "EQUIPOISE_STATE_DIR": str(tmp_path / "state"),
        "EQUIPOISE_MANAGER_URL": "http://127.0.0.1:9",
        "EQUIPOISE_SIMULATE": "spike",
        "EQUIPOISE_INTERVAL_S": "0.2",
        "EQUIPOISE_AGENT_LISTEN_PORT": "0",
    }
    with listening(address) as inlet, (tmp_path / "log").open("w+") as log:
        agent = subprocess.Popen([sys.executable, "-c", HANGING, "agent"], env=variables, cwd=TOP, stderr=log)
        try:
            seen = []
            while not seen or "no tick has ended" not in seen[-1].get("STATUS", ""):
                seen.append(told(inlet))
            assert {"READY": "1", "STATUS": "controlling"} in seen
            assert seen.count({"WATCHDOG": "1"}) > 4, "while it ticked"
            inlet.settimeout(1.5)
            with pytest.raises(TimeoutError):
                inlet.recv(100)
            agent.send_signal(signal.SIGABRT)  # as systemd does
            assert agent.wait(WAIT_S) == -signal.SIGABRT
        finally:
            agent.kill()
            agent.wait()
        log.seek(0)
        said = log.read()
        assert "no more watchdog pings to systemd" in said
        assert 'File "<string>", line 8 in hang' in said, "where it hung"
