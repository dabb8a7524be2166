"""Which batch VMs' memory bandwidth is held back, and how far, while critical applications miss their SLAs.

Where the response times of a critical application miss its SLA, and one batch VM or a few take most of the memory
traffic beside it, these are held back step by step. Each step is a trial, as with ways: it is given back where the
response times are no better after it. The next trial comes after a wait that doubles each time, and goes twice as far,
as a limit may show nothing until it bites. With slack, steps are taken back one by one: the least guilty VM first.

There is one group, so that all who are held back are held back as far: to a part of what the host gives where its unit
is percent, else to a part of what they took together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from manager.control import ways
from manager.control.ways import AT_RISK, Wait, WaysRules
from manager.model.cache import BandwidthResource, BandwidthUnit

BOUNDS: dict[str, tuple[float, float]] = ways.BOUNDS | {
    "guilty_share": (0.05, 1),
    "few": (1, 100),
    "step": (0.01, 0.5),
    "least": (0.05, 1),
}
"""Least and largest value of each setting."""
BYTES_PER_S = {BandwidthUnit.EIGHTH_GBPS: 125_000_000, BandwidthUnit.MBPS: 1 << 20}
"""What 1 of a unit is; of percent it cannot be told (mba_MBps counts in 2^20 bytes: mbm_bw_count, fs/resctrl)."""

_EXACT = 1e-6


@dataclass(frozen=True, slots=True)
class BandwidthRules(WaysRules):
    """As for ways, whose turn comes first by one interval, and more.

    ``guilty_share``: batch VMs are guilty when ``few`` of them at most take more than this part of the traffic.
    ``step``: a step takes this part of the whole, or what the host can tell apart. ``least``: this part of the whole is
    left to them in any case.
    """

    judged: int = 6
    slack: float = 0.7
    guilty_share: float = 0.4
    few: int = 2
    step: float = 0.1
    least: float = 0.1


DEFAULT_RULES = BandwidthRules()


@dataclass(frozen=True, slots=True)
class Hold:
    """A batch VM held back, and what it took when that began, in bytes/s."""

    vm: str
    bytes_per_s: float


_NO_WAIT = Wait()


@dataclass(frozen=True, slots=True)
class BandwidthMemory:
    """What is known of a host. ``holds``: who is held back, the guiltiest first; ``steps``: how far.

    ``ratios``: the last ``BandwidthSeen.ratio`` since the last change had settled. ``before``: holds, steps and median
    ratio before the trial that runs. ``stride``: so many steps the next trial takes. ``calm_s``: since when there is
    slack. ``loosened``: the last that was kept was a letting go.
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


def bandwidth_of(memory: BandwidthMemory, resource: BandwidthResource, rules: BandwidthRules = DEFAULT_RULES) -> int:
    """The limit of those held back, legal and in the host's unit; ``most`` where nobody is."""
    if not memory.holds:
        return resource.most
    whole, step = _whole(memory.holds, resource), _step(memory.holds, resource, rules)
    return resource.legal(math.floor(whole * max(1 - memory.steps * step, rules.least) + _EXACT))


def next_held(
    memory: BandwidthMemory, seen: BandwidthSeen, rules: BandwidthRules = DEFAULT_RULES
) -> tuple[BandwidthMemory, str]:
    """What is remembered after this interval, who is held back among it, and why that changed; empty: it did not.

    A reason without a change: guilt cannot be told, though somebody suffers.
    """
    suffers = seen.ratio is not None and seen.ratio > 1
    if not seen.used:
        return BandwidthMemory(), "nobody measures memory bandwidth: guilt cannot be told" if suffers else ""
    gone = ", ".join(sorted(memory.held - seen.used.keys()))
    if gone:
        return _changed(memory, memory.holds, memory.steps, seen, None), f"{gone} cannot be held back any more"
    memory = _noted(memory, seen, rules)
    if seen.ratio is None or len(memory.ratios) < rules.judged:
        return memory, ""
    now = median(memory.ratios)
    if memory.before is not None:
        return _judge(memory, memory.before, now, seen, rules)
    return _tighten(memory, now, seen, rules) if now > 1 else _loosen(memory, now, seen, rules)


def _noted(memory: BandwidthMemory, seen: BandwidthSeen, rules: BandwidthRules) -> BandwidthMemory:
    """With this interval's ratio, if it counts."""
    if seen.ratio is None:
        return replace(memory, calm_s=None)
    ratios = (*memory.ratios, seen.ratio)[-rules.judged :]
    since_s = seen.now_s if memory.calm_s is None else memory.calm_s
    memory = replace(memory, calm_s=since_s if median(ratios) < rules.slack else None)
    if memory.before is None and (seen.busy or math.isinf(memory.changed_s)):
        return replace(memory, ratios=(), changed_s=seen.now_s)
    if seen.now_s < memory.changed_s + rules.settle_s:
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
    rules: BandwidthRules,
) -> tuple[BandwidthMemory, str]:
    """The trial has been measured: keep it, or go back."""
    holds, steps, was = before
    told = f"{now:.3g} times the SLA, {was:.3g} before"
    kept = replace(memory, before=None)
    if len(memory.holds) > len(holds) or memory.steps > steps:
        if now <= was * (1 - rules.min_gain):
            return replace(kept, tighten=_NO_WAIT, stride=max(memory.stride // 2, 1)), ""
        if now <= 1:
            return kept, ""
        further = min(memory.steps + memory.stride, _deepest(memory.holds, seen.resource, rules))
        if further > memory.steps and not _bites(memory, seen, rules):
            return _changed(memory, memory.holds, further, seen, before), "nothing is held back yet"
        stride = min(2 * memory.stride, _deepest(memory.holds, seen.resource, rules))
        failed = replace(kept, tighten=memory.tighten.after_failure(seen.now_s, rules), stride=stride)
        return _changed(failed, holds, steps, seen, None), f"holding back did not help: {told}"
    if now <= (AT_RISK if was <= 1 else was * (1 + rules.min_gain)):
        if was > 1:  # all that was held back was so for nothing
            kept = replace(kept, tighten=memory.tighten.after_failure(seen.now_s, rules))
        return replace(kept, loosened=True, stride=memory.stride if memory.holds else 1), ""
    loosen = memory.loosen.after_failure(seen.now_s, rules)
    # That it helps was measured twice then.
    failed = replace(kept, loosen=loosen if was <= 1 else Wait(seen.now_s + rules.longest_retry_s, loosen.next_s))
    return _changed(failed, holds, steps, seen, None), f"letting go hurt: {told}"


def _tighten(
    memory: BandwidthMemory, now: float, seen: BandwidthSeen, rules: BandwidthRules
) -> tuple[BandwidthMemory, str]:
    """Hold back the guilty ones further; where that cannot be done, see whether what is done is of any use."""
    before = (memory.holds, memory.steps, now)
    guilty = _guilty(seen, rules)
    new = tuple(hold for hold in guilty if hold.vm not in memory.held)
    holds = (*memory.holds, *new)
    steps = memory.steps
    if any(hold.vm in memory.held for hold in guilty) or not memory.holds:
        steps = min(steps + memory.stride, _deepest(holds, seen.resource, rules)) if guilty else steps
    if (holds, steps) != before[:2] and seen.now_s >= memory.tighten.until_s:
        names, took = ", ".join(hold.vm for hold in guilty), sum(hold.bytes_per_s for hold in guilty)
        why = f"{names} takes {took / 1e9:.3g} of {seen.total / 1e9:.3g} GB/s at {now:.3g} times the SLA"
        if memory.loosened:  # what that left was too much after all: the next one waits for longer
            memory = replace(memory, loosen=memory.loosen.after_failure(seen.now_s, rules), loosened=False)
        return _changed(memory, holds, steps, seen, before), why
    if memory.holds and seen.now_s >= max(memory.changed_s + rules.retry_s, memory.loosen.until_s):
        return _changed(memory, (), 0, seen, before), f"whether it helps: still {now:.3g} times the SLA"
    return memory, ""


def _loosen(
    memory: BandwidthMemory, now: float, seen: BandwidthSeen, rules: BandwidthRules
) -> tuple[BandwidthMemory, str]:
    """With slack for long enough, let go of the least guilty, or of the last one by one step."""
    calm = memory.calm_s is not None and seen.now_s >= max(memory.calm_s + rules.calm_s, memory.loosen.until_s)
    if not memory.holds or not calm:
        return memory, ""
    holds, steps = memory.holds, memory.steps
    if len(holds) > 1:
        holds = holds[:-1]
    else:
        steps -= 1
        holds = holds if steps else ()
    why = f"below {rules.slack:.3g} of the SLA for {rules.calm_s:.3g} s"
    return _changed(memory, holds, steps, seen, (memory.holds, memory.steps, now)), why


def _guilty(seen: BandwidthSeen, rules: BandwidthRules) -> tuple[Hold, ...]:
    """The fewest batch VMs, the greatest first, that take more than their share; nobody where they are many."""
    taken = [Hold(vm, used) for vm, used in seen.used.items() if used]
    taken.sort(key=lambda hold: (-hold.bytes_per_s, hold.vm))
    for count in range(1, min(rules.few, len(taken)) + 1):
        if sum(hold.bytes_per_s for hold in taken[:count]) > rules.guilty_share * seen.total:
            return tuple(taken[:count])
    return ()


def _bites(memory: BandwidthMemory, seen: BandwidthSeen, rules: BandwidthRules) -> bool:
    """Whether those held back take less than before, by half a step at least, as far as that is known."""
    now = [seen.used[hold.vm] for hold in memory.holds]
    took = sum(hold.bytes_per_s for hold in memory.holds)
    return sum(one or 0.0 for one in now) <= (1 - rules.step / 2) * took or None in now


def _whole(holds: tuple[Hold, ...], resource: BandwidthResource) -> float:
    """What those held back had, in the host's unit."""
    if resource.unit is BandwidthUnit.PERCENT:
        return resource.most
    taken = sum(hold.bytes_per_s for hold in holds) / BYTES_PER_S[resource.unit]
    return min(max(taken, resource.least, 1), resource.most)


def _step(holds: tuple[Hold, ...], resource: BandwidthResource, rules: BandwidthRules) -> float:
    return max(rules.step, resource.step / _whole(holds, resource))


def _deepest(holds: tuple[Hold, ...], resource: BandwidthResource, rules: BandwidthRules) -> int:
    """Steps to the least that is left to them."""
    least = max(rules.least, resource.least / _whole(holds, resource))
    return max(math.ceil((1 - least) / _step(holds, resource, rules) - _EXACT), 1)
