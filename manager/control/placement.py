"""Which pCPU each vCPU of a critical VM gets, and why (design, section 4; docs/concepts/placement.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from manager.control.placement_cost import UNITS, Board, Ground, Rider, units
from manager.control.placement_moves import Rebalancing
from manager.control.placement_search import Arrangement, match
from manager.model.cpus import CpuSet
from manager.model.decision import Placement, VcpuPlacement, VmPlacement
from manager.model.rules import PlacementRules
from manager.model.topology import Topology


@dataclass(frozen=True, slots=True)
class VcpuNeed:
    """What a vCPU uses, in CPU seconds a second (0 .. 1, averaged), and the pCPUs that it may use.

    A single one is a manual pin.
    """

    demand_pcpus: float
    allowed: CpuSet


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A VM whose vCPUs are to get pCPUs of their own; ``nodes`` are the NUMA nodes of its memory, empty: unknown."""

    vm: str
    vcpus: tuple[VcpuNeed, ...]
    nodes: frozenset[int] = frozenset()


def place(
    requests: Sequence[PlacementRequest],
    topology: Topology,
    cpus: CpuSet,
    previous: Mapping[str, tuple[int, ...]],
    rules: PlacementRules,
    moves: int,
    interrupts: Mapping[int, float] = MappingProxyType({}),
) -> Placement:
    """Give each vCPU one of ``cpus``, such that the worst stretch of a VM is least, and then the rest.

    VMs in ``previous`` keep their pCPUs; no more than ``moves`` of their vCPUs move, and only where that lowers the
    worst stretch of the VMs concerned by more than ``rules.min_gain``. A vCPU whose pCPU is gone or not allowed any
    more has to move, which counts for nothing. A VM that cannot get as many pCPUs as it has vCPUs floats.
    ``interrupts``: the share of its time that each pCPU spends on interrupts, by number, where that is measured.
    The result is sorted by VM name and depends on no other order.
    """
    ground = Ground.of(topology, cpus, interrupts)
    seating = _Seating(ground)
    floating = [
        (request.vm, reason)
        for request in sorted(requests, key=lambda request: request.vm)
        if (reason := seating.add(request, previous.get(request.vm, ())))
    ]
    seating.add_pinned_of_floating()
    return Placement(seating.settle(rules, moves), tuple(floating))


class _Seating:
    """Requests by numbers: the VMs and riders of a board, who keeps a seat, and who is to get one."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._index = {cpu.number: index for index, cpu in enumerate(ground.pcpus)}
        self._usable: dict[CpuSet, tuple[tuple[int, ...], CpuSet]] = {}
        self._requests: list[PlacementRequest] = []
        self._floating: list[PlacementRequest] = []
        self._riders: list[Rider] = []
        self._names: list[str] = []
        self._seats: list[int] = []
        self._placed: dict[int, int] = {}
        self._fallback: dict[int, int] = {}

    def _choices(self, allowed: CpuSet) -> tuple[tuple[int, ...], CpuSet]:
        if allowed not in self._usable:
            ordered = tuple(sorted(self._index[cpu] for cpu in allowed if cpu in self._index))
            self._usable[allowed] = (ordered, frozenset(ordered))
        return self._usable[allowed]

    def add(self, request: PlacementRequest, previous: Sequence[int]) -> str:
        """Take a VM's vCPUs, unless it must float: then why."""
        choices = [self._choices(need.allowed) for need in request.vcpus]
        held: dict[int, int] = {}
        for vcpu, (cpu, usable) in enumerate(zip(previous, choices, strict=False)):
            index = self._index.get(cpu, -1)
            if index in usable[1] and index not in held.values():
                held[vcpu] = index
        seats = held if len(held) == len(choices) else match([usable[0] for usable in choices], held)
        if len(seats) < len(choices):
            self._floating.append(request)
            return f"floats: its {len(choices)} vCPUs need a pCPU each, and {len(seats)} can get one they may use"
        vm = len(self._requests)
        self._requests.append(request)
        for vcpu, need in enumerate(request.vcpus):
            rider = len(self._riders)
            if held.get(vcpu) == seats[vcpu]:
                self._placed[rider] = seats[vcpu]
                self._seats.append(seats[vcpu])
            else:
                self._fallback[rider] = seats[vcpu]
                self._seats.append(-1)
            self._riders.append(Rider(vm, units(need.demand_pcpus), choices[vcpu][1]))
            self._names.append(f"{request.vm} vCPU {vcpu}")
        return ""

    def add_pinned_of_floating(self) -> None:
        """The manually pinned vCPUs of VMs that float stay where they are, and others should know."""
        for number, request in enumerate(self._floating, len(self._requests)):
            for vcpu, need in enumerate(request.vcpus):
                pcpus = self._choices(need.allowed)
                if len(need.allowed) == len(pcpus[0]) == 1:
                    self._placed[len(self._riders)] = pcpus[0][0]
                    self._seats.append(pcpus[0][0])
                    self._riders.append(Rider(number, units(need.demand_pcpus), pcpus[1]))
                    self._names.append(f"{request.vm} vCPU {vcpu}")

    def settle(self, rules: PlacementRules, moves: int) -> tuple[VmPlacement, ...]:
        """Seat those without a seat, and move others where that is worth it."""
        rated = len(self._requests)
        memory = [request.nodes for request in (*self._requests, *self._floating)]
        board = Board(self._ground, self._riders, memory, self._seats)
        if self._fallback:
            Arrangement(board, tuple(self._fallback), self._fallback, rated).make()
        Rebalancing(board, self._placed, rated, rules.min_gain, moves).make()
        return self._result(board)

    def _result(self, board: Board) -> tuple[VmPlacement, ...]:
        pcpus, explain = self._ground.pcpus, _Explanation(board, self._requests, self._names)
        return tuple(
            VmPlacement(
                request.vm,
                tuple(VcpuPlacement(pcpus[board.seats[rider]].number, explain.why(rider)) for rider in members),
                board.vm_stretch(vm),
            )
            for vm, (request, members) in enumerate(zip(self._requests, board.members, strict=False))
        )


class _Explanation:
    """Words for the choice of a pCPU: what speaks for it, and what it costs."""

    def __init__(self, board: Board, requests: Sequence[PlacementRequest], names: Sequence[str]) -> None:
        self._board = board
        self._requests = requests
        self._names = names
        self._firsts: dict[int, list[int]] = {}
        ground = board.ground
        self._domains = len(ground.l3s) > 1
        self._nodes = len(ground.nodes) > 1
        self._irqs = any(cpu.number in ground.interrupted for cpu in ground.pcpus)

    def why(self, rider: int) -> str:
        """Such as "pCPU 6: own core, same L3 as vCPU 0, no IRQ"."""
        board, ground = self._board, self._board.ground
        seat, vm = board.seats[rider], board.riders[rider].vm
        cpu, request, first = ground.pcpus[seat], self._requests[vm], board.members[vm][0]
        parts = self._neighbours(rider, seat)
        if len(request.vcpus[rider - first].allowed) == 1:
            parts.insert(0, "manual pin")
        if cpu.capacity < 1:
            parts.append(f"capacity {cpu.capacity:.2g}")
        if rider != first and (self._domains or self._nodes):
            leader = ground.pcpus[board.seats[first]]
            if cpu.node != leader.node:
                parts.append("other NUMA node than vCPU 0")
            elif self._domains:
                parts.append("same L3 as vCPU 0" if cpu.l3 == leader.l3 else "other L3 than vCPU 0")
        if self._nodes and request.nodes:
            parts.append("local memory" if cpu.node in request.nodes else "remote memory node")
        if self._irqs:
            share = ground.interrupts.get(cpu.number)
            measured = "" if share is None else f" ({100 * share:.0f} % of its time)"
            parts.append(f"serves IRQs{measured}" if cpu.number in ground.interrupted else "no IRQ")
        return f"pCPU {cpu.number}: {', '.join(parts)}"

    def _neighbours(self, rider: int, seat: int) -> list[str]:
        board, ground = self._board, self._board.ground
        parts: list[str] = []
        count = len(board.occupants[seat])
        if count > 1:
            first, second = self._first_two(seat)
            more = f" and {count - 2} more" if count > 2 else ""
            name = self._names[second if first == rider else first]
            parts.append(f"shared with {name}{more} (load {board.load[seat] / UNITS:.2f})")
        for thread in ground.threads[ground.cores[seat]]:
            if thread != seat and board.occupants[thread]:
                name = self._names[self._first_two(thread)[0]]
                parts.append(f"sibling of pCPU {ground.pcpus[thread].number} ({name})")
                break
        return parts or ["own core"]

    def _first_two(self, pcpu: int) -> list[int]:
        if pcpu not in self._firsts:
            self._firsts[pcpu] = sorted(self._board.occupants[pcpu])[:2]
        return self._firsts[pcpu]
