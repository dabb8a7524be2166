"""Each thing that a policy may decide, through the tick: written, read back, changed, and restored on release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.decision import CpusGoal, Decision, QuotaGoal, ResourceControl, ResourceGoal, Snapshot
from manager.model.knob_spec import Control
from manager.model.knobs import UNLIMITED, Knob, KnobKey
from manager.model.limits import EVERYTHING, AgentLimits
from manager.model.registration import Mode
from manager.model.rules import DiskRules
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

PERIOD_US = 100_000


@dataclass
class Told:
    """A policy that decides what the test says; its reasons differ at each call."""

    says: Callable[[str], Decision] = lambda _why: Decision()
    name: str = "told"
    summary: str = "As the test says."
    calls: int = 0

    def decide(self, snapshot: Snapshot, memory: object) -> Decision:
        self.calls += 1
        return self.says(f"told: {self.calls}")


@dataclass
class TheRig(Rig):
    """With that policy in force on a host of a critical VM of two vCPUs and two batch VMs."""

    limits: AgentLimits = EVERYTHING

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told = Told()
        for name, vcpus in (("web", 2), ("b1", 1), ("b2", 1)):
            self.host.boot(name, vcpus)
        self.register("web")
        self.register("b1", "batch")
        self.register("b2", "batch")
        self.control(policy="told")
        settings = LoopSettings("h1", 1.0, 30.0, 20)
        self.loop = ControlLoop(self.host, self.journal, {"told": self.told}, settings, self.clock, self.limits)

    def decide(self, says: Callable[[str], Decision]) -> TickResult:
        self.told.says = says
        return self.tick()

    def pins(self, name: str) -> set[frozenset[int]]:
        """Where all threads of a VM may run."""
        pinned = {Knob.VCPU_PIN, Knob.EMULATOR_PIN, Knob.IOTHREAD_PIN}
        return {
            value
            for key, value in self.host.settings().items()
            if key.uuid == domain_uuid(name) and key.knob in pinned and isinstance(value, frozenset)
        }

    def change(self, name: str, **fields: object) -> None:
        vms = tuple(replace(vm, **fields) if vm.name == name else vm for vm in self.assignment.vms)  # type: ignore[arg-type]
        self.assignment = replace(self.assignment, vms=vms)


@pytest.fixture
def told(tmp_path: Path) -> TheRig:
    return TheRig(tmp_path)


def confining(**cpus: set[int]) -> Callable[[str], Decision]:
    return lambda why: Decision(cpus=tuple(CpusGoal(vm, frozenset(held), why) for vm, held in cpus.items()))


def limiting(**pcpus: float) -> Callable[[str], Decision]:
    return lambda why: Decision(quotas=tuple(QuotaGoal(vm, quota, why) for vm, quota in pcpus.items()))


def test_pcpus_are_written_for_all_threads_in_place_of_a_placement_and_restored(told: TheRig) -> None:
    before = told.host.settings()
    result = told.decide(confining(web={1, 2, 3}, b1={0}))
    assert (told.pins("web"), told.pins("b1")) == ({frozenset({1, 2, 3})}, {frozenset({0})})
    assert told.pins("b2") == {told.host.online}
    assert {record.reason for record in result.records if record.vm == "b1"} == {"told: 1", "emulator told: 1"}
    assert {str(record.outcome) for record in result.records} == {"applied"}
    writes = len(told.host.writes)
    assert told.tick().records == (), "the same decision for another reason writes nothing"
    assert len(told.host.writes) == writes
    told.loop.release("test")
    assert told.host.settings() == before
    assert not told.journal.entries


def test_another_decision_is_noticed_at_once_and_so_is_none(told: TheRig) -> None:
    told.decide(confining(web={1, 2}))
    told.decide(confining(web={2, 3}))
    assert told.pins("web") == {frozenset({2, 3})}
    told.decide(confining(b1={2, 3}))
    web = told.pins("web")
    assert {len(cpus) for cpus in web} == {1, 2}, "each vCPU has a pCPU of its own again"
    assert told.pins("b1") == {frozenset({2, 3})}
    told.decide(lambda _why: Decision())
    assert (told.pins("web"), told.pins("b1")) == (web, {told.host.online})


def test_what_is_registered_and_what_another_tool_restricted_binds_the_policy(told: TheRig) -> None:
    told.change("b1", cpus=frozenset({0, 1}))
    told.host.change(KnobKey(domain_uuid("b2"), Knob.VCPU_PIN), frozenset({2, 3}))
    told.decide(confining(b1={1, 2}, b2={1, 2}))
    assert (told.pins("b1"), told.pins("b2")) == ({frozenset({1})}, {frozenset({2})})
    result = told.decide(confining(b1={3}))
    assert told.pins("b1") == {frozenset({0, 1})}
    assert [problem.text for problem in result.problems] == ["b1 may run on pCPUs 0-1, and the policy wants 3"]


def test_a_policy_decides_whether_critical_vms_float_but_for_a_registered_pin(told: TheRig) -> None:
    told.decide(lambda _why: Decision())
    assert told.host.online not in told.pins("web")
    told.decide(lambda _why: Decision(pinning=False))
    assert told.pins("web") == {told.host.online}
    told.change("web", pin=True)
    told.tick()
    assert told.host.online not in told.pins("web")
    told.change("web", pin=None)
    told.control(pinning=False)
    told.decide(lambda _why: Decision())
    assert told.pins("web") == {told.host.online}
    told.decide(lambda _why: Decision(pinning=True))
    assert told.host.online not in told.pins("web")


def test_quotas_are_written_read_back_and_restored(told: TheRig) -> None:
    told.control(pinning=False)
    before = told.host.settings()
    result = told.decide(limiting(web=1.5, b1=0.25))
    assert (told.value("web", Knob.QUOTA), told.value("b1", Knob.QUOTA)) == (150_000, 25_000)
    assert [(record.vm, record.after, record.reason) for record in result.records] == [
        ("b1", "25000", "told: 1"),
        ("web", "150000", "told: 1"),
    ]
    assert told.tick().records == ()
    told.decide(limiting(b1=0.5))
    assert (told.value("web", Knob.QUOTA), told.value("b1", Knob.QUOTA)) == (UNLIMITED, 50_000)
    told.change("b1", max_pcpus=0.4)
    told.tick()
    assert told.value("b1", Knob.QUOTA) == 40_000, "the smaller of both"
    told.change("b1", max_pcpus=None)
    told.loop.release("test")
    assert told.host.settings() == before


def test_quotas_of_all_batch_vms_leave_them_their_floor(told: TheRig) -> None:
    told.decide(limiting(b1=0.01, b2=0.02))
    kept_us = 1.5 * 0.01 * 4 * PERIOD_US
    assert told.value("b1", Knob.QUOTA) + told.value("b2", Knob.QUOTA) == kept_us  # type: ignore[operator]


def test_observing_writes_nothing(told: TheRig) -> None:
    told.control(mode=Mode.OBSERVE)
    before = told.host.settings()
    result = told.decide(lambda why: replace(limiting(web=1.0)(why), cpus=confining(b1={0})(why).cpus))
    assert told.host.settings() == before
    assert {(record.vm, record.knob, str(record.outcome)) for record in result.records} >= {
        ("web", Knob.QUOTA, "observed"),
        ("b1", Knob.VCPU_PIN, "observed"),
    }


def test_one_bad_goal_and_nothing_is_applied(told: TheRig) -> None:
    told.decide(limiting(b1=0.5))
    before = told.host.settings()
    result = told.decide(lambda why: replace(limiting(b1=0.2)(why), cpus=confining(web={77})(why).cpus))
    assert told.host.settings() == before
    assert [problem.text for problem in result.problems] == [
        "policy 'told' gives VM 'web' the pCPUs 77, of which none is online; everything stays as it is"
    ]


def test_what_the_agent_forbids_no_policy_does(tmp_path: Path) -> None:
    limits = AgentLimits(allowed=EVERYTHING.allowed - {Control.PIN}, min_pcpus=0.3)
    told = TheRig(tmp_path, limits=limits)
    result = told.decide(lambda why: replace(limiting(b1=0.2)(why), cpus=confining(b2={0})(why).cpus, pinning=True))
    assert (told.pins("b2"), told.pins("web")) == ({told.host.online}, {told.host.online})
    assert told.value("b1", Knob.QUOTA) == 30_000
    assert "pins of the policy: deny has pin" in [problem.text for problem in result.problems]


def test_ceilings_of_disks_are_written_where_the_settings_say_steps_and_are_restored(told: TheRig) -> None:
    told.host.disks = (2064,)
    told.control(pinning=False)
    before = told.host.settings()
    held = ResourceGoal(ResourceControl.DISK_CEILING, "b1", "told", 40.0, 2064)
    told.decide(lambda _why: Decision(resources=(held,)))
    assert told.host.settings() == before, "the settings do not allow it"
    told.control(disk=DiskRules(steps=True))
    result = told.tick()
    assert [(record.vm, record.after, record.reason) for record in result.records] == [("b1", "40", "told")]
    assert result.snapshot.resource_knobs == dict.fromkeys(("b1", "b2", "web"), frozenset({Knob.DISK_CEILING}))
    told.control(disk=DiskRules())
    told.tick()
    assert told.host.settings() == before
    told.control(disk=DiskRules(steps=True))
    told.tick()
    told.loop.release("test")
    assert told.host.settings() == before


def test_an_agent_that_denies_disks_takes_the_leave_of_the_policy(tmp_path: Path) -> None:
    rig = TheRig(tmp_path, limits=AgentLimits(allowed=frozenset(Control) - {Control.DISK}))
    rig.host.disks = (2064,)
    rig.control(pinning=False, disk=DiskRules(steps=True))
    before = rig.host.settings()
    held = ResourceGoal(ResourceControl.DISK_CEILING, "b1", "told", 40.0, 2064)
    result = rig.decide(lambda _why: Decision(resources=(held,)))
    assert rig.host.settings() == before
    assert [problem.text for problem in result.problems] == ["weights and ceilings of disks: deny has disk"]
