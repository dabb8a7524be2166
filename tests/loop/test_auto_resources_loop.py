"""`auto` through the whole loop on a host whose disk a batch VM makes slow: tried, kept, carried over, taken off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.histogram import Histogram
from manager.model.knobs import UNLIMITED, Knob
from manager.model.limits import EVERYTHING
from manager.model.registration import Application, Mode, Sla, Tier
from manager.model.resource_use import DeviceCounters, DiskCounters, HostCounters, VmCounters
from manager.model.rules import DiskRules
from manager.model.window import Window
from policies.auto import POLICY as AUTO
from tests.fakes.host import FakeHost
from tests.fakes.resources import FakeResources
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

SDA, INTERVAL_S, TARGET_MS = 2048, 5.0, 100.0
WANTED_PER_S, CALM_MS, SLOW_MS = 400.0, 4.0, 40.0


@dataclass
class SlowDisk(Rig):
    """A disk of 500 requests/s that the shop uses a little; ``wants`` is the part of WANTED_PER_S that `hog` wants."""

    wants: float = 1.0
    slots: list[Window] = field(default_factory=list)
    done: dict[str, float] = field(default_factory=lambda: {"shop": 0.0, "hog": 0.0})
    waited_ms: float = 0.0

    def __post_init__(self) -> None:
        self.host.disks = (SDA,)
        self.resources = FakeResources(self.host)
        self.host.resources = self.resources
        super().__post_init__()
        self.host.boot("shop")
        self.host.boot("hog")
        self.register("shop")
        self.register("hog", "batch")
        application = Application("shop", (Tier("web", ("shop",)),), Sla(TARGET_MS))
        self.assignment = replace(self.assignment, applications=(application,))
        self.control(policy="auto", pinning=False, disk=DiskRules(steps=True))

    def start(self) -> None:
        super().start()
        settings = LoopSettings("h1", INTERVAL_S, 30.0, 20)
        self.loop = ControlLoop(self.host, self.journal, {"auto": AUTO}, settings, self.clock, limits=EVERYTHING)

    @property
    def ceiling(self) -> float:
        held = self.value("hog", Knob.DISK_CEILING, SDA)
        return WANTED_PER_S if held == UNLIMITED or not isinstance(held, int) else float(held)

    def run(self, ticks: int) -> TickResult:
        for _ in range(ticks):
            self.now_s += INTERVAL_S
            rate = min(self.wants * WANTED_PER_S, self.ceiling)
            latency_ms = SLOW_MS if rate > WANTED_PER_S / 2 else CALM_MS
            p95_ms = 4 * latency_ms + 10
            histogram = Histogram.of([p95_ms * 1000] * 60)
            self.slots = [*self.slots[-12:], Window("shop", self.now_s - INTERVAL_S, self.now_s, histogram, 60)]
            result = self.loop.tick(self.assignment, {"shop": self.slots})
            self._count(rate, latency_ms)
            self.loop.look_at_resources(result)
        return result

    def _count(self, rate: float, latency_ms: float) -> None:
        for vm, per_s in (("shop", 50.0), ("hog", rate)):
            self.done[vm] += per_s * INTERVAL_S
            self.waited_ms += per_s * INTERVAL_S * latency_ms
            counted = DiskCounters(0, round(self.done[vm]) * 4096, round(self.done[vm]))
            self.resources.counters[domain_uuid(vm)] = VmCounters(0.0, disks={"sda": counted})
        total, busy_ms = round(sum(self.done.values())), round(self.now_s * 900)
        device = DeviceCounters(total * 4096, total, round(self.waited_ms), busy_ms)
        self.resources.own = HostCounters(0.0, disks={"sda": device}, numbers={"sda": SDA})
        self.resources.now_s = self.now_s


@pytest.fixture
def disk(tmp_path: Path) -> SlowDisk:
    return SlowDisk(tmp_path, FakeHost())


def test_the_ceiling_that_helps_is_kept_carried_over_a_crash_and_taken_off_after_the_cause(disk: SlowDisk) -> None:
    before = disk.value("hog", Knob.DISK_CEILING, SDA)
    result = disk.run(20)
    assert disk.ceiling == WANTED_PER_S / 2
    [said] = [each.text for each in result.explanations]
    assert "Batch VM hog may make 200 requests/s of a disk (for" in said
    disk.crash()
    disk.run(1)
    assert disk.ceiling == WANTED_PER_S / 2, "it goes on from the journal"
    disk.wants = 0.0
    disk.run(140)
    assert disk.value("hog", Knob.DISK_CEILING, SDA) == before


@pytest.mark.parametrize("setting", [{"disk": DiskRules()}, {"mode": Mode.OBSERVE}])
def test_nothing_is_written_without_leave_or_in_mode_observe(disk: SlowDisk, setting: dict[str, object]) -> None:
    disk.control(**setting)
    before = disk.host.settings()
    result = disk.run(20)
    held = {key: value for key, value in disk.host.settings().items() if key.knob is Knob.DISK_CEILING}
    assert held.items() <= before.items()
    [said] = [each.text for each in result.explanations]
    assert ("it would be tried whether it helps that batch VM hog may make 200 requests/s" in said) == (
        "mode" in setting
    )


def test_taking_the_leave_takes_the_ceiling(disk: SlowDisk) -> None:
    disk.run(20)
    disk.control(disk=DiskRules())
    disk.run(1)
    assert disk.value("hog", Knob.DISK_CEILING, SDA) == UNLIMITED
