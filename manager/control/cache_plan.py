"""Who gets which ways of the cache: critical applications their own, batch VMs and everything else the rest.

In each domain (mostly a socket) the ways lie like this, mirrored where the ways shared with other hardware are low:

    way 0                                                    last way
    | application | application | batch, default group | default group, shared with hardware |

The default group, which holds all that is not ours, has the whole rest; batch VMs have it but for ``default_ways``.
Groups keep their order from one plan to the next: so each can be written its new ways without waiting in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from manager.model.cache import (
    DEFAULT,
    EMPTY,
    PREFIX,
    CacheResource,
    CacheWish,
    Group,
    Mask,
    Resctrl,
    Schemata,
    Slot,
    union,
)
from manager.model.warp import AUTO

BATCH_GROUP = f"{PREFIX}+batch"
HELD_GROUP = f"{PREFIX}+held"
"""Names that no application's group has: that is the prefix and the name of the application, which has no +."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a critical application asks for in each domain where it runs.

    ``ways``: of an ``auto``, what response times made of it; None at first, and then an equal part.
    """

    app: str
    vms: frozenset[str]
    wish: CacheWish
    domains: frozenset[int]
    ways: int | None = None


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """All that is asked of a host. ``held``: those of ``batch`` whose memory bandwidth is limited to ``bandwidth``, in
    the host's unit. ``default_ways``: so many ways batch VMs do not get. ``original``: what the default group had.
    """

    claims: tuple[Claim, ...] = ()
    batch: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    bandwidth: int = 0
    default_ways: int = 1
    original: Schemata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group as it is to be. ``alone``: the domains in which no other group may have its ways."""

    name: str
    apps: tuple[str, ...]
    vms: frozenset[str]
    values: Schemata
    alone: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The groups by name, the default group among them; ``notes`` say what is not as it was asked for."""

    groups: Mapping[str, PlannedGroup]
    notes: tuple[str, ...] = ()


class _Cluster:
    """Applications that share a group, as each CLOSID is one group's."""

    def __init__(self, *claims: Claim) -> None:
        self.claims = claims
        self.apps = tuple(sorted(claim.app for claim in claims))
        self.vms = frozenset[str]().union(*(claim.vms for claim in claims))
        self.name = PREFIX + self.apps[0]
        self.domains = frozenset[int]().union(*(claim.domains for claim in claims))


@dataclass(frozen=True, slots=True)
class _Division:
    """One domain divided: the ways of each cluster there, the rest, and what is not as it was asked for.

    ``usable``: all ways but those that are exclusively of others.
    """

    masks: Mapping[str, Mask]
    pool: Mask
    usable: Mask
    notes: tuple[str, ...] = ()


def allocate(offered: Resctrl, present: Mapping[str, Group], demand: CacheDemand) -> CachePlan:
    """The groups that a host is to have, from those that it has.

    Where there are more applications than CLOSIDs, or than the cache has room for, those that need the fewest ways
    share a group with the sum of them, until it fits. Where more is wanted than there is, the largest parts shrink
    first.
    """
    others = [group for group in present.values() if group.of_others]
    budget = _budget(offered, len(others), demand)
    caches = offered.divided
    clusters, divisions, notes = _cluster(caches, present, others, demand, budget)
    rest = {domain: _of_batch(caches[0], part.pool, demand.default_ways) for domain, part in divisions.items()}
    most = {Slot(limit.name, domain): limit.most for limit in offered.bandwidths for domain in limit.domains}
    limited = most | {
        Slot(limit.name, domain): limit.legal(demand.bandwidth)
        for limit in offered.bandwidths[:1]
        for domain in limit.domains
    }
    groups = [PlannedGroup(DEFAULT, (), frozenset(), _default(caches, divisions, demand.original))]
    for cluster in clusters:
        masks = {domain: part.masks.get(cluster.name, part.pool) for domain, part in divisions.items()}
        values = _values(caches, masks) | most
        groups.append(PlannedGroup(cluster.name, cluster.apps, cluster.vms, values, cluster.domains))
    if clusters and budget.batch:
        vms = demand.batch - demand.held if budget.held else demand.batch
        bandwidth = limited if demand.held and not budget.held else most
        groups.append(PlannedGroup(BATCH_GROUP, (), vms, _values(caches, rest) | bandwidth))
    if budget.held:
        groups.append(PlannedGroup(HELD_GROUP, (), demand.held, _values(caches, rest) | limited))
    return CachePlan({group.name: group for group in groups}, (*budget.notes, *notes))


@dataclass(frozen=True, slots=True)
class _Budget:
    """What the CLOSIDs are for: so many groups of applications, one of batch VMs, one of those held back."""

    apps: int
    batch: bool
    held: bool
    notes: tuple[str, ...]


def _budget(offered: Resctrl, others: int, demand: CacheDemand) -> _Budget:
    """Applications come first, then batch VMs, then those to be held back."""
    left = max(offered.closids - 1 - others, 0)
    notes = []
    if demand.claims and not offered.caches:
        notes.append("this host cannot divide its cache")
    divides, holds = bool(demand.claims and offered.caches), bool(demand.held and offered.bandwidths)
    if (divides or holds) and not left:
        notes.append(f"no CLOSID is left: {others} groups are of others")
        divides = holds = False
    batch = divides and bool(demand.batch) and left > 1
    if divides and demand.batch and not batch:
        notes.append("batch VMs stay in the default group: critical applications have the only CLOSID")
    held = holds and left > divides + batch
    if holds and not held:
        notes.append(f"no CLOSID is left to hold back single batch VMs: {'all' if batch else 'none'} of them are")
    return _Budget((left - batch - held) if divides else 0, batch, held, tuple(notes))


def _cluster(
    caches: Sequence[CacheResource],
    present: Mapping[str, Group],
    others: Sequence[Group],
    demand: CacheDemand,
    budget: _Budget,
) -> tuple[list[_Cluster], dict[int, _Division], list[str]]:
    """Applications by group, the ways by domain, and what is not as it was asked for."""
    if not caches:
        return [], {}, []
    cache = caches[0]
    clusters = [_Cluster(claim) for claim in demand.claims] if budget.apps else []
    while clusters:
        if len(clusters) <= budget.apps:
            least_rest = cache.minimum + (demand.default_ways if budget.batch else 0)
            divisions = _divided(cache, clusters, others, present, least_rest)
            if len(divisions) == len(cache.domains):
                shared = [f"{', '.join(cluster.apps)} share a group" for cluster in clusters if cluster.claims[1:]]
                return clusters, divisions, shared + [note for part in divisions.values() for note in part.notes]
        if len(clusters) == 1:
            break
        clusters = _merged(clusters, cache)
    notes = [f"{', '.join(cluster.apps)} get no ways: others leave no room for them" for cluster in clusters]
    return [], _divided(cache, (), others, present, cache.minimum), notes


def _divided(
    cache: CacheResource,
    clusters: Sequence[_Cluster],
    others: Sequence[Group],
    present: Mapping[str, Group],
    least_rest: int,
) -> dict[int, _Division]:
    """The domains in which all can have the minimum."""
    divisions = {domain: _divide(cache, domain, clusters, others, present, least_rest) for domain in cache.domains}
    return {domain: division for domain, division in divisions.items() if division is not None}


def _merged(clusters: Sequence[_Cluster], cache: CacheResource) -> list[_Cluster]:
    """With the two that need the fewest ways made one: who needs the most keeps a group of its own for longest."""

    def need(cluster: _Cluster) -> tuple[int, str]:
        return max((_wanted(cluster, cache, domain, clusters) for domain in cluster.domains), default=0), cluster.name

    first, second, *others = sorted(clusters, key=need)
    return [_Cluster(*first.claims, *second.claims), *others]


def _wanted(cluster: _Cluster, cache: CacheResource, domain: int, clusters: Sequence[_Cluster]) -> int:
    """Ways that a cluster is to have in a domain: the sum of its applications' there."""
    here = sum(domain in claim.domains for other in clusters for claim in other.claims)
    part = cache.ways.ways // (here + 1)
    return sum(
        max(part if claim.ways is None else claim.ways, cache.minimum)
        if claim.wish == AUTO
        else claim.wish.ways_of(cache, domain)
        for claim in cluster.claims
        if domain in claim.domains
    )


def _divide(
    cache: CacheResource,
    domain: int,
    clusters: Sequence[_Cluster],
    others: Sequence[Group],
    present: Mapping[str, Group],
    least_rest: int,
) -> _Division | None:
    """One domain, None where not all can have the minimum.

    Ways of groups of others are avoided, unless there is no room elsewhere and they are not exclusive.
    """
    slot = Slot(cache.name, domain)
    here = [cluster for cluster in clusters if domain in cluster.domains]
    taken = union(Mask(group.values.get(slot, 0)) for group in others if group.exclusive)
    theirs = union(Mask(group.values.get(slot, 0)) for group in others)
    wanted = {cluster.name: max(_wanted(cluster, cache, domain, clusters), cache.minimum) for cluster in here}
    held = {name: Mask(present[name].values.get(slot, 0)) for name in wanted if name in present}
    # Stacked from the end that other hardware does not use, those that are new last.
    order = sorted(held, key=lambda name: (held[name].lowest, name), reverse=cache.shared_below)
    order += sorted(wanted.keys() - held.keys())
    for avoided in (theirs | taken, taken):
        free = cache.unshared - avoided
        division = _shrink(cache, order, wanted, free, cache.ways - taken, least_rest)
        if division is not None:
            where = f"in domain {domain}"
            notes = [
                f"{name.removeprefix(PREFIX)} gets {mask.ways} of {wanted[name]} ways {where}"
                for name, mask in sorted(division.masks.items())
                if mask.ways < wanted[name]
            ]
            shared = union(division.masks.values()) & theirs
            notes += [f"ways {shared} {where} are shared with groups of others"] if shared else []
            return replace(division, notes=tuple(notes))
    return None


def _shrink(
    cache: CacheResource,
    order: Sequence[str],
    wanted: Mapping[str, int],
    free: Mask,
    usable: Mask,
    least_rest: int,
) -> _Division | None:
    """With as much as is wanted, or less: the largest gives first. None where not even the minimum fits."""
    sizes = dict(wanted)
    while True:
        masks = _stack(order, sizes, free, from_top=cache.shared_below)
        if masks is not None:
            pool = _rest(cache, usable, union(masks.values()))
            if pool.ways >= least_rest:
                return _Division(masks, pool, usable)
        largest = max(sizes, key=lambda name: (sizes[name], name), default="")
        if sizes.get(largest, 0) <= cache.minimum:
            return None
        sizes[largest] -= 1


def _rest(cache: CacheResource, usable: Mask, own: Mask) -> Mask:
    """The largest run on one side of all own ways, so that the order of these and the rest never changes either."""
    if not own:
        beyond = usable
    elif cache.shared_below:
        beyond = usable & Mask.span(0, own.lowest)
    else:
        beyond = usable - Mask.span(0, own.bits.bit_length())
    return max(beyond.runs(), key=lambda run: (run.ways, not run.disjoint(cache.shareable)), default=EMPTY)


def _stack(order: Sequence[str], sizes: Mapping[str, int], free: Mask, *, from_top: bool) -> dict[str, Mask] | None:
    """One beside the other in the runs of free ways, without ever going back; None where they do not fit."""
    runs = list(free.runs())
    if from_top:
        runs.reverse()
    masks: dict[str, Mask] = {}
    for name in order:
        while runs and runs[0].ways < sizes[name]:
            del runs[0]
        if not runs:
            return None
        start = runs[0].lowest + runs[0].ways - sizes[name] if from_top else runs[0].lowest
        masks[name] = Mask.span(start, sizes[name])
        runs[0] -= masks[name]
    return masks


def _values(caches: Sequence[CacheResource], masks: Mapping[int, Mask]) -> dict[Slot, int]:
    """The same ways for data and for code."""
    return {Slot(cache.name, domain): mask.bits for cache in caches for domain, mask in masks.items()}


def _default(
    caches: Sequence[CacheResource], divisions: Mapping[int, _Division], original: Schemata
) -> dict[Slot, int]:
    """The rest for the default group, of what it had if that is legal; all that it had where nobody has own ways."""
    values: dict[Slot, int] = {}
    for cache in caches:
        for domain in cache.domains:
            slot = Slot(cache.name, domain)
            had = Mask(original.get(slot, cache.ways.bits))
            division = divisions.get(domain)
            kept = had & (division.pool if division.masks else division.usable) if division else had
            values[slot] = (division.pool if division and cache.problem(kept) else kept).bits
    return values


def _of_batch(cache: CacheResource, pool: Mask, default_ways: int) -> Mask:
    """The rest but for some ways at the end that other hardware uses, as far as the minimum allows."""
    keep = min(max(default_ways, 0), pool.ways - cache.minimum)
    return Mask.span(pool.lowest + (keep if cache.shared_below else 0), pool.ways - keep)
