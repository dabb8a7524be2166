"""Who is measured of those that share a cache, as there are only so many counters, and rates from what these count."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from manager.model.cache import DEFAULT, PREFIX, CacheUse, Resctrl, is_ours, monitoring_group


@dataclass(frozen=True, slots=True)
class Watched:
    """A VM to be measured. ``key``: what it goes by; ``group``: its control group, of which all threads are in there.

    ``rate``: its last known memory traffic in bytes a second.
    """

    key: str
    name: str
    group: str
    critical: bool
    rate: float = 0.0
    vcpus: int = 0


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """``of``: by key the group whose counters are a VM's: a monitoring group, or its control group where it is alone.

    ``wanted`` are the monitoring groups that are to be there, ``unneeded`` those of ours that are not. ``left_out``:
    the names of VMs that get none.
    """

    of: Mapping[str, str]
    wanted: Mapping[str, str]
    unneeded: tuple[str, ...]
    left_out: tuple[str, ...]


def plan_watch(offered: Resctrl, watched: Sequence[Watched], present: Mapping[str, Collection[str]]) -> WatchPlan:
    """Who gets a monitoring group.

    ``present``: the names of the monitoring groups in each control group. Each group of either kind takes a counter
    (RMID), as many as there can be control groups are kept for these. Critical VMs come first, then those that have a
    group already, then those with the most traffic, then the largest. A VM alone in a group of ours needs none.
    """
    there = {
        monitoring_group(group, name.removeprefix(PREFIX))
        for group, names in present.items()
        for name in names
        if is_ours(name) and (group == DEFAULT or is_ours(group))
    }
    others = sum(map(len, present.values())) - len(there)
    free = (offered.monitoring.rmids if offered.monitoring else 0) - max(offered.closids, len(present)) - others
    shared = [one.group for one in watched]
    alone = {one.key: one.group for one in watched if is_ours(one.group) and shared.count(one.group) == 1}
    paths = {one.key: monitoring_group(one.group, one.name) for one in watched if one.key not in alone}

    def order(one: Watched) -> tuple[bool, bool, float, int, str]:
        return not one.critical, paths[one.key] not in there, -one.rate, -one.vcpus, one.name

    asking = sorted((one for one in watched if one.key in paths), key=order)
    first, rest = asking[: max(free, 0)], asking[max(free, 0) :]
    wanted = {one.key: paths[one.key] for one in first}
    unneeded = tuple(sorted(there - set(wanted.values())))
    return WatchPlan(alone | wanted, wanted, unneeded, tuple(sorted(one.name for one in rest)))


@dataclass(frozen=True, slots=True)
class Traffic:
    """What somebody has of one domain now: bytes of the cache; bytes a second of all memory, and of the domain's own.

    None: not known.
    """

    domain: int
    occupancy_bytes: int | None = None
    total: float | None = None
    local: float | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of a group at a time in seconds. ``inside``: the groups whose traffic is among its own."""

    at_s: float
    uses: tuple[CacheUse, ...]
    inside: frozenset[str] = frozenset()


def traffic(before: Counted | None, now: Counted) -> tuple[Traffic, ...]:
    """What was used between two readings, by domain; no rate where a counter began anew meanwhile or says nothing.

    With a group inside, its whole past traffic comes or goes: then there is no rate either.
    """
    known = before if before is not None and before.inside == now.inside else None
    earlier = {one.domain: one for one in known.uses} if known else {}
    length_s = now.at_s - known.at_s if known else 0.0

    def rate(past: int | None, present: int | None) -> float | None:
        if past is None or present is None or present < past or length_s <= 0:
            return None
        return (present - past) / length_s

    found = []
    for one in now.uses:
        past = earlier.get(one.domain, CacheUse(one.domain))
        total, local = rate(past.total_bytes, one.total_bytes), rate(past.local_bytes, one.local_bytes)
        found.append(Traffic(one.domain, one.occupancy_bytes, total, local))
    return tuple(found)


def totals(groups: Collection[Sequence[Traffic]]) -> dict[int, float | None]:
    """Bytes a second by domain of all control groups together; None where one of them has no rate."""
    found: dict[int, float | None] = {}
    for group in groups:
        for one in group:
            before = found.get(one.domain, 0.0)
            found[one.domain] = None if before is None or one.total is None else before + one.total
    return found


@dataclass(frozen=True, slots=True)
class DomainMemory:
    """The memory of one domain: bytes a second, the most that was measured, and whether that is all but used up."""

    domain: int
    rate: float | None
    maximum: float | None
    saturated: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured at a tick: of managed VMs by name, and of whole domains.

    ``able``: the host tells of memory traffic, and is asked. ``owned``: monitoring groups of ours that are there.
    """

    vms: Mapping[str, tuple[Traffic, ...]] = field(default_factory=dict)
    memories: tuple[DomainMemory, ...] = ()
    notes: tuple[str, ...] = ()
    able: bool = False
    owned: int = 0


UNMEASURED = Measured()
