"""When the guard holds batch VMs and lets go: tables, invariants, and batch VMs that try to get round it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.guard_law import (
    BUDGET_S,
    DRAINING,
    FAR,
    HELD_SHARE,
    HOLD_S,
    LEARN_EVERY_S,
    LEARNT_SAMPLES,
    LEAST_BOUND,
    MINUTE_S,
    MOST_BOUND,
    MOST_EPISODES,
    MOST_HOLD_S,
    PAUSE_S,
    STEP_S,
    TRIAL_S,
    Custom,
    End,
    Ended,
    Excess,
    GuardMemory,
    WaitSample,
    after_calm,
    guard,
    quiet_bounds,
)
from manager.control.late_answers import LateShare

STEP = 0.05
CALM, HOT, FAR_OUT = 0.01, 0.05, 0.2
"""Waits: usual, above the least bound, and far above it."""


@dataclass
class Run:
    """Samples every 50 ms; ``held`` is the step in force after each."""

    memory: GuardMemory = field(default_factory=lambda: GuardMemory(0.0))
    now_s: float = 0.0
    held: list[tuple[float, int | None]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def see(
        self, *waits: float, steps: int = 2, may_hold: bool = True, acts: bool = True, late: float | None = None
    ) -> None:
        """One sample after the other, of one VM; with ``late`` the application answered a hundred, that share late."""
        for wait in waits:
            self.now_s += STEP
            answers = None if late is None else (LateShare("shop", 100, late, 0.05),)
            sample = WaitSample(self.now_s, {"web": wait}, steps, may_hold, acts, answers)
            self.memory, ended = guard(self.memory, sample)
            episode = self.memory.episode
            self.held.append((self.now_s, episode.step if episode else None))
            if ended:
                self.ended.append(ended)

    @property
    def step(self) -> int | None:
        return self.held[-1][1]

    @property
    def switches(self) -> list[float]:
        """When what is held changed."""
        earlier = [None, *(step for _, step in self.held)]
        return [at_s for before, (at_s, now) in zip(earlier, self.held, strict=False) if before != now]


@pytest.fixture
def run() -> Run:
    """All is calm, for long enough to know that."""
    made = Run()
    made.see(*[CALM] * LEARNT_SAMPLES)
    return made


@pytest.mark.parametrize(
    ("waits", "held"),
    [
        ((CALM, CALM, CALM), False),
        ((HOT,), False),
        ((HOT, CALM, HOT), False),
        ((HOT, HOT), True),
        ((FAR_OUT,), True),
        ((LEAST_BOUND,) * 9, False),
    ],
)
def test_two_samples_above_the_bound_or_one_far_above_begin_an_episode(
    run: Run, waits: tuple[float, ...], held: bool
) -> None:
    run.see(*waits)
    assert (run.step is not None) is held


def test_nothing_happens_before_a_custom_is_known() -> None:
    run = Run()
    run.see(*[FAR_OUT] * (LEARNT_SAMPLES - 1))
    assert run.switches == []


def test_a_bound_follows_what_is_usual_for_the_vm() -> None:
    """As with a vCPU beside its own emulator threads, which waits 15 % of the time with nobody else there."""
    run = Run()
    run.see(*[0.15, 0.12, 0.14, 0.13] * 100)
    assert 0.2 < run.memory.customs["web"].bound < 0.26
    run.see(0.2, 0.2, 0.2)
    assert run.step is None
    run.see(0.28, 0.28)
    assert run.step == 0


def test_an_episode_ends_after_calm_and_the_next_ones_take_longer(run: Run) -> None:
    lengths = []
    for _ in range(4):
        run.see(FAR_OUT, CALM)
        begin_s = run.now_s
        while run.step is not None:
            run.see(CALM)
        lengths.append(run.now_s - begin_s)
    expected = [HOLD_S, 2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S]
    assert lengths == pytest.approx(expected, abs=STEP + 1e-6)
    assert [one.why for one in run.ended] == [End.CALM] * 4


def test_an_episode_ends_when_nobody_waits_and_calm_counts_in_all(run: Run) -> None:
    run.see(FAR_OUT, *[CALM] * 3, HOT, *[CALM] * 2, HOT)
    assert run.step == 0
    run.see(CALM)
    assert run.step is None


def test_a_service_that_waits_now_and_then_whatever_batch_does_does_not_have_it_held_for_ever(run: Run) -> None:
    run.see(FAR_OUT, *[CALM, HOT] * 10)
    assert run.ended[-1].why is End.CALM
    assert run.ended[-1].at_s - run.ended[-1].episode.began_s < 3 * HOLD_S


def test_a_step_that_does_not_cool_is_followed_by_the_next_which_is_the_first_next_time(run: Run) -> None:
    run.see(*[FAR_OUT] * (2 + round(STEP_S / STEP) + 1))
    assert run.step == 1
    run.see(*[CALM] * 20)
    assert run.step is None
    run.see(FAR_OUT)
    assert run.step == 1


def test_what_no_step_cools_is_let_go_and_left_alone_twice_as_long_each_time(run: Run) -> None:
    pauses = []
    for _ in range(3):
        count = len(run.ended)
        while len(run.ended) == count:
            run.see(0.95)
        assert run.ended[-1].why is End.FUTILE
        assert run.ended[-1].at_s - run.ended[-1].episode.began_s < STEP_S + TRIAL_S + 5 * STEP
        ended_s = run.now_s
        while run.step is None:  # it is learnt anew, for it was not batch; but this is far above the most
            run.see(0.95)
        pauses.append(run.now_s - ended_s)
    assert pauses == pytest.approx([LEARNT_SAMPLES * STEP, 2 * PAUSE_S, 4 * PAUSE_S], abs=2 * STEP)


def test_batch_vms_below_their_floor_are_let_go_and_not_held(run: Run) -> None:
    run.see(FAR_OUT)
    run.see(FAR_OUT, may_hold=False)
    assert (run.step, run.ended[-1].why) == (None, End.FLOOR)
    run.see(*[FAR_OUT] * 20, may_hold=False)
    assert run.step is None


def test_where_nothing_can_be_held_nothing_begins_and_what_vanishes_ends(run: Run) -> None:
    run.see(*[FAR_OUT] * 5, steps=0)
    assert run.step is None
    run.see(FAR_OUT)
    assert run.step == 0
    run.memory, ended = guard(run.memory, WaitSample(run.now_s + STEP, {}, 2))
    assert ended is not None
    assert ended.why is End.GONE
    assert run.memory.customs == {}


def test_in_observe_an_episode_ends_by_itself_whatever_it_takes(run: Run) -> None:
    """Nobody is held, so that neither a stronger step nor its failure can be seen."""
    run.see(*[FAR_OUT] * 40, acts=False)
    assert run.step == 0
    run.see(*[CALM] * 10, acts=False)
    assert run.ended[-1].why is End.CALM


def test_the_effect_is_the_wait_of_the_same_vm_before_and_while_batch_is_held(run: Run) -> None:
    run.see(FAR_OUT, *[CALM] * 20)
    episode = run.ended[-1].episode
    assert episode.excess == Excess("web", FAR_OUT, LEAST_BOUND)
    assert episode.held == pytest.approx(CALM)


def test_trouble_is_not_learnt(run: Run) -> None:
    """Neither during an episode, nor while the guard must not act."""
    usual = run.memory.customs["web"].usual
    run.see(*[FAR_OUT] * 1000, may_hold=False)
    assert run.memory.customs["web"].usual <= usual
    run.see(FAR_OUT, CALM, FAR_OUT, CALM, FAR_OUT)
    assert run.step is not None
    assert run.memory.customs["web"].usual <= usual


def test_an_adversary_who_stays_below_the_bound_teaches_slowly_and_not_beyond_the_most(run: Run) -> None:
    """Always as much as is just not above the bound: that takes minutes, and helps only up to the most."""
    for _ in range(round(60 / STEP)):
        run.see(run.memory.customs["web"].bound)
    after_a_minute = run.memory.customs["web"].bound
    assert after_a_minute < 0.1
    for _ in range(round(3600 / STEP)):
        run.see(run.memory.customs["web"].bound)
    assert run.memory.customs["web"].bound == MOST_BOUND
    assert run.switches == []
    run.see(MOST_BOUND * FAR)
    assert run.step == 0


def test_answers_that_are_late_begin_an_episode_although_no_vcpu_waits(run: Run) -> None:
    run.see(CALM, late=0.05)
    run.see(CALM, late=0.1)
    assert run.step is None
    run.see(CALM, late=0.4)
    assert run.step == 0
    assert run.memory.episode is not None
    assert run.memory.episode.excess == Excess("shop", 0.4, 0.05, late=True)
    for _ in range(20):
        run.see(CALM)
        run.see(CALM, late=0.01)
    [ended] = run.ended
    assert (ended.why, ended.episode.held) == (End.CALM, pytest.approx(0.01))


def test_who_answers_nothing_more_is_not_well(run: Run) -> None:
    run.see(CALM, late=1.0)
    run.see(*[CALM] * round(2 * HOLD_S / STEP))
    assert run.step is not None


def test_what_waited_before_is_answered_late_before_a_step_counts_as_too_weak(run: Run) -> None:
    run.see(CALM, late=1.0)
    begun_s = run.now_s
    while run.step == 0:
        run.see(CALM, late=1.0)
    assert run.now_s - begun_s == pytest.approx(DRAINING * STEP_S, abs=2 * STEP)
    while run.step == 1:
        run.see(CALM, late=1.0)
    assert run.ended[-1].why is End.FUTILE
    assert run.now_s - begun_s == pytest.approx(DRAINING * (STEP_S + TRIAL_S), abs=4 * STEP)
    run.see(*[CALM] * round(0.9 * PAUSE_S / STEP), late=1.0)
    assert run.step is None, "batch is not what makes it late"


def test_late_answers_do_not_prolong_an_episode_that_began_with_a_wait(run: Run) -> None:
    run.see(FAR_OUT)
    run.see(*[CALM] * round(2 * HOLD_S / STEP), late=0.2)
    assert run.ended[0].why is End.CALM


def test_after_an_episode_it_is_judged_anew(run: Run) -> None:
    run.see(CALM, late=1.0)
    run.see(*[CALM] * round(2 * HOLD_S / STEP), late=0.0)
    assert run.ended
    run.see(CALM, late=0.11)
    assert run.step is None


def test_two_vms_are_measured_each_by_its_own_custom() -> None:
    memory, now_s = GuardMemory(0.0), 0.0
    for _ in range(3 * LEARNT_SAMPLES):
        now_s += STEP
        memory, _ = guard(memory, WaitSample(now_s, {"quiet": 0.0, "busy": 0.15}, 1))
    memory, _ = guard(memory, WaitSample(now_s + STEP, {"quiet": 0.0, "busy": 0.2}, 1))
    assert memory.episode is None
    memory, _ = guard(memory, WaitSample(now_s + 2 * STEP, {"quiet": 0.15, "busy": 0.15}, 1))
    assert memory.episode is not None
    assert memory.episode.excess.name == "quiet"


def assert_bounded(run: Run) -> None:
    """What holds whatever batch VMs do: no oscillation, no starvation."""
    begins = [at_s for at_s, step in zip(run.switches, _steps_at(run), strict=True) if step is not None]
    ends = [at_s for at_s, step in zip(run.switches, _steps_at(run), strict=True) if step is None]
    for end_s in run.switches:
        within = [at_s for at_s in ends if end_s - MINUTE_S < at_s <= end_s]
        assert len(within) <= MOST_EPISODES + 1
    assert len(begins) <= 2 * (len(ends) + 1), "at most one stronger step an episode"
    held_s, windows = 0.0, [0.0]
    for _, step in run.held:
        held_s += STEP if step is not None else 0.0
        windows.append(held_s)
    for length_s in (1.0, 10.0, MINUTE_S):
        samples = round(length_s / STEP)
        longest = max((b - a for a, b in zip(windows, windows[samples:], strict=False)), default=0.0)
        assert longest <= BUDGET_S + HELD_SHARE * length_s + 2 * STEP


def _steps_at(run: Run) -> Iterable[int | None]:
    by_time = dict(run.held)
    return [by_time[at_s] for at_s in run.switches]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, CALM, HOT, FAR_OUT, 1.0]),
            st.integers(1, 80),
            st.integers(0, 2),
            st.booleans(),
            st.sampled_from([None, 0.0, 0.1, 0.3, 1.0]),
        ),
        max_size=60,
    )
)
def test_whatever_happens_switches_and_the_time_held_are_bounded(
    stretches: list[tuple[float, int, int, bool, float | None]],
) -> None:
    run = Run()
    run.see(*[CALM] * LEARNT_SAMPLES)
    for wait, samples, steps, acts, late in stretches:
        run.see(*[wait] * samples, steps=steps, acts=acts, late=late)
        for custom in run.memory.customs.values():
            assert LEAST_BOUND <= custom.bound <= MOST_BOUND
    assert_bounded(run)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch VM of the test: whether it wants to run at a time, knowing what is held now and since when."""

    wants: Callable[[float, bool, float], bool]


ADVERSARIES = {
    "always": Batch(lambda _now_s, _held, _since_s: True),
    "bursts of 100 ms every 2 s": Batch(lambda now_s, _held, _since_s: now_s % 2 < 0.1),
    "bursts of half an interval": Batch(lambda now_s, _held, _since_s: now_s % STEP < STEP / 2),
    "one interval of two": Batch(lambda now_s, _held, _since_s: now_s % (2 * STEP) < STEP),
    "as soon as it may, and never while it is held": Batch(lambda _now_s, held, _since_s: not held),
    "a while after it was let go": Batch(lambda _now_s, held, since_s: not held and since_s > 0.2),
    "only while it is held": Batch(lambda _now_s, held, _since_s: held),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_an_adversary_neither_makes_it_oscillate_nor_is_starved(name: str) -> None:
    """A critical vCPU waits for 40 % of the time in which batch runs freely, and not while that is held; 5 minutes."""
    run, batch, fine_s = Run(), ADVERSARIES[name], 0.005
    run.see(*[CALM] * LEARNT_SAMPLES)
    since_s, held, free_s = run.now_s, False, 0.0
    for _ in range(round(300 / STEP)):
        waited_s = 0.0
        for part in range(round(STEP / fine_s)):
            now_s = run.now_s + part * fine_s
            if batch.wants(now_s, held, now_s - since_s) and not held:
                waited_s += 0.4 * fine_s
        free_s += 0.0 if held else STEP
        run.see(CALM + waited_s / STEP)
        if (run.step is not None) is not held:
            held, since_s = not held, run.now_s
    assert_bounded(run)
    assert free_s / 300 > 1 - HELD_SHARE - BUDGET_S / 300 - 0.01, "batch runs freely at least half of the time"
    if name == "always":
        assert 1 - free_s / 300 > 0.3, "and is held a good part of it"
    if name == "only while it is held":
        assert run.switches == []


def test_bursts_that_recur_are_held_through_most_of_the_time_there_is_a_budget_for() -> None:
    """Of bursts of 100 ms every 2 s in ten minutes: the first interval of an episode's burst gets through, no other."""
    run = Run()
    run.see(*[CALM] * LEARNT_SAMPLES)
    through_s = total_s = 0.0
    for _ in range(round(600 / STEP)):
        burst = run.now_s % 2 < 0.1
        total_s += STEP if burst else 0.0
        through_s += STEP if burst and run.step is None else 0.0
        run.see(0.4 if burst and run.step is None else CALM)
    assert through_s / total_s < 0.75
    assert_bounded(run)


def test_a_custom_comes_down_when_trouble_at_the_start_is_over() -> None:
    custom = Custom()
    for _ in range(LEARNT_SAMPLES):
        custom = custom.after(0.9)
    assert custom.bound == MOST_BOUND
    for _ in range(4000):
        custom = custom.after(CALM)
    assert custom.bound == LEAST_BOUND


def test_a_late_sample_counts_by_its_time(run: Run) -> None:
    """As after a tick that took long: half a second at once uses up as much of the budget."""
    run.see(FAR_OUT)
    memory = replace(run.memory, budget_s=0.2)
    memory, ended = guard(memory, WaitSample(run.now_s + 0.5, {"web": CALM}, 2))
    assert ended is not None
    assert ended.why is End.BUDGET
    assert memory.episode is None
    assert MOST_HOLD_S + TRIAL_S < BUDGET_S, "an episode of the longest hold fits into the budget"


@given(
    samples=st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.035, 0.05, 0.1]), min_size=10, max_size=60),
    repeats=st.integers(1, 9),
)
def test_samples_within_the_quiet_bounds_need_not_come_here(samples: list[float], repeats: int) -> None:
    """But one a second: what is held, learnt and left of the budget is the same."""
    known = GuardMemory(0.0, {"web": Custom(0.02, LEARNT_SAMPLES)}, budget_s=3.0)
    needs_s = [min(HOLD_S * 2**begun, MOST_HOLD_S) + TRIAL_S for begun in range(MOST_EPISODES)]
    every, few, now_s, seen_s = known, known, 0.0, 0.0
    for wait in (wait for wait in samples for _ in range(repeats)):
        now_s += STEP
        sample = WaitSample(now_s, {"web": wait}, 2)
        every, _ = guard(every, sample)
        bounds = quiet_bounds(few)
        if bounds is None or wait > bounds["web"] or now_s - few.learnt_s >= LEARN_EVERY_S:
            few, _ = guard(after_calm(few, seen_s) if bounds else few, sample)
            if min(abs(every.budget_s - need_s) for need_s in needs_s) < 1e-9:
                return  # the budget is what an episode needs, but for rounding, which decides
            assert replace(few, budget_s=0.0) == replace(every, budget_s=0.0)
            assert few.budget_s == pytest.approx(every.budget_s)
        seen_s = now_s


@pytest.mark.parametrize(
    "memory",
    [
        GuardMemory(0.0),
        GuardMemory(0.0, {"web": Custom(0.02, LEARNT_SAMPLES), "new": Custom()}),
        GuardMemory(0.0, {"web": Custom(0.02, LEARNT_SAMPLES)}, hot=1),
        GuardMemory(0.0, {"web": Custom(0.02, LEARNT_SAMPLES)}, sums={"shop": 1.0}),
    ],
)
def test_each_sample_counts_while_anything_is_learnt_or_doubtful(memory: GuardMemory) -> None:
    assert quiet_bounds(memory) is None
