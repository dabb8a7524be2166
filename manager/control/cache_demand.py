"""What is asked of a host's cache, from its registrations, and what response times make of an ``auto``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from manager.control.cache_plan import BATCH_GROUP, CacheDemand, CachePlan, Claim
from manager.control.ways import WaysMemory, WaysSeen, next_ways
from manager.model.cache import DEFAULT, PREFIX, CacheResource, Mask, Resctrl, Schemata, Slot, parse_wish
from manager.model.cpus import CpuSet
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.registration import Mode
from manager.model.warp import AUTO
from manager.model.window import SlaState


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a VM is: the name it goes by in the plan, and the domains of the cache that its vCPUs may use."""

    key: str
    domains: frozenset[int]


@dataclass(frozen=True, slots=True)
class JudgedWays:
    """What is known of an ``auto``, as of the window that ended at ``window_s`` (seconds since the epoch)."""

    memory: WaysMemory
    window_s: float = 0.0


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
    one: ApplicationView, views: Collection[VmView], placed: Mapping[str, Placed], judged: Mapping[str, JudgedWays]
) -> Claim | None:
    """None of an application that asks for nothing, or has no critical VM here."""
    name, wish = one.application.name, one.application.cache
    vms = [placed[view.name] for view in views if view.critical and view.application == name]
    if wish is None or not vms:
        return None
    domains = frozenset[int]().union(*(vm.domains for vm in vms))
    known = judged.get(name)
    return Claim(name, frozenset(vm.key for vm in vms), parse_wish(wish), domains, known.memory.ways if known else None)


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
    found: dict[str, JudgedWays] = {}
    whys: dict[str, str] = {}
    for claim in demand.claims:
        view, group = views[claim.app], plan.groups.get(PREFIX + claim.app)
        sla = view.application.sla
        if claim.wish != AUTO or sla is None or group is None or group.apps != (claim.app,):
            continue
        cache = offered.divided[0]
        given = min(_ways(group.values, cache, domain) for domain in claim.domains)
        rest = min(_ways(plan.groups[DEFAULT].values, cache, domain) for domain in claim.domains)
        room = max(rest - cache.minimum - demand.default_ways, 0)
        known = judged.get(claim.app) or JudgedWays(WaysMemory(given, changed_s=snapshot.steady_s))
        end_s = view.window.end_s if view.window else known.window_s
        time_ms = None
        if view.window and view.sla_state is not SlaState.NO_DATA:
            time_ms = view.window.percentile_ms(sla.percentile)
        if time_ms is not None and end_s <= known.window_s:
            found[claim.app] = known
            continue
        seen = WaysSeen(snapshot.steady_s, time_ms, sla.response_time_ms, cache.minimum, given + room, busy)
        memory, why = next_ways(known.memory, seen)
        found[claim.app] = JudgedWays(memory, end_s)
        if why:
            whys[claim.app] = why
    return found, whys


def _ways(values: Schemata, cache: CacheResource, domain: int) -> int:
    return Mask(values.get(Slot(cache.name, domain), 0)).ways


def limited(offered: Resctrl, closids: int | None) -> Resctrl:
    """The same with so many CLOSIDs at most; None: as they are."""
    if closids is None:
        return offered
    caches = tuple(replace(cache, closids=min(cache.closids, closids)) for cache in offered.caches)
    return replace(offered, caches=caches)
