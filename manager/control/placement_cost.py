"""What a placement costs: how much longer than alone on an ideal pCPU a vCPU takes to respond, its *stretch*.

    stretch = service * sharing * wait(rho) / wait(demand) * distance

The terms and the sources of the constants are in docs/concepts/placement.md.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from manager.model.cpus import CpuSet
from manager.model.topology import Pcpu, Topology

LEAST_DEMAND = 0.05
"""A vCPU's demand counts as at least this: what is busy for more of the time is met by the 95th percentile."""
SMT_SLOWDOWN = 0.67
"""A busy sibling thread makes work take so much longer: both together do 1.2 times the work of one."""
SCHEDULING = 3.0
"""With another critical vCPU on the pCPU, who wakes up while that runs waits so many times its own work longer."""
OTHER_L3 = 1.15
"""In another last-level cache than most vCPUs of the VM."""
REMOTE_MEMORY = 1.3
"""On another NUMA node than the VM's memory."""
INTERRUPTS = 2.0
"""On a pCPU that serves interrupts of network interfaces, while the share of its time that they take is not measured.

More than a sibling costs, and less than another critical vCPU on the pCPU. Beside interrupts, memcached's tail at half
its load was 6.5 ms, on siblings 0.70 ms, on cores of its own 0.52 ms (the IISWC 2017 study of memcached and NGINX on
big and small servers, tables V and VI).
"""
MOST_INTERRUPTS = 0.9
"""A measured share of interrupts counts as no more than this."""
STEEP = 0.95
"""Above this load waiting grows in a straight line, so that overload can still be compared."""

UNITS = 1000  # demands are whole thousandths, so that sums do not depend on the order in which they were made
LEAST_UNITS = round(LEAST_DEMAND * UNITS)
POWER = 16.0


def wait(load: float) -> float:
    """Response time at ``load`` relative to that on an idle pCPU: 1 / (1 - load), continued in a line from STEEP on."""
    if load <= STEEP:
        return 1 / (1 - load)
    return 1 / (1 - STEEP) + (load - STEEP) / (1 - STEEP) ** 2


def units(demand_pcpus: float) -> int:
    """A demand in thousandths, between LEAST_DEMAND and 1."""
    return round(min(1.0, max(LEAST_DEMAND, demand_pcpus)) * UNITS)


_DISTANCE_POWERS: dict[float, float] = {factor: factor**POWER for factor in (1.0, OTHER_L3, REMOTE_MEMORY)}


@dataclass(frozen=True, slots=True)
class Ground:
    """The usable pCPUs, here and below named by their index in order of their numbers.

    ``hardware`` is how much longer work takes on an empty one than on an ideal one, ``speeds`` the speed at which each
    gets work done in the long run, ``cores`` the core of each, ``threads`` the usable pCPUs of each core. ``l3s`` and
    ``nodes`` are the usable pCPUs of each domain. ``interrupts`` has the measured share of its time, 0 .. 1, that each
    of those ``interrupted`` spends on interrupts, by number; where it has none, INTERRUPTS counts.
    """

    pcpus: tuple[Pcpu, ...]
    hardware: tuple[float, ...]
    speeds: tuple[float, ...]
    interrupted: CpuSet
    interrupts: Mapping[int, float]
    cores: tuple[int, ...]
    threads: tuple[tuple[int, ...], ...]
    l3s: dict[int, tuple[int, ...]]
    nodes: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, topology: Topology, cpus: CpuSet, interrupts: Mapping[int, float] = MappingProxyType({})) -> Ground:
        """Those of ``topology`` that are in ``cpus``.

        A pCPU that spends the share h of its time on interrupts, which come first and are short beside requests, is one
        of speed 1 - h: the mean response time of an M/M/1 queue whose server is taken away like that is
        1 / (mu (1 - h) - lambda) (preemptive priority, with the service time of the first class going to 0).
        """
        pcpus = tuple(sorted((cpu for cpu in topology.cpus if cpu.number in cpus), key=lambda cpu: cpu.number))
        interrupted = topology.interrupted
        known = {number: interrupts[number] for number in interrupted if number in interrupts}
        speeds = tuple(cpu.capacity * (1 - min(known.get(cpu.number, 0.0), MOST_INTERRUPTS)) for cpu in pcpus)
        hardware = tuple(
            (INTERRUPTS if cpu.number in interrupted and cpu.number not in known else 1.0) / speed
            for cpu, speed in zip(pcpus, speeds, strict=True)
        )
        threads = _groups(cpu.core for cpu in pcpus)
        places = {core: place for place, core in enumerate(threads)}
        return cls(
            pcpus,
            hardware,
            speeds,
            interrupted,
            known,
            tuple(places[cpu.core] for cpu in pcpus),
            tuple(threads.values()),
            _groups(cpu.l3 for cpu in pcpus),
            _groups(cpu.node for cpu in pcpus),
        )


def _groups(keys: Iterable[int]) -> dict[int, tuple[int, ...]]:
    groups: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return {key: tuple(groups[key]) for key in sorted(groups)}


@dataclass(frozen=True, slots=True)
class Rider:
    """A vCPU to be seated: the number of its VM, its demand in UNITS, and the pCPUs it may use."""

    vm: int
    demand: int
    choices: CpuSet


class Board:
    """Who sits where, and what that costs; kept up to date by ``move``.

    Riders sit on pCPUs, or nowhere (-1). ``members`` are the riders of each VM, ``memory`` the NUMA nodes of its
    memory: where they are unknown, it is taken to be where most of its vCPUs are.
    """

    def __init__(
        self, ground: Ground, riders: Sequence[Rider], memory: Sequence[CpuSet], seats: Sequence[int] = ()
    ) -> None:
        size, vms = len(ground.pcpus), len(memory)
        self.ground = ground
        self.riders = riders
        self.memory = memory
        self.members: list[list[int]] = [[] for _ in range(vms)]
        for index, rider in enumerate(riders):
            self.members[rider.vm].append(index)
        self.seats = [-1] * len(riders)
        self.occupants: list[set[int]] = [set() for _ in range(size)]
        self.load = [0] * size
        self.used = [0] * len(ground.threads)  # threads of the core that somebody sits on
        self.busy = [0] * len(ground.threads)  # the load of its threads, each up to UNITS
        self.gauge = [1.0] * size  # what all occupants of a pCPU have in common of their stretch
        self.lure = [1.0] * size  # the stretch that a newcomer with the least demand would have
        eases = {demand: 1 / wait(demand / UNITS) for demand in {rider.demand for rider in riders}}
        self.ease = [eases[rider.demand] for rider in riders]
        self.pull = list(self.ease)  # what a rider's stretch is of the gauge of its pCPU
        self.weight = [0.0] * len(riders)  # pull to the POWER
        self.bulk = [0.0] * size  # the sum of the weights on a pCPU
        self.price = [0.0] * size  # the stretches to the POWER of all on a pCPU
        self.core_price = [0.0] * len(ground.threads)
        self._l3 = [cpu.l3 for cpu in ground.pcpus]
        self._node = [cpu.node for cpu in ground.pcpus]
        self._flat = len(ground.l3s) < 2 and len(ground.nodes) < 2 and not any(memory)
        self._l3_tally: list[dict[int, int]] = [{} for _ in range(vms)]
        self._node_tally: list[dict[int, int]] = [{} for _ in range(vms)]
        self._home: list[tuple[int, CpuSet]] = [(-1, frozenset())] * vms
        self._order: dict[int, list[int] | None] = dict.fromkeys(ground.l3s)
        self._least_ease = 1 / wait(LEAST_DEMAND)
        self._sit(seats)

    def _sit(self, seats: Sequence[int]) -> None:
        """All at once, which is faster than one by one."""
        seated = [(rider, pcpu) for rider, pcpu in enumerate(seats) if pcpu >= 0]
        for rider, pcpu in seated:
            self.seats[rider] = pcpu
            self._seat(rider, pcpu, 1)
        if not self._flat:
            for vm in range(len(self.members)):
                self._settle_home(vm)
            for rider, pcpu in seated:
                self.pull[rider] *= self._distance(self.riders[rider].vm, pcpu)
        powers: dict[float, float] = {pull: pull**POWER for pull in {*self.pull, *self.ease}}
        self.weight = [powers[pull] for pull in self.pull]
        self._eased: list[float] = [powers[ease] for ease in self.ease]
        for core in range(len(self.used)):
            self._refresh(core)

    def _seat(self, rider: int, pcpu: int, change: int) -> None:
        """Count a rider on a pCPU it came to (1), or left (-1)."""
        core, before, occupants = self.ground.cores[pcpu], self.load[pcpu], self.occupants[pcpu]
        after = before + change * self.riders[rider].demand
        (occupants.add if change > 0 else occupants.remove)(rider)
        if len(occupants) == (change > 0):
            self.used[core] += change
        self.load[pcpu] = after
        self.busy[core] += min(after, UNITS) - min(before, UNITS)
        if not self._flat:
            self._count(self.riders[rider].vm, pcpu, change)

    def _count(self, vm: int, pcpu: int, change: int) -> None:
        l3s, l3 = self._l3_tally[vm], self._l3[pcpu]
        nodes, node = self._node_tally[vm], self._node[pcpu]
        l3s[l3] = l3s.get(l3, 0) + change
        nodes[node] = nodes.get(node, 0) + change

    def move(self, rider: int, pcpu: int) -> None:
        """Seat a rider elsewhere, or nowhere (-1)."""
        before, vm = self.seats[rider], self.riders[rider].vm
        if before >= 0:
            self._seat(rider, before, -1)
        self.seats[rider] = pcpu
        if pcpu >= 0:
            self._seat(rider, pcpu, 1)
        if not self._flat:
            for member in self.members[vm] if self._settle_home(vm) else (rider,):
                if self.seats[member] >= 0:
                    self._reweigh(member)
        for core in {self.ground.cores[at] for at in (before, pcpu) if at >= 0}:
            self._refresh(core)

    def reseat(self, riders: Sequence[int], pcpus: Sequence[int]) -> None:
        """Seat several riders elsewhere."""
        for rider, pcpu in zip(riders, pcpus, strict=True):
            if self.seats[rider] != pcpu:
                self.move(rider, pcpu)

    def _settle_home(self, vm: int) -> bool:
        """Find where most vCPUs of a VM are; whether that changed."""
        home = (_most(self._l3_tally[vm]), self.memory[vm] or frozenset({_most(self._node_tally[vm])}))
        changed = home != self._home[vm]
        self._home[vm] = home
        return changed

    def _reweigh(self, rider: int) -> None:
        pcpu = self.seats[rider]
        pull = self.ease[rider] * self._distance(self.riders[rider].vm, pcpu)
        if pull != self.pull[rider]:
            self.pull[rider] = pull
            self.weight[rider] = pull**POWER
            self._refresh(self.ground.cores[pcpu])

    def _distance(self, vm: int, pcpu: int) -> float:
        """How much longer work takes there for being away from the VM's cache and memory."""
        l3, nodes = self._home[vm]
        if self._node[pcpu] not in nodes:
            return REMOTE_MEMORY
        return 1.0 if self._l3[pcpu] == l3 else OTHER_L3

    def _refresh(self, core: int) -> None:
        """Work out anew what a core costs, after somebody came or went."""
        threads, used, busy = self.ground.threads[core], self.used[core], self.busy[core]
        total = 0.0
        for pcpu in threads:
            load, count = self.load[pcpu], len(self.occupants[pcpu])
            others, beside = used - (count > 0), busy - min(load, UNITS)
            self.gauge[pcpu] = gauge = self._gauge(pcpu, load, count, others, beside)
            newcomer = self._gauge(pcpu, load + LEAST_UNITS, count + 1, others, beside)
            self.lure[pcpu] = newcomer * self._least_ease
            # Added up anew and exactly: what goes may be less than the rounding error of what stays, and order must
            # not matter.
            self.bulk[pcpu] = bulk = math.fsum(map(self.weight.__getitem__, self.occupants[pcpu]))
            self.price[pcpu] = gauge**POWER * bulk
            total += self.price[pcpu]
        self.core_price[core] = total
        self._order[self._l3[threads[0]]] = None

    def _gauge(self, pcpu: int, load: int, count: int, others: int, beside: int) -> float:
        """The common part of the stretch of ``count`` occupants with that load, where ``others`` sibling threads are
        in use with a load of ``beside``.
        """
        # The tail meets every sibling at work; how much gets done in the long run depends on how often it is.
        slowed = 1 + SMT_SLOWDOWN * beside / UNITS if beside else 1.0
        load_now = load / UNITS * slowed / self.ground.speeds[pcpu]
        waiting = 1 / (1 - load_now) if load_now <= STEEP else wait(load_now)
        work = 1 + SMT_SLOWDOWN * others
        return self.ground.hardware[pcpu] * (work + SCHEDULING if count > 1 else work) * waiting

    def narrowness(self, rider: int) -> tuple[int, int, int]:
        """Sorts those first who have the least choice, then the heaviest."""
        return len(self.riders[rider].choices), -self.riders[rider].demand, rider

    def stretch(self, rider: int) -> float:
        """Of a seated vCPU."""
        return self.gauge[self.seats[rider]] * self.pull[rider]

    def least_stretch(self, rider: int, unsettled: Container[int]) -> float:
        """What the stretch will be at least, even if more vCPUs of the VMs in ``unsettled`` come to sit."""
        near = self.riders[rider].vm in unsettled  # where most of them are may still turn out to be here
        return self.gauge[self.seats[rider]] * (self.ease[rider] if near else self.pull[rider])

    def vm_stretch(self, vm: int) -> float:
        """That of the VM's slowest vCPU."""
        return max(self.gauge[self.seats[member]] * self.pull[member] for member in self.members[vm])

    def cost(self, pcpus: Iterable[int]) -> float:
        """The stretches to the POWER of all who sit on these pCPUs."""
        return math.fsum(map(self.price.__getitem__, pcpus))

    def around(self, *riders: int) -> set[int]:
        """The pCPUs on which the stretch may change when these riders move from where they sit."""
        affected: set[int] = set()
        for rider in riders:
            members = (rider,) if self._flat else self.members[self.riders[rider].vm]
            affected.update(self.seats[member] for member in members if self.seats[member] >= 0)
            if self.seats[rider] >= 0:
                affected.update(self.ground.threads[self.ground.cores[self.seats[rider]]])
        return affected

    def around_moves(self, moves: Iterable[tuple[int, int]]) -> set[int]:
        """The same for riders that move to given pCPUs, with those that they move to."""
        affected = self.around(*(rider for rider, _ in moves))
        for _, pcpu in moves:
            affected.update(self.ground.threads[self.ground.cores[pcpu]])
        return affected

    def distance_at(self, rider: int, pcpu: int) -> float:
        """How much longer the rider's work would take on that pCPU for being away from cache and memory."""
        if self._flat:
            return 1.0
        vm, seat = self.riders[rider].vm, self.seats[rider]
        node, nodes = self._node[pcpu], self.memory[vm]
        local = node in nodes if nodes else _is_most(self._node_tally[vm], node, self._node[seat] if seat >= 0 else -1)
        if not local:
            return REMOTE_MEMORY
        near = _is_most(self._l3_tally[vm], self._l3[pcpu], self._l3[seat] if seat >= 0 else -1)
        return 1.0 if near else OTHER_L3

    def weight_at(self, rider: int, pcpu: int) -> float:
        """The weight that the rider would have on that pCPU."""
        return self._eased[rider] * _DISTANCE_POWERS[self.distance_at(rider, pcpu)]

    def bulk_without(self, rider: int) -> float:
        """The bulk on a rider's pCPU but for its own weight."""
        pcpu = self.seats[rider]
        rest = self.bulk[pcpu] - self.weight[rider]
        if rest > 1e-6 * self.bulk[pcpu]:
            return rest
        return math.fsum(self.weight[other] for other in self.occupants[pcpu] if other != rider)

    def change(self, pcpu: int, demand: int, riders: int, bulk: float) -> float:
        """What more the core of ``pcpu`` costs with so much more demand and riders there, which then have ``bulk``."""
        core = self.ground.cores[pcpu]
        load, count = self.load[pcpu], len(self.occupants[pcpu])
        load_then, count_then = load + demand, count + riders
        used = self.used[core] + (count_then > 0) - (count > 0)
        busy = self.busy[core] + min(load_then, UNITS) - min(load, UNITS)
        gauge = self._gauge(pcpu, load_then, count_then, used - (count_then > 0), busy - min(load_then, UNITS))
        total: float = gauge**POWER * bulk
        for other in self.ground.threads[core]:
            if other != pcpu and self.occupants[other]:
                there = self.load[other]
                gauge = self._gauge(other, there, len(self.occupants[other]), used - 1, busy - min(there, UNITS))
                total += gauge**POWER * self.bulk[other]
        return total - self.core_price[core]

    def inviting(self, l3: int) -> list[int]:
        """The usable pCPUs of a cache domain, those first on which a small newcomer would fare best."""
        order = self._order[l3]
        if order is None:
            order = self._order[l3] = sorted(self.ground.l3s[l3], key=self.lure.__getitem__)
        return order


def _most(tally: dict[int, int]) -> int:
    """The key with the largest count, the lowest of several; -1 where there is none."""
    return max(tally, key=lambda key: (tally[key], -key), default=-1)


def _is_most(tally: dict[int, int], key: int, leaving: int) -> bool:
    """Whether ``key`` would be the one with the largest count if one came to it from ``leaving``."""
    count = tally.get(key, 0) + (key != leaving)
    for other, had in tally.items():
        if other != key:
            has = had - (other == leaving)
            if has > count or (has == count and other < key):
                return False
    return True
