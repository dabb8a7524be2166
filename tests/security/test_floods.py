"""Whole processes that anybody floods: they hold at most 64 MiB more, and a probe is answered within a second."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.security.certificates import authority, certificate
from tests.security.floods import MIB, Cost, Flood, address, connected, probe_of, watched

MOST_BYTES = 64 * MIB
MOST_S = 1.0
START_S = 60.0
HEAD = b"POST /api/v1/hosts/kvm1/report HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True)
class Target:
    """A process, where it listens, and how its health is asked for."""

    pid: int
    port: int
    probe: Callable[[], int]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return int(found.getsockname()[1])


def started(stack: ExitStack, folder: Path, command: list[str], port: int, probe: Callable[[], int]) -> Target:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("EQUIPOISE_")}
    environ |= {"EQUIPOISE_STATE_DIR": str(folder / "state"), "EQUIPOISE_INTERVAL_S": "1"}
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "manager.cli", *command], env=environ, stdout=log, stderr=log, start_new_session=True
    )

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(30) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    stack.callback(end)
    deadline_s = time.monotonic() + START_S
    while probe() != 200:
        assert process.poll() is None and time.monotonic() < deadline_s, (folder / "log").read_text()
        time.sleep(0.1)
    for _ in range(20):
        probe()
    return Target(process.pid, port, probe)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    port = free_port()
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("manager")
        yield started(stack, folder, ["manager", f"--listen-port={port}"], port, probe_of(port, "/healthz"))


@pytest.fixture(scope="module")
def tls_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    port = free_port()
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("tls")
        ours = authority(folder, "ours")
        pem = certificate(folder, ours, "IP:127.0.0.1")
        trusted = ssl.create_default_context(cafile=str(ours.certificate))
        command = ["manager", f"--listen-port={port}", f"--tls-certificate={pem.certificate}", f"--tls-key={pem.key}"]
        yield started(stack, folder, command, port, probe_of(port, "/healthz", trusted))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    port = free_port()
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("agent")
        (folder / "state").mkdir(mode=0o700)
        (folder / "state" / "agent.token").write_text("eqt_of_nobody")
        command = ["agent", "--simulate=idle", f"--agent-listen-port={port}", "--manager-url=http://127.0.0.1:9"]
        yield started(stack, folder, command, port, probe_of(port, "/metrics"))


@pytest.fixture(params=["manager", "agent"])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found


def judge(cost: Cost, least_probes: int = 5) -> None:
    print(f"held {cost.held / MIB:.1f} MiB, slowest {cost.slowest_s:.2f} s, {len(cost.answers)} probes")
    assert cost.held < MOST_BYTES
    assert cost.slowest_s < MOST_S
    assert len(cost.answers) >= least_probes
    assert set(cost.answers) == {200}


def lasting(seconds: float) -> Iterator[None]:
    """Turns until the time is over."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield
        time.sleep(0.02)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_half_sent_requests(target: Target, many: bool) -> None:
    with watched(target.pid, target.probe) as cost, closing(Flood(target.port, many)) as flood:
        flood.send(1000, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Begun: ")
        for _ in lasting(1):
            flood.more(b"x")
    judge(cost)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_large_bodies(target: Target, many: bool) -> None:
    with watched(target.pid, target.probe) as cost, closing(Flood(target.port, many)) as flood:
        flood.send(100, HEAD + b"Content-Length: 33000000\r\n\r\n")
        for _ in lasting(1.5):
            flood.more(b"x" * 65536)
    judge(cost)


@pytest.mark.parametrize("length", [b"Content-Length: 15000", b"Transfer-Encoding: chunked"])
def test_bodies_that_trickle(manager: Target, length: bytes) -> None:
    head = b"POST /api/v1/hosts/kvm1/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many=True)) as flood:
        flood.send(500, head + length + b"\r\n\r\n")
        for _ in lasting(1):
            flood.more(b"1\r\nx\r\n")
    judge(cost)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_tls_handshakes_that_stop_half_way(tls_manager: Target, many: bool) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    hello = outgoing.read()
    with watched(tls_manager.pid, tls_manager.probe) as cost, closing(Flood(tls_manager.port, many)) as flood:
        flood.send(1000, hello)
        for _ in lasting(1):
            pass
    judge(cost)


def test_streams(manager: Target) -> None:
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many=True)) as flood:
        flood.send(500, b"GET /live?topic=fleet HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in lasting(1):
            pass
    judge(cost)


def hammer(port: int, many: bool, request: bytes, seconds: float) -> list[int]:
    """Ask again and again, over eight connections at a time; answers the statuses."""
    end_s = time.monotonic() + seconds
    statuses: list[int] = []

    def run(first: int) -> None:
        number = first
        while time.monotonic() < end_s:
            number += 8
            source = address(number) if many else "127.0.0.2"
            with suppress(OSError, IndexError, ValueError), closing(connected(port, source)) as opened:
                opened.sendall(request)
                statuses.append(int(opened.recv(1000).split()[1]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def posted(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


JOIN = posted("/api/v1/hosts/kvm1/join", "application/json", b'{"token": "eqj_' + b"x" * 43 + b'"}')
SIGN_IN = posted("/sign-in", "application/x-www-form-urlencoded", b"name=root&password=0123456789")


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("request_", [JOIN, SIGN_IN], ids=["join", "sign-in"])
def test_tries_without_a_token(manager: Target, many: bool, request_: bytes) -> None:
    with watched(manager.pid, manager.probe) as cost:
        statuses = hammer(manager.port, many, request_, 1.2)
    print(len(statuses), {status: statuses.count(status) for status in set(statuses)})
    judge(cost)
    assert set(statuses) <= {401, 422, 429, 503}
    if not many:
        assert len([status for status in statuses if status != 429]) < 60


@pytest.mark.parametrize("path", ["/sign-in", "/metrics", "/api/v1/vms", "/healthz", "/nothing"])
def test_what_is_open_asked_again_and_again(manager: Target, path: str) -> None:
    with watched(manager.pid, manager.probe) as cost:
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        statuses = hammer(manager.port, False, request.encode(), 1)
    print(len(statuses), {status: statuses.count(status) for status in set(statuses)})
    judge(cost)


def test_posts_to_the_agent(agent: Target) -> None:
    with watched(agent.pid, agent.probe) as cost:
        statuses = hammer(agent.port, True, posted("/samples/shop", "application/json", b'{"times_ms": [1]}'), 1)
    judge(cost)
    assert set(statuses) <= {403, 404, 429, 503}
