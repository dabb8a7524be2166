"""`equipoise profile cache` as a process: what a signal, or the end of its terminal, leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.serving.server import HttpServer, Lanes
from manager.store.database import Database
from policies.installed import InstalledPolicy
from policies.priority import POLICY
from tests.api.conftest import HOST, START, Api, Clock
from tests.api.sweeping import Agents

WAIT_S = 200
RATE = 0.03
"""Seconds that pass for a second of the agents."""


@pytest.fixture
def agents(migrated: Callable[[str], Database]) -> Agents:
    clock = Clock()
    policies = {POLICY.name: InstalledPolicy(POLICY, "equipoise")}
    database = migrated("sqlite")
    app = create_app(ManagerContext(database, policies, stale_s=3000, min_samples=20, clock=clock))
    api = Api(app, database, clock)
    clock.now_s = START.timestamp()
    api.make_tokens()
    api.ok("PUT", "/vms/web-1", {"class": "critical"})
    tiers = [{"name": "web", "vms": ["web-1"]}]
    api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 9}, "cache": "40%"})
    api.ok("PUT", f"/hosts/{HOST}", {"cache": "on"})
    made = Agents(api)
    made.pause(30)
    return made


@pytest.fixture
def url(agents: Agents) -> Iterator[str]:
    """The interface, listening, while the agents tick."""
    server = HttpServer(agents.api.app, "127.0.0.1", 0, Lanes(4))
    server.start()
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(5 * RATE):
            agents.pause(5)

    ticking = threading.Thread(target=tick)
    ticking.start()
    [(host, port)] = server.addresses
    yield f"http://{host}:{port}"
    ended.set()
    ticking.join()
    server.close()


def start(agents: Agents, url: str, folder: Path) -> subprocess.Popen[str]:
    """The command, once it has written its second allocation."""
    words = [
        "profile",
        "cache",
        "shop",
        "--yes",
        "--ways",
        "9,8,7,6",
        "--seconds",
        "50",
        "--settle",
        "0",
        "--manager-url",
        url,
    ]
    given = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
    own = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    try:
        started = subprocess.Popen(
            [sys.executable, "-m", "manager.cli", *words, "--state-dir", str(folder)],
            env=given | {"EQUIPOISE_TOKEN": agents.api.secrets["operator"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, own)
    deadline_s = time.monotonic() + WAIT_S
    while registered(agents) != "8 ways":
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < deadline_s, registered(agents)
        time.sleep(0.05)
    return started


def registered(agents: Agents) -> str | None:
    found: str | None = agents.api.ok("GET", "/applications/shop")["cache"]
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_has_the_former_value_put_back(
    agents: Agents, url: str, tmp_path: Path, number: signal.Signals
) -> None:
    started = start(agents, url, tmp_path)
    started.send_signal(number)
    out, errors = started.communicate(timeout=WAIT_S)
    assert (started.returncode, registered(agents)) == (1, "40%"), errors
    assert "It ended early: interrupted." in out
    assert "The cache of shop is 40% again." in out
    assert "Traceback" not in errors


def test_what_a_kill_leaves_the_command_that_was_printed_puts_back(agents: Agents, url: str, tmp_path: Path) -> None:
    started = start(agents, url, tmp_path)
    started.kill()
    _, errors = started.communicate(timeout=WAIT_S)
    assert registered(agents) == "8 ways"
    [command] = [line.partition("kill: ")[2] for line in errors.splitlines() if "kill: " in line]
    given = os.environ | {"EQUIPOISE_TOKEN": agents.api.secrets["operator"]}
    subprocess.run(["sh", "-c", command], env=given, check=True, capture_output=True, timeout=WAIT_S)
    assert registered(agents) == "40%"
