"""The formula of the stretch, and that what a board keeps up to date is what the formula says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.placement_cost import (
    INTERRUPTS,
    LEAST_DEMAND,
    MOST_INTERRUPTS,
    OTHER_L3,
    POWER,
    REMOTE_MEMORY,
    SCHEDULING,
    SMT_SLOWDOWN,
    STEEP,
    Board,
    Ground,
    Rider,
    units,
    wait,
)
from manager.model.topology import Topology
from tests.unit.placements import machine

RICH = machine(cores=4, threads=2, per_l3=2, per_node=2, irqs=[1], slow={3: 0.5})


def board(topology: Topology, *riders: tuple[int, float, int], memory: dict[int, set[int]] | None = None) -> Board:
    """Riders by VM, demand and pCPU."""
    ground = Ground.of(topology, topology.numbers)
    every = frozenset(range(len(ground.pcpus)))
    vms = max((vm for vm, _, _ in riders), default=-1) + 1
    nodes = [frozenset((memory or {}).get(vm, ())) for vm in range(vms)]
    seats = [pcpu for _, _, pcpu in riders]
    return Board(ground, [Rider(vm, units(demand), every) for vm, demand, _ in riders], nodes, seats)


@given(st.floats(0, 3), st.floats(0, 3))
def test_more_load_is_a_longer_wait(one, other) -> None:
    assert one >= other or wait(one) <= wait(other)


def test_waiting_goes_on_smoothly_above_the_bend() -> None:
    step = 1e-7
    assert wait(0) == 1
    assert wait(0.5) == 2
    assert wait(STEEP + step) == pytest.approx(wait(STEEP), rel=1e-4)
    below, above = wait(STEEP) - wait(STEEP - step), wait(STEEP + step) - wait(STEEP)
    assert above == pytest.approx(below, rel=1e-3)
    assert wait(2.0) - wait(1.5) == pytest.approx(wait(1.5) - wait(1.0))


@pytest.mark.parametrize(
    ("topology", "riders", "stretch"),
    [
        pytest.param(machine(), [(0, 0.7, 0)], 1, id="alone"),
        pytest.param(machine(), [(0, 1.0, 0)], 1, id="alone and busy all the time"),
        pytest.param(machine(slow={0: 0.5}), [(0, 0.2, 0)], 2 * 0.8 / (1 - 0.4), id="half as fast"),
        pytest.param(machine(irqs=[0]), [(0, 0.2, 0)], INTERRUPTS, id="interrupts"),
        pytest.param(machine(), [(0, 0.2, 0), (1, 0.3, 0)], (1 + SCHEDULING) * 0.8 / 0.5, id="shared"),
        pytest.param(
            machine(threads=2),
            [(0, 0.2, 0), (1, 0.3, 4)],
            (1 + SMT_SLOWDOWN) * 0.8 / (1 - 0.2 * (1 + 0.3 * SMT_SLOWDOWN)),
            id="sibling",
        ),
        pytest.param(
            machine(threads=2),
            [(0, 0.2, 0), (1, 0.3, 0), (2, 0.4, 4)],
            (1 + SMT_SLOWDOWN + SCHEDULING) * 0.8 / (1 - 0.5 * (1 + 0.4 * SMT_SLOWDOWN)),
            id="both",
        ),
        pytest.param(
            machine(cores=1, threads=4),
            [(0, 0.2, 0), (1, 0.3, 1), (2, 0.4, 3)],
            (1 + 2 * SMT_SLOWDOWN) * 0.8 / (1 - 0.2 * (1 + 0.7 * SMT_SLOWDOWN)),
            id="two of four threads beside it",
        ),
        pytest.param(
            machine(threads=2),
            [(0, 0.2, 0), (1, 0.9, 4), (2, 0.9, 4)],
            (1 + SMT_SLOWDOWN) * 0.8 / (1 - 0.2 * (1 + SMT_SLOWDOWN)),
            id="a sibling is busy all the time at most",
        ),
        pytest.param(machine(per_l3=2), [(0, 0.2, 2), (0, 0.2, 0), (0, 0.2, 1)], OTHER_L3, id="away from most"),
        pytest.param(machine(per_l3=2), [(0, 0.2, 2), (0, 0.2, 0)], OTHER_L3, id="of two domains the lower is home"),
        pytest.param(machine(per_l3=2), [(0, 0.2, 0), (0, 0.2, 2)], 1, id="at home"),
        pytest.param(machine(per_node=2), [(0, 0.2, 2), (0, 0.2, 0), (0, 0.2, 1)], REMOTE_MEMORY, id="another node"),
    ],
)
def test_stretch_of_the_first(topology, riders, stretch) -> None:
    assert board(topology, *riders).stretch(0) == pytest.approx(stretch)


def beside_interrupts(share: float, demand: float) -> float:
    """The stretch of a vCPU alone on a pCPU that spends that share of its time on interrupts."""
    topology = machine(irqs=[0])
    ground = Ground.of(topology, topology.numbers, {0: share})
    every = frozenset(range(4))
    return Board(ground, [Rider(0, units(demand), every)], [frozenset()], [0]).stretch(0)


@pytest.mark.parametrize(
    ("share", "demand", "stretch"),
    [
        (0.0, 0.5, 1),
        (0.2, 0.05, 0.95 / (0.8 - 0.05)),
        (0.2, 0.5, 0.5 / (0.8 - 0.5)),
        (0.5, 0.4, 0.6 / (0.5 - 0.4)),
        (1.0, 0.05, 0.95 / (1 - MOST_INTERRUPTS - 0.05)),
    ],
)
def test_measured_interrupts_leave_less_of_a_pcpu(share, demand, stretch) -> None:
    assert beside_interrupts(share, demand) == pytest.approx(stretch)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_interrupts_are_never_better(share, more, demand) -> None:
    least, most = beside_interrupts(share, demand), beside_interrupts(max(share, more), demand)
    assert 1 - 1e-9 <= least <= most < math.inf


def test_interrupts_count_only_where_a_network_interface_is_served() -> None:
    topology = machine(irqs=[0])
    ground = Ground.of(topology, topology.numbers, {0: 0.5, 1: 0.5})
    assert ground.hardware == (2.0, 1.0, 1.0, 1.0)
    assert ground.interrupts == {0: 0.5}


def test_the_constant_is_worse_than_a_sibling_and_better_than_a_shared_pcpu() -> None:
    assert 1 + SMT_SLOWDOWN < INTERRUPTS < 1 + SCHEDULING


@pytest.mark.parametrize(
    ("load", "alone_us", "interrupts_us", "share"),
    [(0.25, 242, 358, 0.24), (0.5, 524, 6463, 0.46), (0.75, 992, math.inf, 0.70)],
)
def test_the_study_of_memcached_is_what_a_share_in_proportion_to_load_would_make(
    load, alone_us, interrupts_us, share
) -> None:
    """Tables V (7-7) and VI of the IISWC 2017 study; at 75 % of the load memcached could not serve it any more.

    The study does not give the share: that one in proportion to the load explains all three is what is shown.
    """
    assert share == pytest.approx(0.95 * load, rel=0.05)
    stretch = beside_interrupts(share, load)
    if interrupts_us == math.inf:
        assert share + load > 1
        assert stretch > 20
    else:
        assert stretch == pytest.approx(interrupts_us / alone_us, rel=0.05)


def test_known_memory_decides_over_where_most_are() -> None:
    riders = [(0, 0.2, 2), (0, 0.2, 0), (0, 0.2, 1)]
    told = board(machine(per_node=2, per_l3=2), *riders, memory={0: {1}})
    assert [told.stretch(rider) for rider in range(3)] == pytest.approx([OTHER_L3, REMOTE_MEMORY, REMOTE_MEMORY])
    assert told.vm_stretch(0) == pytest.approx(REMOTE_MEMORY)


@pytest.mark.parametrize(
    ("demand", "thousandths"), [(0.5, 500), (0.0, 50), (-1, 50), (7, 1000), (math.nan, 50), (0.12345, 123)]
)
def test_demand_is_bounded(demand, thousandths) -> None:
    assert units(demand) == thousandths
    assert units(0) == LEAST_DEMAND * 1000


seats = st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1), st.integers(-1, 7)), min_size=1, max_size=6)
moves = st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 7)), max_size=12)


@given(seats, moves)
def test_moves_leave_what_sitting_down_would_have_come_to(riders, moved) -> None:
    known = {1: {1}}
    changed = board(RICH, *riders, memory=known)
    for rider, pcpu in moved:
        if rider < len(riders):
            changed.move(rider, pcpu)
    now = [(vm, demand, seat) for (vm, demand, _), seat in zip(riders, changed.seats, strict=True)]
    anew = board(RICH, *now, memory=known)
    assert changed.gauge == anew.gauge
    assert changed.lure == anew.lure
    assert changed.price == anew.price
    sitting = [rider for rider, seat in enumerate(anew.seats) if seat >= 0]
    assert [changed.stretch(rider) for rider in sitting] == [anew.stretch(rider) for rider in sitting]


@given(seats, st.integers(0, 5), st.integers(0, 7))
def test_what_a_move_would_cost_is_what_it_costs(riders, rider, pcpu) -> None:
    """Estimates take no account of how the VM's other vCPUs fare, so this VM has one."""
    rider %= len(riders)
    riders = [(3 if index == rider else vm, *rest) for index, (vm, *rest) in enumerate(riders)]
    found = board(RICH, *riders, memory={3: {0}})
    found.move(rider, -1)
    before = found.cost(range(8))
    weight = found.weight_at(rider, pcpu)
    more = found.change(pcpu, found.riders[rider].demand, 1, found.bulk[pcpu] + weight)
    found.move(rider, pcpu)
    assert found.cost(range(8)) == pytest.approx(before + more)
    assert weight == pytest.approx(found.pull[rider] ** POWER)
    less = found.change(pcpu, -found.riders[rider].demand, -1, found.bulk_without(rider))
    assert less == pytest.approx(-more)
