"""Lending: who gives weight to an application that misses its target, how much, and when it has it back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from manager.control.contention import Contender
from manager.model.decision import Snapshot
from policies.auto import COOL_DOWN_S
from policies.auto import POLICY as AUTO
from policies.auto_lending import (
    CREDIT,
    LEAST_KNOWN_S,
    LONGEST_NO_LOANS_S,
    LOWEST_LENT,
    NO_LOANS_GROWTH,
    NO_LOANS_S,
    PATIENCE,
    SHORT,
    SPARE,
    short_lenders,
    tolerable,
    with_credit,
)
from policies.auto_memory import AutoMemory, Cooling
from policies.auto_model import HostModel
from tests.unit.test_auto import app_model, application, batch, host, moment, vm, weights

EASY_TARGET_MS = 1000.0
LENT = 10_000 // 4**LOWEST_LENT


def beside_one_at_ease(at_s: float, easy_ms: float = 20.0, tight_ms: float = 130.0) -> Snapshot:
    """`tight` misses its target of 120 ms, and waits for `easy`."""
    return moment(
        at_s,
        application("easy", [easy_ms / 3, easy_ms / 2, easy_ms], EASY_TARGET_MS, at_s),
        application("tight", [tight_ms / 3, tight_ms / 2, tight_ms], 120.0, at_s),
        vms=[batch(), vm("easy", 0.3, 0.2), vm("tight", 0.3, 0.3)],
    )


def lends_after(ticks: int, **fields: float) -> tuple[list[bool], AutoMemory]:
    """For each tick whether `easy` has less weight, and what is remembered at the end."""
    memory: object = None
    lowered: list[bool] = []
    for tick in range(ticks):
        decision = AUTO.decide(beside_one_at_ease(1000.0 + 5 * tick, **fields), memory)
        memory = decision.memory
        lowered.append(weights(decision)["easy-web"] < 10_000)
        assert weights(decision)["tight-web"] == 10_000
        assert weights(decision)["easy-web"] in (10_000, LENT)
    assert isinstance(memory, AutoMemory)
    return lowered, memory


def test_one_far_below_its_target_lends_once_it_is_known_for_a_while() -> None:
    lowered, memory = lends_after(round(LEAST_KNOWN_S / 5) + 1)
    assert lowered == [False] * round(LEAST_KNOWN_S / 5) + [True]
    assert memory.lenders == {"easy"}


@pytest.mark.parametrize("fields", [{"easy_ms": EASY_TARGET_MS * SPARE * 1.1}, {"tight_ms": 80.0}])
def test_nobody_lends_who_has_little_to_spare_or_while_it_is_not_needed(fields: dict[str, float]) -> None:
    lowered, _ = lends_after(40, **fields)
    assert not any(lowered)


def test_a_lender_has_its_weight_back_once_it_is_short_and_does_not_lend_again_for_a_while() -> None:
    _, memory = lends_after(14)
    memory = replace(memory, courses={**memory.courses, "easy": math.log(SHORT * 10)})
    for tick in range(14, 14 + round(COOL_DOWN_S / 5)):
        decision = AUTO.decide(beside_one_at_ease(1000.0 + 5 * tick), memory)
        assert isinstance(decision.memory, AutoMemory)
        memory = decision.memory
        assert weights(decision)["easy-web"] == 10_000, tick
    assert memory.cooling["easy"].times == 1


@pytest.mark.parametrize(("of_target", "lends"), [(0.9, True), (1.1, False)])
def test_a_lender_that_violates_its_sla_for_nothing_has_its_weight_back(of_target: float, lends: bool) -> None:
    _, memory = lends_after(14)
    decision = AUTO.decide(beside_one_at_ease(1070.0, easy_ms=EASY_TARGET_MS * of_target), memory)
    assert (weights(decision)["easy-web"] == LENT) is lends
    assert isinstance(decision.memory, AutoMemory)
    assert ("easy" in decision.memory.cooling) is not lends


def test_a_loan_that_saves_more_than_it_costs_outlasts_single_violations() -> None:
    _, memory = lends_after(14)
    for tick in range(14, 40):
        easy_ms = EASY_TARGET_MS * 1.1 if tick in {17, 30} else 20.0
        decision = AUTO.decide(beside_one_at_ease(1000.0 + 5 * tick, easy_ms, 105.0), memory)
        assert isinstance(decision.memory, AutoMemory)
        memory = decision.memory
        assert weights(decision)["easy-web"] == LENT, tick
    assert memory.saved == CREDIT


@pytest.mark.parametrize(
    ("usual", "saved", "tight_ms", "expected"),
    [
        ({"easy": 0.0, "tight": 0.75}, 0.0, 100.0, 0.75),
        ({"easy": 0.0, "tight": 0.75}, 0.0, 130.0, -0.25),
        ({"easy": 0.5, "tight": 0.75}, 1.0, 100.0, 2.25),
        ({"tight": 0.75}, 1.0, 100.0, 1.75),  # `easy` is new: nothing is usual of it
        ({}, 1.0, 130.0, 1.0),
        ({"easy": 1.0, "tight": 1.0}, CREDIT - 0.5, 100.0, CREDIT),
    ],
)
def test_what_a_loan_has_saved(usual: dict[str, float], saved: float, tight_ms: float, expected: float) -> None:
    model = host(
        (app_model("easy", 0, 20.0), Contender(0.3, 1)), (app_model("tight", 1, tight_ms), Contender(0.3, 1)), pcpus=1
    )
    lending = AutoMemory(lenders=frozenset({"easy"}), levels={"easy": 1}, usual=usual, saved=saved)
    after = with_credit(model, lending, 1000.0)
    assert after.saved == pytest.approx(expected)
    assert after.usual == usual, "that is of times in which nobody lends"


def test_after_a_loan_that_cost_violations_nobody_lends_for_a_while_and_longer_each_time() -> None:
    model = host((app_model("tight", 0, 130.0), Contender(0.3, 1)), pcpus=1)
    memory, until_s = AutoMemory(), []
    for saved in (-PATIENCE, -3.0, -PATIENCE + 0.1, 0.0, 2.0, -3.0):
        memory = with_credit(model, replace(memory, saved=saved), 1000.0)
        assert memory.saved == 0.0, "each loan is judged once"
        until_s.append(memory.no_loans.until_s - 1000.0)
    once, twice = NO_LOANS_S, NO_LOANS_GROWTH * NO_LOANS_S
    assert until_s == [once, twice, twice, twice, twice, once], "one that paid ends the growth"
    memory = with_credit(model, AutoMemory(saved=-3.0, no_loans=Cooling(0.0, 9999)), 1000.0)
    assert memory.no_loans == Cooling(1000.0 + LONGEST_NO_LOANS_S, 10_000)


def test_nobody_lends_on_a_host_where_loans_did_not_pay() -> None:
    lowered, memory = lends_after(14)
    assert lowered[-1]
    memory = replace(memory, levels={}, lenders=frozenset(), trial=None, saved=-3.0, cooling={})
    for tick in range(14, 14 + round(NO_LOANS_S / 5)):
        decision = AUTO.decide(beside_one_at_ease(1000.0 + 5 * tick), memory)
        assert isinstance(decision.memory, AutoMemory)
        memory = decision.memory
        assert weights(decision)["easy-web"] == 10_000, tick
    decision = AUTO.decide(beside_one_at_ease(1070.0 + NO_LOANS_S), memory)
    assert weights(decision)["easy-web"] == LENT


def test_what_is_usual_is_averaged_while_nobody_lends() -> None:
    model = host((app_model("tight", 0, 130.0), Contender(0.3, 1)), pcpus=1)
    first = with_credit(model, AutoMemory(usual={"gone": 0.5}, saved=2.0), 1000.0)
    assert (first.usual, first.saved) == ({"tight": 1.0}, 0.0)
    assert with_credit(model, replace(first, usual={"tight": 0.0}), 1000.0).usual == {"tight": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("saved", "of_target", "average_of_target", "short"),
    [
        (-PATIENCE + 0.1, 1.5, 0.9, False),
        (-PATIENCE + 0.1, 0.5, 1.1, True),
        (-PATIENCE, 1.5, 0.5, True),
        (-PATIENCE, 0.9, SHORT * 1.1, True),
        (-PATIENCE, 0.9, SHORT * 0.9, False),
    ],
)
def test_when_a_lender_is_short(saved: float, of_target: float, average_of_target: float, short: bool) -> None:
    model = host((app_model("easy", 0, 100.0 * of_target), Contender(0.3, 1)), pcpus=1)
    courses = {"easy": math.log(average_of_target)}
    assert short_lenders(model, frozenset({"easy"}), courses, saved) == ({"easy"} if short else set())


def test_a_loan_that_does_not_help_is_taken_back() -> None:
    lowered, memory = lends_after(12 + 8 + 1)
    assert lowered[12:20] == [True] * 8
    assert not lowered[20], "`tight` is as slow as before"
    assert memory.cooling["easy"].times == 1


def test_a_loan_that_helps_is_kept_and_warns_of_nothing() -> None:
    _, memory = lends_after(14)
    for tick in range(14, 40):
        decision = AUTO.decide(beside_one_at_ease(1000.0 + 5 * tick, tight_ms=105.0), memory)
        assert isinstance(decision.memory, AutoMemory)
        memory = decision.memory
        assert weights(decision)["easy-web"] == LENT, tick
        assert decision.notes == ()
    assert memory.trial is None


def test_a_lender_is_not_lowered_where_it_is_predicted_to_miss_its_own_target() -> None:
    def beside(easy_ms: float) -> HostModel:
        easy, tight = app_model("easy", 0, easy_ms, target_ms=easy_ms * 2), app_model("tight", 1, 130.0)
        return host((easy, Contender(0.45, 1)), (tight, Contender(0.45, 1)), pcpus=1)

    lenders = frozenset({"easy"})
    assert tolerable(beside(5000.0), {"easy": 1}, lenders)
    assert not tolerable(beside(20.0), {"easy": 1}, lenders)
    assert not tolerable(beside(5000.0), {"easy": LOWEST_LENT + 1}, lenders)
    assert tolerable(beside(20.0), {"tight": 3}, lenders), "nobody lends"


def test_waits_above_the_modelled_ones_are_passed_on_by_weight() -> None:
    """Two VMs on two pCPUs never wait in the model; measured ones meet on one pCPU now and then."""
    apps = [(app_model(name, number, 110.0), Contender(0.3, 1)) for number, name in enumerate(("one", "two"))]
    model = replace(host(*apps, pcpus=2.0), measured=(1.2, 1.2))
    anchored = model.anchored({})
    assert anchored.violated({}) > model.violated({})
    assert model.violations({"two": 1})["one"] == pytest.approx(model.violations({})["one"], abs=0.02)
    lent = anchored.violations({"two": 1})
    assert lent["one"] < anchored.violations({})["one"]
    assert lent["two"] > anchored.violations({})["two"]
