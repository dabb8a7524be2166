"""Two managers, real processes, on one PostgreSQL: each job once, also after one of them was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, update

from manager.model.registration import HostSpec
from manager.store.database import Database, open_database
from manager.store.hosts import put_host
from manager.store.models import EventRow, HostRow
from tests.plain_http import plain_client
from tests.ports import reserved_ports

_PATIENCE_S = 120
_PERIOD_S = 60


class Managers:
    """Processes by port, on a database of their own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.database: Database = open_database(url)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._url = url
        self._folder = folder
        self._stack = ExitStack()
        self._http = self._stack.enter_context(plain_client())

    def start(self) -> int:
        [port] = self._stack.enter_context(reserved_ports(1))
        settings = {"database_url": self._url, "listen_port": port, "state_dir": self._folder, "interval_s": 0.5}
        settings |= {"workers": 1}
        given = {f"EQUIPOISE_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "manager.cli", "manager", "--silent-intervals", "4"]
        self.processes[port] = subprocess.Popen(command, env=os.environ | given)
        wait(lambda: self.answers(port))
        return port

    def answers(self, port: int) -> bool:
        assert self.processes[port].poll() is None, "it ended"
        try:
            return self._http.get(f"http://127.0.0.1:{port}/api/v1/health").is_success
        except httpx.TransportError:
            return False

    def counts(self, job: str) -> dict[str, int]:
        """How often a job had which result, over all managers that live."""
        found: dict[str, int] = {}
        for port, process in self.processes.items():
            if process.poll() is None:
                page = self._http.get(f"http://127.0.0.1:{port}/metrics").text
                for result, count in re.findall(rf'equipoise_jobs_total{{job="{job}",result="(\w+)"}} (\S+)', page):
                    found[result] = found.get(result, 0) + int(float(count))
        return found

    def heard(self, host: str, ago_s: float) -> None:
        with self.database.registering() as session:
            put_host(session, HostSpec(host), datetime.now(UTC), lambda _etag: None)
            at = datetime.now(UTC) - timedelta(seconds=ago_s)
            session.execute(update(HostRow).where(HostRow.name == host).values(last_seen_at=at))

    def events(self, host: str) -> list[str]:
        with self.database.reading() as session:
            query = select(EventRow.kind).where(EventRow.host == host).order_by(EventRow.at, EventRow.id)
            return list(session.scalars(query))

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
            process.wait(120)
        self._stack.close()
        self.database.close()


def wait(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.05)


@pytest.fixture
def managers(new_url: Callable[[str], str], tmp_path: Path) -> Iterator[Managers]:
    made = Managers(new_url("postgresql"), tmp_path)
    yield made
    made.close()


def test_two_managers_do_each_job_once_and_one_goes_on_when_the_other_is_killed(managers: Managers) -> None:
    begin_s = time.monotonic()
    first, second = managers.start(), managers.start()
    managers.heard("kvm1", 3600)
    wait(lambda: managers.events("kvm1") == ["host-silent"])
    before = managers.counts("silent-hosts")
    wait(lambda: managers.counts("silent-hosts").get("elsewhere", 0) >= before.get("elsewhere", 0) + 3)
    assert managers.events("kvm1") == ["host-silent"], "by one of them, once"
    for job in ("retention", "rollups", "tick-rollups"):
        wait(lambda job=job: "elsewhere" in managers.counts(job))  # type: ignore[misc]
        counts = managers.counts(job)
        assert 1 <= counts["done"] <= 1 + (time.monotonic() - begin_s) // (0.9 * _PERIOD_S), (job, counts)
        assert set(counts) == {"done", "elsewhere"}
    managers.processes[first].send_signal(signal.SIGKILL)
    managers.processes[first].wait()
    done = managers.counts("silent-hosts").get("done", 0)
    wait(lambda: managers.counts("silent-hosts").get("done", 0) > done + 1)
    managers.heard("kvm1", 0)
    wait(lambda: managers.events("kvm1")[:2] == ["host-silent", "host-back"])
    assert json.loads(httpx.get(f"http://127.0.0.1:{second}/api/v1/health").text)["database"] == "ok"
