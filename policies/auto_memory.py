"""What `auto` remembers from one decision to the next, and the times and thresholds by which it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from manager.model.registration import Sla
from policies.auto_crowd import Crowd
from policies.auto_experiment import Experiments
from policies.auto_model import Fits
from policies.auto_room import Room
from policies.auto_steps import StepsMemory
from policies.cores import Sampling

HOLD_S = 10.0
"""Levels stay for at least so long: the response times of before must have left the windows first."""
TRIAL_S = 40.0
"""After so long a change is judged."""
PAUSED_S = 60.0
"""After so long without a decision, as while the host was released, all is measured anew."""

Levels = Mapping[str, int]
"""By application; absent: the critical weight."""
Courses = Mapping[str, float]
"""Moving averages of ln(percentile / target) by application."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Levels that are being tried since ``since_s``; ``before`` is the course of those they are to save."""

    since_s: float
    before: Courses


@dataclass(frozen=True, slots=True)
class Cooling:
    """An application is not lowered, or nobody lends, until ``until_s``; it did not help ``times`` times."""

    until_s: float
    times: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Levels that were taken back ``at_s``, and the courses of those they were to save, before and under them."""

    levels: Levels
    at_s: float
    before: Courses
    after: Courses


@dataclass(frozen=True, slots=True)
class AutoMemory:
    """What was learnt, the levels in force, and since when.

    ``lenders`` are lowered though they meet their SLAs (``auto_lending``). ``usual``: in what part of intervals each
    SLA is violated while nobody lends; ``saved``: violations fewer than that since somebody does; ``no_loans``: whether
    loans have cost more than that of late. ``known_s``: since when response times are known; None: they are not yet.
    ``before_levels`` and ``before_room``: all courses when these began, for the explanation. ``samplings``: samples of
    response times by which the steps of the ladder are judged. ``slas``: those that all of it is about, by application.
    ``decided_s``: when it is of; None: of no decision.
    """

    fits: Fits = field(default_factory=Fits)
    levels: Levels = field(default_factory=dict)
    changed_s: float = -math.inf
    courses: Courses = field(default_factory=dict)
    trial: Trial | None = None
    cooling: Mapping[str, Cooling] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    lenders: frozenset[str] = frozenset()
    usual: Mapping[str, float] = field(default_factory=dict)
    saved: float = 0.0
    no_loans: Cooling = Cooling(-math.inf, 0)
    known_s: float | None = None
    before_levels: Courses = field(default_factory=dict)
    before_room: Courses = field(default_factory=dict)
    taken_back: TakenBack | None = None
    ladder: StepsMemory = field(default_factory=StepsMemory)
    samplings: Mapping[str, Sampling] = field(default_factory=dict)
    experiments: Experiments = field(default_factory=Experiments)
    crowd: Crowd = field(default_factory=Crowd)
    slas: Mapping[str, Sla] = field(default_factory=dict)
    decided_s: float | None = None
