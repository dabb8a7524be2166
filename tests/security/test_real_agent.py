"""A real agent with its default settings, and a manager that has it read, ask and believe what it should not."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import AGENT_TOKEN_FILE, HOST, Service
from tests.ports import reserved_ports
from tests.security.floods import Flood, probe_of, watched

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a real agent needs root")

WAIT_S = 120.0
WORD = "wOrD-of-an-internal-server"
METADATA = "169.254.169.254"
SPY = """
import sys
log = open({file!r}, "a", buffering=1)
def spy(event, given):
    if event == "socket.connect" and isinstance(given[1], tuple):
        log.write(f"connect {{given[1][0]}} {{given[1][1]}}\\n")
        if "169.254" in str(given[1][0]):
            raise ConnectionRefusedError(111, "not in a test")
    elif event == "open" and isinstance(given[0], (str, bytes)):
        path = given[0] if isinstance(given[0], str) else given[0].decode()
        log.write(f"open {{path}}\\n")
        if path in ("/proc/kmsg", "/dev/zero"):
            raise PermissionError(13, "not in a test")
sys.addaudithook(spy)
"""
AS_NOBODY = """
import fcntl, os, sys
for folder, _, files in os.walk(sys.argv[1]):
    for name in files:
        try:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        except OSError:
            continue
        print(os.path.join(folder, name))
"""


class Internal(BaseHTTPRequestHandler):
    """A server for this machine alone, whose answers are nobody's business."""

    def do_GET(self) -> None:
        body = f'{{"status": "error", "errorType": "bad_data", "error": "{WORD}"}}'.encode()
        self.send_response(400, WORD)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@dataclass
class Lured:
    """A manager, an agent, and what the agent's process opened and connected to."""

    service: Service
    process: subprocess.Popen[bytes]
    folder: Path
    state: Path
    agent_port: int
    syslog_port: int
    internal_port: int

    def seen(self) -> set[str]:
        return set((self.folder / "seen").read_text().splitlines())

    def sources(self) -> dict[str, dict[str, Any]]:
        """What the agent says of each source."""
        items = self.service.ask("GET", "/applications/shop/sources")["items"]
        return {one["source"]: one["status"] for one in items if one["status"]}


def nginx_file(name: str, path: str) -> dict[str, str]:
    return {"type": "nginx_file", "name": name, "path": path}


def lures(internal_port: int, folder: Path) -> list[dict[str, Any]]:
    """Sources of an application, each of which reaches for what is none of its business."""
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/etc/shadow")
    return [
        nginx_file("kmsg", "/proc/kmsg"),
        nginx_file("device", "/dev/zero"),
        nginx_file("fifo", str(folder / "fifo")),
        nginx_file("link", str(folder / "link")),
        {"type": "http_probe", "name": "metadata", "url": f"http://{METADATA}/latest/meta-data/"},
        {"type": "http_probe", "name": "loopback", "url": f"http://127.0.0.1:{internal_port}/"},
        {"type": "http_probe", "name": "by-name", "url": f"http://localhost:{internal_port}/"},
        {"type": "prometheus", "name": "query", "url": f"http://127.0.0.1:{internal_port}", "query": "up"},
        {"type": "nginx_syslog", "name": "log"},
        {"type": "push", "name": "pushed"},
    ]


def soon(what: Any, why: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end_s, why
        time.sleep(0.1)


@pytest.fixture(scope="module")
def internal() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Internal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def lured(internal: int) -> Iterator[Lured]:
    # Others may enter this folder, as they may /run.
    folder = Path(tempfile.mkdtemp(prefix="equipoise-lured-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        (folder / "manager").mkdir()
        service = stack.enter_context(contextlib.closing(Service(folder / "manager")))
        service.prepare()
        service.ask("PUT", f"/hosts/{HOST}", {})
        service.ask("PUT", "/vms/test", {"class": "critical", "host": HOST})
        tiers = [{"name": "web", "vms": ["test"]}]
        service.ask("PUT", "/applications/shop", {"tiers": tiers, "sources": lures(internal, folder)})
        yield start_agent(stack, service, folder, internal)


def start_agent(stack: contextlib.ExitStack, service: Service, folder: Path, internal_port: int) -> Lured:
    (folder / "root" / "run").mkdir(parents=True)
    for name in ("proc", "sys"):
        (folder / "root" / name).symlink_to(f"/{name}")
    state = folder / "state"
    state.mkdir(mode=0o755)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SPY.format(file=str(folder / "seen")))
    agent_port, syslog_port = stack.enter_context(reserved_ports(2))
    options = {
        "state-dir": state,
        "host-name": HOST,
        "root-dir": folder / "root",
        "libvirt-uri": "test:///default",
        "manager-url": service.url,
        "token-file": folder / "manager" / "state" / AGENT_TOKEN_FILE,
        "agent-listen-port": agent_port,
        "syslog-listen-port": syslog_port,
        "interval-s": 0.5,
        "sync-s": 0.2,
    }
    environ = {name: text for name, text in os.environ.items() if not name.startswith("EQUIPOISE_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "manager.cli", "agent", *(f"--{name}={value}" for name, value in options.items())],
            env=environ | {"PYTHONPATH": str(folder / "site")},
            stdout=log,
            stderr=log,
            umask=0o022,
        )

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    made = Lured(service, process, folder, state, agent_port, syslog_port, internal_port)

    def tried() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        failing = {name for name, status in made.sources().items() if status["detail"]}
        return failing >= {"kmsg", "metadata", "query"}

    soon(tried, "sources are tried")
    return made


@pytest.mark.parametrize("path", ["/proc/kmsg", "/dev/zero", "fifo", "link"])
def test_no_log_is_opened_outside_the_folders_of_logs(lured: Lured, path: str) -> None:
    assert f"open {lured.folder / path}" not in lured.seen()


def test_no_probe_goes_to_the_metadata_of_a_cloud_nor_to_this_machine(lured: Lured) -> None:
    connected = {line for line in lured.seen() if line.startswith("connect ")}
    assert f"connect {METADATA} 80" not in connected
    assert {line for line in connected if line.endswith(f" {lured.internal_port}")} == set()


def test_no_word_of_an_answer_is_shown(lured: Lured) -> None:
    shown = {name: status["detail"] for name, status in lured.sources().items()}
    assert {name: detail for name, detail in shown.items() if WORD in detail} == {}
    assert WORD not in (lured.folder / "log").read_text()


def test_every_source_that_was_refused_says_so(lured: Lured) -> None:
    """At each moment but that of an attempt."""

    def silent() -> list[str]:
        return [
            name
            for name, source in lured.sources().items()
            if name in {"kmsg", "device", "fifo", "link", "metadata", "loopback", "query"}
            and ("log_dirs" if source["type"] == "nginx_file" else "probe_networks") not in source["detail"]
        ]

    soon(lambda: silent() == [], "each says which setting refused it")


def test_response_times_from_this_machine_steer_nothing(lured: Lured) -> None:
    """Every local user reaches the port of the metrics page."""
    post = urllib.request.Request(
        f"http://127.0.0.1:{lured.agent_port}/samples/shop",
        b'{"times_ms": [1]}',
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(post):
        pass
    refused.value.close()
    assert refused.value.code in {403, 404, 405}


def test_no_local_user_can_open_what_would_lock_the_agent_out(lured: Lured) -> None:
    found = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(lured.folder / "root" / "run")],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == ""


def test_a_state_directory_that_was_open_to_others_is_closed(lured: Lured) -> None:
    assert stat.S_IMODE(lured.state.stat().st_mode) & 0o077 == 0
    assert {path.name for path in lured.state.iterdir() if path.is_file() and path.stat().st_mode & 0o077} == set()


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_packets_of_strangers_cost_little(lured: Lured, many: bool) -> None:
    senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(100 if many else 1)]
    for number, sender in enumerate(senders):
        sender.bind((f"127.7.0.{number + 1}", 0))
    probe = probe_of(lured.agent_port, "/metrics")
    with watched(lured.process.pid, probe, 0.15, 3) as cost:
        for _ in cost.lasting(1):
            for sender in senders * (4 if many else 400):
                sender.sendto(b"<190>Mar  1 12:00:00 web nginx: request_time=0.005", ("127.0.0.1", lured.syslog_port))
    for sender in senders:
        sender.close()
    cost.judge()


POST = b"POST /samples/shop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 33000000\r\n"


@pytest.mark.parametrize(
    ("count", "head", "more"), [(600, POST, b"x"), (100, POST + b"\r\n", b"x" * 65536)], ids=["heads", "bodies"]
)
def test_a_flood_at_the_page_that_is_open_by_default(lured: Lured, count: int, head: bytes, more: bytes) -> None:
    probe = probe_of(lured.agent_port, "/metrics")
    with (
        watched(lured.process.pid, probe, 0.15, 3) as cost,
        contextlib.closing(Flood(lured.agent_port, many=True)) as flood,
    ):
        flood.send(count, head)
        for _ in cost.lasting(1):
            flood.more(more)
    cost.judge()
