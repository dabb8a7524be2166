"""A state directory that is full, read-only, or answers with errors: what goes on, what is told, and its recovery."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from manager.errors import JournalError
from manager.loop.agent import Agent
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink
from manager.loop.observer import LoopSettings
from manager.loop.outbox import Outbox
from manager.loop.replicated import RESERVE_BYTES, Reserve
from manager.loop.tick import ControlLoop
from manager.loop.watches import FindingsWatch
from manager.model.limits import EVERYTHING
from manager.protocol.client import ManagerClient
from policies.priority import POLICY as PRIORITY
from tests.fakes.examiner import FakeExaminer
from tests.fakes.host import FakeHost
from tests.fakes.manager import ASSIGNMENT, Manager, Wire, orders, stored
from tests.fakes.telemetry import FakeTelemetry
from tests.fakes.vm import domain_uuid
from tests.loop.disk import SmallDisk, small_disk

HOST = dict(ASSIGNMENT["host"], mode="enforce", policy="priority")  # type: ignore[call-overload]


def assigned(*names: str) -> dict[str, object]:
    vms = [{"name": name, "class": "critical", "libvirt_name": name} for name in names]
    return {**ASSIGNMENT, "host": HOST, "vms": vms, "applications": []}


class Life:
    """An agent on a disk, with a manager that takes whatever it tells."""

    def __init__(self, folder: Path, host: FakeHost, stack: ExitStack) -> None:
        self.host = host
        self.manager = Manager()
        self.vms = ("web",)
        self.manager.will(self._answer)
        self.journal = stack.enter_context(
            closing(Journal(folder / "journal.db", "boot-1", Reserve(folder / "reserve")))
        )
        self.outbox = stack.enter_context(closing(Outbox(folder / "outbox.db", 1000)))
        client = stack.enter_context(closing(ManagerClient("http://manager", "s3cret", Wire(self.manager.handle))))
        self.metrics = AgentMetrics()
        self.agent = Agent(
            ControlLoop(
                host, self.journal, {"priority": PRIORITY}, LoopSettings("h1", 1.0, 30.0, 20), limits=EVERYTHING
            ),
            self.outbox,
            ManagerLink(client, "h1", "0.1.0", folder / "assignment.json", self.outbox),
            self.metrics,
            telemetry=FakeTelemetry(),
            findings=FindingsWatch(FakeExaminer()),
            sync_s=1.0,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        return stored(request) if request.method == "POST" else orders(assigned(*self.vms), f'"{self.vms}"')(request)

    def go(self, times: int = 1) -> None:
        for _ in range(times):
            self.agent.reporter.fetch()
            self.agent.tick()
            self.agent.reporter.report()

    def told(self, kind: str) -> list[str]:
        return [one.message for report in self.manager.reports for one in report.events if one.kind == kind]

    def weights(self) -> dict[str, object]:
        return {vm.instance.libvirt_name: vm.weight for vm in self.host.vms.values()}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "10m") as mounted:
        yield mounted


@pytest.fixture
def life(disk: SmallDisk) -> Iterator[Life]:
    host = FakeHost(cpus=16)
    for name in ("web", "db", *(f"late{number}" for number in range(400))):
        host.boot(name)
    with ExitStack() as stack:
        yield Life(disk.folder, host, stack)


def more_than_fits() -> tuple[str, ...]:
    return ("web", *(f"late{number}" for number in range(400)))


def test_on_a_full_disk_nothing_new_is_changed_that_is_said_once_and_it_recovers(life: Life, disk: SmallDisk) -> None:
    before = life.host.settings()
    life.go()
    assert life.weights()["web"] == 10_000
    (disk.folder / "reserve").unlink()
    life.journal._file._reserve.give_back()
    disk.fill()
    life.vms = more_than_fits()
    life.go(4)
    assert life.weights()["late7"] == 1024, "nothing was changed that could not be journalled"
    assert life.weights()["web"] == 10_000
    assert len(life.told("journal")) == 1
    assert "database or disk is full" in life.told("journal")[0]
    disk.clear()
    life.go(2)
    assert life.weights()["late7"] == 10_000
    assert life.agent.stop() == 0
    assert life.host.settings() == before
    assert [text for text in life.told("outbox") if "again" in text] in ([], ["the outbox can be written again"])


def test_the_reserve_lets_everything_be_put_back_on_a_full_disk(life: Life, disk: SmallDisk) -> None:
    before = life.host.settings()
    life.vms = more_than_fits()[:60]
    life.go(2)
    assert (disk.folder / "reserve").stat().st_size == RESERVE_BYTES
    disk.fill()
    assert life.agent.stop() == 0
    assert life.host.settings() == before
    disk.clear()
    assert not (disk.folder / "reserve").exists() or (disk.folder / "reserve").stat().st_size == RESERVE_BYTES


def test_the_reserve_is_kept_again_once_there_is_space(disk: SmallDisk) -> None:
    reserve = Reserve(disk.folder / "reserve")
    reserve.keep()
    assert (disk.folder / "reserve").stat().st_size == RESERVE_BYTES
    assert (reserve.give_back(), reserve.give_back()) == (True, False)
    disk.fill()
    reserve.keep()
    assert not (disk.folder / "reserve").exists()
    disk.clear()
    reserve.keep()
    assert (disk.folder / "reserve").stat().st_size == RESERVE_BYTES
    assert Reserve(None).give_back() is False


def test_an_agent_does_not_start_on_a_read_only_disk_and_starts_once_it_is_writable(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "10m") as disk:
        host = FakeHost()
        host.boot("web")
        with ExitStack() as stack:
            life = Life(disk.folder, host, stack)
            life.go()
            assert life.weights() == {"web": 10_000}
        disk.forbid_writes()
        with pytest.raises(JournalError, match="cannot be used"), ExitStack() as stack:
            Life(disk.folder, host, stack)
        assert life.weights() == {"web": 10_000}
        disk.allow_writes()
        with ExitStack() as stack:
            life = Life(disk.folder, host, stack)
            assert life.agent.stop() == 0
            assert life.weights() == {"web": 1024}


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR_FSYNC])
def test_while_the_disk_answers_with_errors_nothing_is_changed_and_all_is_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    host = FakeHost()
    host.boot("web")
    with ExitStack() as stack:
        life = Life(tmp_path, host, stack)
        with monkeypatch.context() as patch:
            patch.setattr("manager.loop.replicated.transaction", refuse)
            patch.setattr("manager.loop.outbox.transaction", refuse)
            life.go(4)
            assert life.weights() == {"web": 1024}
            assert len(life.told("journal")) == 1
            assert len(life.told("outbox")) == 1
            assert "what is to be reported waits in memory" in life.told("outbox")[0]
            failed = [one for report in life.manager.reports for one in report.decisions if one.outcome == "failed"]
            assert {one.vm for one in failed} == {"web"}
            assert len({one.record_id for one in failed}) == len(failed)
        life.go(3)
        assert life.weights() == {"web": 10_000}
        assert life.told("outbox")[1:] == ["the outbox can be written again"]
        assert life.agent.stop() == 0
        assert life.weights() == {"web": 1024}
    assert domain_uuid("web") in host.vms
