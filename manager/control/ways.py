"""How many cache ways an application with ``auto`` gets, by its response times: tried, measured, kept or given back.

A change is a trial. Before it, and again some time after it, a few response times are kept; their medians tell what it
did. More ways that do not help are first doubled, as a working set may help only when it fits, then given back; fewer
that hurt are returned. The same is tried again only after a wait that doubles each time, so that under constant load
the number comes to rest. What helped, but not enough, is looked at again: maybe it was something else that did. And
where more do not help although the promise is not kept, maybe fewer do as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

BOUNDS: dict[str, tuple[float, float]] = {
    "settle_s": (0, 600),
    "judged": (1, 100),
    "min_gain": (0, 1),
    "slack": (0, 0.9),
    "calm_s": (0, 86400),
    "retry_s": (1, 86400),
    "longest_retry_s": (1, 604800),
}
"""Least and largest value of each setting."""
AT_RISK = 0.9
"""Fewer ways hurt when the response time comes above this part of the SLA."""
GROWTH = 4
"""An application grows by this part of its ways (a quarter), at least by one."""
_HALVINGS = 4
"""Ways of which fewer would do are halved so often at most, all together for no more than ``min_gain``."""


@dataclass(frozen=True, slots=True)
class WaysRules:
    """``settle_s``: after a change, response times do not count for so long, as the cache fills. ``judged``: so many
    intervals are compared. ``min_gain``: more ways help when the median falls by this fraction, or the SLA is met.
    ``slack``: below this part of the SLA for ``calm_s``, one way fewer is tried. ``retry_s``: first wait after a trial
    that failed; it doubles up to ``longest_retry_s``.
    """

    settle_s: float = 10.0
    judged: int = 5
    min_gain: float = 0.1
    slack: float = 0.6
    calm_s: float = 60.0
    retry_s: float = 120.0
    longest_retry_s: float = 3600.0


DEFAULT_RULES = WaysRules()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is tried before ``until_s``; ``next_s`` is how long the next wait will be, 0: as the rules say."""

    until_s: float = 0.0
    next_s: float = 0.0

    def after_failure(self, now_s: float, rules: WaysRules) -> Wait:
        """The wait that a failed trial brings."""
        length_s = self.next_s or rules.retry_s
        return Wait(now_s + length_s, min(2 * length_s, rules.longest_retry_s))


@dataclass(frozen=True, slots=True)
class WaysMemory:
    """What is known of an application. ``times_ms``: the last response times since the last change had settled.

    ``before``: ways and median response time before the trial that runs, None where none does. ``changed_s``: when the
    ways changed. ``calm_s``: since when there is slack. ``base``: ways before those that helped, but not enough.
    ``shrunk``: the last trial that was kept was with fewer.
    """

    ways: int
    times_ms: tuple[float, ...] = ()
    before: tuple[int, float] | None = None
    changed_s: float = -math.inf
    calm_s: float | None = None
    grow: Wait = Wait()
    shrink: Wait = Wait()
    base: int | None = None
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class WaysSeen:
    """One interval: ``time_ms`` is the SLA's percentile, None where there is none to believe. ``least`` and ``most``
    bound the ways that the cache has for the application now. ``busy``: a trial of something else runs, which this one
    must not blur.
    """

    now_s: float
    time_ms: float | None
    sla_ms: float
    least: int
    most: int
    busy: bool = False


def next_ways(memory: WaysMemory, seen: WaysSeen, rules: WaysRules = DEFAULT_RULES) -> tuple[WaysMemory, str]:
    """What is remembered after this interval, the ways to have among it, and why they changed; empty: they did not."""
    bounded = min(max(memory.ways, seen.least), seen.most)
    if bounded != memory.ways:
        return _changed(memory, bounded, seen, None), f"the cache has {seen.least} to {seen.most} ways for it"
    memory = _noted(memory, seen, rules)
    if len(memory.times_ms) < rules.judged or seen.time_ms is None:
        return memory, ""
    now_ms = median(memory.times_ms)
    if memory.before is not None:
        return _judge(memory, memory.before, now_ms, seen, rules)
    return _try(memory, now_ms, seen, rules)


def _noted(memory: WaysMemory, seen: WaysSeen, rules: WaysRules) -> WaysMemory:
    """With this interval's response time, if it counts."""
    if seen.time_ms is None:
        return replace(memory, calm_s=None)
    times_ms = (*memory.times_ms, seen.time_ms)[-rules.judged :]
    since_s = seen.now_s if memory.calm_s is None else memory.calm_s
    memory = replace(memory, calm_s=since_s if median(times_ms) < rules.slack * seen.sla_ms else None)
    if seen.busy and memory.before is None:
        return replace(memory, times_ms=())
    if seen.now_s < memory.changed_s + rules.settle_s:
        return memory
    return replace(memory, times_ms=times_ms)


def _changed(memory: WaysMemory, ways: int, seen: WaysSeen, before: tuple[int, float] | None) -> WaysMemory:
    return replace(memory, ways=ways, times_ms=(), before=before, changed_s=seen.now_s, calm_s=None)


def _judge(
    memory: WaysMemory, before: tuple[int, float], now_ms: float, seen: WaysSeen, rules: WaysRules
) -> tuple[WaysMemory, str]:
    """The trial has been measured: keep the ways, or go back."""
    ways, was_ms = before
    told = f"{was_ms:.3g} ms with {ways} ways, {now_ms:.3g} ms with {memory.ways}"
    kept = replace(memory, before=None)
    if memory.ways > ways:
        helped = now_ms <= was_ms * (1 - rules.min_gain)
        if now_ms <= seen.sla_ms:
            return replace(kept, grow=Wait() if helped else memory.grow, base=None, shrunk=False), ""
        if helped:
            return replace(kept, grow=Wait(), base=ways if memory.base is None else memory.base, shrunk=False), ""
        further = min(ways + 2 * (memory.ways - ways), seen.most)
        if further > memory.ways:
            return _changed(memory, further, seen, before), f"not enough: {told}"
        failed = replace(kept, grow=memory.grow.after_failure(seen.now_s, rules))
        return _changed(failed, max(ways, seen.least), seen, None), f"more ways did not help: {told}"
    wait = memory.shrink.after_failure(seen.now_s, rules)
    limit_ms = AT_RISK * seen.sla_ms
    if was_ms > seen.sla_ms:
        limit_ms = was_ms * (1 + rules.min_gain / (_HALVINGS if memory.base is None else 1))
        wait = wait if memory.base is None else Wait(seen.now_s + rules.longest_retry_s, wait.next_s)  # measured twice
    if now_ms <= limit_ms:
        if memory.base is not None:  # they were of no use
            kept = replace(kept, grow=memory.grow.after_failure(seen.now_s, rules))
        return replace(kept, base=None, shrunk=True), ""
    failed = replace(kept, shrink=wait)
    return _changed(failed, min(ways, seen.most), seen, None), f"fewer ways hurt: {told}"


def _try(memory: WaysMemory, now_ms: float, seen: WaysSeen, rules: WaysRules) -> tuple[WaysMemory, str]:
    """Begin a trial where there is cause, room and no wait."""
    before = (memory.ways, now_ms)
    if now_ms > seen.sla_ms:
        ways = min(memory.ways + max(memory.ways // GROWTH, 1), seen.most)
        if ways > memory.ways and seen.now_s >= memory.grow.until_s:
            if memory.shrunk:  # what that left was not enough after all: the next one waits for longer
                memory = replace(memory, shrink=memory.shrink.after_failure(seen.now_s, rules))
            return _changed(memory, ways, seen, before), f"{now_ms:.3g} ms, promised are {seen.sla_ms:.3g} ms"
        due_s = max(memory.changed_s + rules.retry_s, memory.shrink.until_s)
        tried = memory.grow.next_s > 0
        fewer = max((memory.ways // 2 if tried else memory.ways) if memory.base is None else memory.base, seen.least)
        if fewer < memory.ways and seen.now_s >= due_s:
            return _changed(memory, fewer, seen, before), f"whether ways help: still {now_ms:.3g} ms"
        return memory, ""
    may_shrink = memory.calm_s is not None and seen.now_s >= max(memory.calm_s + rules.calm_s, memory.shrink.until_s)
    if may_shrink and memory.ways > seen.least:
        why = f"below {rules.slack:.3g} of the {seen.sla_ms:.3g} ms promised for {rules.calm_s:.3g} s"
        return _changed(memory, memory.ways - 1, seen, before), why
    return memory, ""
