"""Experiments that hold suspects back by turns: their order, their bounds, and how often they are wrong."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.hold_experiment import (
    BLOCKS,
    CHANCE,
    LEAST_TURN_S,
    MOST_SUSPECTS,
    MOST_TURN_S,
    NOBODY,
    HoldExperiment,
    HoldFinding,
    begun,
    chance_of,
    most_s,
    next_turn,
)


def outcome(suspects: list[str], falls: dict[str, float], seed: int, drift: float = 0.0) -> HoldFinding:
    """What comes of an experiment in which holding somebody back lowers ln(percentile) by ``falls``, and noise."""
    noise = Random(seed)
    now_s, state = float(seed), begun("shop", suspects, float(seed))
    while True:
        sample = noise.gauss(-falls.get(state.held, 0.0) + drift * (now_s - seed), 0.2)
        now_s += 1
        after = next_turn(state, now_s, sample)
        assert after is not None
        if isinstance(after, HoldFinding):
            return after
        state = after


def test_who_slows_it_is_named_with_the_effect_and_the_confidence() -> None:
    finding = outcome(["a", "b", "c"], {"b": 0.6}, 1)
    assert (finding.application, finding.neighbour) == ("shop", "b")
    assert finding.fall == pytest.approx(0.6, abs=0.25)
    assert finding.confidence == 1 - 3 / 2**BLOCKS


def test_of_two_that_slow_it_the_worse_one_is_named() -> None:
    assert outcome(["a", "b"], {"a": 0.5, "b": 1.5}, 3).neighbour == "b"


@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_nobody_is_named_by_chance_more_often_than_stated(drift: float) -> None:
    """300 experiments of 3 suspects without an effect, also while the load grows: 5 % at most, and three errors."""
    wrong = sum(outcome(["a", "b", "c"], {}, seed, drift).neighbour != NOBODY for seed in range(300))
    assert wrong / 300 <= CHANCE + 3 * math.sqrt(CHANCE * (1 - CHANCE) / 300)


def test_a_factor_of_one_and_a_half_is_found_four_times_of_five() -> None:
    found = [outcome(["a", "b"], {"a": math.log(1.5)}, seed).neighbour for seed in range(50)]
    assert found.count("a") >= 40
    assert "b" not in found


@settings(max_examples=30, deadline=None)
@given(st.integers(1, MOST_SUSPECTS), st.floats(0.05, 20), st.integers(0, 1000))
def test_each_is_held_once_in_a_block_one_at_a_time_and_no_longer_than_stated(
    count: int, step_s: float, seed: int
) -> None:
    suspects = [f"vm-{number}" for number in range(count)]
    samples = Random(seed)
    now_s, held_s, state = 0.0, 0.0, begun("shop", suspects, 0.0)
    turns: list[str] = [state.held]
    while True:
        before_s, now_s = now_s, now_s + step_s
        if state.held != NOBODY:
            held_s += now_s - before_s
        after = next_turn(state, now_s, samples.random() if samples.random() < 0.7 else None)
        if not isinstance(after, HoldExperiment):
            break
        if after.turn_s != state.turn_s:
            assert now_s - state.turn_s >= LEAST_TURN_S
            turns.append(after.held)
        state = after
    assert held_s <= now_s <= most_s(count) + BLOCKS * (count + 1) * step_s
    whole = [turns[first : first + count + 1] for first in range(0, len(turns) - count, count + 1)]
    assert all(sorted(block) == sorted([NOBODY, *suspects]) for block in whole)


def test_without_response_times_it_ends() -> None:
    state = begun("shop", ["a", "b"], 0.0)
    assert next_turn(state, MOST_TURN_S - 0.1, None) == state
    assert next_turn(state, MOST_TURN_S, None) is None


def test_the_order_is_drawn_anew_and_the_same_for_the_same_experiment() -> None:
    orders = [begun("shop", ["a", "b", "c"], float(at_s)).order for at_s in range(20)]
    assert len(set(orders)) > 5
    assert orders[0] == begun("shop", ["a", "b", "c"], 0.0).order


@pytest.mark.parametrize(
    ("differences", "chance"), [([1.0] * 8, 1 / 256), ([1.0, 1.0], 1 / 4), ([0.0] * 3, 1.0), ([-1.0, -1.0], 1.0)]
)
def test_the_probability_is_that_of_signs(differences: list[float], chance: float) -> None:
    assert chance_of(differences) == chance


@pytest.mark.parametrize("count", [0, MOST_SUSPECTS + 1])
def test_how_many_may_be_suspected(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} suspects are refused: use 1 to {MOST_SUSPECTS}"):
        begun("shop", ["vm"] * count, 0.0)
