"""A manager of two processes on PostgreSQL: one is killed while agents report, and no acknowledged report is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from manager.model.registration import HostSpec
from manager.store.database import open_database
from manager.store.decision_packs import DecisionFilter, read_decisions
from manager.store.event_records import BEGIN, END
from manager.store.hosts import put_host
from manager.store.tokens import Role, create_token
from tests.api.conftest import START, record, report
from tests.ports import reserved_ports

DEADLINE_S = 200.0
HOSTS = 4


class Manager:
    """`equipoise manager` with two workers, and tokens of its agents and an admin."""

    def __init__(self, url: str, folder: Path) -> None:
        self.database = open_database(url)
        self.database.upgrade()
        self.secrets: dict[str, str] = {}
        with self.database.registering() as session:
            for number in range(HOSTS):
                name = f"kvm{number}"
                put_host(session, HostSpec(name), START, lambda _etag: None)
                self.secrets[name] = create_token(session, name, Role.HOST, name, START)[1]
            self.secrets["admin"] = create_token(session, "admin", Role.ADMIN, None, START)[1]
        self._reserved = ExitStack()
        [port] = self._reserved.enter_context(reserved_ports(1))
        self.address = f"http://127.0.0.1:{port}"
        options = {"listen-port": port, "database-url": url, "state-dir": folder}
        options |= {"workers": 2, "requests-per-s": 0}
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self.process = subprocess.Popen([sys.executable, "-m", "manager.cli", "manager", *flags])

    def close(self) -> None:
        """Once it has ended."""
        self._reserved.close()
        self.database.close()

    def client(self, name: str) -> httpx.Client:
        """One of a token."""
        headers = {"Authorization": f"Bearer {self.secrets[name]}", "Equipoise-Protocol": "1"}
        # By http alone: to read the authorities takes 40 ms of CPU time.
        return httpx.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=120, verify=False)

    def workers(self) -> list[int]:
        """Pids of those that run."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels."""
        with self.client("admin") as client:
            lines = client.get(f"{self.address}/metrics").raise_for_status().text.splitlines()
        return {
            name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        }


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@contextmanager
def running(url: str, folder: Path) -> Iterator[Manager]:
    manager = Manager(url, folder)

    def serves() -> bool:
        with suppress(httpx.TransportError), manager.client("admin") as client:
            return client.get("/hosts").status_code == 200
        return False

    try:
        wait_for(serves)
        yield manager
    finally:
        manager.process.terminate()
        status = manager.process.wait(DEADLINE_S)
        manager.close()
    assert status == 0


class Agent(threading.Thread):
    """Reports one decision at a time, and again until it is acknowledged."""

    def __init__(self, manager: Manager, place: int, enough: threading.Event) -> None:
        super().__init__(daemon=True)
        self._manager, self._place, self._enough = manager, place, enough
        self.acknowledged: list[str] = []

    def run(self) -> None:
        """Until there is enough."""
        name = f"kvm{self._place}"
        with self._manager.client(name) as client:
            for number in count():
                identifier = f"00000000-0000-4000-8000-{self._place:04d}{number:08d}"
                at = datetime.now(UTC).isoformat()
                decision = record(0) | {"id": identifier, "at": at, "host": name, "vm": None}
                while not self._reported(client, name, report(decisions=[decision])):
                    if self._enough.is_set():
                        return
                self.acknowledged.append(identifier)
                if self._enough.is_set():
                    return

    @staticmethod
    def _reported(client: httpx.Client, name: str, body: dict[str, Any]) -> bool:
        with suppress(httpx.TransportError):
            return bool(client.post(f"/hosts/{name}/report", json=body).status_code == 200)
        return False


def test_a_killed_worker_loses_no_acknowledged_report(new_url: Callable[[str], str], tmp_path: Path) -> None:
    url = new_url("postgresql")
    with running(url, tmp_path) as manager:
        wait_for(lambda: manager.metrics()["equipoise_workers"] == 2)
        first = manager.workers()
        assert len(first) == 2
        enough = threading.Event()
        agents = [Agent(manager, place, enough) for place in range(HOSTS)]
        for agent in agents:
            agent.start()
        wait_for(lambda: sum(len(agent.acknowledged) for agent in agents) > 20)
        os.kill(first[0], signal.SIGKILL)
        before = [len(agent.acknowledged) for agent in agents]
        wait_for(lambda: all(len(agent.acknowledged) > count + 3 for agent, count in zip(agents, before, strict=True)))
        wait_for(lambda: len(manager.workers()) == 2 and first[0] not in manager.workers())
        enough.set()
        for agent in agents:
            agent.join(DEADLINE_S)
        acknowledged = [identifier for agent in agents for identifier in agent.acknowledged]
        with manager.database.reading() as session:
            stored = [one.record_id for one in read_decisions(session, DecisionFilter(), BEGIN, END)]
        assert len(stored) == len(set(stored)), "stored once"
        assert set(acknowledged) <= set(stored)
        assert len(stored) <= len(acknowledged) + HOSTS, "at most one of each was stored, but its answer got lost"
        counted = manager.metrics()['equipoise_records_stored_total{kind="decision"}']
        assert counted == pytest.approx(len(stored), abs=HOSTS), "all workers count together, with the one that is gone"


def test_sighup_to_all_processes_ends_no_worker_that_has_no_successor(
    new_url: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(new_url("postgresql"), tmp_path) as manager:
        wait_for(lambda: manager.metrics()["equipoise_workers"] == 2)
        first = manager.workers()
        for pid in (manager.process.pid, *first):
            os.kill(pid, signal.SIGHUP)
        wait_for(lambda: len(manager.workers()) == 2 and not {*first} & {*manager.workers()})
    assert "ended with status" not in capfd.readouterr().err
