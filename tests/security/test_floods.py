"""Whole processes that anybody floods: they hold at most 64 MiB more, and a probe is answered within a second."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from manager.store.database import open_database
from manager.store.tokens import Role, create_token
from manager.store.users import create_user, hash_password
from tests.ports import reserved_ports
from tests.security.certificates import authority, certificate
from tests.security.floods import Cost, Flood, address, connected, probe_of, watched

START_S = 120.0
HEAD = b"POST /api/v1/hosts/kvm1/report HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True)
class Target:
    """A process, where it listens, and how its health is asked for."""

    pid: int
    port: int
    probe: Callable[[], int]
    state: Path


@dataclass(frozen=True)
class Starting:
    """A process that may not listen yet."""

    process: subprocess.Popen[bytes]
    target: Target
    log: Path

    def ready(self) -> Target:
        """Wait until it answers."""
        deadline_s = time.monotonic() + START_S
        while self.target.probe() != 200:
            assert self.process.poll() is None and time.monotonic() < deadline_s, self.log.read_text()
            time.sleep(0.1)
        for _ in range(20):
            self.target.probe()
        return self.target


@dataclass(frozen=True)
class Agent(Target):
    """An agent and where it takes response times. Its health is its metrics page, which tells of ticks, too."""

    push_port: int
    unix: Path
    syslog_port: int


def start(stack: ExitStack, folder: Path, command: list[str], port: int, probe: Callable[[], int]) -> Starting:
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
    return Starting(process, Target(process.pid, port, probe, folder / "state"), folder / "log")


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with ExitStack() as stack:
        [port] = stack.enter_context(reserved_ports(1))
        folder = tmp_path_factory.mktemp("manager")
        yield start(stack, folder, ["manager", f"--listen-port={port}"], port, probe_of(port, "/healthz")).ready()


@pytest.fixture(scope="module")
def tls_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with ExitStack() as stack:
        [port] = stack.enter_context(reserved_ports(1))
        folder = tmp_path_factory.mktemp("tls")
        ours = authority(folder, "ours")
        pem = certificate(folder, ours, "IP:127.0.0.1")
        trusted = ssl.create_default_context(cafile=str(ours.certificate))
        command = ["manager", f"--listen-port={port}", f"--tls-certificate={pem.certificate}", f"--tls-key={pem.key}"]
        yield start(stack, folder, command, port, probe_of(port, "/healthz", trusted)).ready()


@dataclass(frozen=True)
class StartingAgent:
    """An agent that may not listen yet."""

    starting: Starting
    folder: Path
    push_port: int
    syslog_port: int


@pytest.fixture(scope="module", autouse=True)
def starting_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartingAgent]:
    """A real one, of a host without libvirt, for which it waits for ten seconds: so it begins before it is needed."""
    with ExitStack() as stack:
        port, push_port, syslog_port = stack.enter_context(reserved_ports(3))
        folder = tmp_path_factory.mktemp("agent")
        (folder / "root" / "run").mkdir(parents=True)  # with a lock of its own
        for name in ("proc", "sys"):
            (folder / "root" / name).symlink_to(f"/{name}")
        (folder / "state").mkdir(mode=0o700)
        (folder / "state" / "agent.token").write_text("eqt_of_nobody")
        command = ["agent", "--host-name=kvm1", f"--root-dir={folder}/root", "--libvirt-uri=test:///nowhere"]
        command += [f"--agent-listen-port={port}", f"--push-listen-port={push_port}"]
        command += [f"--syslog-listen-port={syslog_port}", "--manager-url=http://127.0.0.1:9"]
        starting = start(stack, folder, command, port, probe_of(port, "/metrics"))
        yield StartingAgent(starting, folder, push_port, syslog_port)


@pytest.fixture(scope="module")
def agent(starting_agent: StartingAgent) -> Agent:
    target = starting_agent.starting.ready()
    unix = target.state / "run" / "push.sock"
    return Agent(
        target.pid, target.port, target.probe, target.state, starting_agent.push_port, unix, starting_agent.syslog_port
    )


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_half_sent_requests(manager: Target, many: bool) -> None:
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many)) as flood:
        flood.send(1000, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Begun: ")
        for _ in cost.lasting(1):
            flood.more(b"x")
    cost.judge()


def test_half_sent_requests_of_the_address_that_asks_for_health(manager: Target) -> None:
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, False, "127.0.0.1")) as flood:
        flood.send(1000, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Begun: ")
        for _ in cost.lasting(1):
            flood.more(b"x")
    cost.judge(turned_away=5)  # those that come amid a thousand of their own address may be closed at once


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_large_bodies(manager: Target, many: bool) -> None:
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many)) as flood:
        flood.send(100, HEAD + b"Content-Length: 33000000\r\n\r\n")
        for _ in cost.lasting(1.5):
            flood.more(b"x" * 65536)
    cost.judge()


@pytest.mark.parametrize("length", [b"Content-Length: 15000", b"Transfer-Encoding: chunked"])
def test_bodies_that_trickle(manager: Target, length: bytes) -> None:
    head = b"POST /api/v1/hosts/kvm1/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many=True)) as flood:
        flood.send(500, head + length + b"\r\n\r\n")
        for _ in cost.lasting(1):
            flood.more(b"1\r\nx\r\n")
    cost.judge()


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_tls_handshakes_that_stop_half_way(tls_manager: Target, many: bool) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    hello = outgoing.read()
    with watched(tls_manager.pid, tls_manager.probe) as cost, closing(Flood(tls_manager.port, many)) as flood:
        flood.send(1000, hello)
        for _ in cost.lasting(2):
            pass
    # One that has not shaken hands yet is closed for newer ones; from many addresses it looks like these.
    cost.judge(turned_away=len(cost.answers) // 5 if many else 0)


def test_streams(manager: Target) -> None:
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many=True)) as flood:
        flood.send(500, b"GET /live?topic=fleet HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in cost.lasting(1):
            pass
    cost.judge()


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_streams_of_somebody_who_may_read(manager: Target, many: bool) -> None:
    """A token that leaked, or a page that was opened again and again."""
    with (
        closing(open_database(f"sqlite:///{manager.state}/equipoise.db")) as database,
        database.registering() as session,
    ):
        _, secret = create_token(session, f"leaked-{many}", Role.VIEWER, None, datetime.now(UTC))
    request = f"GET /live?topic=fleet HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n"
    with watched(manager.pid, manager.probe) as cost, closing(Flood(manager.port, many)) as flood:
        flood.send(500, request.encode())
        for _ in cost.lasting(1.5):
            pass
        answers = [flood.answer(number) for number in range(len(flood.opened))]
    print({answer: answers.count(answer) for answer in set(answers)})
    cost.judge()
    assert answers.count(200) >= 1
    assert any(streams(manager.port, request.encode()) for _ in cost.lasting(10)), "places are not free again"


def streams(port: int, request: bytes) -> bool:
    """Whether one more stream is begun."""
    with suppress(OSError), closing(connected(port, "127.0.0.3")) as opened:
        opened.sendall(request)
        return b" 200 " in opened.recv(100)
    return False


def hammer(port: int, many: bool, request: bytes, seconds: float, cost: Cost | None = None) -> list[int]:
    """Ask again and again, over eight connections at a time, until ``cost`` has enough; answers the statuses."""
    until_s = time.monotonic() + seconds
    cost = cost or Cost(enough=0)
    statuses: list[int] = []

    def run(first: int) -> None:
        number = first
        while cost.goes_on(until_s):
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
        statuses = hammer(manager.port, many, request_, 1.2, cost)
    print(len(statuses), {status: statuses.count(status) for status in set(statuses)})
    cost.judge()
    assert set(statuses) <= {401, 422, 429, 503}
    if not many:
        assert len([status for status in statuses if status != 429]) < 60


QUIET = "127.250.0.1"


def test_a_right_password_gets_in_from_a_quiet_address_while_many_try(manager: Target) -> None:
    password = "correct horse battery"
    url = f"sqlite:///{manager.state}/equipoise.db"
    with closing(open_database(url)) as database, database.registering() as session:
        create_user(session, "ada", Role.VIEWER, hash_password(password), datetime.now(UTC))
    body = urllib.parse.urlencode({"name": "ada", "password": password}).encode()
    enter = posted("/sign-in", "application/x-www-form-urlencoded", body)
    flood = threading.Thread(target=hammer, args=(manager.port, True, SIGN_IN, 4.5))
    flood.start()
    begun_s = time.monotonic()
    statuses: list[int] = []
    while 303 not in statuses and time.monotonic() < begun_s + 4:
        with suppress(OSError, IndexError, ValueError), closing(connected(manager.port, QUIET)) as opened:
            opened.settimeout(5)
            opened.sendall(enter)
            statuses.append(int(opened.recv(1000).split()[1]))
        time.sleep(0.3)
    took_s = time.monotonic() - begun_s
    flood.join()
    print(f"{took_s:.1f} s: {statuses}")
    assert statuses[-1:] == [303]
    assert took_s < 4, "while the flood goes on"


@pytest.mark.parametrize("path", ["/sign-in", "/metrics", "/api/v1/vms", "/healthz", "/nothing"])
def test_what_is_open_asked_again_and_again(manager: Target, path: str) -> None:
    with watched(manager.pid, manager.probe) as cost:
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        statuses = hammer(manager.port, False, request.encode(), 1, cost)
    print(len(statuses), {status: statuses.count(status) for status in set(statuses)})
    cost.judge()


POST = posted("/samples/shop", "application/json", b'{"times_ms": [1]}')
PUSH_HEAD = b"POST /samples/shop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SCRAPE_S = 0.15
"""Between probes of an agent, whose metrics page is answered ten times a second in the long run."""


def judge_agent(agent: Agent, cost: Cost) -> None:
    cost.judge()
    with urllib.request.urlopen(f"http://127.0.0.1:{agent.port}/metrics") as page:
        text = page.read().decode()
    [age_s] = re.findall(r"^equipoise_agent_tick_age_seconds (\S+)$", text, re.MULTILINE)
    assert float(age_s) < 2.5, "ticks go on, one a second"


@pytest.fixture(params=["unix", "one", "many"])
def push_flood(request: pytest.FixtureRequest, agent: Agent) -> Iterator[Flood]:
    """Connections to where response times are posted."""
    unix = request.param == "unix"
    with closing(Flood(agent.unix if unix else agent.push_port, request.param == "many")) as flood:
        yield flood


@pytest.mark.parametrize(
    ("count", "head", "more"),
    [
        (600, b"GET /samples/shop HTTP/1.1\r\nHost: x\r\nX-Begun: ", b"x"),
        (100, PUSH_HEAD + b"Content-Length: 33000000\r\n\r\n", b"x" * 65536),
        (300, PUSH_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (300, PUSH_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"4000\r\n" + b" " * 0x4000 + b"\r\n"),
    ],
    ids=["heads", "bodies", "trickle", "chunks"],
)
def test_a_flood_where_response_times_are_posted(
    agent: Agent, push_flood: Flood, count: int, head: bytes, more: bytes
) -> None:
    with watched(agent.pid, agent.probe, SCRAPE_S, 3) as cost:
        push_flood.send(count, head)
        for _ in cost.lasting(0.7):
            push_flood.more(more)
    judge_agent(agent, cost)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_posts_to_the_agent(agent: Agent, many: bool) -> None:
    with watched(agent.pid, agent.probe, SCRAPE_S, 3) as cost:
        statuses = hammer(agent.push_port, many, POST, 1, cost)
    judge_agent(agent, cost)
    assert set(statuses) <= {404, 429, 503}
    assert 404 in statuses, "it has no application"


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_packets_to_the_agent(agent: Agent, many: bool) -> None:
    senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(200 if many else 1)]
    for number, sender in enumerate(senders):
        sender.bind((address(number), 0))
    line = b"<190>Mar  1 12:00:00 web nginx: request_time=0.005"
    with watched(agent.pid, agent.probe, SCRAPE_S, 3) as cost:
        for _ in cost.lasting(1):
            for sender in senders * (2 if many else 400):
                sender.sendto(line, ("127.0.0.1", agent.syslog_port))
    for sender in senders:
        sender.close()
    judge_agent(agent, cost)
