"""When batch VMs are held back at once because critical vCPUs wait, and when they are let go again.

The tick decides from seconds; a burst of batch work hurts within milliseconds. Between ticks the guard samples the vCPU
wait of critical VMs, as seconds a second of the vCPU that waited most, and asks here what to do. A service may also be
slow while its vCPUs do not wait, as where QEMU's threads do: so every other sample tells how much applications answered
late, too. All that happens is:

* **Learning.** What is usual for a VM is about the 90th percentile of its samples, within bounds; only of samples in
  which no critical VM waited more than its bound, and none of an episode: what is too long does not become usual.
* **An episode** begins with two samples in a row above a VM's bound, or one far above it; or where an application is
  certain to answer too many requests late (``late_answers``). It takes the first step (the one that helped last time),
  and a stronger one where that does not cool within moments.
* **Its end**: calm for a while, which doubles with each episode of the last minute; a budget of time that is used up; a
  floor of batch VMs that is not reached; or no step that helps (``futile``): then batch is not what is waited for. The
  VM's custom is learnt anew, and the next episode waits, twice as long each time.

While all of that is calm, a sample a second is enough to learn from: others need not come here (``quiet_bounds``).

So in any time ``t`` batch VMs are never held longer than ``BUDGET_S + HELD_SHARE * t``, and in no minute more than
``MOST_EPISODES`` times, whatever they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from manager.control.late_answers import LateShare, added_up, worst_of

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
DRAINING = 4.0
"""Times as long where answers are late: what had waited before is answered late, whatever is done."""
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
    ``answers``: what applications answered since they were looked at before; None: they were not looked at.
    ``unseen``: VMs that are there, but not among ``waits``, as just after a vCPU was plugged: they keep their custom.
    """

    at_s: float
    waits: Mapping[str, float]
    steps: int
    may_hold: bool = True
    acts: bool = True
    answers: tuple[LateShare, ...] | None = None
    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Excess:
    """What is too much: the VM ``name`` waited the share ``seen`` of the time, where ``bound`` is its bound.

    Or, ``late``: of its answers the application ``name`` gave the share ``seen`` late, where ``bound`` may be.
    """

    name: str
    seen: float
    bound: float
    late: bool = False


@dataclass(frozen=True, slots=True)
class Episode:
    """Batch VMs are held for an excess, by ``step`` since ``step_s``. ``well_s``: when all was well last.

    ``hot_s``: since when there is too much of anything; None: there is not. It ends after ``needs_s`` of calm in all,
    of which there was ``calm_s``: in all, because a service that waits a little too long now and then, whatever batch
    VMs do, would have them held for ever. ``total`` over ``count`` is the mean of what was seen while they were held.
    """

    began_s: float
    well_s: float
    excess: Excess
    step: int
    step_s: float
    needs_s: float
    calm_s: float = 0.0
    hot_s: float | None = None
    total: float = 0.0
    count: int = 0

    @property
    def held(self) -> float | None:
        """The mean of what was seen while batch VMs were held, None: it was too short to tell."""
        return self.total / self.count if self.count else None

    @property
    def patience(self) -> float:
        """How many times as long as usual a step has to show that it helps."""
        return DRAINING if self.excess.late else 1.0

    def with_sample(self, sample: WaitSample) -> Episode:
        """With what was seen in one sample more."""
        name = self.excess.name
        if not self.excess.late:
            wait = sample.waits.get(name)
            return self if wait is None else replace(self, total=self.total + wait, count=self.count + 1)
        answers = [seen for seen in sample.answers or () if seen.application == name]
        late = sum(seen.share * seen.answers for seen in answers)
        return replace(self, total=self.total + late, count=self.count + sum(seen.answers for seen in answers))


@dataclass(frozen=True, slots=True)
class GuardMemory:
    """All that is remembered from sample to sample.

    ``learnt_s``: when it was learnt last from all VMs. ``hot`` counts samples in a row above a bound, since ``well_s``.
    ``sums`` are those of ``late_answers``; ``late``: who answers too many late in an episode, as last looked at.
    ``begins`` are when the episodes of the last minute began, ``first_step`` that with which the next does. After
    ``futile`` episodes in a row there is none before ``pause_s``.
    """

    at_s: float
    customs: Mapping[str, Custom] = field(default_factory=dict)
    learnt_s: float = 0.0
    hot: int = 0
    well_s: float = 0.0
    sums: Mapping[str, float] = field(default_factory=dict)
    late: Excess | None = None
    episode: Episode | None = None
    begins: tuple[float, ...] = ()
    budget_s: float = BUDGET_S
    first_step: int = 0
    futile: int = 0
    pause_s: float = 0.0

    @property
    def watched(self) -> frozenset[str]:
        """The applications of which all answers count, not only late ones."""
        held_for = {self.episode.excess.name} if self.episode else frozenset[str]()
        return frozenset(self.sums).union(held_for)


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
    if customs.keys() != sample.waits.keys() | sample.unseen:
        customs = {vm: customs.get(vm, Custom()) for vm in (*sample.waits, *sample.unseen)}
    begins = memory.begins
    if begins and begins[0] <= sample.at_s - MINUTE_S:
        begins = tuple(at_s for at_s in begins if at_s > sample.at_s - MINUTE_S)
    sums, late = _late(memory, sample)
    excess, far = _worst(sample.waits, customs)
    learnt_s = memory.learnt_s
    if memory.episode is None and excess is None and sample.at_s - learnt_s >= LEARN_EVERY_S:
        customs = {**customs, **{vm: customs[vm].after(wait) for vm, wait in sample.waits.items()}}
        learnt_s = sample.at_s
    elif memory.episode is None and not all(custom.known for custom in customs.values()):
        unknown = {vm: wait for vm, wait in sample.waits.items() if not customs[vm].known}
        customs = {**customs, **{vm: customs[vm].after(wait) for vm, wait in unknown.items()}}
    after = replace(
        memory,
        at_s=sample.at_s,
        customs=customs,
        learnt_s=learnt_s,
        begins=begins,
        budget_s=budget_s,
        sums=sums,
        late=late,
    )
    if memory.episode is not None:
        concerns = excess or (late if memory.episode.excess.late else None)
        return _held(after, memory.episode, sample, concerns, elapsed_s)
    after = replace(after, hot=memory.hot + 1 if excess else 0)
    if late is not None:
        return _begun(after, sample, late), None
    if excess is None:
        return replace(after, well_s=sample.at_s), None
    return _begun(after, sample, excess) if far or after.hot >= SAMPLES_IN_A_ROW else after, None


def quiet_bounds(memory: GuardMemory) -> Mapping[str, float] | None:
    """Of each VM the wait up to which samples change nothing but the time, for ``LEARN_EVERY_S`` after ``learnt_s``.

    So until then nobody need look at them, as long as no answer is late. None: each sample counts.
    """
    is_calm = memory.episode is None and memory.late is None and not memory.hot and not memory.sums
    if not is_calm or not memory.customs or not all(custom.known for custom in memory.customs.values()):
        return None
    return {vm: custom.bound for vm, custom in memory.customs.items()}


def after_calm(memory: GuardMemory, until_s: float) -> GuardMemory:
    """After samples until then in which no VM waited longer than its ``quiet_bounds``."""
    return replace(memory, well_s=max(until_s, memory.well_s))


def _late(memory: GuardMemory, sample: WaitSample) -> tuple[Mapping[str, float], Excess | None]:
    """The sums, and who answers too many late: for certain, or while batch VMs are held as last looked at."""
    if not sample.answers:  # nothing says that it is otherwise
        return memory.sums, memory.late
    sums, late = memory.sums, worst_of(sample.answers)
    if memory.episode is None:
        sums, late = added_up(sums, sample.answers)
    return sums, Excess(late.application, late.share, late.allowed, late=True) if late else None


def _worst(waits: Mapping[str, float], customs: Mapping[str, Custom]) -> tuple[Excess | None, bool]:
    """The VM that waits most beside its bound, where that is more; and whether it is far above."""
    worst, most = None, 1.0
    for vm, wait in waits.items():
        custom = customs[vm]
        if wait > LEAST_BOUND and custom.known and wait / custom.bound > most:
            worst, most = Excess(vm, wait, custom.bound), wait / custom.bound
    return worst, most >= FAR


def _begun(memory: GuardMemory, sample: WaitSample, excess: Excess) -> GuardMemory:
    """With an episode for this excess, unless it may not begin now."""
    now_s = sample.at_s
    needs_s = min(HOLD_S * 2 ** len(memory.begins), MOST_HOLD_S)
    step = min(memory.first_step, sample.steps - 1)
    episode = Episode(now_s, memory.well_s, excess, step, now_s, needs_s, hot_s=now_s)
    if (
        not (sample.steps and sample.may_hold)
        or now_s < memory.pause_s
        or len(memory.begins) >= MOST_EPISODES
        or memory.budget_s < needs_s + TRIAL_S * episode.patience  # else it would have to let go before it is over
    ):
        return memory
    return replace(memory, episode=episode, begins=(*memory.begins, now_s))


def _held(
    memory: GuardMemory, episode: Episode, sample: WaitSample, excess: Excess | None, elapsed_s: float
) -> tuple[GuardMemory, Ended | None]:
    now_s = sample.at_s
    if excess is not None:
        episode = replace(episode, hot_s=now_s if episode.hot_s is None else episode.hot_s)
    else:
        episode = replace(episode, hot_s=None, calm_s=episode.calm_s + min(elapsed_s, MOST_SAMPLE_S))
    episode = episode.with_sample(sample)
    why = _end(memory, episode, sample)
    if why is not None:
        return _ended(memory, episode, why), Ended(episode, now_s, why)
    if _is_too_weak(episode, sample, STEP_S) and episode.step + 1 < sample.steps:
        episode = replace(episode, step=episode.step + 1, step_s=now_s, hot_s=now_s)
    return replace(memory, episode=episode), None


def _is_too_weak(episode: Episode, sample: WaitSample, after_s: float) -> bool:
    """Whether it has been too much for so long although batch VMs are held."""
    if not sample.acts or episode.hot_s is None:
        return False
    return sample.at_s - max(episode.hot_s, episode.step_s) >= after_s * episode.patience


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
    after = replace(memory, episode=None, hot=0, sums={}, late=None, well_s=memory.at_s)
    if why is End.CALM:
        return replace(after, first_step=episode.step, futile=0)
    if why is not End.FUTILE:
        return replace(after, first_step=0)
    pause_s = min(PAUSE_S * 2**memory.futile, MOST_PAUSE_S)
    customs = {
        vm: Custom(custom.usual) if vm == episode.excess.name else custom for vm, custom in memory.customs.items()
    }
    return replace(
        after, customs=customs, first_step=0, futile=min(memory.futile + 1, 16), pause_s=memory.at_s + pause_s
    )
