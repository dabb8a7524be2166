"""From a decision to goals: legal weights, missing knobs, modes; and decisions that must not be carried out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.placer import Confined, Steered
from manager.control.resolve import Wishes, effective_mode, resolve, validate
from manager.model.decision import (
    Decision,
    Goal,
    IdleGoal,
    Placement,
    VcpuPlacement,
    VmPlacement,
    WeightGoal,
)
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, WeightScale
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Mode
from tests.unit.build import snapshot, view

UUIDS = {"web": "u-web", "batch": "u-batch"}


@pytest.mark.parametrize(
    ("host", "application", "mode"),
    [
        (Mode.ENFORCE, None, Mode.ENFORCE),
        (Mode.ENFORCE, Mode.ENFORCE, Mode.ENFORCE),
        (Mode.ENFORCE, Mode.OBSERVE, Mode.OBSERVE),
        (Mode.ENFORCE, Mode.RELEASED, Mode.RELEASED),
        (Mode.OBSERVE, None, Mode.OBSERVE),
        (Mode.OBSERVE, Mode.ENFORCE, Mode.OBSERVE),
        (Mode.OBSERVE, Mode.OBSERVE, Mode.OBSERVE),
        (Mode.OBSERVE, Mode.RELEASED, Mode.RELEASED),
        (Mode.RELEASED, None, Mode.RELEASED),
        (Mode.RELEASED, Mode.ENFORCE, Mode.RELEASED),
        (Mode.RELEASED, Mode.OBSERVE, Mode.RELEASED),
        (Mode.RELEASED, Mode.RELEASED, Mode.RELEASED),
    ],
)
def test_the_more_cautious_mode_holds(host: Mode, application: Mode | None, mode: Mode) -> None:
    assert effective_mode(host, application) is mode


def test_the_table_of_modes_is_complete() -> None:
    [mark] = [one for one in test_the_more_cautious_mode_holds.pytestmark if one.name == "parametrize"]
    assert {row[:2] for row in mark.args[1]} == set(product(Mode, [None, *Mode]))


def wishes(decision: Decision, /, **parts: object) -> Wishes:
    return Wishes(decision, **parts)  # type: ignore[arg-type]


def placed(**pins: tuple[int, ...]) -> Placement:
    """Each VM's pCPUs by name."""
    vms = (
        VmPlacement(name, tuple(VcpuPlacement(cpu, f"pCPU {cpu}: own core") for cpu in cpus), 1.0)
        for name, cpus in sorted(pins.items())
    )
    return Placement(tuple(vms))


def weights(*goals: tuple[str, object]) -> Decision:
    return Decision(tuple(WeightGoal(name, weight, "why") for name, weight in goals))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "decision", [Decision(), weights(("web", 1)), weights(("web", 10**9), ("batch", 2))], ids=["none", "one", "all"]
)
def test_valid_decisions(decision: Decision) -> None:
    assert validate(decision, snapshot(view("web"), view("batch"))) is None


@pytest.mark.parametrize(
    ("decision", "objection"),
    [
        (weights(("ghost", 5)), "names VM 'ghost', which is not a managed VM of this host"),
        (weights(("web", 5), ("web", 5)), "gives VM 'web' two weights"),
        (weights(("web", 0)), "gives VM 'web' the weight 0; use a whole number of at least 1"),
        (weights(("web", -7)), "gives VM 'web' the weight -7; use a whole number of at least 1"),
        (weights(("web", 2.5)), "gives VM 'web' the weight 2.5; use a whole number of at least 1"),
        (weights(("web", float("nan"))), "gives VM 'web' the weight nan; use a whole number of at least 1"),
        (weights(("web", True)), "gives VM 'web' the weight True; use a whole number of at least 1"),
        (weights(("web", "5")), "gives VM 'web' the weight '5'; use a whole number of at least 1"),
        (weights(("web", None)), "gives VM 'web' the weight None; use a whole number of at least 1"),
        (weights(("web", 5), ("ghost", 5)), "names VM 'ghost', which is not a managed VM of this host"),
        (None, "returned None instead of a decision"),
        ({"web": 5}, "returned {'web': 5} instead of a decision"),
        (
            Decision(None),
            "returned Decision(weights=None, memory=None, notes=(), idle=(), cpus=(), quotas=(), ways=(), pinning=None,"
            " explanations=(), bandwidths=None, on_trial=False, resources=(), warps=None) instead of a decision",
        ),
        (Decision(("web",)), "holds 'web' instead of a weight goal"),
        (
            Decision((WeightGoal(["web"], 5, ""),)),
            "holds WeightGoal(vm=['web'], weight=5, reason='') instead of a weight goal",
        ),
        (
            Decision((WeightGoal("web", 5, None),)),
            "holds WeightGoal(vm='web', weight=5, reason=None) instead of a weight goal",
        ),
    ],
)
def test_decisions_that_change_nothing(decision, objection: str) -> None:
    assert validate(decision, snapshot(view("web"), view("batch"))) == objection


@pytest.mark.parametrize(
    ("scale", "version", "asked", "weight"),
    [
        (CPU_SHARES_V1, 1, 1, 2),
        (CPU_SHARES_V1, 1, 2, 2),
        (CPU_SHARES_V1, 1, 262_144, 262_144),
        (CPU_SHARES_V1, 1, 262_145, 262_144),
        (CPU_WEIGHT_V2, 2, 1, 1),
        (CPU_WEIGHT_V2, 2, 10_000, 10_000),
        (CPU_WEIGHT_V2, 2, 10_001, 10_000),
        (CPU_WEIGHT_V2, 2, 262_144, 10_000),
    ],
)
def test_weights_are_clamped_and_say_so(scale: WeightScale, version: int, asked: int, weight: int) -> None:
    seen = snapshot(view("web"), scale=scale, version=version)
    plan = resolve(wishes(weights(("web", asked))), seen, UUIDS)
    reason = "why" if asked == weight else f"why; {asked} clamped to {weight}"
    assert plan.goals == (Goal(KnobKey("u-web", Knob.WEIGHT), weight, reason, Mode.ENFORCE),)


@pytest.mark.parametrize(
    "seen",
    [snapshot(view("web"), scale=None), snapshot(view("web", weight=None))],
    ids=["the host has no weights", "the VM has no cgroup of its own"],
)
def test_a_weight_that_cannot_be_set_is_left_out_and_pins_are_not(seen) -> None:
    plan = resolve(wishes(weights(("web", 5)), placement=placed(web=(2,))), seen, UUIDS)
    assert [goal.key.knob for goal in plan.goals] == [Knob.EMULATOR_PIN, Knob.VCPU_PIN]


def test_pins_become_a_goal_each_and_one_for_the_emulator() -> None:
    seen = snapshot(view("web", vcpus=2, mode=Mode.OBSERVE))
    plan = resolve(wishes(Decision(), placement=placed(web=(3, 1))), seen, UUIDS)
    assert [(goal.key, goal.value, goal.reason) for goal in plan.goals] == [
        (KnobKey("u-web", Knob.EMULATOR_PIN), frozenset({1, 3}), "emulator threads beside their vCPUs"),
        (KnobKey("u-web", Knob.VCPU_PIN, 0), frozenset({3}), "critical vCPU 0: pCPU 3: own core"),
        (KnobKey("u-web", Knob.VCPU_PIN, 1), frozenset({1}), "critical vCPU 1: pCPU 1: own core"),
    ]
    assert {goal.mode for goal in plan.goals} == {Mode.OBSERVE}


def test_each_goal_has_the_mode_of_its_vm() -> None:
    seen = snapshot(view("batch", mode=Mode.RELEASED), view("web"))
    plan = resolve(wishes(weights(("web", 5), ("batch", 6)), placement=placed(web=(0,))), seen, UUIDS)
    assert {(goal.key.uuid, goal.mode) for goal in plan.goals} == {("u-web", Mode.ENFORCE), ("u-batch", Mode.RELEASED)}


def test_io_threads_go_beside_their_vcpus_too() -> None:
    seen = snapshot(replace(view("web"), iothreads=(1, 4)))
    plan = resolve(wishes(Decision(), placement=placed(web=(2,))), seen, UUIDS)
    found = {goal.key: goal.value for goal in plan.goals if goal.key.knob is Knob.IOTHREAD_PIN}
    assert found == {KnobKey("u-web", Knob.IOTHREAD_PIN, number): frozenset({2}) for number in (1, 4)}


def test_a_confined_vm_stays_there_with_all_its_threads() -> None:
    seen = snapshot(replace(view("batch", vcpus=2), iothreads=(1,)))
    plan = resolve(wishes(Decision(), confined=(Confined("batch", frozenset({1, 2}), "why"),)), seen, UUIDS)
    knobs = [goal.key.knob for goal in plan.goals]
    assert knobs == [Knob.EMULATOR_PIN, Knob.IOTHREAD_PIN, Knob.VCPU_PIN, Knob.VCPU_PIN]
    assert {goal.value for goal in plan.goals} == {frozenset({1, 2})}


@pytest.mark.parametrize(
    ("limit", "period_us", "quota_us"), [(1.5, 100_000, 150_000), (0.01, 50_000, 1000), (2.0, 20_000, 40_000)]
)
def test_a_limit_becomes_a_quota_of_the_period_there_is(limit: float, period_us: int, quota_us: int) -> None:
    one = view("batch")
    seen = snapshot(replace(one, spec=replace(one.spec, max_pcpus=limit), quota_period_us=period_us))
    [goal] = resolve(wishes(Decision()), seen, UUIDS).goals
    assert (goal.key.knob, goal.value, goal.reason) == (Knob.QUOTA, quota_us, f"registered limit: {limit:g} pCPUs")


def test_where_there_are_no_quotas_a_limit_is_left_out() -> None:
    one = view("batch")
    seen = snapshot(replace(one, spec=replace(one.spec, max_pcpus=1.0)))
    assert resolve(wishes(Decision()), seen, UUIDS).goals == ()


@pytest.mark.parametrize(
    ("idle", "weight", "knobs"),
    [(False, 1024, ["idle", "weight"]), (True, None, ["idle", "weight"]), (None, 1024, ["weight"])],
)
def test_the_idle_class_where_there_is_one(idle: bool | None, weight: int | None, knobs: list[str]) -> None:
    """The weight is wanted as well: it holds where the idle class is refused, and after it was left."""
    seen = snapshot(replace(view("batch", weight=weight), idle=idle))
    decision = replace(weights(("batch", 5)), idle=(IdleGoal("batch", True, "why"),))
    assert [str(goal.key.knob) for goal in resolve(wishes(decision), seen, UUIDS).goals] == knobs


def test_interrupts_are_goals_of_the_host() -> None:
    plan = resolve(wishes(Decision(), interrupts=(Steered(38, 1, "why"),)), snapshot(), UUIDS)
    assert plan.goals == (Goal(KnobKey("host", Knob.IRQ_AFFINITY, 38), frozenset({1}), "why", Mode.ENFORCE),)


@given(
    st.permutations([("web", 7), ("batch", 8)]),
    st.dictionaries(st.sampled_from(["web", "batch"]), st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)),
)
def test_at_most_one_goal_a_knob_in_their_order(asked, pins) -> None:
    seen = snapshot(view("web"), view("batch"))
    plan = resolve(wishes(weights(*asked), placement=placed(**pins)), seen, UUIDS)
    keys = [goal.key for goal in plan.goals]
    assert keys == sorted(set(keys))
