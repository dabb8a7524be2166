"""Who is measured of those that share a cache, as there are only so many counters, and rates from what these count.

And whether the memory of a domain is used up: no file says what it can carry, so the most traffic that was measured
for a while counts as its maximum, once the traffic has come back from it. On a host that never was busy it is too low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from manager.model.cache import DEFAULT, PREFIX, CacheUse, Resctrl, is_ours, monitoring_group

HELD = 3
"""So many intervals in a row a traffic lasts to count as the maximum: one alone may be a late reading."""
LEAST_MAXIMUM = 5e9
"""Bytes a second below which nothing is taken for a maximum: a single channel of DDR4 carries more."""
LASTING = 5
"""So many intervals in a row the traffic is above, or below, before it is said, or taken back."""
CLEARANCE = 0.05
"""It is below again this part of the maximum below the share that counts as above."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """What is known of a domain; rates in bytes a second.

    ``maximum``: the most that lasted, None before there was any; ``known``: there was less since. ``recent``: the last
    few rates. ``turning``: for so many intervals it has been otherwise than ``saturated`` says.
    """

    maximum: float | None = None
    known: bool = False
    recent: tuple[float, ...] = ()
    saturated: bool = False
    turning: int = 0


def next_saturation(memory: Saturation, rate: float | None, share: float) -> Saturation:
    """After an interval; ``rate`` None: not known, which changes nothing but that nothing lasts over it.

    ``share`` of the maximum counts as above, 0: nothing does.
    """
    if rate is None:
        return replace(memory, recent=(), turning=0, saturated=memory.saturated and share > 0)
    recent = (*memory.recent, rate)[-HELD:]
    lasted = min(recent) if len(recent) == HELD else 0.0
    maximum, known = memory.maximum, memory.known
    if lasted >= LEAST_MAXIMUM and (maximum is None or lasted > maximum):
        known = known and maximum is not None and lasted <= maximum * (1 + CLEARANCE)
        maximum = lasted
    if not share or maximum is None:
        return Saturation(maximum, known, recent)
    known = known or rate <= (share - CLEARANCE) * maximum
    bound = share - CLEARANCE if memory.saturated else share
    other = (known and rate > bound * maximum) is not memory.saturated
    turning = memory.turning + 1 if other else 0
    if turning < LASTING:
        return Saturation(maximum, known, recent, memory.saturated, turning)
    return Saturation(maximum, known, recent, not memory.saturated)


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
    sizes = Counter(vm.group for vm in watched)
    alone = {vm.key: vm.group for vm in watched if is_ours(vm.group) and sizes[vm.group] == 1}
    paths = {vm.key: monitoring_group(vm.group, vm.name) for vm in watched if vm.key not in alone}

    def order(vm: Watched) -> tuple[bool, bool, float, int, str]:
        return not vm.critical, paths[vm.key] not in there, -vm.rate, -vm.vcpus, vm.name

    asking = sorted((vm for vm in watched if vm.key in paths), key=order)
    first, rest = asking[: max(free, 0)], asking[max(free, 0) :]
    wanted = {vm.key: paths[vm.key] for vm in first}
    unneeded = tuple(sorted(there - set(wanted.values())))
    return WatchPlan(alone | wanted, wanted, unneeded, tuple(sorted(vm.name for vm in rest)))


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
    comparable = before if before is not None and before.inside == now.inside else None
    earlier = {use.domain: use for use in comparable.uses} if comparable else {}
    length_s = now.at_s - comparable.at_s if comparable else 0.0

    def rate(past: int | None, present: int | None) -> float | None:
        if past is None or present is None or present < past or length_s <= 0:
            return None
        return (present - past) / length_s

    pairs = [(earlier.get(use.domain, CacheUse(use.domain)), use) for use in now.uses]
    return tuple(
        Traffic(
            use.domain,
            use.occupancy_bytes,
            rate(past.total_bytes, use.total_bytes),
            rate(past.local_bytes, use.local_bytes),
        )
        for past, use in pairs
    )


def totals(groups: Collection[Sequence[Traffic]]) -> dict[int, float | None]:
    """Bytes a second by domain of all control groups together; None where one of them has no rate."""
    sums: dict[int, float | None] = {}
    for use in chain.from_iterable(groups):
        before = sums.get(use.domain, 0.0)
        sums[use.domain] = None if before is None or use.total is None else before + use.total
    return sums


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

    ``able``: the host measures memory traffic, and is asked. ``owned``: monitoring groups of ours that are there.
    """

    vms: Mapping[str, tuple[Traffic, ...]] = field(default_factory=dict)
    memories: tuple[DomainMemory, ...] = ()
    notes: tuple[str, ...] = ()
    able: bool = False
    owned: int = 0

    def bytes_per_s(self, vm: str) -> float | None:
        """The memory traffic of a VM in all domains, None: not known."""
        totals = [traffic.total for traffic in self.vms.get(vm, ())]
        known = [total for total in totals if total is not None]
        return sum(known) if known else None


UNMEASURED = Measured()
