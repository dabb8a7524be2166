"""Real-time and niced vCPUs from their registration to the host and back, within the kernel's limits or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.loop.agent_metrics import AgentMetrics
from manager.loop.tick import TickResult
from manager.model.knobs import SCHEDULINGS, Knob, KnobKey
from manager.model.records import Event, OutcomeKind, Severity
from manager.model.registration import Application, Mode, Sla, Tier
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.warp import Mechanism, WarpUse
from tests.fakes.host import MACHINE
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

FIFO = Scheduling(SchedulingPolicy.FIFO, limit=0.3)


@pytest.fixture
def host(rig: Rig) -> Rig:
    """A critical VM of two vCPUs that is to be real-time, on a kernel that limits that, and a batch VM."""
    rig.host.limits = True
    rig.host.boot("web", 2)
    rig.host.boot("hog")
    rig.register("web", scheduling=FIFO)
    rig.register("hog", "batch")
    rig.control(pinning=False)
    return rig


def scheduled(rig: Rig, name: str, vcpus: int = 2) -> list[object]:
    return [rig.value(name, Knob.SCHEDULING, index) for index in range(vcpus)]


def limits(rig: Rig, name: str) -> tuple[object, ...]:
    """Of the group above all VMs, of the VM's, the one inside, and each vCPU's."""
    keys = ((Knob.RT_RUNTIME, 0), (Knob.RT_RUNTIME, 1), (Knob.VCPU_RT_RUNTIME, 0), (Knob.VCPU_RT_RUNTIME, 1))
    return rig.host.settings()[MACHINE], *(rig.value(name, *key) for key in keys)


def writes(result: TickResult) -> list[tuple[Knob, int]]:
    return [(one.key.knob, one.key.index) for one in result.outcomes if one.key.knob in SCHEDULINGS]


def told(events: tuple[Event, ...]) -> list[tuple[Severity, str]]:
    return [(one.severity, one.message) for one in events if one.kind == "scheduling"]


def change(rig: Rig, name: str, **fields: object) -> None:
    vms = tuple(replace(one, **fields) if one.name == name else one for one in rig.assignment.vms)  # type: ignore[arg-type]
    rig.assignment = replace(rig.assignment, vms=vms)


def test_limits_come_from_the_outermost_group_on_threads_last_and_all_goes_back_the_other_way(host: Rig) -> None:
    before = host.host.settings()
    result = host.tick()
    assert writes(result) == [
        (Knob.RT_RUNTIME, MACHINE.index),
        (Knob.RT_RUNTIME, 0),
        (Knob.RT_RUNTIME, 1),
        (Knob.VCPU_RT_RUNTIME, 0),
        (Knob.VCPU_RT_RUNTIME, 1),
        (Knob.SCHEDULING, 0),
        (Knob.SCHEDULING, 1),
    ]
    assert {one.kind for one in result.outcomes} == {OutcomeKind.APPLIED}
    assert scheduled(host, "web") == [1001, 1001]
    assert limits(host, "web") == (300_000, 300_000, 300_000, 150_000, 150_000)
    [reason, *_] = [one.reason for one in result.records if one.knob is Knob.SCHEDULING]
    assert reason == "registered scheduling: fifo 1"
    assert not writes(host.tick()), "and then it stays"
    undone = host.loop.release("test")
    assert [knob for knob, _ in writes(undone)][:4] == [Knob.SCHEDULING] * 2 + [Knob.VCPU_RT_RUNTIME] * 2
    assert writes(undone)[4:] == [(Knob.RT_RUNTIME, 1), (Knob.RT_RUNTIME, 0), (Knob.RT_RUNTIME, MACHINE.index)]
    assert {one.kind for one in undone.outcomes} == {OutcomeKind.RESTORED}
    assert host.host.settings() == before
    assert not host.journal.entries


def test_limits_that_change_hands_do_so_in_one_tick(host: Rig) -> None:
    host.host.boot("db")
    host.register("db", scheduling=Scheduling(SchedulingPolicy.RR, 2, limit=0.65))
    host.tick()
    change(host, "web", scheduling=replace(FIFO, limit=0.65))
    change(host, "db", scheduling=Scheduling(SchedulingPolicy.FIFO, 2, limit=0.3))
    result = host.tick()
    assert {one.kind for one in result.outcomes} == {OutcomeKind.APPLIED}
    assert limits(host, "web") == (950_000, 650_000, 650_000, 325_000, 325_000)
    assert scheduled(host, "db", 1) == [1002]


def test_a_kernel_without_limits_gets_no_real_time_thread_and_it_is_told_once(host: Rig) -> None:
    host.host.limits = False
    result = host.tick()
    [(severity, message)] = told(result.events)
    assert severity is Severity.WARNING
    assert message.startswith("web cannot be real-time: this kernel has no limit")
    assert message.endswith("give it a warp instead (docs/concepts/warp.md)")
    assert not writes(result)
    assert scheduled(host, "web") == [0, 0]
    assert not told(host.tick().events)


def test_one_for_which_nothing_is_left_is_told_and_the_others_keep_theirs(host: Rig) -> None:
    host.host.boot("zoo")
    host.register("zoo", scheduling=Scheduling(SchedulingPolicy.FIFO, limit=0.7))
    [(_, message)] = told(host.tick().events)
    assert message.startswith("zoo cannot be real-time: a limit of 0.7 is more than the 0.65 that is left")
    assert scheduled(host, "web") == [1001, 1001]
    assert scheduled(host, "zoo", 1) == [0]


@pytest.mark.parametrize("original", [0, -3, 3004, 5000])
def test_a_nice_value_needs_no_limit_and_the_policy_before_comes_back(host: Rig, original: int) -> None:
    host.host.limits = False
    key = KnobKey(domain_uuid("web"), Knob.SCHEDULING, 1)
    host.host.change(key, original)
    change(host, "web", scheduling=Scheduling(SchedulingPolicy.OTHER, nice=-7))
    host.tick()
    assert scheduled(host, "web") == [-7, -7]
    host.crash()
    host.loop.release("test")
    assert scheduled(host, "web") == [0, original]


def test_what_the_group_above_had_stays_if_that_is_enough(host: Rig) -> None:
    host.host.change(MACHINE, 900_000)
    result = host.tick()
    assert (Knob.RT_RUNTIME, MACHINE.index) not in writes(result)
    assert scheduled(host, "web") == [1001, 1001]


def test_the_group_above_is_put_back_after_its_last_real_time_vm_ended(host: Rig) -> None:
    host.tick()
    host.host.stop("web")
    host.tick()
    assert host.host.settings()[MACHINE] == 0
    assert not [key for key in host.journal.entries if key.knob in SCHEDULINGS]


def test_a_vm_that_cannot_be_read_keeps_its_part_of_the_group_above(host: Rig) -> None:
    host.host.boot("db")
    host.register("db", scheduling=Scheduling(SchedulingPolicy.RR, limit=0.2))
    host.tick()
    host.host.unreadable = {domain_uuid("web")}
    assert not writes(host.tick())
    assert limits(host, "web")[0] == 500_000


def test_a_thread_that_somebody_else_changed_is_given_up_until_it_is_adopted(host: Rig) -> None:
    host.tick()
    key = KnobKey(domain_uuid("web"), Knob.SCHEDULING, 1)
    host.host.change(key, 0)
    result = host.tick()
    assert [one.key for one in result.outcomes if one.kind is OutcomeKind.EXTERNAL] == [key]
    host.tick()
    assert scheduled(host, "web") == [1001, 0]
    change(host, "web", adoptions=1)
    for _ in range(2):
        host.tick()
    assert scheduled(host, "web") == [1001, 1001]


def test_a_vcpu_that_is_plugged_takes_its_part_and_one_that_goes_is_forgotten(host: Rig) -> None:
    host.tick()
    host.host.plug_vcpu("web")
    assert {one.kind for one in host.tick().outcomes} == {OutcomeKind.APPLIED}
    assert scheduled(host, "web", 3) == [1001] * 3
    assert host.value("web", Knob.VCPU_RT_RUNTIME, 2) == 100_000
    host.host.unplug_vcpu("web")
    host.tick()
    assert not [key for key in host.journal.entries if key.index == 2 and key.knob in SCHEDULINGS]
    assert host.value("web", Knob.VCPU_RT_RUNTIME, 1) == 150_000


def test_observed_it_is_only_told(host: Rig) -> None:
    host.control(mode=Mode.OBSERVE)
    result = host.tick()
    assert len(writes(result)) == 7
    assert {one.kind for one in result.outcomes} == {OutcomeKind.OBSERVED}
    assert not host.host.writes


def test_a_real_time_vm_has_no_warp_and_nobody_alarms_for_that(host: Rig) -> None:
    host.host.mechanisms = (Mechanism.SLICE,)
    shop = Application("shop", (Tier("web", ("web",)),), Sla(10.0))
    host.assignment = replace(host.assignment, applications=(shop,))
    host.control(warp=WarpUse.SLICE)
    result = host.tick()
    assert host.value("web", Knob.SLICE) == 0
    assert not result.problems
    change(host, "web", scheduling=Scheduling(SchedulingPolicy.OTHER, nice=-1))
    host.tick()
    assert host.value("web", Knob.SLICE) == 100_000, "a nice value goes with one"


def test_nobody_else_is_asked(host: Rig) -> None:
    asked: list[str] = []
    real = host.host.knobs
    host.host.knobs = lambda instance, family: asked.append(instance.libvirt_name) or real(instance, family)  # type: ignore[assignment]
    for _ in range(2):
        host.tick()
    assert asked == ["web", "web", "host"]


def test_metrics(host: Rig) -> None:
    metrics = AgentMetrics()
    metrics.observe(host.tick(), 0, True)
    assert metrics.registry.get_sample_value("equipoise_vm_real_time_vcpus", {"vm": "web"}) == 2
    assert metrics.registry.get_sample_value("equipoise_vm_real_time_vcpus", {"vm": "hog"}) is None
