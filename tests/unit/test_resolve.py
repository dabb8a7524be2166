"""From a decision to goals: legal weights, missing knobs, modes; and decisions that must not be carried out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.resolve import effective_mode, resolve, validate
from manager.model.decision import Decision, Goal, Placement, WeightGoal
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, KnobKey, WeightScale
from manager.model.records import Knob
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
        (Decision(None), "returned Decision(weights=None, memory=None, notes=()) instead of a decision"),
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
    plan = resolve(weights(("web", asked)), Placement(), seen, UUIDS)
    reason = "why" if asked == weight else f"why; {asked} clamped to {weight}"
    assert plan.goals == (Goal(KnobKey("u-web", Knob.WEIGHT), "web", weight, reason, Mode.ENFORCE),)


@pytest.mark.parametrize(
    "seen",
    [snapshot(view("web"), scale=None), snapshot(view("web", weight=None))],
    ids=["the host has no weights", "the VM has no cgroup of its own"],
)
def test_a_weight_that_cannot_be_set_is_left_out_and_pins_are_not(seen) -> None:
    plan = resolve(weights(("web", 5)), Placement((("web", (2,)),)), seen, UUIDS)
    assert [goal.key.knob for goal in plan.goals] == [Knob.EMULATOR_PIN, Knob.VCPU_PIN]


def test_pins_become_a_goal_each_and_one_for_the_emulator() -> None:
    seen = snapshot(view("web", vcpus=2, mode=Mode.OBSERVE))
    plan = resolve(Decision(), Placement((("web", (3, 1)),), (("batch", "floats"),)), seen, UUIDS)
    assert [(goal.key, goal.value, goal.reason) for goal in plan.goals] == [
        (KnobKey("u-web", Knob.EMULATOR_PIN), frozenset({1, 3}), "emulator threads beside their vCPUs"),
        (KnobKey("u-web", Knob.VCPU_PIN, 0), frozenset({3}), "critical vCPU 0: pCPU 3 of its own"),
        (KnobKey("u-web", Knob.VCPU_PIN, 1), frozenset({1}), "critical vCPU 1: pCPU 1 of its own"),
    ]
    assert {goal.mode for goal in plan.goals} == {Mode.OBSERVE}


def test_each_goal_has_the_mode_of_its_vm() -> None:
    seen = snapshot(view("batch", mode=Mode.RELEASED), view("web"))
    plan = resolve(weights(("web", 5), ("batch", 6)), Placement((("web", (0,)),)), seen, UUIDS)
    assert {(goal.vm, goal.mode) for goal in plan.goals} == {("web", Mode.ENFORCE), ("batch", Mode.RELEASED)}


@given(
    st.permutations([("web", 7), ("batch", 8)]),
    st.dictionaries(st.sampled_from(["web", "batch"]), st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)),
)
def test_at_most_one_goal_a_knob_in_their_order(asked, pins) -> None:
    seen = snapshot(view("web"), view("batch"))
    keys = [goal.key for goal in resolve(weights(*asked), Placement(tuple(pins.items())), seen, UUIDS).goals]
    assert keys == sorted(set(keys))
