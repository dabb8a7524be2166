"""What `auto` keeps when the agent ends, and how it goes on from there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.auto import POLICY
from policies.auto_kept import kept_text, recalled
from policies.auto_memory import AutoMemory, Cooling, TakenBack, Trial
from policies.auto_steps import StepKind, StepsMemory
from policies.auto_trials import (
    BEFORE_SAMPLES,
    ERROR_BUDGET,
    FIRST_BUDGET_S,
    INTERRUPTED_S,
    LONGEST_COOL_DOWN_S,
    LONGEST_TRIAL_S,
    REST_S,
)
from policies.base import RememberingPolicy
from tests.unit.test_auto_steps import HOUR_S, QUOTA, TICK_S, WAYS, Climb, helped_by


def restarted(climb: Climb, down_s: float = 0.0) -> None:
    """The agent is killed and begins again so much later."""
    text = kept_text(AutoMemory(ladder=climb.memory))
    climb.now_s += down_s
    climb.memory = recalled(text, climb.now_s).ladder


def on_trial(climb: Climb) -> None:
    while climb.memory.trial is None:
        climb.tick()


def test_a_step_in_force_stays_and_is_not_tried_again() -> None:
    climb = Climb(helped_by(QUOTA.step))
    climb.run(600)
    [before] = climb.memory.in_force
    restarted(climb, down_s=300)
    seen = climb.run(600)
    assert {memory.steps for memory in seen} == {(QUOTA.step,)}
    assert {memory.trial for memory in seen} == {None}
    assert climb.memory.in_force == (before,)


def test_what_was_of_no_use_is_not_tried_again_before_its_time() -> None:
    climb = Climb(helped_by(WAYS.step), candidates=(QUOTA,))
    climb.run(400)
    cooling = climb.memory.cooling[QUOTA.step.name]
    restarted(climb)
    assert climb.memory.cooling == {QUOTA.step.name: cooling}
    for memory in climb.run(cooling.until_s - climb.now_s):
        assert memory.trial is None


def test_a_trial_that_is_cut_off_is_taken_back_counts_and_waits() -> None:
    climb = Climb(helped_by(QUOTA.step))
    on_trial(climb)
    climb.run(10)
    assert climb.memory.trial is not None
    restarted(climb)
    assert climb.memory.steps == ()
    assert climb.memory.worse_s == pytest.approx(10 + TICK_S)
    assert climb.memory.cooling[QUOTA.step.name].until_s == climb.now_s + INTERRUPTED_S
    climb.run(REST_S + INTERRUPTED_S + 2 * BEFORE_SAMPLES * TICK_S + 60)
    assert climb.memory.steps == (QUOTA.step,), "it is tried again, and kept"


def test_one_that_was_being_taken_off_is_in_force() -> None:
    climb = Climb(lambda *_: {"shop": -1.2})
    first = Climb(helped_by(QUOTA.step))
    first.run(600)
    climb.memory, climb.now_s = first.memory, first.now_s
    on_trial(climb)
    assert climb.memory.trial is not None
    assert climb.memory.trial.off
    assert climb.memory.steps == ()
    restarted(climb)
    assert climb.memory.steps == (QUOTA.step,)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_an_agent_that_is_killed_in_each_trial_soon_begins_none(seed: int, ticks: int) -> None:
    """It harms, which is never seen, as the agent is killed before."""
    random = Random(seed)
    climb = Climb(lambda _now_s, memory: {"shop": (1.5 if memory.steps else 0.4) + random.gauss(0, 0.02)})
    climb.candidates = (QUOTA,)
    began_s, on_s, running = climb.now_s, 0.0, 0
    while climb.now_s < began_s + HOUR_S:
        memory = climb.tick()
        running = running + 1 if memory.trial else 0
        on_s += TICK_S if memory.trial else 0.0
        if running >= ticks:
            restarted(climb)
            running = 0
    assert on_s <= FIRST_BUDGET_S + ERROR_BUDGET * HOUR_S + LONGEST_TRIAL_S + TICK_S


def test_the_text_is_another_one_only_when_something_begins_or_ends() -> None:
    climb = Climb(helped_by(QUOTA.step))
    texts = [kept_text(AutoMemory(ladder=memory)) for memory in climb.run(900)]
    assert len(set(texts)) == 3, "before its trial, in it, and when it is kept"


def test_what_was_learnt_of_levels_is_kept_and_levels_on_trial_are_not() -> None:
    taken_back = TakenBack({"mail": 2}, 900.0, {"shop": 0.3}, {"shop": 0.3})
    memory = AutoMemory(
        levels={"mail": 1},
        trial=Trial(950.0, {"shop": 0.2}),
        cooling={"mail": Cooling(1020.0, 1)},
        taken_back=taken_back,
        no_loans=Cooling(1400.0, 2),
    )
    now = recalled(kept_text(memory), 1000.0)
    assert (now.levels, now.trial) == ({}, None)
    assert (now.cooling, now.taken_back, now.no_loans) == (memory.cooling, taken_back, memory.no_loans)


def test_times_of_a_clock_that_was_ahead_are_not_in_the_future() -> None:
    climb = Climb(helped_by(QUOTA.step))
    climb.run(600)
    on_trial_of_ways = replace(climb.memory, cooling=Climb(helped_by()).memory.cooling)
    text = kept_text(AutoMemory(ladder=on_trial_of_ways, cooling={"mail": Cooling(1e9, 3)}, no_loans=Cooling(1e9, 3)))
    now = recalled(text, 50.0)
    [step] = now.ladder.in_force
    assert (step.since_s, step.again_s, now.ladder.began_s) == (50.0, 50.0, 50.0)
    assert now.cooling["mail"].until_s == now.no_loans.until_s == 50.0 + LONGEST_COOL_DOWN_S


def test_nothing_yet_is_kept_and_recalled_as_that() -> None:
    assert json.loads(kept_text(AutoMemory())) == {}
    assert recalled("{}", 5.0) == AutoMemory(ladder=StepsMemory(changed_s=5.0))
    assert not math.isfinite(recalled("{}", 5.0).ladder.no_room_s)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"in_force": 7}', '{"worse_s": "long"}', '{"in_force": [{"since_s": 1}]}', "\0", "{" * 99],
)
def test_what_it_never_wrote_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="AutoKept"):
        recalled(text, 0.0)


def test_the_policy_remembers() -> None:
    assert isinstance(POLICY, RememberingPolicy)
    assert POLICY.keep(None) == ""
    assert POLICY.recall(POLICY.keep(AutoMemory()), 5.0) == recalled("{}", 5.0)


def test_fields_of_a_later_version_are_left_out() -> None:
    climb = Climb(helped_by(QUOTA.step))
    climb.run(600)
    values = json.loads(kept_text(AutoMemory(ladder=climb.memory))) | {"colour": "blue"}
    assert recalled(json.dumps(values), climb.now_s).ladder.steps == (QUOTA.step,)
    assert QUOTA.step.kind is StepKind.QUOTA
