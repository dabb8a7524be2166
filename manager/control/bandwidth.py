"""Which batch VMs' memory bandwidth is held back, and how far, while critical applications violate their SLAs.

Where a critical application violates its SLA, and one batch VM or a few take most of the memory
traffic beside it, these are held back step by step. Each step is a trial, as with ways: it is given back where the
response times are no better after it. The next trial comes after a wait that doubles each time, and goes twice as far,
as a limit may show nothing until it bites. With slack, steps are taken back one by one: that VM first
which has the least traffic.

There is one group, so that all who are held back are held back as far: to a part of what the host gives where its unit
is percent, else to a part of what they took together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from manager.control.ways import AT_RISK, CALM_S, LONGEST_RETRY_S, MIN_GAIN, RETRY_S, SETTLE_S, Wait
from manager.model.cache import BandwidthResource, BandwidthUnit
from manager.model.decision import BandwidthGoal
from manager.model.numbers import digits

BYTES_PER_S = {BandwidthUnit.EIGHTH_GBPS: 125_000_000, BandwidthUnit.MBPS: 1 << 20}
"""What 1 of a unit is; of percent it is not known (mba_MBps counts in 2^20 bytes: mbm_bw_count, fs/resctrl)."""

_EXACT = 1e-6


# As for ways, whose turn comes first by one interval, and more.
JUDGED, SLACK = 6, 0.7
NOISY_SHARE, FEW = 0.4, 2
"""Batch VMs are noisy neighbours when FEW of them at most take more than this part of the traffic."""
STEP = 0.1
"""A step takes this part of the whole, or what the host can tell apart."""
LEAST = 0.1
"""This part of the whole is left to those held back in any case."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A batch VM held back, and what it took when that began, in bytes/s."""

    vm: str
    bytes_per_s: float


_NO_WAIT = Wait()


@dataclass(frozen=True, slots=True)
class BandwidthMemory:
    """What is known of a host. ``holds``: who is held back, those with the most traffic first; ``steps``: how far.

    ``ratios``: the last ``BandwidthSeen.ratio`` since the last change had settled. ``before``: holds, steps and median
    ratio before the trial that runs. ``stride``: so many steps the next trial takes. ``calm_s``: since when there is
    slack. ``loosened``: the last that was kept was a letting go. ``share``: how far a policy limits them, None: it is
    as many ``steps``.
    """

    holds: tuple[Hold, ...] = ()
    steps: int = 0
    ratios: tuple[float, ...] = ()
    before: tuple[tuple[Hold, ...], int, float] | None = None
    stride: int = 1
    changed_s: float = -math.inf
    calm_s: float | None = None
    tighten: Wait = _NO_WAIT
    loosen: Wait = _NO_WAIT
    loosened: bool = False
    share: float | None = None

    @property
    def held(self) -> frozenset[str]:
        """The batch VMs that are held back."""
        return frozenset(hold.vm for hold in self.holds)


@dataclass(frozen=True, slots=True)
class BandwidthSeen:
    """One interval of the domain whose critical applications suffer most, seen when a new window ended.

    ``ratio``: the worst response time of critical applications there, over its SLA; None where there is none to
    believe. ``used``: bytes/s of each batch VM that may be held back, by the name that reasons give it; None: not known
    now, as after a move. Empty: nobody is measured. ``total``: bytes/s of the domain. ``busy``: a trial of ways runs,
    which this one must not blur.
    """

    now_s: float
    ratio: float | None
    used: Mapping[str, float | None]
    total: float
    resource: BandwidthResource
    busy: bool = False


def bandwidth_of(memory: BandwidthMemory, resource: BandwidthResource) -> int:
    """The limit of those held back, legal and in the host's unit; ``most`` where nobody is."""
    if not memory.holds:
        return resource.most
    share = memory.share
    if share is None:
        share = max(1 - memory.steps * _step(memory.holds, resource), LEAST)
    return resource.legal(math.floor(_whole(memory.holds, resource) * share + _EXACT))


def held_as_decided(
    memory: BandwidthMemory, goals: Sequence[BandwidthGoal], used: Mapping[str, float]
) -> BandwidthMemory:
    """Those held back that a policy names, each as far as the least of its shares says.

    ``used``: bytes/s of batch VMs; one of which that is not known is not held back yet. Who was held back before is
    taken for what it took when that began.
    """
    took = {hold.vm: hold.bytes_per_s for hold in memory.holds} if memory.share is not None else {}
    holds = tuple(Hold(goal.vm, {**used, **took}[goal.vm]) for goal in goals if goal.vm in {**used, **took})
    named = {hold.vm for hold in holds}
    return BandwidthMemory(holds, share=min((goal.share for goal in goals if goal.vm in named), default=1.0))


def next_held(memory: BandwidthMemory, seen: BandwidthSeen) -> tuple[BandwidthMemory, str]:
    """What is remembered after this interval, who is held back among it, and why that changed; empty: it did not.

    A reason without a change: nothing is measured, though an SLA is violated.
    """
    suffers = seen.ratio is not None and seen.ratio > 1
    if not seen.used:
        return BandwidthMemory(), "memory bandwidth is not measured: no noisy neighbour can be named" if suffers else ""
    gone = ", ".join(sorted(memory.held - seen.used.keys()))
    if gone:
        return _changed(memory, memory.holds, memory.steps, seen, None), f"{gone} cannot be held back any more"
    memory = _noted(memory, seen)
    if seen.ratio is None or len(memory.ratios) < JUDGED:
        return memory, ""
    now = median(memory.ratios)
    if memory.before is not None:
        return _judge(memory, memory.before, now, seen)
    return _tighten(memory, now, seen) if now > 1 else _loosen(memory, now, seen)


def _noted(memory: BandwidthMemory, seen: BandwidthSeen) -> BandwidthMemory:
    """With this interval's ratio, if it counts."""
    if seen.ratio is None:
        return replace(memory, calm_s=None)
    ratios = (*memory.ratios, seen.ratio)[-JUDGED:]
    since_s = seen.now_s if memory.calm_s is None else memory.calm_s
    memory = replace(memory, calm_s=since_s if median(ratios) < SLACK else None)
    if memory.before is None and (seen.busy or math.isinf(memory.changed_s)):
        return replace(memory, ratios=(), changed_s=seen.now_s)
    if seen.now_s < memory.changed_s + SETTLE_S:
        return memory
    return replace(memory, ratios=ratios)


def _changed(
    memory: BandwidthMemory,
    holds: tuple[Hold, ...],
    steps: int,
    seen: BandwidthSeen,
    before: tuple[tuple[Hold, ...], int, float] | None,
) -> BandwidthMemory:
    here = tuple(hold for hold in holds if hold.vm in seen.used)
    steps = steps if here else 0
    return replace(memory, holds=here, steps=steps, ratios=(), before=before, changed_s=seen.now_s, calm_s=None)


def _judge(
    memory: BandwidthMemory,
    before: tuple[tuple[Hold, ...], int, float],
    now: float,
    seen: BandwidthSeen,
) -> tuple[BandwidthMemory, str]:
    """The trial has been measured: keep it, or go back."""
    holds, steps, was = before
    ratios = f"{digits(now)} times the SLA, {digits(was)} before"
    kept = replace(memory, before=None)
    if len(memory.holds) > len(holds) or memory.steps > steps:
        if now <= was * (1 - MIN_GAIN):
            return replace(kept, tighten=_NO_WAIT, stride=max(memory.stride // 2, 1)), ""
        if now <= 1:
            return kept, ""
        further = min(memory.steps + memory.stride, _deepest(memory.holds, seen.resource))
        if further > memory.steps and not _bites(memory, seen):
            return _changed(memory, memory.holds, further, seen, before), "nothing is held back yet"
        stride = min(2 * memory.stride, _deepest(memory.holds, seen.resource))
        failed = replace(kept, tighten=memory.tighten.after_failure(seen.now_s), stride=stride)
        return _changed(failed, holds, steps, seen, None), f"holding back did not help: {ratios}"
    if now <= (AT_RISK if was <= 1 else was * (1 + MIN_GAIN)):
        if was > 1:  # all that was held back was so for nothing
            kept = replace(kept, tighten=memory.tighten.after_failure(seen.now_s))
        return replace(kept, loosened=True, stride=memory.stride if memory.holds else 1), ""
    loosen = memory.loosen.after_failure(seen.now_s)
    # That it helps was measured twice then.
    failed = replace(kept, loosen=loosen if was <= 1 else Wait(seen.now_s + LONGEST_RETRY_S, loosen.next_s))
    return _changed(failed, holds, steps, seen, None), f"letting go hurt: {ratios}"


def _tighten(memory: BandwidthMemory, now: float, seen: BandwidthSeen) -> tuple[BandwidthMemory, str]:
    """Hold back the noisy neighbours further; where that cannot be done, see whether what is done is of any use."""
    before = (memory.holds, memory.steps, now)
    noisy = _noisy(seen)
    new = tuple(hold for hold in noisy if hold.vm not in memory.held)
    holds = (*memory.holds, *new)
    steps = memory.steps
    if any(hold.vm in memory.held for hold in noisy) or not memory.holds:
        steps = min(steps + memory.stride, _deepest(holds, seen.resource)) if noisy else steps
    if (holds, steps) != before[:2] and seen.now_s >= memory.tighten.until_s:
        names, took = ", ".join(hold.vm for hold in noisy), sum(hold.bytes_per_s for hold in noisy)
        why = f"{names} takes {digits(took / 1e9)} of {digits(seen.total / 1e9)} GB/s at {digits(now)} times the SLA"
        if memory.loosened:  # what that left was too much after all: the next one waits for longer
            memory = replace(memory, loosen=memory.loosen.after_failure(seen.now_s), loosened=False)
        return _changed(memory, holds, steps, seen, before), why
    if memory.holds and seen.now_s >= max(memory.changed_s + RETRY_S, memory.loosen.until_s):
        return _changed(memory, (), 0, seen, before), f"whether it helps: still {digits(now)} times the SLA"
    return memory, ""


def _loosen(memory: BandwidthMemory, now: float, seen: BandwidthSeen) -> tuple[BandwidthMemory, str]:
    """With slack for long enough, let go of the one with the least traffic, or of the last one by one step."""
    calm = memory.calm_s is not None and seen.now_s >= max(memory.calm_s + CALM_S, memory.loosen.until_s)
    if not memory.holds or not calm:
        return memory, ""
    holds, steps = memory.holds, memory.steps
    if len(holds) > 1:
        holds = holds[:-1]
    else:
        steps -= 1
        holds = holds if steps else ()
    why = f"below {digits(SLACK)} of the SLA for {digits(CALM_S)} s"
    return _changed(memory, holds, steps, seen, (memory.holds, memory.steps, now)), why


def _noisy(seen: BandwidthSeen) -> tuple[Hold, ...]:
    """The fewest batch VMs, the greatest first, that take more than their share; nobody where they are many."""
    taken = [Hold(vm, used) for vm, used in seen.used.items() if used]
    taken.sort(key=lambda hold: (-hold.bytes_per_s, hold.vm))
    for count in range(1, min(FEW, len(taken)) + 1):
        if sum(hold.bytes_per_s for hold in taken[:count]) > NOISY_SHARE * seen.total:
            return tuple(taken[:count])
    return ()


def _bites(memory: BandwidthMemory, seen: BandwidthSeen) -> bool:
    """Whether those held back take less than before, by half a step at least, as far as that is known."""
    now = [seen.used[hold.vm] for hold in memory.holds]
    took = sum(hold.bytes_per_s for hold in memory.holds)
    return sum(used or 0.0 for used in now) <= (1 - STEP / 2) * took or None in now


def _whole(holds: tuple[Hold, ...], resource: BandwidthResource) -> float:
    """What those held back had, in the host's unit."""
    if resource.unit is BandwidthUnit.PERCENT:
        return resource.most
    taken = sum(hold.bytes_per_s for hold in holds) / BYTES_PER_S[resource.unit]
    return min(max(taken, resource.least, 1), resource.most)


def _step(holds: tuple[Hold, ...], resource: BandwidthResource) -> float:
    return max(STEP, resource.step / _whole(holds, resource))


def _deepest(holds: tuple[Hold, ...], resource: BandwidthResource) -> int:
    """Steps to the least that is left to them."""
    least = max(LEAST, resource.least / _whole(holds, resource))
    return max(math.ceil((1 - least) / _step(holds, resource) - _EXACT), 1)
