"""Lending: applications far below their targets give weight to one that misses its own.

Where one SLA is violated and all others are met with ease, nobody is violated anyway, so that ``policies.auto`` has
nobody to lower. But under weights waits are only passed on (Kleinrock's conservation law), and who is far below its
target can wait longer. A lender is lowered by one level at most, and only where it is predicted to stay below its
target by more than chance. As soon as it violates its SLA, or is no longer far enough below its target on average, all
lenders get their weight back.
"""

from __future__ import annotations

import math

from policies.auto_memory import AutoMemory, Courses, Levels
from policies.auto_model import AT_RISK, AppModel, HostModel

SPARE = 0.4
"""A lender has percentiles of at most this part of its target, now and on average, before it lends."""
SHORT = 0.65
"""And gets its weight back once they are above this part on average, or above the target but once."""
LOWEST_LENT = 1
"""The lowest level of a lender: at the next, the simulator's waited for longer than was predicted."""
LEAST_KNOWN_S = 60.0
"""Applications are known for so long before anybody lends: what the model learns first is far off."""
RISK = 0.05
"""A lender's SLA may be violated in this part of the intervals, as predicted."""


def willing(model: HostModel, now: AutoMemory, steady_s: float) -> frozenset[str]:
    """Applications that lend, or may: those with much to spare, while another that does not lend is at risk."""
    needed = now.known_s is not None and steady_s - now.known_s >= LEAST_KNOWN_S and _is_needed(model, now)
    return frozenset(
        app.name for app in model.applications if app.name in now.lenders or (needed and _can_spare(app, now))
    )


def _is_needed(model: HostModel, now: AutoMemory) -> bool:
    return any(
        not app.over and app.name not in now.levels and now.courses[app.name] > math.log(AT_RISK)
        for app in model.applications
    )


def _can_spare(app: AppModel, now: AutoMemory) -> bool:
    if app.over or app.name in now.levels:
        return False
    return max(app.log_miss, now.courses[app.name]) <= math.log(SPARE)


def tolerable(model: HostModel, levels: Levels, lenders: frozenset[str]) -> bool:
    """Whether those that would lend are predicted to stay below their targets."""
    lowered = lenders.intersection(levels)
    if not lowered:
        return True
    if any(levels[name] > LOWEST_LENT for name in lowered):
        return False
    expected = model.violations(levels)
    return all(expected[name] <= RISK for name in lowered)


def short_lenders(model: HostModel, lenders: frozenset[str], courses: Courses) -> frozenset[str]:
    """Those that must have their weight back: they violate their SLAs, or are too near to their targets on average."""
    violated = {app.name for app in model.applications if app.log_miss > 0}
    return frozenset(name for name in lenders if name in violated or courses.get(name, -math.inf) > math.log(SHORT))
