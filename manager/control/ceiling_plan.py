"""How many requests per second batch VMs may make of a disk that they make slow for critical VMs.

A disk tells how long its requests take. Where batch VMs make most of them and they take too long, batch VMs are held
back to a tenth at once, which shows what the disk's requests take without them, and get more from round to round as
long as requests take little longer than that. Works with any scheduler of the disk, unlike weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from types import MappingProxyType

from manager.control.resource_blame import SLOW_MS
from manager.control.resource_decision import NOTHING_DECIDED, ResourceDecision
from manager.control.violation_case import MAIN_PART
from manager.model.decision import Goal, Snapshot, VmView
from manager.model.knobs import UNLIMITED, Knob, KnobKey
from manager.model.numbers import digits
from manager.model.registration import Mode
from manager.model.resource_use import DeviceUse, ResourceUse

QUIET_ROUNDS = 12
"""After so many rounds of readings, a minute, without a critical VM that uses the disk, ceilings go."""
CALM_PART = 0.75
"""A disk is calm in a round in which critical VMs make at least this part of its requests,"""
LEAST_REQUESTS_PER_S = 5.0
"""and so many a second: then what requests take is what they take without batch VMs and others."""
WORSE, BETTER = 1.5, 1.25
"""In multiples of that: batch VMs get less above the one, and more below the other."""
FIRST_PART, LESS, MORE = 0.1, 0.7, 1.25
"""What batch VMs get of what they did when they are held back, and of that from then on in each round."""
LEAST_CEILING_PER_S = 10.0
"""What every batch VM may do, whatever critical VMs see."""
FULL_PART = 0.8
"""They get more only while one of them uses this part of what it has."""
FORGETTING = 1.02
"""By this factor what a disk was seen to take when calm rises in each round: disks wear, and loads change."""


@dataclass(frozen=True, slots=True)
class HeldCeiling:
    """Each batch VM may make so many requests per second of a disk, at least ``LEAST_CEILING_PER_S``.

    ``rounds`` since that was changed: a part of the first was before. ``quiet``: without a critical VM that uses it.
    """

    each_per_s: float
    reason: str
    rounds: int = 0
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class CeilingState:
    """What is remembered between ticks, by number of the disk.

    ``calm_ms`` is what requests take without batch VMs, ``users`` are the batch VMs that were seen to use a disk.
    """

    seen: ResourceUse | None = None
    calm_ms: Mapping[int, float] = field(default_factory=dict)
    held: Mapping[int, HeldCeiling] = field(default_factory=dict)
    users: Mapping[int, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CeilingPlan:
    """The goals, and what the next call is to be given."""

    goals: tuple[Goal, ...] = ()
    state: CeilingState = CeilingState()


@dataclass(frozen=True, slots=True)
class _Round:
    """What a disk did in a round of readings, in requests per second; ``batch`` by VM, of those that made any."""

    disk: DeviceUse
    number: int
    critical_per_s: float
    batch: Mapping[str, float]

    @property
    def batch_per_s(self) -> float:
        return math.fsum(self.batch.values())

    @property
    def batch_part(self) -> float:
        return self.batch_per_s / self.disk.requests_per_s if self.disk.requests_per_s else 0.0


def plan_disk_ceilings(
    snapshot: Snapshot,
    uuids: Mapping[str, str],
    originals: Mapping[KnobKey, int],
    state: CeilingState,
    before: Mapping[KnobKey, int] = MappingProxyType({}),
    decided: ResourceDecision = NOTHING_DECIDED,
) -> CeilingPlan:
    """The goals of a tick. ``originals`` are the ceilings that each domain has, as read, or had before us.

    ``before``: what an agent set in its former life, kept until it has measured in this one. Of a ceiling that the
    policy ``decided`` and one by the settings the lower is taken.
    """
    by_policy = list(_decided_goals(snapshot, uuids, originals, decided))
    if not snapshot.host.disk.ceilings:
        return CeilingPlan(tuple(by_policy))
    views = [view for view in snapshot.vms if view.mode is not Mode.RELEASED]
    batch = {view.name for view in views if not view.critical}
    if before:
        state = _resumed({name: uuids[name] for name in batch}, before)
    if snapshot.resources is not state.seen:
        state = _advance(state, views, snapshot.resources)
    lowest: dict[KnobKey, Goal] = {}
    for goal in sorted((*_goals(views, uuids, originals, state), *by_policy), key=itemgetter(1)):
        lowest.setdefault(goal.key, goal)
    return CeilingPlan(tuple(lowest.values()), state)


def _decided_goals(
    snapshot: Snapshot, uuids: Mapping[str, str], originals: Mapping[KnobKey, int], decided: ResourceDecision
) -> Iterator[Goal]:
    views = {view.name: view for view in snapshot.vms if view.mode is not Mode.RELEASED}
    for goal in decided.disk_ceilings:
        if goal.vm in views:
            ceiling = max(round(goal.requests_per_s), round(LEAST_CEILING_PER_S))
            yield from _unless_lower(views[goal.vm], uuids, originals, goal.disk, ceiling, goal.reason)


def _resumed(batch: Mapping[str, str], before: Mapping[KnobKey, int]) -> CeilingState:
    by_uuid = {uuid: name for name, uuid in batch.items()}
    held: dict[int, float] = {}
    users: dict[int, frozenset[str]] = {}
    for key, ceiling in before.items():
        if key.knob is Knob.DISK_CEILING and ceiling > 0 and key.uuid in by_uuid:
            held[key.index] = min(held.get(key.index, math.inf), ceiling)
            users[key.index] = users.get(key.index, frozenset()) | {by_uuid[key.uuid]}
    why = "as set before the agent began anew; not measured yet"
    return CeilingState(held={number: HeldCeiling(each_per_s, why) for number, each_per_s in held.items()}, users=users)


def _advance(state: CeilingState, views: Collection[VmView], use: ResourceUse) -> CeilingState:
    """One round on. A disk that did nothing, or could not be read, keeps what it has for a while."""
    calm, held, users = dict(state.calm_ms), dict(state.held), dict(state.users)
    rounds = {seen.number: seen for seen in _rounds(views, use)}
    for number in rounds.keys() | held.keys():
        seen, now = rounds.get(number), held.get(number)
        if seen is not None:
            calm_ms = _calm_ms(seen, calm.get(number))
            if calm_ms is not None:
                calm[number] = calm_ms
            users[number] = users.get(number, frozenset()) | frozenset(seen.batch) if now else frozenset(seen.batch)
            now = _next(now, seen, calm_ms)
        elif now is not None:
            now = replace(now, quiet=now.quiet + 1)
        if now is not None and now.quiet < QUIET_ROUNDS:
            held[number] = now
        else:
            held.pop(number, None)
            users.pop(number, None)
    return CeilingState(use, calm, held, users)


def _rounds(views: Collection[VmView], use: ResourceUse) -> Iterator[_Round]:
    critical = {view.name for view in views if view.critical}
    batch = {view.name for view in views if not view.critical}
    for disk in use.disks:
        if disk.number is None or disk.latency_ms is None:
            continue
        rates = {
            vm.vm: math.fsum(each.requests_per_s or 0.0 for each in vm.disks if each.device == disk.device)
            for vm in use.vms
        }
        of_batch = {vm: rate for vm, rate in rates.items() if vm in batch and rate > 0}
        yield _Round(disk, disk.number, math.fsum(rates[vm] for vm in rates.keys() & critical), of_batch)


def _calm_ms(seen: _Round, calm_ms: float | None) -> float | None:
    """What requests take without batch VMs: the least of calm rounds, slowly forgotten."""
    latency_ms = seen.disk.latency_ms
    forgotten = None if calm_ms is None else calm_ms * FORGETTING
    if latency_ms is None or seen.critical_per_s < LEAST_REQUESTS_PER_S:
        return calm_ms
    if seen.critical_per_s >= CALM_PART * seen.disk.requests_per_s:
        return latency_ms if forgotten is None else min(latency_ms, forgotten)
    return calm_ms if calm_ms is None else min(calm_ms, latency_ms)


def _next(now: HeldCeiling | None, seen: _Round, calm_ms: float | None) -> HeldCeiling | None:
    latency_ms = seen.disk.latency_ms or 0.0
    without = "" if calm_ms is None else f", without batch VMs {digits(calm_ms)} ms"
    told = f"a request of {seen.disk.device} takes {digits(latency_ms)} ms{without}"
    used = seen.critical_per_s >= LEAST_REQUESTS_PER_S
    slow = latency_ms > (SLOW_MS if calm_ms is None else WORSE * calm_ms)
    if now is None:
        done = f"batch VMs made {digits(seen.batch_per_s)} of {digits(seen.disk.requests_per_s)} a second"
        harmed = used and slow and seen.batch_part >= MAIN_PART
        first_per_s = FIRST_PART * seen.batch_per_s / max(len(seen.batch), 1)
        return HeldCeiling(max(first_per_s, LEAST_CEILING_PER_S), f"{told}: {done}") if harmed else None
    if not used:
        return replace(now, quiet=now.quiet + 1, rounds=now.rounds + 1)
    fitting = calm_ms is None or latency_ms < BETTER * calm_ms
    if now.rounds and slow:
        less_per_s = max(LESS * now.each_per_s, LEAST_CEILING_PER_S)
        least = replace(now, rounds=now.rounds + 1, quiet=0)
        return HeldCeiling(less_per_s, f"{told}: less for batch VMs") if less_per_s < now.each_per_s else least
    if now.rounds and fitting and max(seen.batch.values(), default=0.0) >= FULL_PART * now.each_per_s:
        return HeldCeiling(MORE * now.each_per_s, f"{told}: more for batch VMs")
    return replace(now, rounds=now.rounds + 1, quiet=0)


def _goals(
    views: Collection[VmView], uuids: Mapping[str, str], originals: Mapping[KnobKey, int], state: CeilingState
) -> Iterator[Goal]:
    """Each batch VM that uses a disk gets the same of it; a lower ceiling of an operator stays."""
    for number, held in sorted(state.held.items()):
        ceiling = round(held.each_per_s)
        for view in views:
            if not view.critical and view.name in state.users[number]:
                yield from _unless_lower(view, uuids, originals, number, ceiling, held.reason)


def _unless_lower(
    view: VmView, uuids: Mapping[str, str], originals: Mapping[KnobKey, int], disk: int, ceiling: int, reason: str
) -> Iterator[Goal]:
    key = KnobKey(uuids[view.name], Knob.DISK_CEILING, disk)
    original = originals.get(key)
    if original is not None and (original == UNLIMITED or original > ceiling):
        yield Goal(key, ceiling, reason, view.mode)
