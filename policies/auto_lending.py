"""Lending: applications far below their targets give weight to one that misses its own.

Where one SLA is violated and all others are met with ease, nobody is violated anyway, so that ``policies.auto`` has
nobody to lower. But under weights waits are only passed on (Kleinrock's conservation law), and who is far below its
target can wait longer. A lender is lowered by one level at most, and only where it is predicted to stay below its
target by more than chance. What a loan has brought is counted: violated SLAs fewer than usual. A lender that violates
its SLA on average ends it for all lenders; so does, once the loan has cost a violation more than it saved, one that
violates its SLA at all, or is no longer far enough below its target on average.
"""

from __future__ import annotations

import math
from dataclasses import replace

from manager.control.feedback_law import average
from policies.auto_memory import AutoMemory, Cooling, Courses, Levels
from policies.auto_model import AT_RISK, AppModel, HostModel

SPARE = 0.4
"""A lender has percentiles of at most this part of its target, now and on average, before it lends."""
SHORT = 0.65
"""And gets its weight back once they are above this part on average, or above the target but once, see PATIENCE."""
LOWEST_LENT = 1
"""The lowest level of a lender: at the next, the simulator's waited for longer than was predicted."""
LEAST_KNOWN_S = 60.0
"""Applications are known for so long before anybody lends: what the model learns first is far off."""
RISK = 0.05
"""A lender's SLA may be violated in this part of the intervals, as predicted."""
PATIENCE = 1.0
"""A loan that has cost so many violations more than it saved ends with the next sign that a lender is short."""
CREDIT = 4.0
"""So many saved ones count at most: what a loan brought long ago does not keep it now."""
NO_LOANS_S, LONGEST_NO_LOANS_S = 120.0, 7680.0
"""Nobody lends for so long after a loan that has cost PATIENCE or more, and NO_LOANS_GROWTH times as long each time."""
NO_LOANS_GROWTH = 4.0
"""Until a loan has paid. The first often fails for a model that has not learnt enough yet."""
_MOST_GROWTHS = 8
USUAL_SMOOTHING = 0.1
"""Weight of an interval in how often an SLA is violated while nobody lends."""


def willing(model: HostModel, now: AutoMemory, steady_s: float) -> frozenset[str]:
    """Applications that lend, or may: those with much to spare, while another that does not lend is at risk."""
    may = now.known_s is not None and steady_s - now.known_s >= LEAST_KNOWN_S and steady_s >= now.no_loans.until_s
    needed = may and _is_needed(model, now)
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


def with_credit(model: HostModel, now: AutoMemory, steady_s: float) -> AutoMemory:
    """With how often each SLA is violated while nobody lends, or how many fewer were since somebody does."""
    violated = {app.name: float(app.log_miss > 0) for app in model.applications if not app.over}
    if not now.lenders:
        usual = {app: average(now.usual.get(app), value, USUAL_SMOOTHING) for app, value in violated.items()}
        return replace(now, usual=usual, saved=0.0, no_loans=_after_loan(now.no_loans, now.saved, steady_s))
    fewer = sum(now.usual.get(app, value) - value for app, value in violated.items())
    return replace(now, saved=min(now.saved + fewer, CREDIT))


def _after_loan(before: Cooling, saved: float, steady_s: float) -> Cooling:
    """Until when nobody lends, once a loan has ended that ``saved`` so many violations; 0 where there was none."""
    if saved > 0:
        return replace(before, times=0)
    if saved > -PATIENCE:
        return before
    return Cooling(
        steady_s + min(NO_LOANS_S * NO_LOANS_GROWTH ** min(before.times, _MOST_GROWTHS), LONGEST_NO_LOANS_S),
        before.times + 1,
    )


def short_lenders(model: HostModel, lenders: frozenset[str], courses: Courses, saved: float) -> frozenset[str]:
    """Those that must have their weight back.

    They violate their SLAs on average, or, where the loan has cost more than PATIENCE allows, once, or are too near to
    their targets. ``saved``: see ``with_credit``.
    """
    if saved > -PATIENCE:
        return frozenset(name for name in lenders if courses.get(name, -math.inf) > 0)
    violated = {app.name for app in model.applications if app.log_miss > 0}
    return frozenset(name for name in lenders if name in violated or courses.get(name, -math.inf) > math.log(SHORT))
