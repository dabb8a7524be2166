"""What another policy would have decided: against the control loop itself, and against a second way to find out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from manager.model.decision import Decision, Memory, Snapshot, WeightGoal
from manager.model.law import Law
from manager.model.records import TickRecord
from manager.model.registration import Mode
from manager.model.window import SlaState
from manager.replay.policy_replay import Replay, changes, replay, summaries
from manager.replay.recording import Recording
from manager.sim.compare import installed
from manager.sim.scenario import Fault, FaultKind, Scenario
from manager.sim.scenario_files import load_scenario
from policies.base import Policy
from tests.sim.recorded import run_watched, taken


@cache
def scenario() -> Scenario:
    """The spike, and afterwards a source that dies, so that windows get stale."""
    spike = load_scenario("spike")
    return replace(spike, duration_s=900, faults=(Fault(FaultKind.SOURCE_SILENT, 700, 100, "calm"),))


@cache
def made(policy: str) -> tuple[Recording, tuple[Snapshot, ...]]:
    simulation = run_watched(scenario(), policy)
    return taken(simulation), tuple(one.snapshot for one in simulation.results)


def again(recording: Recording, policy: str | Policy, law: Law | None = None) -> Replay:
    chosen = installed()[policy] if isinstance(policy, str) else policy
    return replay(recording, chosen, law or recording.assignment.host.law, 30, 20)


def weights(found: Replay) -> list[dict[str, int | None]]:
    return [{vm.vm: vm.replayed for vm in step.vms} for step in found.steps]


@pytest.mark.parametrize("policy", ["equal", "priority", "fair", "isolation"])
def test_the_same_policy_decides_the_same_again(policy: str) -> None:
    recording, snapshots = made(policy)
    found = again(recording, policy)
    assert weights(found) == [{vm.vm: vm.recorded for vm in step.vms} for step in found.steps]
    assert [step.time_s for step in found.steps] == [one.now_s for one in snapshots]
    for one in summaries(found, recording):
        assert one.recorded == one.replayed
    if policy in {"fair", "isolation"}:
        assert len(changes(found)) > len(recording.vms), "the weights did change"


@pytest.mark.parametrize(("recorded", "policy"), [("equal", "fair"), ("priority", "isolation"), ("fair", "isolation")])
def test_another_policy_decides_as_it_does_on_those_snapshots(recorded: str, policy: str) -> None:
    recording, snapshots = made(recorded)
    chosen, memory, mine, expected = installed()[policy], None, {}, []
    for one in snapshots:
        vms = tuple(replace(vm, weight=mine.get(vm.name, vm.weight)) for vm in one.vms)
        decision = chosen.decide(replace(one, vms=vms, host=replace(one.host, policy=policy)), memory)
        memory = decision.memory
        mine = {goal.vm: goal.weight for goal in decision.weights}
        expected.append(mine)
    found = again(recording, policy)
    assert weights(found) == expected
    assert weights(found) != weights(again(recording, recorded))


def test_slas_are_judged_as_they_were() -> None:
    recording, snapshots = made("equal")
    found = again(recording, "fair")
    assert [dict(step.sla) for step in found.steps] == [
        {view.application.name: view.sla_state for view in one.applications} for one in snapshots
    ]
    for one in summaries(found, recording):
        states = [step.sla[one.application] for step in found.steps]
        assert (one.judged, one.violated) == (
            len(states) - states.count(SlaState.NO_DATA),
            states.count(SlaState.VIOLATED),
        )
    assert any(one.violated for one in summaries(found, recording))


def test_another_law_decides_otherwise() -> None:
    recording, _ = made("equal")
    law = recording.assignment.host.law
    printed = again(recording, "fair", replace(law, published=True))
    assert weights(printed) != weights(again(recording, "fair"))
    assert printed.law.published


def test_changes_are_those_of_weights() -> None:
    recording, _ = made("equal")
    found = again(recording, "priority")
    assert [(one.vm, one.recorded, one.before, one.after) for one in changes(found)] == [
        *((f"batch-{number}", 100, None, 1) for number in range(1, 5)),
        ("calm-web", 100, None, 10_000),
        ("spiking-web", 100, None, 10_000),
    ]


class Scripted:
    """Decides what it is told to, and keeps what it saw."""

    name = "scripted"
    summary = "For tests."

    def __init__(self, *decisions: object) -> None:
        self.decisions = list(decisions)
        self.seen: list[Snapshot] = []
        self.memories: list[Memory] = []

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        self.seen.append(snapshot)
        self.memories.append(memory)
        decision = self.decisions.pop(0) if self.decisions else Decision()
        if isinstance(decision, Exception):
            raise decision
        return decision  # type: ignore[return-value] # it may be wrong on purpose

    def weight(self, vm: str) -> list[int | None]:
        """The weight that a VM had each time."""
        return [next(one.weight for one in snapshot.vms if one.name == vm) for snapshot in self.seen]


def goals(weight: int, memory: Memory = None) -> Decision:
    return Decision((WeightGoal("calm-web", weight, "because"),), memory)


def first(number: int, recording: Recording | None = None) -> Recording:
    recording = recording or made("equal")[0]
    return replace(recording, ticks=recording.ticks[:number])


def calm(found: Replay) -> list[tuple[int | None, bool, str]]:
    return [(vm.replayed, vm.decided, vm.reason) for step in found.steps for vm in step.vms if vm.vm == "calm-web"]


def test_a_policy_sees_its_own_weights_and_memory() -> None:
    policy = Scripted(goals(700, "a"), goals(800, "b"), goals(20_000, "c"))
    found = again(first(4), policy)
    assert policy.weight("calm-web") == [100, 700, 800, 10_000]
    assert policy.memories == [None, "a", "b", "c"]
    assert policy.seen[0].host.policy == "scripted"
    assert policy.seen[0].interval_s == 5
    assert [one[0] for one in calm(found)] == [700, 800, 10_000, 100], "not named: as it was before all"
    assert policy.weight("batch-1") == [100] * 4


def test_what_is_wrong_changes_nothing() -> None:
    unknown = Decision((WeightGoal("nobody", 5, ""),))
    policy = Scripted(goals(700, "a"), ValueError("oh"), unknown, "nonsense", goals(800))
    found = again(first(5), policy)
    assert [one[:2] for one in calm(found)] == [(700, True), *[(700, False)] * 3, (800, True)]
    assert policy.memories == [None, *["a"] * 4]
    problems = [step.problem for step in found.steps]
    assert problems[1] == "policy 'scripted' failed: ValueError: oh"
    assert "names VM 'nobody'" in problems[2]
    assert "instead of a decision" in problems[3]
    assert [one.vm for one in changes(found)].count("calm-web") == 2


def in_mode(mode: Mode, host: Mode) -> Recording:
    """VMs that hold another weight than before at each tick, whatever is decided."""
    recording = first(3)

    def tick(number: int, one: TickRecord) -> TickRecord:
        vms = tuple(replace(vm, mode=mode, weight=100 + number) for vm in one.vms)
        return replace(one, mode=host, vms=vms)

    return replace(recording, ticks=tuple(tick(number, one) for number, one in enumerate(recording.ticks)))


def test_where_nothing_is_written_a_policy_sees_the_weights_that_were() -> None:
    policy = Scripted(goals(700), goals(800), goals(900))
    found = again(in_mode(Mode.OBSERVE, Mode.OBSERVE), policy)
    assert policy.weight("calm-web") == [100, 101, 102]
    assert [one[:2] for one in calm(found)] == [(700, True), (800, True), (900, True)]
    released = Scripted(goals(700))
    found = again(in_mode(Mode.RELEASED, Mode.RELEASED), released)
    assert not released.seen
    assert calm(found) == [(100 + number, False, "the host was released") for number in range(3)]
    assert changes(found) == ()


def test_vms_that_are_not_registered_now_are_left_out_and_named() -> None:
    recording = first(2)
    fewer = tuple(vm for vm in recording.assignment.vms if vm.name != "batch-2")
    found = again(replace(recording, assignment=replace(recording.assignment, vms=fewer)), "priority")
    assert found.left_out == ("batch-2",)
    assert "batch-2" not in weights(found)[0]


def test_a_vm_without_a_weight_gets_none() -> None:
    recording = first(2)
    ticks = tuple(
        replace(one, vms=tuple(replace(vm, weight=None) if vm.vm == "calm-web" else vm for vm in one.vms))
        for one in recording.ticks
    )
    found = again(replace(recording, ticks=ticks), "priority")
    assert [step["calm-web"] for step in weights(found)] == [None, None]
    assert "calm-web" not in {one.vm for one in changes(found)}


def test_response_times_of_the_future_are_not_seen() -> None:
    recording, _ = made("equal")
    policy = Scripted()
    again(recording, policy)
    for snapshot in policy.seen:
        for view in snapshot.applications:
            assert all(snapshot.now_s - 300 < slot.end_s <= snapshot.now_s for slot in view.slots)
    assert max(len(view.slots) for snapshot in policy.seen for view in snapshot.applications) == 60
