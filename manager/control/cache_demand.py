"""What is asked of a host's cache and memory bandwidth, and what response times make of an ``auto`` and of those held
back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from manager.control.bandwidth import BandwidthMemory, BandwidthSeen, bandwidth_of, held_as_decided, next_held
from manager.control.cache_plan import BATCH_GROUP, CacheDemand, CachePlan, Claim
from manager.control.monitoring import DomainMemory, Measured
from manager.control.ways import LONGEST_RETRY_S, Wait, WaysMemory, WaysSeen, next_ways
from manager.model.cache import (
    DEFAULT,
    PREFIX,
    BandwidthResource,
    CacheResource,
    Mask,
    Resctrl,
    Schemata,
    Slot,
    parse_wish,
)
from manager.model.cpus import CpuSet
from manager.model.decision import ApplicationView, BandwidthGoal, Snapshot, VmView
from manager.model.registration import Mode
from manager.model.warp import AUTO
from manager.model.window import SlaState

_MOST_APPLICATIONS = 1000
_MEMORY = TypeAdapter(WaysMemory)
_MEMORIES = TypeAdapter(dict[str, WaysMemory])
_MEASURED_ANEW = {"times_ms", "calm_s"}


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a VM is: the name it goes by in the plan, and the domains of the cache that its vCPUs may use."""

    key: str
    domains: frozenset[int]


@dataclass(frozen=True, slots=True)
class JudgedWays:
    """What is known of an ``auto``, as of the window that ended at ``window_s`` (``Snapshot.steady_s``)."""

    memory: WaysMemory
    window_s: float = 0.0


def judged_text(judged: Mapping[str, JudgedWays]) -> str:
    """JSON of ways, waits and running trials, so that an agent that starts again goes on from there; empty without any.

    Response times are measured anew, so that the text changes with a trial only.
    """
    memories = {app: known.memory for app, known in sorted(judged.items())[:_MOST_APPLICATIONS]}
    return _MEMORIES.dump_json(memories, exclude={"__all__": _MEASURED_ANEW}).decode() if memories else ""


def read_judged(text: str, now_s: float) -> dict[str, JudgedWays]:
    """What ``judged_text`` wrote, at ``now_s`` (seconds since the epoch); without what is none of it.

    No wait is longer than the longest, whatever the clock was then.
    """
    try:
        written = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    judged = {}
    for app, values in written.items() if isinstance(written, dict) else ():
        try:
            present = {name: value for name, value in values.items() if value is not None}
            memory = _MEMORY.validate_json(json.dumps(present), strict=True)
        except (AttributeError, ValueError, RecursionError):
            continue
        grow, shrink = (
            Wait(min(wait.until_s, now_s + LONGEST_RETRY_S), min(wait.next_s, LONGEST_RETRY_S))
            for wait in (memory.grow, memory.shrink)
        )
        changed_s = min(memory.changed_s, now_s)
        judged[app] = JudgedWays(
            replace(memory, grow=grow, shrink=shrink, changed_s=changed_s, times_ms=(), calm_s=None)
        )
    return judged


def domains_of(cpus: CpuSet, domains: Mapping[int, CpuSet], cache: CacheResource) -> frozenset[int]:
    """The domains that pCPUs are in; all of them where that is not known."""
    return frozenset(domain for domain in cache.domains if domains.get(domain, frozenset()) & cpus) or frozenset(
        cache.domains
    )


def demand_of(
    snapshot: Snapshot,
    placed: Mapping[str, Placed],
    modes: Collection[Mode],
    judged: Mapping[str, JudgedWays],
    external: Collection[str],
    offered: Resctrl,
) -> tuple[CacheDemand, tuple[str, ...]]:
    """What VMs in one of ``modes`` are to have, and what of it cannot be had.

    ``placed``: the VMs that may be moved, by their registered names. ``external``: groups of ours that are nobody's.
    """
    views = [view for view in snapshot.vms if view.name in placed and view.mode in modes]
    claims: list[Claim] = []
    notes: list[str] = []
    for application in snapshot.applications:
        claim = _claim(application, views, placed, judged)
        if claim is None or PREFIX + claim.app in external:
            continue
        try:
            for cache in offered.divided[:1]:
                for domain in claim.domains:
                    _ = claim.wish == AUTO or claim.wish.ways_of(cache, domain)
        except ValueError as error:
            notes.append(f"{claim.app}: {error}")
        else:
            claims.append(claim)
    batch = [view for view in views if not view.critical] if BATCH_GROUP not in external else []
    return CacheDemand(tuple(claims), frozenset(placed[view.name].key for view in batch)), tuple(notes)


def _claim(
    view: ApplicationView, views: Collection[VmView], placed: Mapping[str, Placed], judged: Mapping[str, JudgedWays]
) -> Claim | None:
    """None of an application that asks for nothing, or has no critical VM here."""
    name, wish = view.application.name, view.application.cache
    vms = [placed[vm.name] for vm in views if vm.critical and vm.application == name]
    if wish is None or not vms:
        return None
    domains = frozenset[int]().union(*(vm.domains for vm in vms))
    earlier = judged.get(name)
    return Claim(
        name, frozenset(vm.key for vm in vms), parse_wish(wish), domains, earlier.memory.ways if earlier else None
    )


def judge(
    judged: Mapping[str, JudgedWays],
    snapshot: Snapshot,
    demand: CacheDemand,
    plan: CachePlan,
    offered: Resctrl,
    *,
    busy: bool = False,
) -> tuple[dict[str, JudgedWays], dict[str, str]]:
    """What response times make of each ``auto`` with an SLA and a group of its own, and why where that is new.

    Each window counts once; it is for the next plan. ``busy``: a trial of something else runs.
    """
    views = {view.application.name: view for view in snapshot.applications}
    after: dict[str, JudgedWays] = {}
    whys: dict[str, str] = {}
    for claim in demand.claims:
        view, group = views[claim.app], plan.groups.get(PREFIX + claim.app)
        sla = view.application.sla
        if claim.wish != AUTO or sla is None or group is None or group.apps != (claim.app,):
            continue
        cache = offered.divided[0]
        ways = min(_ways(group.values, cache, domain) for domain in claim.domains)
        rest = min(_ways(plan.groups[DEFAULT].values, cache, domain) for domain in claim.domains)
        room = max(rest - cache.minimum - demand.default_ways, 0)
        earlier = judged.get(claim.app) or JudgedWays(WaysMemory(ways, changed_s=snapshot.steady_s))
        end_s = view.window.end_s - snapshot.ahead_s if view.window else earlier.window_s
        percentile_ms = _time_ms(view)
        if percentile_ms is not None and end_s <= earlier.window_s:
            after[claim.app] = earlier
            continue
        seen = WaysSeen(snapshot.steady_s, percentile_ms, sla.response_time_ms, cache.minimum, ways + room, busy)
        memory, why = next_ways(earlier.memory, seen)
        after[claim.app] = JudgedWays(memory, end_s)
        if why:
            whys[claim.app] = why
    return after, whys


def _ways(values: Schemata, cache: CacheResource, domain: int) -> int:
    return Mask(values.get(Slot(cache.name, domain), 0)).ways


def limited(offered: Resctrl, closids: int | None) -> Resctrl:
    """The same with so many CLOSIDs at most; None: as they are."""
    if closids is None:
        return offered
    caches = tuple(replace(cache, closids=min(cache.closids, closids)) for cache in offered.caches)
    return replace(offered, caches=caches)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What is known of those held back, as of the window that ended at ``window_s`` (``Snapshot.steady_s``).

    ``why`` that changed last.
    """

    memory: BandwidthMemory = field(default_factory=BandwidthMemory)
    why: str = ""
    window_s: float = 0.0


NOBODY = HeldBack()


def holding(
    demand: CacheDemand, held: HeldBack, placed: Mapping[str, Placed], resource: BandwidthResource | None
) -> CacheDemand:
    """What is asked for, with those held back who are batch VMs of it."""
    keys = frozenset(placed[vm].key for vm in held.memory.held if vm in placed) & demand.batch
    if not keys or resource is None:
        return demand
    return replace(demand, held=keys, bandwidth=bandwidth_of(held.memory, resource))


def decided(
    held: HeldBack, goals: Sequence[BandwidthGoal], placed: Mapping[str, Placed], measured: Measured
) -> HeldBack:
    """What is held back where a policy says so; with what VMs took when last measured."""
    used = {vm: traffic for vm in placed if (traffic := measured.bytes_per_s(vm)) is not None}
    memory = held_as_decided(held.memory, [goal for goal in goals if goal.vm in placed], used)
    return HeldBack(memory, "; ".join(dict.fromkeys(goal.reason for goal in goals)), held.window_s)


def judge_held(
    held: HeldBack,
    snapshot: Snapshot,
    demand: CacheDemand,
    placed: Mapping[str, Placed],
    measured: Measured,
    resource: BandwidthResource | None,
    *,
    busy: bool,
) -> HeldBack:
    """What response times and traffic make of it, for the next plan; each window counts once.

    Nobody is held back without counters of memory traffic. ``busy``: a trial of ways runs.
    """
    batch = [vm for vm, place in placed.items() if place.key in demand.batch]
    if resource is None or not measured.able or not batch or held.memory.share is not None:
        return NOBODY
    worst_off = max(_compared(snapshot, placed), default=None)
    if worst_off is None:
        memory, why = next_held(
            held.memory, BandwidthSeen(snapshot.steady_s, None, dict.fromkeys(batch), 0.0, resource)
        )
        return HeldBack(memory, why or held.why, held.window_s)
    ratio, app, end_s, domains = worst_off
    if end_s <= held.window_s:
        return held
    here = [memory for memory in measured.memories if memory.domain in domains]
    worst = max(here, key=lambda memory: (memory.rate or 0.0, -memory.domain), default=None)
    seen = BandwidthSeen(snapshot.steady_s, ratio, *_traffic(batch, measured, worst), resource, busy)
    memory, why = next_held(held.memory, seen)
    return HeldBack(memory, f"for {app}: {why}" if why else held.why, end_s)


def _compared(snapshot: Snapshot, placed: Mapping[str, Placed]) -> Iterator[tuple[float, str, float, tuple[int, ...]]]:
    """Of each critical application that is controlled here and has response times to believe: how they compare to its
    SLA, its name, the end of its window (``Snapshot.steady_s``), and the domains where it runs.
    """
    for view in snapshot.applications:
        percentile_ms = _time_ms(view)
        homes = [
            placed[vm.name].domains
            for vm in snapshot.vms
            if vm.critical and vm.application == view.application.name and vm.mode is Mode.ENFORCE and vm.name in placed
        ]
        if view.application.sla and view.window and homes and percentile_ms is not None:
            ratio, domains = percentile_ms / view.application.sla.response_time_ms, frozenset[int]().union(*homes)
            yield ratio, view.application.name, view.window.end_s - snapshot.ahead_s, tuple(sorted(domains))


def _time_ms(view: ApplicationView) -> float | None:
    if view.application.sla is None or view.window is None or view.sla_state is SlaState.NO_DATA:
        return None
    return view.window.percentile_ms(view.application.sla.percentile)


def _traffic(
    batch: Collection[str], measured: Measured, memory: DomainMemory | None
) -> tuple[dict[str, float | None], float]:
    """What each batch VM takes of a domain, and all together, infinite where that is not known now."""
    if memory is None or memory.rate is None:
        return dict.fromkeys(batch), math.inf
    parts = {vm: {traffic.domain: traffic.total for traffic in measured.vms.get(vm, ())} for vm in batch}
    return {vm: of.get(memory.domain) for vm, of in parts.items()}, memory.rate
