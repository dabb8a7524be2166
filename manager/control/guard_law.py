"""When batch VMs are held back at once because critical vCPUs wait, and when they are let go again.

The tick decides from seconds; a burst of batch work hurts within milliseconds. Between ticks the guard samples the vCPU
wait of critical VMs, as seconds a second of the vCPU that waited most, and asks here what to do. All that happens is:

* **Learning.** What is usual for a VM is about the 90th percentile of its samples, within bounds; only of samples in
  which no critical VM waited more than its bound, and none of an episode: what is too long does not become usual.
* **An episode** begins with two samples in a row above a VM's bound, or one far above it. It takes the first step (the
  one that helped last time), and a stronger one where that does not cool within moments.
* **Its end**: calm for a while, which doubles with each episode of the last minute; a budget of time that is used up; a
  floor of batch VMs that is not reached; or no step that helps (``futile``): then batch is not what is waited for. The
  VM's custom is learnt anew, and the next episode waits, twice as long each time.

So in any time ``t`` batch VMs are never held longer than ``BUDGET_S + HELD_SHARE * t``, and in no minute more than
``MOST_EPISODES`` times, whatever they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

LEAST_BOUND, MOST_BOUND = 0.04, 0.3
"""No VM's bound is lower: 2 ms of 50 ms are noise; none is higher, whatever it is used to."""
MULTIPLE = 1.5
"""More than so many times what is usual is above the bound."""
FAR = 1.5
"""One sample of so many times the bound is enough."""
SAMPLES_IN_A_ROW = 2
QUANTILE = 0.9
LEARNT_SAMPLES = 200
"""Samples after which a VM's custom counts as known: until then it is learnt quickly, and begins no episode."""
LEARN_EVERY_S = 1.0
QUICK, SLOW = 0.01, 0.0005
"""Steps of the estimate: at first, for each sample; then for one a second, so it rises by 0.027 a minute at most."""
STEP_S = 0.12
"""A step that has not cooled for so long is followed by a stronger one."""
TRIAL_S = 0.5
"""The last step has so long."""
HOLD_S, MOST_HOLD_S = 0.3, 5.0
"""Calm after which an episode ends: at first, and at most."""
MOST_SAMPLE_S = 0.1
"""No sample stands for more calm than that: in a late one a short wait does not show."""
MINUTE_S = 60.0
MOST_EPISODES = 12
BUDGET_S, HELD_SHARE = 10.0, 0.5
PAUSE_S, MOST_PAUSE_S = 5.0, 300.0
"""After an episode that helped nobody: at first, and at most."""


class End(StrEnum):
    """Why an episode ended."""

    CALM = "calm"
    BUDGET = "budget"
    FLOOR = "floor"
    FUTILE = "futile"
    GONE = "gone"
    """There is nothing left to hold, or to protect."""


@dataclass(frozen=True, slots=True)
class Custom:
    """What wait a VM is used to, as known from so many samples."""

    usual: float = 0.0
    samples: int = 0

    @property
    def known(self) -> bool:
        """Whether it was learnt for long enough to compare with."""
        return self.samples >= LEARNT_SAMPLES

    @property
    def bound(self) -> float:
        """What is above it is too long."""
        return min(max(MULTIPLE * self.usual, LEAST_BOUND), MOST_BOUND)

    def after(self, wait: float) -> Custom:
        """With one sample more: a quantile by stochastic approximation (Robbins and Monro, 1951)."""
        rate = SLOW if self.known else QUICK
        step = rate * QUANTILE if wait > self.usual else -rate * (1 - QUANTILE)
        return Custom(min(max(self.usual + step, 0.0), MOST_BOUND / MULTIPLE), self.samples + 1)


@dataclass(frozen=True, slots=True)
class WaitSample:
    """What was seen at ``at_s`` (monotonic): the wait of each critical VM since the sample before, by name.

    ``steps`` are how many ways there are to hold batch VMs, 0: none. ``may_hold``: they have their floor. ``acts``:
    what is decided is done; else (mode observe) it is only told, and nothing can be concluded from what follows.
    """

    at_s: float
    waits: Mapping[str, float]
    steps: int
    may_hold: bool = True
    acts: bool = True


@dataclass(frozen=True, slots=True)
class Episode:
    """Batch VMs are held, by ``step`` since ``step_s``. ``well_s``: when all was well last.

    ``vm`` waited ``wait`` where ``bound`` was its bound. ``hot_s``: since when a VM waits more than its bound; None:
    none does. It ends after ``needs_s`` of calm in all, of which there was ``calm_s``: in all, because a service that
    waits a little too long now and then, whatever batch VMs do, would have them held for ever. ``waited`` adds up the
    wait of that VM in the ``samples`` while they were held.
    """

    began_s: float
    well_s: float
    vm: str
    wait: float
    bound: float
    step: int
    step_s: float
    needs_s: float
    calm_s: float = 0.0
    hot_s: float | None = None
    waited: float = 0.0
    samples: int = 0

    @property
    def held_wait(self) -> float | None:
        """The VM's mean wait while batch VMs were held, None: it was too short to tell."""
        return self.waited / self.samples if self.samples else None


@dataclass(frozen=True, slots=True)
class GuardMemory:
    """All that is remembered from sample to sample.

    ``learnt_s``: when it was learnt last from all VMs. ``hot`` counts samples in a row above a bound, since ``well_s``.
    ``begins`` are when the episodes of the last minute began, ``first_step`` that with which the next does. After
    ``futile`` episodes in a row there is none before ``pause_s``.
    """

    at_s: float
    customs: Mapping[str, Custom] = field(default_factory=dict)
    learnt_s: float = 0.0
    hot: int = 0
    well_s: float = 0.0
    episode: Episode | None = None
    begins: tuple[float, ...] = ()
    budget_s: float = BUDGET_S
    first_step: int = 0
    futile: int = 0
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """An episode that is over."""

    episode: Episode
    at_s: float
    why: End


def guard(memory: GuardMemory, sample: WaitSample) -> tuple[GuardMemory, Ended | None]:
    """The memory after a sample, and the episode that ended with it. Its ``episode`` says what is to be held now.

    Deterministic and pure. Samples come in the order of their times.
    """
    elapsed_s = max(sample.at_s - memory.at_s, 0.0)
    used_s = elapsed_s if memory.episode else 0.0
    budget_s = min(memory.budget_s + HELD_SHARE * elapsed_s - used_s, BUDGET_S)
    customs = memory.customs
    if customs.keys() != sample.waits.keys():
        customs = {vm: customs.get(vm, Custom()) for vm in sample.waits}
    begins = memory.begins
    if begins and begins[0] <= sample.at_s - MINUTE_S:
        begins = tuple(at_s for at_s in begins if at_s > sample.at_s - MINUTE_S)
    vm, excess = _hottest(sample.waits, customs)
    learnt_s = memory.learnt_s
    if memory.episode is None and excess <= 1 and sample.at_s - learnt_s >= LEARN_EVERY_S:
        customs = {vm: custom.after(sample.waits[vm]) for vm, custom in customs.items()}
        learnt_s = sample.at_s
    elif memory.episode is None and not all(custom.known for custom in customs.values()):
        customs = {vm: custom if custom.known else custom.after(sample.waits[vm]) for vm, custom in customs.items()}
    after = replace(memory, at_s=sample.at_s, customs=customs, learnt_s=learnt_s, begins=begins, budget_s=budget_s)
    if memory.episode is not None:
        return _held(after, memory.episode, sample, excess, elapsed_s)
    if excess <= 1:
        return replace(after, hot=0, well_s=sample.at_s), None
    return _hot(after, sample, vm, excess), None


def _hottest(waits: Mapping[str, float], customs: Mapping[str, Custom]) -> tuple[str, float]:
    """The VM that waits most beside its bound, and how many times that."""
    hottest, most = "", 0.0
    for vm, wait in waits.items():
        custom = customs[vm]
        if wait > LEAST_BOUND and custom.known and wait / custom.bound > most:
            hottest, most = vm, wait / custom.bound
    return hottest, most


def _hot(memory: GuardMemory, sample: WaitSample, vm: str, excess: float) -> GuardMemory:
    """Nothing is held, and a VM waits more than its bound."""
    now_s, hot = sample.at_s, memory.hot + 1
    after = replace(memory, hot=hot)
    needs_s = min(HOLD_S * 2 ** len(memory.begins), MOST_HOLD_S)
    if (
        (hot < SAMPLES_IN_A_ROW and excess < FAR)
        or not (sample.steps and sample.may_hold)
        or now_s < memory.pause_s
        or len(memory.begins) >= MOST_EPISODES
        or memory.budget_s < needs_s + TRIAL_S  # else it would have to let go before it is over
    ):
        return after
    step = min(memory.first_step, sample.steps - 1)
    episode = Episode(
        now_s, memory.well_s, vm, sample.waits[vm], memory.customs[vm].bound, step, now_s, needs_s, hot_s=now_s
    )
    return replace(after, episode=episode, begins=(*memory.begins, now_s))


def _held(
    memory: GuardMemory, episode: Episode, sample: WaitSample, excess: float, elapsed_s: float
) -> tuple[GuardMemory, Ended | None]:
    now_s = sample.at_s
    if excess > 1:
        episode = replace(episode, hot_s=now_s if episode.hot_s is None else episode.hot_s)
    else:
        episode = replace(episode, hot_s=None, calm_s=episode.calm_s + min(elapsed_s, MOST_SAMPLE_S))
    if episode.vm in sample.waits:
        waited = episode.waited + sample.waits[episode.vm]
        episode = replace(episode, waited=waited, samples=episode.samples + 1)
    why = _end(memory, episode, sample)
    if why is not None:
        return _ended(memory, episode, why), Ended(episode, now_s, why)
    if _is_too_weak(episode, sample, STEP_S) and episode.step + 1 < sample.steps:
        episode = replace(episode, step=episode.step + 1, step_s=now_s, hot_s=now_s)
    return replace(memory, episode=episode), None


def _is_too_weak(episode: Episode, sample: WaitSample, after_s: float) -> bool:
    """Whether a VM has waited for so long although batch VMs are held."""
    return sample.acts and episode.hot_s is not None and sample.at_s - max(episode.hot_s, episode.step_s) >= after_s


def _end(memory: GuardMemory, episode: Episode, sample: WaitSample) -> End | None:
    if episode.step >= sample.steps or not sample.waits:
        return End.GONE
    if episode.hot_s is None and episode.calm_s >= episode.needs_s:
        return End.CALM
    if not sample.may_hold:
        return End.FLOOR
    if memory.budget_s <= 0:
        return End.BUDGET
    last = episode.step + 1 == sample.steps
    return End.FUTILE if last and _is_too_weak(episode, sample, TRIAL_S) else None


def _ended(memory: GuardMemory, episode: Episode, why: End) -> GuardMemory:
    after = replace(memory, episode=None, hot=0, well_s=memory.at_s)
    if why is End.CALM:
        return replace(after, first_step=episode.step, futile=0)
    if why is not End.FUTILE:
        return replace(after, first_step=0)
    pause_s = min(PAUSE_S * 2**memory.futile, MOST_PAUSE_S)
    customs = {vm: Custom(custom.usual) if vm == episode.vm else custom for vm, custom in memory.customs.items()}
    return replace(
        after, customs=customs, first_step=0, futile=min(memory.futile + 1, 16), pause_s=memory.at_s + pause_s
    )
