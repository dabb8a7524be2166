"""Sources with real sockets on loopback, and the servers they watch."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import selectors
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from manager.model.reach import parse_reach
from manager.model.registration import Application, Tier
from manager.model.source import Source, SourceKind, SourceStatus
from manager.telemetry.feed import Feed
from manager.telemetry.source_thread import Sources
from manager.telemetry.store import WindowStore

DEADLINE_S = 30.0
LOOPBACK = parse_reach("loopback")
NOW_S = 1_700_000_000.0


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}"
        time.sleep(0.005)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Clock:
    """A time that stands still unless moved."""

    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Fed:
    """A feed, its store and its clock."""

    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.store = WindowStore(self.clock)
        self.feed = self.another("front")

    def another(self, name: str) -> Feed:
        return Feed("shop", name, SourceKind.PUSH, self.store, self.clock, steady=self.clock)

    @property
    def status(self) -> SourceStatus:
        return self.feed.status()

    @property
    def count(self) -> int:
        return sum(slot.histogram.count for slot in self.store.slots().get("shop", ()))

    @property
    def requests(self) -> float | None:
        known = [slot.requests for slot in self.store.slots().get("shop", ()) if slot.requests is not None]
        return sum(known) if known else None


@pytest.fixture
def fed() -> Fed:
    return Fed()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to whatever is due next: nothing is waited for."""

    def __init__(self) -> None:
        super().__init__(_NoWaiting(self))
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s


class _NoWaiting(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is due ever again"
        self._loop.now_s += timeout
        return super().select(0)


def run_virtually(work: Callable[[], Coroutine[Any, Any, None]], for_s: float) -> None:
    """Run a coroutine that would go on for ever, for a while of virtual time."""

    async def bounded() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await work()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(bounded())


def shop(*sources: Source, name: str = "shop", vm: str = "shop-web") -> Application:
    return Application(name, (Tier("front", (vm,)),), sources=sources)


@dataclass
class Running:
    """Sources that run, with their syslog port."""

    sources: Sources
    port: int
    asked: list[float]

    def configure(self, *applications: Application, **addresses: str) -> None:
        """``addresses`` by VM, with underscores for dashes."""
        known = {vm.replace("_", "-"): frozenset({address}) for vm, address in addresses.items()}
        self.sources.configure(applications, 5.0, known)

    def status(self, source: str, application: str = "shop") -> SourceStatus:
        [found] = [one for one in self.sources.statuses() if (one.application, one.source) == (application, source)]
        return found

    def count(self, application: str = "shop") -> int:
        return sum(slot.histogram.count for slot in self.sources.slots().get(application, ()))

    def send(self, *packets: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for packet in packets:
                sender.sendto(packet, ("127.0.0.1", self.port))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    asked: list[float] = []
    port = free_port(socket.SOCK_DGRAM)
    sources = Sources(
        "127.0.0.1", port, lambda: asked.append(time.monotonic()), log_dirs=[str(tmp_path)], reach=LOOPBACK
    )
    sources.start()
    yield Running(sources, port, asked)
    sources.close()
    assert "telemetry" not in {thread.name for thread in threading.enumerate()}


class Web:
    """An HTTP server whose answer to every request is ``answer(path) -> (status, body)``."""

    def __init__(self, answer: Callable[[str], tuple[int, bytes]]) -> None:
        self.paths: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.paths.append(self.path)
                status, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that hangs up is no trouble."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web() -> Iterator[Callable[..., Web]]:
    started: list[Web] = []

    def start(answer: Callable[[str], tuple[int, bytes]]) -> Web:
        started.append(Web(answer))
        return started[-1]

    yield start
    for one in started:
        one.close()


@dataclass
class Nginx:
    """A real NGINX on loopback, with an access log as docs/how-to/sources.md has it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> Path:
        return self.folder / "access.log"

    def get(self, count: int = 1) -> None:
        import httpx

        with httpx.Client(trust_env=False, verify=False) as client:  # to read the authorities takes 40 ms of CPU time
            for _ in range(count):
                assert client.get(f"http://127.0.0.1:{self.port}/").status_code == 200

    def reopen(self) -> None:
        subprocess.run([*self._command, "-s", "reopen"], check=True, capture_output=True)

    @property
    def _command(self) -> list[str]:
        return ["nginx", "-e", str(self.folder / "error.log"), "-c", str(self.folder / "nginx.conf")]


def documented(directive: str) -> list[str]:
    """The lines of docs/how-to/sources.md that hold an NGINX directive."""
    text = (Path(__file__).parents[2] / "docs/how-to/sources.md").read_text()
    return [line.strip() for line in text.splitlines() if line.strip().startswith(directive + " ")]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Callable[..., Nginx]]:
    if shutil.which("nginx") is None:
        pytest.skip("NOT TESTED: nginx is not installed")
    started: list[Nginx] = []

    def start(syslog_port: int) -> Nginx:
        folder, port = tmp_path / "nginx", free_port()
        folder.mkdir()
        [log_format] = documented("log_format")
        to_syslog, to_file = documented("access_log")
        to_syslog = to_syslog.replace("192.168.122.1:5514", f"127.0.0.1:{syslog_port}")
        to_file = to_file.replace("/var/log/nginx/equipoise.log", f"{folder}/access.log")
        places = "".join(
            f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;\n" if os.geteuid() == 0 else ""  # the folder is for its owner alone
        (folder / "nginx.conf").write_text(
            f"{user}daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{ {places}\n{log_format}\n{to_syslog}\n{to_file}\n"
            f'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello"; }} }} }}\n'
        )
        made = Nginx(folder, port, subprocess.Popen(["true"]))
        made.process.wait()
        made.process = subprocess.Popen(made._command)
        started.append(made)
        until(lambda: _accepts(port), "nginx answers")
        return made

    yield start
    for one in started:
        one.process.terminate()
        one.process.wait()


@pytest.fixture
def memcached() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a real memcached on a port."""
    if shutil.which("memcached") is None:
        pytest.skip("NOT TESTED: memcached is not installed")
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "8", "-u", "nobody"])
        )
        until(lambda: _accepts(port), "memcached answers")
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
