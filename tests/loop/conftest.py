"""A loop on a fake host, and the link of an agent with a manager of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from manager.loop.journal import Journal
from manager.loop.link import ManagerLink, Report
from manager.loop.observer import Clock, LoopSettings
from manager.loop.outbox import Outbox
from manager.loop.tick import ControlLoop, TickResult
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.registration import Assignment, HostSpec, Mode, VmClass, VmSpec
from manager.protocol.client import ManagerClient
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.fakes.host import FakeHost
from tests.fakes.manager import Manager, Wire
from tests.fakes.vm import domain_uuid
from tests.fakes.wait_alarm import FakeWaitAlarm
from tests.loop.guarded import Guarded, booted


@dataclass
class Rig:
    """A fake host, a journal on disk, and a loop that can be killed and started again."""

    folder: Path
    host: FakeHost = field(default_factory=FakeHost)
    assignment: Assignment = field(default_factory=lambda: Assignment(HostSpec("h1")))
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the agent's loop, as after a crash: only the journal remains."""
        self.journal = Journal(self.folder / "journal.db", self.host.boot_id)
        settings = LoopSettings("h1", 1.0, 30.0, 20)
        policies = {"equal": EQUAL, "priority": PRIORITY}
        self.loop = ControlLoop(self.host, self.journal, policies, settings, self.clock, limits=EVERYTHING)

    def clock(self) -> Clock:
        return Clock(self.now_s, self.now_s)

    def register(self, name: str, vm_class: str = "critical", **fields: object) -> None:
        spec = VmSpec(name, VmClass(vm_class), libvirt_name=name)
        spec = replace(spec, **fields)  # type: ignore[arg-type]
        self.assignment = replace(self.assignment, vms=(*self.assignment.vms, spec))

    def control(self, **fields: object) -> None:
        """Change how the host is controlled."""
        self.assignment = replace(self.assignment, host=replace(self.assignment.host, **fields))  # type: ignore[arg-type]

    def tick(self) -> TickResult:
        self.now_s += 1.0
        return self.loop.tick(self.assignment, {})

    def crash(self) -> None:
        """kill -9 and start again."""
        self.journal.close()
        self.start()

    def value(self, name: str, knob: Knob = Knob.WEIGHT, index: int = 0) -> KnobValue:
        return self.host.settings()[KnobKey(domain_uuid(name), knob, index)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.journal.close()


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "assignment.json"


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "outbox.db", 10_000)
    yield opened
    opened.close()


@pytest.fixture
def link(manager: Manager, cache: Path, outbox: Outbox) -> Iterator[ManagerLink]:
    client = ManagerClient("http://manager:8750/", "s3cret", Wire(manager.handle))
    yield ManagerLink(client, "h1", "0.1.0", cache, outbox)
    client.close()


@pytest.fixture
def report() -> Report:
    return Report(FakeHost().capabilities, None, None)


__all__ = ["Mode", "Rig", "rig"]


@pytest.fixture(params=["by the guard", "waits by the kernel", "by the kernel"])
def guarded(rig: Rig, request: pytest.FixtureRequest) -> Guarded:
    """A critical VM that is known to be calm, two batch VMs, and one of somebody else; who samples."""
    alarm = FakeWaitAlarm(rig.host)
    if request.param != "by the guard":
        rig.host.wait_alarm = alarm
    made = Guarded(booted(rig))
    if request.param == "by the kernel":
        alarm.answering = made.answers
    made.learn()
    return made
