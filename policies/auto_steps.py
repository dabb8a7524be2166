"""The steps of `auto`'s ladder: what one is, costs and is to bring, and what is remembered of those tried."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

CALM_S = 120.0
"""All SLAs with slack for so long: a step is taken off."""
RETEST_S, LONGEST_RETEST_S = 1800.0, 8 * 3600.0
"""What was kept is taken off on trial after so long without slack, too: its cause may be gone."""
OTHERS = 2.0
"""A rise of another application's ln(percentile / target) counts as so much of batch's progress."""
LEAST_COST = 0.02
_MOST_GROWTHS = 8


Samples = Mapping[str, tuple[float, ...]]
"""By application, oldest first."""


class StepKind(StrEnum):
    """What a step uses."""

    IDLE = "idle"
    QUOTA = "quota"
    WAYS = "ways"
    BANDWIDTH = "bandwidth"
    FLOAT = "float"
    PIN = "pin"
    SIBLINGS = "siblings"
    MEMORY_PROTECTION = "memory-protection"
    MEMORY_CEILING = "memory-ceiling"
    DISK_WEIGHTS = "disk-weights"
    DISK_CEILING = "disk-ceiling"
    UPLINK_SHARES = "uplink-shares"
    WARP = "warp"
    ROOM = "room"
    """Pseudo-step: room comes by itself (``auto_room``), and is taken off on trial where it does not suffice."""


HOLDING_BACK = frozenset({StepKind.QUOTA, StepKind.BANDWIDTH, StepKind.MEMORY_CEILING, StepKind.DISK_CEILING})
"""Whose target is a batch VM."""


@dataclass(frozen=True, slots=True)
class LadderStep:
    """One setting: of the VM or application ``target``, empty: of the host.

    ``amount``: pCPUs of a quota, ways, the part of the memory bandwidth, microseconds of warp, or requests per second
    of the ``disk`` of that number. ``application``: for whom it was taken. ``level``: how far it goes, which tells a
    further step from it.
    """

    kind: StepKind
    target: str
    amount: float
    application: str
    level: float = 1.0
    disk: int = 0

    @property
    def knob(self) -> tuple[StepKind, str]:
        """What it sets: steps with the same one take each other's place."""
        return self.kind, self.target

    @property
    def name(self) -> str:
        """By which its verdicts are remembered."""
        return f"{self.learnt_as}/{self.level:.3g}"

    @property
    def learnt_as(self) -> str:
        """By which its effect is remembered."""
        return f"{self.application}/{self.kind}/{self.target}"


@dataclass(frozen=True, slots=True)
class StepCandidate:
    """A step that may be tried.

    ``gain``: predicted fall of ln(percentile / target) of its application. ``batch_cost``: part of the progress of
    batch VMs; ``others_cost``: rise of ln(percentile / target) of the other application that it hurts most. ``why``
    says who is suspected of what, ``of`` what the amount is compared with: what the VM had before any step.
    """

    step: LadderStep
    gain: float
    batch_cost: float
    others_cost: float
    why: str
    of: float = 1.0

    @property
    def worth(self) -> float:
        """Predicted gain by cost."""
        return self.gain / (LEAST_COST + self.batch_cost + OTHERS * self.others_cost)


@dataclass(frozen=True, slots=True)
class StepInForce:
    """A step that is kept since ``since_s``, and ``brought`` so much (see ``StepCandidate.gain``).

    It was set again ``returned`` times, ``again_s`` the last time, from when the waits until it is taken off count.
    ``predicted``: what it was predicted to bring, with the steps in whose place it is.
    """

    candidate: StepCandidate
    since_s: float
    brought: float
    again_s: float
    returned: int = 0
    predicted: float = 0.0

    @property
    def step(self) -> LadderStep:
        """What it sets."""
        return self.candidate.step

    @property
    def slack_s(self) -> float:
        """When it may be taken off with slack."""
        return self.again_s + min(CALM_S * 4.0 ** min(self.returned, _MOST_GROWTHS), LONGEST_RETEST_S)

    @property
    def retest_s(self) -> float:
        """When it is taken off without slack, while nobody is at risk."""
        return self.again_s + min(RETEST_S * 2.0 ** min(self.returned, _MOST_GROWTHS), LONGEST_RETEST_S)


@dataclass(frozen=True, slots=True)
class StepTrial:
    """A step that is tried, or taken off (``off``), since ``since_s``; with samples and rates of ``before``.

    ``replaces``: what was in force in its place. ``at_risk``: somebody was at risk when it began.
    """

    candidate: StepCandidate
    since_s: float
    before: Samples
    before_rps: Samples = field(default_factory=dict)
    replaces: StepInForce | None = None
    off: bool = False
    at_risk: bool = True

    @property
    def step(self) -> LadderStep:
        """What is tried, or taken off."""
        return self.candidate.step


@dataclass(frozen=True, slots=True)
class StepCooling:
    """Not tried until ``until_s``, after ``times`` verdicts in a row that were not for it."""

    until_s: float
    times: int


class StepEnd(StrEnum):
    """Why a step was taken back."""

    HARMED = "harmed"
    NO_EFFECT = "no effect"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class StepTakenBack:
    """What was taken back ``at_s``, and why; ``change`` of ln(percentile / target) of the application ``seen_at``.

    ``predicted``: what it was to bring, see ``StepCandidate.gain``.
    """

    step: LadderStep
    at_s: float
    end: StepEnd
    change: float | None
    seen_at: str
    predicted: float = 0.0


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Since ``since_s`` nothing is left to try for an application; ``why`` says who is suspected of what."""

    why: str
    since_s: float


@dataclass(frozen=True, slots=True)
class StepsMemory:
    """All that the ladder remembers; times are steady seconds.

    ``samples``: ln(percentile / target) by application since the last change of anything, and ``rates_rps`` of arrivals
    then. ``brought``: what steps
    brought when they were kept, by ``LadderStep.learnt_as``; ``cooling``: by its name. ``worse_s``: time in trials that
    made things worse, since ``began_s``. ``known_s``: when each application last had response times. ``upcoming``: what
    would be tried next. ``no_room_s``: until then there is no room, as it was of no use. ``exhausted``: applications
    for which nothing is left to try. ``uncaused``: those at risk of which no cause is seen.
    """

    in_force: tuple[StepInForce, ...] = ()
    trial: StepTrial | None = None
    samples: Samples = field(default_factory=dict)
    rates_rps: Samples = field(default_factory=dict)
    cooling: Mapping[str, StepCooling] = field(default_factory=dict)
    brought: Mapping[str, float] = field(default_factory=dict)
    taken_back: tuple[StepTakenBack, ...] = ()
    changed_s: float = -math.inf
    calm_s: float | None = None
    began_s: float | None = None
    worse_s: float = 0.0
    known_s: Mapping[str, float] = field(default_factory=dict)
    upcoming: StepCandidate | None = None
    no_room_s: float = -math.inf
    exhausted: Mapping[str, Exhausted] = field(default_factory=dict)
    uncaused: frozenset[str] = frozenset()

    @property
    def steps(self) -> tuple[LadderStep, ...]:
        """What is set now, that on trial among it."""
        trial = self.trial
        if trial is None:
            return tuple(each.step for each in self.in_force)
        kept = tuple(each.step for each in self.in_force if each.step.knob != trial.step.knob)
        return kept if trial.off else (*kept, trial.step)

    def may_have_room(self, now_s: float) -> bool:
        """Whether batch VMs may leave pCPUs: not while that is taken off, on trial or after one."""
        return now_s >= self.no_room_s and (self.trial is None or self.trial.step.kind is not StepKind.ROOM)


@dataclass(frozen=True, slots=True)
class StepsMoment:
    """What is seen in one interval.

    ``samples``: new ones by application; ``rates_rps``: arrivals of those with response times. ``at_risk``:
    ln(percentile / target) of those whose SLA is violated or at risk now. ``candidates`` are for them. ``there``: the
    VMs and applications that are, ``batch``: the batch VMs. ``may_begin``: weights and room are as they should be;
    ``settled``: they, and SLAs, did not change since the last time. ``interrupts``: the weights must change, or SLAs
    did. ``acts``: what is decided is written.
    """

    now_s: float
    samples: Mapping[str, float] = field(default_factory=dict)
    rates_rps: Mapping[str, float] = field(default_factory=dict)
    at_risk: Mapping[str, float] = field(default_factory=dict)
    candidates: tuple[StepCandidate, ...] = ()
    there: frozenset[str] = frozenset()
    batch: frozenset[str] = frozenset()
    may_begin: bool = True
    settled: bool = True
    interrupts: bool = False
    acts: bool = True
