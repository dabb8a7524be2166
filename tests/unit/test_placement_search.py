"""How near the search comes to the best of all placements, on hosts that are small enough to try them all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from manager.control.placement import PlacementRequest, VcpuNeed, place
from manager.control.placement_cost import Board, Ground, Rider, units
from manager.control.placement_search import match
from manager.model.rules import PlacementRules
from manager.model.topology import Topology
from tests.unit.placements import machine, worst

HOSTS = {
    "two": machine(cores=2),
    "three": machine(cores=3),
    "four": machine(cores=4),
    "smt": machine(cores=2, threads=2),
    "one core": machine(cores=1, threads=4),
    "l3": machine(cores=4, per_l3=2, irqs=[0]),
    "nodes": machine(cores=4, per_node=2, per_l3=2),
    "smt nodes": machine(cores=2, threads=2, per_node=1, per_l3=1),
    "hybrid": machine(cores=4, slow={2: 0.6, 3: 0.6}),
}
CASES = 45  # for each host


def requests(source: random.Random, pcpus: int) -> list[PlacementRequest]:
    """Up to six vCPUs of VMs that fit, light, medium or heavy, some of them limited to some pCPUs."""
    left, scale = source.randint(1, 6), source.choice((0.3, 0.5, 1.0))
    found: list[PlacementRequest] = []
    while left:
        size = min(left, source.randint(1, min(3, pcpus)))
        left -= size
        needs = []
        for _ in range(size):
            limited = source.random() < 0.15
            cpus = source.sample(range(pcpus), source.randint(size, pcpus)) if limited else range(pcpus)
            needs.append(VcpuNeed(source.random() * scale, frozenset(cpus)))
        memory = frozenset({source.randrange(2)}) if source.random() < 0.3 else frozenset()
        found.append(PlacementRequest(f"vm{len(found)}", tuple(needs), memory))
    return found


def placements(asked: Sequence[PlacementRequest], pcpus: int) -> Iterator[list[int]]:
    """Seats of all vCPUs, in every way that the rules allow."""
    ways = [
        [
            seats
            for seats in itertools.permutations(range(pcpus), len(one.vcpus))
            if all(seat in need.allowed for seat, need in zip(seats, one.vcpus, strict=True))
        ]
        for one in asked
    ]
    return ([seat for seats in together for seat in seats] for together in itertools.product(*ways))


def least_worst(asked: Sequence[PlacementRequest], topology: Topology) -> float:
    """The worst stretch of a VM in the best of all placements."""
    ground = Ground.of(topology, topology.numbers)
    riders = [
        Rider(number, units(need.demand_pcpus), need.allowed) for number, one in enumerate(asked) for need in one.vcpus
    ]
    memory = [one.nodes for one in asked]
    best = float("inf")
    board = Board(ground, riders, memory)
    for seats in placements(asked, len(topology.cpus)):
        board.reseat(range(len(riders)), seats)
        best = min(best, max(map(board.vm_stretch, range(len(asked)))))
    return best


@pytest.mark.parametrize("host", HOSTS)
def test_the_worst_is_within_a_tenth_of_the_best_possible(host) -> None:
    topology, source = HOSTS[host], random.Random(host)
    for _ in range(CASES):
        asked = requests(source, len(topology.cpus))
        found = place(asked, topology, topology.numbers, {}, PlacementRules(), 0)
        assert found.floating == ()
        assert worst(found) <= 1.1 * least_worst(asked, topology), asked


@pytest.mark.parametrize("host", ["four", "smt", "nodes"])
def test_more_vms_than_that_are_spread_evenly(host) -> None:
    """Forty equal vCPUs on four pCPUs of one kind can only be ten on each."""
    topology = HOSTS[host]
    asked = [PlacementRequest(f"vm{number:02}", (VcpuNeed(0.05, topology.numbers),)) for number in range(40)]
    found = place(asked, topology, topology.numbers, {}, PlacementRules(), 0)
    given_out = [cpu for _, seats in found.cpus for cpu in seats]
    assert sorted(given_out.count(cpu) for cpu in topology.numbers) == [10] * 4


@pytest.mark.parametrize(
    ("choices", "held", "size"),
    [
        ([], {}, 0),
        ([[]], {}, 0),
        ([[0, 1], [0]], {0: 0}, 2),
        ([[0], [0]], {0: 0}, 1),
        ([[0, 1], [0, 2], [0, 3], [1, 2, 3]], {}, 4),
        ([[0, 1], [0, 1], [0, 1], [0, 1, 2]], {}, 3),
    ],
)
def test_match(choices, held, size) -> None:
    found = match(choices, held)
    assert len(found) == size == len(set(found.values()))
    assert all(pcpu in choices[vcpu] for vcpu, pcpu in found.items())


def test_who_holds_a_pcpu_keeps_it_unless_another_cannot_do_without() -> None:
    assert match([[0, 1, 2], [0, 1, 2]], {0: 2}) == {0: 2, 1: 0}
    assert match([[0, 1, 2], [2]], {0: 2}) == {0: 0, 1: 2}
