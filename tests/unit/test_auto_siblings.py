"""Siblings that batch VMs leave idle as a step of `auto`: when it is tried, what it sets, and the ladder in a loop."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from manager.control.resolve import validate
from manager.model.decision import CpusGoal, Snapshot, VmView
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import BatchPlacement, PlacementRules
from manager.model.topology import Pcpu, Topology
from policies.auto import POLICY as AUTO
from policies.auto_memory import AutoMemory
from policies.auto_siblings import sibling_candidates, siblings_of, with_siblings
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind, StepsMemory
from policies.auto_steps_told import told_steps
from tests.host import topologies
from tests.unit.build import capabilities, view
from tests.unit.test_auto import app_model, application, moment
from tests.unit.test_auto import vm as serving

NOW_S = 1000.0
EIGHT = frozenset(range(8))
CORES = Topology(tuple(Pcpu(number, number % 4, 0, 0, 0) for number in range(8)))
"""Four cores of two threads: 4 is the sibling of 0."""
FLAT = Topology.flat(range(8))


def shop(*pinned: int, name: str = "shop") -> VmView:
    return replace(serving(name, 0.05, 0.0), vcpus=len(pinned), pinned=frozenset(pinned))


def hog(cpu_share: float = 0.6) -> VmView:
    return replace(view("hog", VmClass.BATCH, weight=1), cpu_share=cpu_share)


def seen(*vms: VmView, topology: Topology = CORES, batch: BatchPlacement = BatchPlacement.FLOAT) -> Snapshot:
    host = HostSpec("h1", placement=PlacementRules(batch=batch))
    eight = replace(capabilities(), online_cpus=EIGHT, managed_cpus=EIGHT, topology=topology)
    made = moment(NOW_S, application("shop", [150] * 6, 100.0, NOW_S), vms=vms)
    return replace(made, host=host, capabilities=eight)


def offered(snapshot: Snapshot, *in_force: StepInForce, measured_ms: float = 150.0) -> list[StepCandidate]:
    return list(sibling_candidates(snapshot, [app_model("shop", 0, measured_ms)], in_force))


def in_force(application: str = "shop") -> StepInForce:
    step = LadderStep(StepKind.SIBLINGS, application, 1.0, application)
    return StepInForce(StepCandidate(step, 0.3, 0.1, 0.0, "hog is noisy"), NOW_S, 0.3, NOW_S)


@pytest.mark.parametrize("rule", BatchPlacement)
def test_a_rule_for_batch_vms_that_is_set_meanwhile_counts_before_the_step(rule: BatchPlacement) -> None:
    """Else it would bring them back onto the pCPUs of critical VMs behind a fence."""
    memory = AutoMemory(ladder=StepsMemory((in_force(),), known_s={"shop": NOW_S}))
    decision = AUTO.decide(seen(shop(0, 1), hog(), batch=rule), memory)
    assert [goal.vm for goal in decision.cpus] == (["hog"] if rule is BatchPlacement.FLOAT else [])


@pytest.mark.parametrize(
    ("vms", "siblings"),
    [
        ((shop(0),), {4}),
        ((shop(0, 1),), {4, 5}),
        ((shop(0, 4),), set()),
        ((shop(0, 1), shop(4, name="mail")), {5}),
        ((shop(),), set()),
    ],
)
def test_siblings_are_those_of_pinned_vcpus_that_no_critical_vcpu_has(
    vms: tuple[VmView, ...], siblings: set[int]
) -> None:
    assert siblings_of(seen(*vms), "shop") == siblings


@pytest.mark.parametrize(
    ("name", "siblings"),
    [("xeon-4108-2s", {16}), ("epyc-7451-2s", {48}), ("power9-2s", {1, 2, 3}), ("kunpeng-920-2s", set())],
)
def test_siblings_of_real_machines(name: str, siblings: set[int], tmp_path: Path) -> None:
    topology = topologies.topology(name, tmp_path)
    here = replace(capabilities(), online_cpus=topology.numbers, managed_cpus=topology.numbers, topology=topology)
    assert siblings_of(replace(seen(shop(0), hog()), capabilities=here), "shop") == siblings


def test_they_are_left_where_batch_vms_keep_them_busy() -> None:
    [found] = offered(seen(shop(0, 1), hog()))
    assert (found.step.knob, found.step.amount) == ((StepKind.SIBLINGS, "shop"), 2.0)
    assert found.gain == pytest.approx(math.log(1.67) * 0.8)
    assert found.batch_cost == pytest.approx(2 / 8)
    assert found.why == "batch VMs keep its siblings 80 % busy"


@pytest.mark.parametrize(
    "snapshot",
    [
        seen(shop(0), hog(), topology=FLAT),
        seen(shop(), hog()),
        seen(shop(0), hog(0.1)),
        seen(shop(0)),
        seen(shop(0), hog(), batch=BatchPlacement.FENCE),
        seen(shop(0), hog(), batch=BatchPlacement.SINGLE),
        seen(replace(shop(0), mode=Mode.OBSERVE), hog()),
    ],
)
def test_otherwise_not(snapshot: Snapshot) -> None:
    assert offered(snapshot) == []


def test_not_while_the_sla_is_met_nor_twice() -> None:
    assert offered(seen(shop(0), hog()), measured_ms=50.0) == []
    assert offered(seen(shop(0), hog()), in_force()) == []


def test_batch_vms_keep_half_of_the_pcpus() -> None:
    assert [each.step.amount for each in offered(seen(shop(0, 1, 2, 3), hog()))] == [4.0]
    two = Topology(tuple(Pcpu(number, number // 4, 0, 0, 0) for number in range(8)))
    assert offered(seen(shop(0, 4), hog(), topology=two)) == [], "six of eight are siblings"


def test_goals_follow_the_pins_and_what_room_and_registration_leave() -> None:
    ladder, snapshot = StepsMemory((in_force(),)), seen(shop(0), hog(), replace(hog(), spec=view("b2").spec))
    goals = with_siblings(ladder, snapshot, (CpusGoal("hog", frozenset({3, 4, 7}), "room"),))
    assert {goal.vm: goal.cpus for goal in goals}["hog"] == {3, 7}
    moved = with_siblings(ladder, seen(shop(2), hog()), ())
    assert [(goal.vm, goal.cpus) for goal in moved] == [("hog", EIGHT - {6})]
    assert moved[0].reason == "auto: an SLA is at risk, so batch VMs leave the siblings 6 of its cores idle"
    only = replace(hog(), spec=replace(hog().spec, cpus=frozenset({4})))
    assert with_siblings(ladder, seen(shop(0), only), ()) == (), "it may run nowhere else"
    assert with_siblings(StepsMemory(), snapshot, ()) == ()


def test_it_is_told() -> None:
    told = " ".join(told_steps(StepsMemory((in_force(),)), "shop", "p95", NOW_S, acts=True))
    assert told.startswith("Batch VMs leave the siblings of the cores of shop idle (")


def test_in_a_loop_siblings_are_left_idle_while_that_helps_and_go_with_the_cause() -> None:
    """A model of a core: beside a busy sibling all takes 2.2 times as long."""
    memory: object = None
    idle: list[bool] = []
    for tick in range(130):
        share, now_s = (0.6 if tick < 40 else 0.0), NOW_S + 5 * tick
        slow = share and not (idle and idle[-1])
        p95_ms = (121.0 if slow else 55.0) * (1 + 0.04 * math.sin(tick))
        snapshot = replace(
            seen(shop(0), hog(share)), now_s=now_s, applications=(application("shop", [p95_ms] * 6, 100.0, now_s),)
        )
        decision = AUTO.decide(snapshot, memory)
        assert validate(decision, snapshot) is None
        memory = decision.memory
        idle.append(any(4 not in goal.cpus for goal in decision.cpus))
    assert not idle[0]
    assert sum(idle[20:40]) >= 15, "but for the trial without"
    assert not any(idle[-10:])
    assert isinstance(memory, AutoMemory)
    assert memory.ladder.brought["shop/siblings/shop"] == pytest.approx(math.log(2.2), abs=0.1)
