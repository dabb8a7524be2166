"""The ladder of `auto`: trials, verdicts, memory, the way down, and what holds whatever is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.auto_steps import (
    LONGEST_RETEST_S,
    LadderStep,
    StepCandidate,
    StepCooling,
    StepEnd,
    StepInForce,
    StepKind,
    StepsMemory,
    StepsMoment,
)
from policies.auto_trials import (
    BEFORE_SAMPLES,
    ERROR_BUDGET,
    FIRST_BUDGET_S,
    INTERRUPTED_S,
    LONGEST_TRIAL_S,
    MOST_BATCH_COST,
    MOST_TRIAL_S,
    REST_S,
    SETTLE_S,
    next_steps,
    with_room_trial,
)

TICK_S = 5.0
AT_RISK = math.log(0.8)
HOUR_S = 3600.0


def candidate(
    kind: StepKind = StepKind.QUOTA,
    target: str = "hog",
    amount: float = 0.5,
    *,
    application: str = "shop",
    gain: float = 0.3,
    batch_cost: float = 0.1,
    others_cost: float = 0.0,
) -> StepCandidate:
    return StepCandidate(
        LadderStep(kind, target, amount, application, amount), gain, batch_cost, others_cost, "hog is noisy"
    )


QUOTA = candidate()
WAYS = candidate(StepKind.WAYS, "shop", 5.0, batch_cost=0.3)

Miss = Callable[[float, StepsMemory], Mapping[str, float]]
"""ln(percentile / target) of each application at a time, under the steps in force."""


@dataclass
class Climb:
    """A host, tick by tick, whose response times follow from the steps in force."""

    miss: Miss
    candidates: tuple[StepCandidate, ...] = (QUOTA, WAYS)
    memory: StepsMemory = field(default_factory=StepsMemory)
    now_s: float = 1000.0
    changes: list[float] = field(default_factory=list)
    there: frozenset[str] = frozenset({"shop", "mail", "hog"})
    critical: frozenset[str] = frozenset({"shop", "mail"})

    def tick(self, **fields: object) -> StepsMemory:
        values = self.miss(self.now_s, self.memory)
        at_risk = {name: value for name, value in values.items() if value > AT_RISK}
        in_force = {(each.step.knob, each.step.amount) for each in self.memory.in_force}
        open_ = tuple(each for each in self.candidates if (each.step.knob, each.step.amount) not in in_force)
        moment = StepsMoment(self.now_s, values, {}, at_risk, open_, self.there, self.there - self.critical)
        before = self.memory
        self.memory = next_steps(before, replace(moment, **fields))  # type: ignore[arg-type]
        if self.memory.steps != before.steps:
            self.changes.append(self.now_s)
        self.now_s += TICK_S
        return self.memory

    def run(self, seconds: float, **fields: object) -> list[StepsMemory]:
        return [self.tick(**fields) for _ in range(round(seconds / TICK_S))]


def helped_by(*helpers: LadderStep, by: float = 0.6, miss: float = 0.3, spread: float = 0.05) -> Miss:
    random = Random(7)

    def miss_now(_now_s: float, memory: StepsMemory) -> Mapping[str, float]:
        fall = by * len(set(helpers) & set(memory.steps))
        return {"shop": miss - fall + random.gauss(0, spread), "mail": -1.0 + random.gauss(0, spread)}

    return miss_now


def test_the_step_that_gains_most_for_its_cost_is_tried_first_and_kept_once_it_helped() -> None:
    climb = Climb(helped_by(QUOTA.step))
    waited = climb.run(BEFORE_SAMPLES * TICK_S + REST_S)
    assert waited[0].trial is None, "with samples of before"
    began = next(memory for memory in waited if memory.trial)
    assert began.trial is not None
    assert (began.trial.step, began.steps) == (QUOTA.step, (QUOTA.step,))
    climb.run(SETTLE_S + 30)
    assert climb.memory.trial is None
    [kept] = climb.memory.in_force
    assert kept.step == QUOTA.step
    assert kept.brought == pytest.approx(0.6, abs=0.1)
    assert kept.predicted == QUOTA.gain
    climb.run(600)
    assert climb.memory.steps == (QUOTA.step,), "the SLA is met: nothing else is tried, nor that taken off"


def test_one_that_is_only_just_at_risk_does_not_keep_others_waiting() -> None:
    """The step for it is worth more, and there are no samples yet that say it stays at risk."""
    cheap = candidate(StepKind.WAYS, "mail", 5.0, application="mail", batch_cost=0.0)
    flaps = [0.0]

    def miss(_now_s: float, _memory: StepsMemory) -> Mapping[str, float]:
        flaps[0] = 0.1 if flaps[0] < 0 else -2.0
        return {"shop": 0.3, "mail": flaps[0]}

    climb = Climb(miss, candidates=(QUOTA, cheap))
    trials = [memory.trial.step for memory in climb.run(200) if memory.trial]
    assert trials
    assert set(trials) == {QUOTA.step}


def test_verdicts_and_returns_without_number_do_not_overflow() -> None:
    cooling = {QUOTA.step.name: StepCooling(0.0, 10**6)}
    climb = Climb(helped_by(), candidates=(QUOTA,), memory=StepsMemory(cooling=cooling))
    climb.run(400)
    assert climb.memory.cooling[QUOTA.step.name].until_s > climb.now_s
    assert replace(StepInForce(QUOTA, 0.0, 0.3, 0.0), returned=10**6).retest_s == LONGEST_RETEST_S


def test_what_does_not_help_is_taken_back_and_the_next_is_tried() -> None:
    climb = Climb(helped_by(WAYS.step))
    climb.run(600)
    assert climb.memory.steps == (WAYS.step,)
    [back] = climb.memory.taken_back
    assert (back.step, back.end) == (QUOTA.step, StepEnd.NO_EFFECT)
    assert climb.memory.cooling[QUOTA.step.name].times == 1


def test_what_was_taken_back_waits_twice_as_long_each_time() -> None:
    climb = Climb(helped_by(), candidates=(QUOTA,))
    climb.run(6 * HOUR_S)
    begins = climb.changes[::2]
    gaps = [after - before for before, after in pairwise(begins)]
    assert len(begins) >= 5
    assert all(after > 1.6 * before for before, after in pairwise(gaps))
    assert set(climb.memory.exhausted) == {"shop"}


def test_a_step_that_harms_another_is_taken_back_at_once_and_counts_against_the_budget() -> None:
    def miss(_now_s: float, memory: StepsMemory) -> Mapping[str, float]:
        harm = 1.5 if QUOTA.step in memory.steps else 0.0
        return {"shop": 0.3 - harm, "mail": -0.5 + harm}

    climb = Climb(miss, candidates=(QUOTA,))
    climb.run(300)
    [back] = climb.memory.taken_back
    assert (back.end, back.seen_at) == (StepEnd.HARMED, "mail")
    assert climb.memory.in_force == ()
    assert 0 < climb.memory.worse_s <= SETTLE_S + 5 * TICK_S


def test_less_load_is_not_taken_for_an_effect() -> None:
    def miss(now_s: float, _memory: StepsMemory) -> Mapping[str, float]:
        return {"shop": 0.5 if now_s < 1040 else -0.1}

    climb = Climb(miss, candidates=(QUOTA,))
    while climb.memory.trial is None:
        climb.tick(rates_rps={"shop": 50.0})
    climb.run(LONGEST_TRIAL_S + TICK_S, rates_rps={"shop": 30.0})
    assert climb.memory.in_force == ()
    assert climb.memory.taken_back[-1].end is StepEnd.NO_EFFECT


def test_what_was_before_a_cause_began_is_not_compared_with() -> None:
    """It began suddenly for both; its step halves what it costs, which is more than before it began."""
    random, began_s = Random(11), 1000.0 + 12 * TICK_S

    def miss(now_s: float, memory: StepsMemory) -> Mapping[str, float]:
        rise = (1.2 if QUOTA.step in memory.steps else 2.4) if now_s >= began_s else 0.0
        return {"shop": random.gauss(rise - 1.0, 0.15), "mail": random.gauss(rise - 1.2, 0.15)}

    climb = Climb(miss, candidates=(QUOTA,))
    climb.run(12 * TICK_S + 300)
    assert climb.memory.taken_back == ()
    [kept] = climb.memory.in_force
    assert kept.since_s - began_s <= BEFORE_SAMPLES * TICK_S + SETTLE_S + 30
    assert kept.brought == pytest.approx(1.2, abs=0.2), "of what the cause costs"


def test_weights_that_must_change_end_a_trial_without_a_verdict() -> None:
    climb = Climb(helped_by(QUOTA.step))
    while climb.memory.trial is None:
        climb.tick()
    climb.tick(interrupts=True)
    assert climb.memory.steps == ()
    assert climb.memory.taken_back == ()
    cooling = climb.memory.cooling[QUOTA.step.name]
    assert (cooling.times, cooling.until_s - climb.memory.changed_s) == (0, INTERRUPTED_S)


def test_where_nothing_is_written_nothing_is_tried_or_judged_and_it_is_said_what_would_be() -> None:
    climb = Climb(helped_by(QUOTA.step))
    assert {memory.trial for memory in climb.run(600, acts=False)} == {None}
    assert climb.memory.upcoming == QUOTA
    assert climb.memory.cooling == {}


def test_nothing_begins_while_weights_or_room_are_not_as_they_should_be() -> None:
    climb = Climb(helped_by(QUOTA.step))
    assert {memory.trial for memory in climb.run(600, may_begin=False)} == {None}
    assert {memory.trial for memory in climb.run(600, settled=False)} == {None}


def test_steps_in_force_never_cost_batch_vms_more_than_is_said() -> None:
    dear = tuple(candidate(target=f"hog{number}", batch_cost=0.2, gain=0.5) for number in range(6))
    climb = Climb(lambda *_: {"shop": 2.0}, candidates=dear)
    climb.miss = lambda _now_s, memory: {"shop": 2.0 - 0.3 * len(memory.steps)}
    climb.there |= {each.step.target for each in dear}
    climb.run(3 * HOUR_S)
    costs = sum(each.candidate.batch_cost for each in climb.memory.in_force)
    assert 0 < costs <= MOST_BATCH_COST


def test_steps_go_with_the_vm_or_the_application_that_they_are_about() -> None:
    climb = Climb(helped_by(QUOTA.step))
    climb.run(120)
    assert climb.memory.steps == (QUOTA.step,)
    gone = replace(climb, there=frozenset({"shop", "mail"}), candidates=())
    gone.tick()
    assert gone.memory.steps == ()
    serves = replace(climb, critical=climb.critical | {"hog"}, candidates=())
    serves.tick()
    assert serves.memory.steps == (), "who was held back is critical now"
    silent = replace(climb, miss=lambda *_: {"mail": -1.0}, candidates=())
    silent.run(100)
    assert silent.memory.steps == (QUOTA.step,)
    silent.run(60)
    assert silent.memory.steps == ()


def test_with_slack_the_dearest_step_is_taken_off_first_and_all_in_the_end() -> None:
    noise = Random(3)
    late = [False]

    def miss(_now_s: float, memory: StepsMemory) -> Mapping[str, float]:
        if late[0]:
            return {"shop": -1.2 + noise.gauss(0, 0.05)}
        return {"shop": 0.7 - 0.4 * len(set(memory.steps) & {QUOTA.step, WAYS.step}) + noise.gauss(0, 0.05)}

    climb = Climb(miss)
    climb.run(600)
    assert set(climb.memory.steps) == {QUOTA.step, WAYS.step}
    late[0] = True
    left = [memory.steps for memory in climb.run(HOUR_S)]
    assert (QUOTA.step,) in left
    assert (WAYS.step,) not in left, "which is the dearer one"
    assert climb.memory.in_force == ()


def test_what_is_still_needed_is_in_force_again_and_left_alone_for_longer_each_time() -> None:
    """Slack is deep with the step, and gone without it."""
    climb = Climb(helped_by(QUOTA.step, by=1.6))
    climb.run(8 * HOUR_S)
    assert climb.memory.steps == (QUOTA.step,)
    offs = climb.changes[1::2]
    gaps = [after - before for before, after in pairwise(offs)]
    assert len(offs) >= 3
    assert all(after > 1.9 * before for before, after in pairwise(gaps))
    assert climb.memory.in_force[0].returned == len(offs)


def test_room_that_is_of_no_use_ends_and_room_that_is_comes_back() -> None:
    room = candidate(StepKind.ROOM, "", 1.0)
    for useful in (False, True):
        climb = Climb(
            lambda now_s, memory, useful=useful: {  # type: ignore[misc]
                "shop": 0.3 + (0.8 if useful and not memory.may_have_room(now_s) else 0.0)
            },
            candidates=(),
        )
        climb.run(120)
        moment = StepsMoment(climb.now_s, {}, {"shop": 0.3}, {"shop": 0.3}, (), climb.there)
        climb.memory = with_room_trial(climb.memory, moment, room)
        assert not climb.memory.may_have_room(climb.now_s)
        climb.run(90)
        assert climb.memory.trial is None
        assert climb.memory.may_have_room(climb.now_s) is useful
        assert climb.memory.cooling[room.step.name].until_s > climb.now_s


values = st.one_of(st.none(), st.floats(-2.0, 2.0))
kinds = st.sampled_from([StepKind.QUOTA, StepKind.WAYS, StepKind.BANDWIDTH, StepKind.IDLE, StepKind.PIN])
anything = st.lists(
    st.builds(
        candidate,
        kinds,
        st.sampled_from(["hog", "shop", ""]),
        st.sampled_from([0.1, 0.5]),
        application=st.sampled_from(["shop", "mail"]),
        gain=st.floats(0, 2),
        batch_cost=st.floats(0, 0.6),
        others_cost=st.floats(0, 0.3),
    ),
    max_size=6,
    unique_by=lambda each: each.step,
)
flags = st.sampled_from(
    [{}, {}, {}, {}, {"interrupts": True}, {"settled": False}, {"may_begin": False}, {"acts": False}]
)
ticks = st.lists(st.tuples(values, values, flags), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(ticks, anything, st.integers(1, 15))
def test_whatever_is_measured_it_never_oscillates_and_tries_one_thing_at_a_time(
    measured: list[tuple[float | None, float | None, dict[str, bool]]], offered: list[StepCandidate], repeats: int
) -> None:
    climb = Climb(lambda *_: {}, candidates=tuple(offered))
    began_s = climb.now_s
    for shop, mail, fields in (measured * repeats)[: round(HOUR_S / TICK_S)]:
        both = {name: value for name, value in (("shop", shop), ("mail", mail)) if value is not None}
        climb.miss = lambda *_, both=both: both  # type: ignore[misc]
        before = climb.memory
        after = climb.tick(**fields)
        assert len({step.knob for step in after.steps}) == len(after.steps), "one owner of each knob"
        new = set(after.steps) - set(before.steps)
        assert len(new) <= 1
        kept = {each.step for each in after.in_force}
        assert set(after.steps) <= kept | ({after.trial.step} if after.trial else set())
        if after.trial and before.trial:
            assert after.trial is before.trial, "no trial begins where one ends"
        assert sum(each.candidate.batch_cost for each in after.in_force) <= MOST_BATCH_COST + 1e-9
        elapsed_s = climb.now_s - began_s
        assert after.worse_s <= FIRST_BUDGET_S + ERROR_BUDGET * elapsed_s + LONGEST_TRIAL_S + TICK_S
    for at_s in climb.changes:
        within = [now_s for now_s in climb.changes if at_s <= now_s < at_s + HOUR_S]
        assert len(within) <= 2 * HOUR_S / REST_S + 2


@settings(max_examples=15, deadline=None)
@given(st.floats(0.4, 2.0), st.floats(0.02, 0.3), st.integers(0, 2**32), st.sampled_from(["shop", "mail"]))
def test_a_step_that_harms_never_stays(harm: float, spread: float, seed: int, victim: str) -> None:
    """It makes somebody worse, so that its SLA is violated."""
    random = Random(seed)

    def miss(_now_s: float, memory: StepsMemory) -> Mapping[str, float]:
        normal = {"shop": 0.4, "mail": -0.3}
        if memory.steps:
            normal = {"shop": -0.4, "mail": -0.3} | {victim: 0.1 + harm + (0.4 if victim == "shop" else 0.0)}
        return {name: value + random.gauss(0, spread) for name, value in normal.items()}

    climb = Climb(miss, candidates=(QUOTA,))
    seen = climb.run(2 * HOUR_S)
    trials = [memory.trial is not None for memory in seen]
    assert not any(memory.in_force for memory in seen)
    assert sum(trials) * TICK_S <= FIRST_BUDGET_S + ERROR_BUDGET * 2 * HOUR_S + MOST_TRIAL_S


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_all_steps_are_off_in_the_end_after_slack(seed: int, count: int) -> None:
    random = Random(seed)
    many = tuple(candidate(target=f"hog{number}", batch_cost=0.1, gain=0.5) for number in range(count))
    calm = [False]

    def miss(_now_s: float, memory: StepsMemory) -> Mapping[str, float]:
        mean = -1.2 if calm[0] else 0.1 + 0.5 * (count - len(memory.steps))
        return {"shop": mean + random.gauss(0, 0.1)}

    climb = Climb(miss, candidates=many)
    climb.there |= {each.step.target for each in many}
    climb.run(HOUR_S)
    assert climb.memory.in_force
    calm[0] = True
    climb.run(4 * HOUR_S)
    assert climb.memory.in_force == ()
    assert climb.memory.trial is None
