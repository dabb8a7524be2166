"""How many cache ways an application with ``auto`` gets, by its response times: tried, measured, kept or given back.

A change is a trial. Before it, and again some time after it, a few response times are kept; their medians tell what it
did. More ways that do not help are first doubled, as a working set may help only when it fits, then given back; fewer
that hurt are returned. The same is tried again only after a wait that doubles each time, so that under constant load
the number comes to rest. What helped, but not enough, is looked at again: maybe it was something else that did. And
where more do not help although the SLA is violated, maybe fewer do as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import CLOSED
from manager.model.numbers import digits

SETTLE_S = 10.0
"""After a change, response times do not count for so long, as the cache fills."""
JUDGED = 5
"""So many intervals are compared."""
MIN_GAIN = 0.1
"""More ways help when the median falls by this fraction, or the SLA is met."""
SLACK = 0.6
"""Below this part of the SLA for CALM_S, one way fewer is tried."""
CALM_S = 60.0
RETRY_S, LONGEST_RETRY_S = 120.0, 3600.0
"""First wait after a trial that failed; it doubles up to the longest."""
AT_RISK = 0.9
"""Fewer ways hurt when the response time comes above this part of the SLA."""
GROWTH = 4
"""An application grows by this part of its ways (a quarter), at least by one."""
_HALVINGS = 4
"""Ways of which fewer would do are halved so often at most, all together for no more than MIN_GAIN."""

WaysCount = Annotated[int, Field(ge=1, le=1024)]
NotNegative = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is tried before ``until_s``; ``next_s`` is how long the next wait will be, 0: RETRY_S."""

    until_s: NotNegative = 0.0
    next_s: NotNegative = 0.0
    __pydantic_config__: ClassVar = CLOSED

    def after_failure(self, now_s: float) -> Wait:
        """The wait that a failed trial brings."""
        length_s = self.next_s or RETRY_S
        return Wait(now_s + length_s, min(2 * length_s, LONGEST_RETRY_S))


@dataclass(frozen=True, slots=True)
class WaysMemory:
    """What is known of an application. ``times_ms``: the last response times since the last change had settled.

    ``before``: ways and median response time before the trial that runs, None where none does. ``changed_s``: when the
    ways changed. ``calm_s``: since when there is slack. ``base``: ways before those that helped, but not enough.
    ``shrunk``: the last trial that was kept was with fewer.
    """

    ways: WaysCount
    times_ms: tuple[float, ...] = ()
    before: tuple[WaysCount, NotNegative] | None = None
    changed_s: NotNegative = -math.inf
    calm_s: float | None = None
    grow: Wait = Wait()
    shrink: Wait = Wait()
    base: WaysCount | None = None
    shrunk: bool = False
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class WaysSeen:
    """One interval: ``percentile_ms`` is the SLA's percentile, None where there is none to believe.

    ``least`` and ``most`` bound the ways that the cache has for the application now. ``busy``: a trial of something
    else runs, which this one must not blur.
    """

    now_s: float
    percentile_ms: float | None
    sla_ms: float
    least: int
    most: int
    busy: bool = False


def next_ways(memory: WaysMemory, seen: WaysSeen) -> tuple[WaysMemory, str]:
    """What is remembered after this interval, the ways to have among it, and why they changed; empty: they did not."""
    bounded = min(max(memory.ways, seen.least), seen.most)
    if bounded != memory.ways:
        return _changed(memory, bounded, seen, None), f"the cache has {seen.least} to {seen.most} ways for it"
    memory = _noted(memory, seen)
    if len(memory.times_ms) < JUDGED or seen.percentile_ms is None:
        return memory, ""
    now_ms = median(memory.times_ms)
    if memory.before is not None:
        return _judge(memory, memory.before, now_ms, seen)
    return _try(memory, now_ms, seen)


def _noted(memory: WaysMemory, seen: WaysSeen) -> WaysMemory:
    """With this interval's response time, if it counts."""
    if seen.percentile_ms is None:
        return replace(memory, calm_s=None)
    times_ms = (*memory.times_ms, seen.percentile_ms)[-JUDGED:]
    since_s = seen.now_s if memory.calm_s is None else memory.calm_s
    memory = replace(memory, calm_s=since_s if median(times_ms) < SLACK * seen.sla_ms else None)
    if seen.busy and memory.before is None:
        return replace(memory, times_ms=())
    if seen.now_s < memory.changed_s + SETTLE_S:
        return memory
    return replace(memory, times_ms=times_ms)


def _changed(memory: WaysMemory, ways: int, seen: WaysSeen, before: tuple[int, float] | None) -> WaysMemory:
    return replace(memory, ways=ways, times_ms=(), before=before, changed_s=seen.now_s, calm_s=None)


def _judge(memory: WaysMemory, before: tuple[int, float], now_ms: float, seen: WaysSeen) -> tuple[WaysMemory, str]:
    """The trial has been measured: keep the ways, or go back."""
    ways, was_ms = before
    medians = f"{digits(was_ms)} ms with {ways} ways, {digits(now_ms)} ms with {memory.ways}"
    kept = replace(memory, before=None)
    if memory.ways > ways:
        helped = now_ms <= was_ms * (1 - MIN_GAIN)
        if now_ms <= seen.sla_ms:
            return replace(kept, grow=Wait() if helped else memory.grow, base=None, shrunk=False), ""
        if helped:
            return replace(kept, grow=Wait(), base=ways if memory.base is None else memory.base, shrunk=False), ""
        further = min(ways + 2 * (memory.ways - ways), seen.most)
        if further > memory.ways:
            return _changed(memory, further, seen, before), f"not enough: {medians}"
        failed = replace(kept, grow=memory.grow.after_failure(seen.now_s))
        return _changed(failed, max(ways, seen.least), seen, None), f"more ways did not help: {medians}"
    wait = memory.shrink.after_failure(seen.now_s)
    limit_ms = AT_RISK * seen.sla_ms
    if was_ms > seen.sla_ms:
        limit_ms = was_ms * (1 + MIN_GAIN / (_HALVINGS if memory.base is None else 1))
        wait = wait if memory.base is None else Wait(seen.now_s + LONGEST_RETRY_S, wait.next_s)  # measured twice
    if now_ms <= limit_ms:
        if memory.base is not None:  # they were of no use
            kept = replace(kept, grow=memory.grow.after_failure(seen.now_s))
        return replace(kept, base=None, shrunk=True), ""
    failed = replace(kept, shrink=wait)
    return _changed(failed, min(ways, seen.most), seen, None), f"fewer ways hurt: {medians}"


def _try(memory: WaysMemory, now_ms: float, seen: WaysSeen) -> tuple[WaysMemory, str]:
    """Begin a trial where there is cause, room and no wait."""
    before = (memory.ways, now_ms)
    if now_ms > seen.sla_ms:
        ways = min(memory.ways + max(memory.ways // GROWTH, 1), seen.most)
        if ways > memory.ways and seen.now_s >= memory.grow.until_s:
            if memory.shrunk:  # what that left was not enough after all: the next one waits for longer
                memory = replace(memory, shrink=memory.shrink.after_failure(seen.now_s))
            return _changed(memory, ways, seen, before), f"{digits(now_ms)} ms, target {digits(seen.sla_ms)} ms"
        due_s = max(memory.changed_s + RETRY_S, memory.shrink.until_s)
        tried = memory.grow.next_s > 0
        fewer = max((memory.ways // 2 if tried else memory.ways) if memory.base is None else memory.base, seen.least)
        if fewer < memory.ways and seen.now_s >= due_s:
            return _changed(memory, fewer, seen, before), f"whether ways help: still {digits(now_ms)} ms"
        return memory, ""
    may_shrink = memory.calm_s is not None and seen.now_s >= max(memory.calm_s + CALM_S, memory.shrink.until_s)
    if may_shrink and memory.ways > seen.least:
        why = f"below {digits(SLACK)} of the target, {digits(seen.sla_ms)} ms, for {digits(CALM_S)} s"
        return _changed(memory, memory.ways - 1, seen, before), why
    return memory, ""
