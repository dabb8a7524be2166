"""Warps from their registration to the host and back, by each mechanism, whatever becomes of our scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from manager.control.warp_plan import FIRST_RETRY_S
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.status import VmStatuses, tick_status
from manager.loop.tick import TickResult
from manager.model.decision import Decision, WarpGoal
from manager.model.knobs import WARPS, Knob, KnobKey
from manager.model.records import Event, OutcomeKind, Severity
from manager.model.registration import Application, Mode, Sla, Tier
from manager.model.warp import LOADED, OUTDATED, UNLOADED, Mechanism, WarpUse
from tests.fakes.host import SCHEDULER
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig
from tests.loop.test_decided_knobs import TheRig


@pytest.fixture
def host(rig: Rig) -> Rig:
    """A critical VM of two vCPUs whose application promises 10 ms, and a batch VM."""
    rig.host.mechanisms = (Mechanism.SCHED_EXT, Mechanism.SLICE)
    for name, vcpus in (("web", 2), ("hog", 1)):
        rig.host.boot(name, vcpus)
    rig.register("web")
    rig.register("hog", "batch")
    shop = Application("shop", (Tier("web", ("web",)),), Sla(10.0))
    rig.assignment = replace(rig.assignment, applications=(shop,))
    rig.control(pinning=False, warp=WarpUse.SLICE)
    return rig


def status(rig: Rig, result: TickResult) -> tuple[str, int | None]:
    """The mechanism as reported, and the warp in force of the critical VM."""
    told = tick_status(result, 0, 0, True).warp
    [web] = [one for one in VmStatuses().of(result, rig.journal) if one.vm == "web"]
    return (str(told.mechanism) if told else "off"), web.warp_us


def told(events: tuple[Event, ...]) -> list[str]:
    return [one.message for one in events if one.kind == "warp" and one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("use", "mechanism", "knob", "value", "by"),
    [
        (WarpUse.ON, Mechanism.BVT, Knob.BVT_WARP, 29_651_000, "the BVT patch"),
        (WarpUse.GROUP_IDENTITY, Mechanism.GROUP_IDENTITY, Knob.GROUP_IDENTITY, 1, "group identity 1"),
        (WarpUse.SLICE, Mechanism.SLICE, Knob.SLICE, 100_000, "EEVDF slice 0.1 ms"),
    ],
)
def test_a_warp_is_set_explained_reported_and_undone(
    host: Rig, use: WarpUse, mechanism: Mechanism, knob: Knob, value: int, by: str
) -> None:
    host.host.mechanisms = (mechanism,)
    host.control(warp=use)
    before = host.host.settings()
    result = host.tick()
    assert host.value("web", knob) == value
    assert host.value("hog", knob) == 0
    [record, *_] = [one for one in result.records if one.knob is knob]
    assert (record.vm, record.outcome) == ("web", OutcomeKind.APPLIED)
    assert record.reason == f"warp auto: SLA 10 ms -> 29,651 us by {by}"
    assert status(host, result) == (mechanism, 29_651)
    assert not [one for one in host.tick().outcomes if one.key.knob in WARPS], "and then it stays"
    host.loop.release("test")
    assert host.host.settings() == before
    assert not host.journal.entries


def test_on_without_a_mechanism_that_helps_nothing_is_done_and_that_is_said_once(host: Rig) -> None:
    host.control(warp=WarpUse.ON)
    preview = host.loop.preview(host.assignment, {})
    assert not [one for one in preview.changes if one.key.knob in WARPS]
    first, second = host.tick(), host.tick()
    assert not [one for result in (first, second) for one in result.outcomes if one.key.knob in WARPS]
    assert not first.problems, "it is no error"
    [event] = [one for one in first.events if one.kind == "warp"]
    assert event.severity is Severity.WARNING
    assert event.message in preview.notes
    for words in ("nobody gets one", '"warp": "slice"', '"warp": "sched_ext"'):
        assert words in event.message
    assert not [one for one in second.events if one.kind == "warp"]
    told = tick_status(second, 0, 0, True).warp
    assert told is not None
    assert (told.mechanism, told.vms) == (Mechanism.NONE, 0)
    assert "no mechanism that was measured to help" in told.detail


def test_slices_of_an_earlier_choice_are_put_back(host: Rig) -> None:
    host.tick()
    assert host.value("web", Knob.SLICE) == 100_000
    host.control(warp=WarpUse.ON)
    host.tick()
    assert [host.value("web", Knob.SLICE, index) for index in (0, 1)] == [0, 0]
    assert not [key for key in host.journal.entries if key.knob is Knob.SLICE]


def test_switched_off_nobody_is_asked_and_nothing_is_reported(host: Rig) -> None:
    host.control(warp=WarpUse.OFF)
    result = host.tick()
    assert host.host.warp_reads == []
    assert status(host, result) == ("off", None)


def test_only_vms_with_a_warp_are_asked_for_it(host: Rig) -> None:
    for _ in range(3):
        host.tick()
    assert set(host.host.warp_reads) == {domain_uuid("web")}
    host.host.warp_reads.clear()
    host.control(warp=WarpUse.OFF)
    host.tick()
    assert set(host.host.warp_reads) == {domain_uuid("web")}, "to undo it"
    host.host.warp_reads.clear()
    host.tick()
    assert host.host.warp_reads == []


def test_observed_it_is_only_told(host: Rig) -> None:
    host.control(mode=Mode.OBSERVE)
    result = host.tick()
    assert {one.kind for one in result.outcomes if one.key.knob is Knob.SLICE} == {OutcomeKind.OBSERVED}
    assert status(host, result) == ("slice", None)
    assert not host.host.writes


def test_a_warp_that_the_kernel_does_not_keep_is_not_in_force(host: Rig) -> None:
    host.host.ignore = {Knob.SLICE}
    result = host.tick()
    assert {one.kind for one in result.outcomes if one.key.knob is Knob.SLICE} == {OutcomeKind.IGNORED}
    assert status(host, result) == ("slice", None)


def test_somebody_elses_is_given_up_until_it_is_adopted(host: Rig) -> None:
    host.tick()
    key = KnobKey(domain_uuid("web"), Knob.SLICE, 1)
    host.host.change(key, 5_000_000)
    result = host.tick()
    assert [one.key for one in result.outcomes if one.kind is OutcomeKind.EXTERNAL] == [key]
    assert status(host, result) == ("slice", None)
    host.tick()
    assert host.value("web", Knob.SLICE, 1) == 5_000_000
    adopted = tuple(replace(spec, adoptions=1) for spec in host.assignment.vms)
    host.assignment = replace(host.assignment, vms=adopted)
    for _ in range(2):
        host.tick()
    assert host.value("web", Knob.SLICE, 1) == 100_000
    host.loop.release("test")
    assert host.value("web", Knob.SLICE, 1) == 5_000_000, "what was adopted is the original"


def test_our_scheduler_is_loaded_serves_and_is_removed(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    first = host.tick()
    assert host.host.scheduler == LOADED
    [record] = [one for one in first.records if one.knob is Knob.SCHEDULER]
    assert (record.vm, record.before, record.after) == (None, "0", "1")
    second = host.tick()
    assert host.value("web", Knob.WARP) == 29_651
    assert status(host, second) == ("sched_ext", 29_651)
    assert tick_status(second, 0, 0, True).warp.counters == {"preemptions": 3, "borrowed_ns": 2_000_000_000}  # type: ignore[union-attr]
    host.loop.release("test")
    assert host.host.scheduler == UNLOADED
    assert not host.journal.entries


def test_it_goes_on_where_an_agent_that_was_killed_left_it(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    for _ in range(2):
        host.tick()
    host.crash()
    result = host.tick()
    assert not result.outcomes
    assert status(host, result) == ("sched_ext", 29_651)
    host.crash()
    host.loop.release("test")
    assert host.host.scheduler == UNLOADED


def test_one_of_another_version_is_replaced_and_gets_the_warps(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    for _ in range(2):
        host.tick()
    host.host.scheduler = OUTDATED  # the agent was upgraded
    host.crash()
    replaced = host.tick()
    assert [(one.knob, one.before, one.after) for one in replaced.records] == [(Knob.SCHEDULER, "3", "1")]
    assert host.value("web", Knob.WARP) == 0, "it begins anew"
    result = host.tick()
    assert not [one for one in result.outcomes if one.kind is OutcomeKind.EXTERNAL]
    assert status(host, result) == ("sched_ext", 29_651)
    host.loop.release("test")
    assert host.host.scheduler == UNLOADED


def test_thrown_out_it_is_told_once_and_it_comes_back(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    for _ in range(2):
        host.tick()
    host.host.eject()
    result = host.tick()
    [message] = told(result.events)
    assert message.startswith("warps: the kernel threw our sched_ext scheduler out, failure 1")
    assert not [one for one in result.outcomes if one.kind is OutcomeKind.EXTERNAL]
    assert status(host, result) == ("none", None)
    assert host.value("web", Knob.SLICE) == 0, "what harms does not serve meanwhile"
    later = [host.tick() for _ in range(int(FIRST_RETRY_S) + 3)]
    assert not [event for one in later for event in told(one.events)], "once"
    assert status(host, later[-1]) == ("sched_ext", 29_651)
    assert host.value("web", Knob.SLICE) == 0
    host.host.eject()
    assert told(host.tick().events), "and again when it happens again"
    host.loop.release("test")
    assert not host.journal.entries


def test_one_that_does_not_load_is_told_with_the_kernels_reason(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    host.host.refuses = True
    [record] = [one for one in host.tick().records if one.knob is Knob.SCHEDULER]
    assert (record.outcome, record.detail) == (OutcomeKind.FAILED, "the kernel did not take the scheduler")
    result = host.tick()
    assert told(result.events)[0].startswith("warps: our sched_ext scheduler did not load")
    assert status(host, result) == ("none", None)


def test_one_that_somebody_removed_stays_away_until_it_is_adopted(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    for _ in range(2):
        host.tick()
    host.host.change(SCHEDULER, UNLOADED)
    result = host.tick()
    assert [one.key for one in result.outcomes if one.kind is OutcomeKind.EXTERNAL] == [SCHEDULER]
    for _ in range(30):
        result = host.tick()
    assert host.host.scheduler == UNLOADED
    assert status(host, result) == ("none", None)
    host.control(adoptions=1)
    for _ in range(3):
        result = host.tick()
    assert status(host, result) == ("sched_ext", 29_651)


def test_beside_somebody_elses_scheduler_nothing_is_written(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    host.host.others = "scx_lavd"
    result = host.tick()
    assert "'scx_lavd' of another tool decides" in told(result.events)[0]
    assert status(host, result) == ("none", None)
    assert not [key for key, _ in host.host.writes if key.knob in WARPS or key == SCHEDULER]


def test_metrics(host: Rig) -> None:
    host.control(warp=WarpUse.SCHED_EXT)
    metrics = AgentMetrics()
    host.tick()
    metrics.observe(host.tick(), 0, True)
    lines = {
        (one.name, *one.labels.values()): one.value
        for family in metrics.registry.collect()
        for one in family.samples
        if "warp" in one.name or "sched_ext" in one.name
    }
    assert lines["equipoise_vm_warp_us", "web"] == 29_651
    assert ("equipoise_vm_warp_us", "hog") not in lines
    mechanisms = {mechanism: lines["equipoise_agent_warp_mechanism", str(mechanism)] for mechanism in Mechanism}
    assert mechanisms == {mechanism: float(mechanism is Mechanism.SCHED_EXT) for mechanism in Mechanism}
    assert lines["equipoise_sched_ext_events_total", "preemptions"] == 3
    assert lines[("equipoise_sched_ext_borrowed_seconds_total",)] == 2


def test_a_warp_that_a_policy_decides_is_set_and_taken_back_with_its_goal(tmp_path: Path) -> None:
    rig = TheRig(tmp_path)
    rig.host.mechanisms = (Mechanism.BVT,)
    shop = Application("shop", (Tier("web", ("web",)),), Sla(10.0))
    rig.assignment = replace(rig.assignment, applications=(shop,))
    rig.control(pinning=False, warp=WarpUse.ON)

    def warping(*goals: WarpGoal) -> int | None:
        rig.decide(lambda _why: Decision(warps=goals))
        return rig.value("web", Knob.BVT_WARP)

    assert warping() == 0, "the policy gives none, whatever the SLA says"
    assert warping(WarpGoal("web", 8_000, "on trial")) == 8_000_000
    assert warping() == 0
    rig.decide(lambda _why: Decision())
    assert rig.value("web", Knob.BVT_WARP) == 29_651_000, "by the SLA, where the policy says nothing of warps"
