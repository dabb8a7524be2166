"""The last-level cache and the memory bus: how much slower each VM is for what it has of them, and what it takes.

A simple model, of which only the directions are meant to be right. Twice a second, in each domain:

* **Cache.** A way is shared by the VMs that may fill it in proportion to their pressure: the pCPUs that they used (over
  the last seconds) times ``traffic_gbps``. Nobody has more than its working set; what is left over others have. From
  what a VM has its miss curve tells the part m of its accesses that miss (``MemoryUse.misses``).
* **Bus.** A VM's work takes S = 1 + penalty * m * Q(u) times as long, where u is the part of the bandwidth in use and
  Q(u) = 1 + u / (2 (1 - u)): the time in an M/D/1 queue over the time of service. It moves pCPUs * traffic * m / S
  bytes a second. Who is slower asks for less, so there is one u at which all they move is u times the bandwidth.
* **MBA.** VMs of a group with a limit move at most so much together, in percent of the bandwidth or as the unit says,
  and are slower accordingly.

A request takes S times its CPU time, with S as of when a vCPU took it. Left out: the time a cache takes to fill, other
levels, prefetching, hyperthreads, memory of other domains, and how differently real processors limit bandwidth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from manager.model.cache import (
    DEFAULT,
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    Mask,
    Monitoring,
    Resctrl,
    Slot,
)
from manager.model.host import VmInstance
from manager.sim.cpu_sharing import SimCpus
from manager.sim.scenario import CacheSpec, MemoryUse
from manager.sim.services import SimVm

STEP_S = 0.5
"""Time between two looks at who uses what."""
MONITORS = "mon_groups"
UNIT_GB = {BandwidthUnit.EIGHTH_GBPS: 0.125, BandwidthUnit.MBPS: (1 << 20) / 1e9}
"""GB/s of 1 in a unit."""
_SMOOTHING = 0.2
_LEAST_PRESSURE = 1e-4
_FULLEST = 1 - 1e-6
_ROUNDS = 40
_CACHE, _MEMORY = "L3", "MB"


@dataclass(frozen=True, slots=True)
class Taker:
    """A VM in one domain: the pCPUs that it uses there, and the bits of the ways and the group that it has."""

    use: MemoryUse
    pcpus: float
    ways: int
    group: str = DEFAULT


def shares(takers: Sequence[Taker], way_bytes: float) -> list[float]:
    """The bytes of the cache that each has."""
    weights = [max(taker.pcpus * taker.use.traffic_gbps, _LEAST_PRESSURE) for taker in takers]
    ways: dict[tuple[int, ...], int] = defaultdict(int)
    for way in range(max((taker.ways.bit_length() for taker in takers), default=0)):
        ways[tuple(number for number, taker in enumerate(takers) if taker.ways >> way & 1)] += 1
    held = [0.0] * len(takers)
    for _ in range(_ROUNDS):
        held = [0.0] * len(takers)
        for members, count in ways.items():
            total = sum(weights[number] for number in members)
            for number in members:
                held[number] += count * way_bytes * weights[number] / total
        fitting = [taker.use.working_set_bytes / has if has else 1.0 for taker, has in zip(takers, held, strict=True)]
        if min(fitting, default=1.0) > _FULLEST:
            break
        weights = [weight * min(1.0, fits) for weight, fits in zip(weights, fitting, strict=True)]
    return [min(has, taker.use.working_set_bytes) for taker, has in zip(takers, held, strict=True)]


def traffic(
    takers: Sequence[Taker], misses: Sequence[float], bandwidth_gbps: float, limits_gbps: Mapping[str, float]
) -> list[tuple[float, float]]:
    """How many times as long the work of each takes, and the GB/s that it moves; ``limits_gbps`` is by group."""

    def at(used: float) -> tuple[list[tuple[float, float]], float]:
        wait = 1 + used / (2 * (1 - used))
        slower = [1 + taker.use.penalty * miss * wait for taker, miss in zip(takers, misses, strict=True)]
        asked = [
            taker.pcpus * taker.use.traffic_gbps * miss / slow
            for taker, miss, slow in zip(takers, misses, slower, strict=True)
        ]
        by_group: dict[str, float] = defaultdict(float)
        for taker, gbps in zip(takers, asked, strict=True):
            by_group[taker.group] += gbps
        part = {group: min(1.0, limits_gbps.get(group, gbps) / gbps) for group, gbps in by_group.items() if gbps}
        parts = [part.get(taker.group, 1.0) for taker in takers]
        moved = [(slow / cut, gbps * cut) for slow, gbps, cut in zip(slower, asked, parts, strict=True)]
        return moved, sum(gbps for _, gbps in moved)

    low, high = 0.0, _FULLEST
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if at(middle)[1] > middle * bandwidth_gbps:
            low = middle
        else:
            high = middle
    return at(high)[0]


@dataclass(slots=True)
class Counter:
    """What one RMID counts, by domain: bytes moved since its group was made, and bytes of the cache now."""

    moved: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    occupied: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class SimMemory:
    """Caches and memory of all domains, and the groups of resctrl, by path, with the VMs in them."""

    def __init__(self, spec: CacheSpec, pcpus: int) -> None:
        """Everything in the default group, which has all there is."""
        self.spec = spec
        self.domain_of = [number * spec.domains // pcpus for number in range(pcpus)]
        self.offered = _offered(spec)
        self.values: dict[str, dict[Slot, int]] = {DEFAULT: self.all_of_it()}
        self.counters: dict[str, Counter] = {DEFAULT: Counter()}
        self.homes: dict[VmInstance, str] = {}
        self._spent_s: dict[str, float] = defaultdict(float)
        self._work_s: dict[str, float] = defaultdict(float)
        self._at_s = 0.0
        self._cpu_s: dict[tuple[VmInstance, int], float] = {}
        self._used: dict[tuple[VmInstance, int], float] = {}
        self._gbps: dict[tuple[VmInstance, int], float] = {}

    def all_of_it(self) -> dict[Slot, int]:
        """The values of a group that nobody has limited."""
        most = {cache.name: cache.ways.bits for cache in self.offered.caches}
        most |= {bandwidth.name: bandwidth.most for bandwidth in self.offered.bandwidths}
        return {Slot(name, domain): value for name, value in most.items() for domain in range(self.spec.domains)}

    def settings(self) -> dict[str, tuple[int, int]]:
        """The fewest ways and the least bandwidth of all domains, by control group."""
        return {
            name: (
                min(value.bit_count() for slot, value in values.items() if slot.resource == _CACHE),
                min((value for slot, value in values.items() if slot.resource == _MEMORY), default=0),
            )
            for name, values in self.values.items()
        }

    def slower(self, vm: SimVm) -> float:
        """How many times as long the work of a VM took so far."""
        work_s = self._work_s[vm.name]
        return self._spent_s[vm.name] / work_s if work_s else 1.0

    def home(self, instance: VmInstance) -> str:
        """The path of the group, of either kind, that a VM is in."""
        return self.homes.get(instance, DEFAULT)

    def inside(self, group: str) -> list[str]:
        """The paths of the monitoring groups in a control group."""
        folder = f"{group}/{MONITORS}/".lstrip("/")
        return [path for path in self.counters if path.startswith(folder)]

    def advance(self, vms: Iterable[SimVm], cpus: SimCpus, now_s: float) -> None:
        """Count what was moved since the last time, and find out how slow each VM is from now on."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        here = [vm for vm in vms if vm.alive]
        for (instance, domain), gbps in self._gbps.items():
            self.counters[self.home(instance)].moved[domain] += gbps * 1e9 * elapsed_s
        self._look(here, cpus, now_s, elapsed_s)
        slower: dict[SimVm, list[tuple[float, float]]] = defaultdict(list)
        self._gbps = {}
        for counter in self.counters.values():
            counter.occupied.clear()
        for domain in range(self.spec.domains):
            for vm, slow in self._domain(domain, here):
                slower[vm].append((self._used.get((vm.instance, domain), 0.0) + _LEAST_PRESSURE, slow))
        for vm, parts in slower.items():
            vm.slower = sum(used * slow for used, slow in parts) / sum(used for used, _ in parts)

    def _look(self, vms: Sequence[SimVm], cpus: SimCpus, now_s: float, elapsed_s: float) -> None:
        """The CPU time of each VM since the last look, by the domain where its vCPUs are."""
        used: dict[tuple[VmInstance, int], float] = defaultdict(float)
        before, self._cpu_s = self._cpu_s, {}
        for vm in vms:
            for vcpu in vm.vcpus:
                cpu_s = cpus.cpu_s(vcpu, now_s)
                self._cpu_s[vm.instance, vcpu.index] = cpu_s
                delta_s = cpu_s - before.get((vm.instance, vcpu.index), 0.0)
                used[vm.instance, self.domain_of[vcpu.pcpu.index]] += delta_s / elapsed_s if elapsed_s else 0.0
                self._spent_s[vm.name] += delta_s
                self._work_s[vm.name] += delta_s / vm.slower
        alive = {vm.instance for vm in vms}
        self.homes = {instance: home for instance, home in self.homes.items() if instance in alive}
        averages = {key: self._used.get(key, 0.0) for key in self._used.keys() | used.keys() if key[0] in alive}
        self._used = {key: was + _SMOOTHING * (used[key] - was) for key, was in averages.items()}

    def _domain(self, domain: int, vms: Sequence[SimVm]) -> Iterable[tuple[SimVm, float]]:
        users = [(vm, vm.memory) for vm in vms if vm.memory is not None]
        takers = []
        for vm, use in users:
            group = control(self.home(vm.instance))
            ways = self.values[group][Slot(_CACHE, domain)]
            takers.append(Taker(use, self._used.get((vm.instance, domain), 0.0), ways, group))
        held = shares(takers, self.spec.way_bytes)
        misses = [taker.use.misses(has) for taker, has in zip(takers, held, strict=True)]
        costs = traffic(takers, misses, self.spec.bandwidth_gbps, self._limits_gbps(domain))
        for (vm, _), has, (slow, gbps) in zip(users, held, costs, strict=True):
            self.counters[self.home(vm.instance)].occupied[domain] += has
            self._gbps[vm.instance, domain] = gbps
            yield vm, slow

    def _limits_gbps(self, domain: int) -> dict[str, float]:
        """By group, without those that have all there is."""
        limits = {}
        for bandwidth in self.offered.bandwidths:
            scale = (
                self.spec.bandwidth_gbps / 100 if bandwidth.unit is BandwidthUnit.PERCENT else UNIT_GB[bandwidth.unit]
            )
            for group, values in self.values.items():
                value = values[Slot(bandwidth.name, domain)]
                if value < bandwidth.most:
                    limits[group] = value * scale
        return limits


def control(path: str) -> str:
    """The control group of a path of either kind."""
    return path.split(MONITORS, maxsplit=1)[0].rstrip("/")


def _offered(spec: CacheSpec) -> Resctrl:
    domains = tuple(range(spec.domains))
    shareable = Mask.span(spec.ways - spec.shareable_ways, spec.shareable_ways)
    sizes = tuple((domain, round(spec.way_bytes)) for domain in domains)
    ways = Mask.span(0, spec.ways)
    cache = CacheResource(_CACHE, ways, spec.minimum_ways, shareable, spec.closids, False, domains, sizes)
    least, step, most = {
        None: (0, 0, 0),
        BandwidthUnit.PERCENT: (10, 10, 100),
        BandwidthUnit.EIGHTH_GBPS: (1, 1, 2048),
        BandwidthUnit.MBPS: (10, 10, 2**32 - 1),
    }[spec.mba]
    limits = (
        ()
        if spec.mba is None
        else (BandwidthResource(_MEMORY, least, step, most, spec.mba, True, spec.closids, domains),)
    )
    features = frozenset({"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"})
    return Resctrl((cache,), limits, Monitoring(features, spec.rmids) if spec.rmids else None)
