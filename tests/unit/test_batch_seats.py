"""Which pCPUs batch VMs get that stay on one each: those of a service all, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.batch_seats import STACK, Block, Seat, blocks_of, opened, seat
from manager.model.topology import Topology
from tests.unit.placements import ANYWHERE, machine

FLAT = machine(cores=8)
SMT = machine(cores=4, threads=2)
"""pCPUs 0 to 3, and their siblings 4 to 7."""


def sets(**services: set[int]) -> dict[str, frozenset[int]]:
    return {service: frozenset(cpus) for service, cpus in services.items()}


@pytest.mark.parametrize(
    ("topology", "services", "blocks"),
    [
        pytest.param(FLAT, sets(), [Block(tuple(range(8)))], id="no service"),
        pytest.param(
            FLAT,
            sets(web={0, 1, 2}, db={3}),
            [Block((4, 5, 6, 7)), Block((3,), "db"), Block((0, 1, 2), "web")],
            id="free ones, then the smallest service",
        ),
        pytest.param(
            SMT,
            sets(web={0, 1}),
            [Block((2, 3, 6, 7)), Block((4, 5), "web", siblings=True), Block((0, 1), "web")],
            id="free cores, then siblings",
        ),
        pytest.param(
            SMT,
            sets(db={0, 4}, web={1}),
            [Block((2, 3, 6, 7)), Block((5,), "web", siblings=True), Block((1,), "web"), Block((0, 4), "db")],
            id="a service on both threads of a core has no free siblings",
        ),
        pytest.param(
            machine(cores=1, threads=4),
            sets(db={0}, web={1}),
            [Block((2, 3), "db", siblings=True), Block((0,), "db"), Block((1,), "web")],
            id="siblings of two services are named after the first",
        ),
        pytest.param(
            FLAT,
            sets(web={0, 1}, db={1, 2}, log={3}),
            [Block((4, 5, 6, 7)), Block((3,), "log"), Block((0, 1, 2), "db and web")],
            id="services that share a pCPU are one",
        ),
        pytest.param(machine(cores=2), sets(web={0, 1}), [Block((0, 1), "web")], id="all pCPUs are those of a service"),
        pytest.param(
            machine(cores=2), sets(web={0, 9}), [Block((1,)), Block((0,), "web")], id="a pin to one not managed"
        ),
    ],
)
def test_blocks(topology: Topology, services: dict, blocks: list[Block]) -> None:
    assert list(blocks_of(topology, topology.numbers, services)) == blocks


BLOCKS = (Block((6, 7)), Block((4, 5), "db"), Block((0, 1, 2, 3), "web"))
ALONE = (Block((0, 1, 2, 3), "web"),)


@pytest.mark.parametrize(
    ("blocks", "count", "cpus"),
    [
        (BLOCKS, 0, {6, 7}),
        (BLOCKS, 1, {6, 7}),
        (BLOCKS, 3, {6, 7}),
        (BLOCKS, 4, {4, 5, 6, 7}),
        (BLOCKS, 7, {4, 5, 6, 7}),
        (BLOCKS, 8, set(range(8))),
        (BLOCKS, 100, set(range(8))),
        (ALONE, 0, set()),
        (ALONE, 1, {0, 1, 2, 3}),
        (ALONE, 4, {0, 1, 2, 3}),
        ((Block((7,)), Block((0, 1, 2, 3), "web")), STACK, {7}),
        ((Block((7,)), Block((0, 1, 2, 3), "web")), STACK + 1, {0, 1, 2, 3, 7}),
        ((), 3, set()),
    ],
)
def test_a_service_is_opened_when_there_is_a_batch_vm_for_each_of_its_pcpus(blocks, count, cpus) -> None:
    assert opened(blocks, count) == cpus


@pytest.mark.parametrize(
    ("count", "cpus", "reasons"),
    [
        (1, [3], {"on a core without critical vCPUs"}),
        (2, [3, 3], {"on a core without critical vCPUs"}),
        (
            3,
            [0, 1, 3],
            {"on a core without critical vCPUs", "beside web: too few batch VMs can run on its other pCPUs"},
        ),
        (4, [0, 1, 2, 3], {"on a core without critical vCPUs", "beside web: all of its pCPUs are shared with batch"}),
    ],
)
def test_where_they_go_and_why(count: int, cpus: list[int], reasons: set[str]) -> None:
    """Four pCPUs, three of them those of a service."""
    topology = machine(cores=4)
    blocks = blocks_of(topology, topology.numbers, sets(web={0, 1, 2}))
    found = seat([Seat(f"b{number}", ANYWHERE) for number in range(count)], (), blocks)
    assert sorted(cpu for cpu, _ in found.values()) == cpus
    for cpu, reason in found.values():
        start = f"batch VM: all its threads on pCPU {cpu}, "
        assert reason.startswith(start)
        assert reason.removeprefix(start) in reasons
    assert {reason.split(", ", 1)[1] for _, reason in found.values()} == reasons


def test_siblings_are_shared_all_or_none_too() -> None:
    blocks = blocks_of(SMT, SMT.numbers, sets(web={0, 1, 2}))
    for count, cpus in ((4, {3, 7}), (5, {3, 4, 5, 6, 7}), (7, {3, 4, 5, 6, 7}), (8, set(range(8)))):
        found = seat([Seat(f"b{number}", ANYWHERE) for number in range(count)], (), blocks)
        assert {cpu for cpu, _ in found.values()} == cpus
        assert all(cpu in {3, 7} or "all of its" in reason for cpu, reason in found.values())


def test_who_may_use_only_pcpus_of_a_service_gets_one_of_these() -> None:
    blocks = blocks_of(FLAT, FLAT.numbers, sets(web={0, 1}))
    found = seat([Seat("b", frozenset({1, 9})), Seat("c", frozenset({9}))], (), blocks)
    assert found == {
        "b": (1, "batch VM: all its threads on pCPU 1, beside web: too few batch VMs can run on its other pCPUs")
    }


def test_others_that_stay_on_a_pcpu_count() -> None:
    blocks = blocks_of(machine(cores=2), frozenset({0, 1}), {})
    assert seat([Seat("b", ANYWHERE)], [0, 7], blocks)["b"][0] == 1


services = st.dictionaries(st.sampled_from("abc"), st.frozensets(st.integers(0, 7), min_size=1, max_size=4), max_size=3)
machines = st.sampled_from([FLAT, SMT, machine(cores=2, threads=4)])
limits = st.one_of(st.just(ANYWHERE), st.frozensets(st.integers(0, 9), max_size=4))
wanting = st.lists(st.tuples(limits, st.one_of(st.none(), st.integers(0, 9))), max_size=12).map(
    lambda found: [Seat(f"vm{number:02}", *rest) for number, rest in enumerate(found)]
)


def together(services: dict[str, frozenset[int]]) -> list[frozenset[int]]:
    """The pCPUs of services; of those that share one, of all."""
    groups: list[frozenset[int]] = []
    for cpus in services.values():
        groups = [
            *(group for group in groups if not group & cpus),
            cpus.union(*(group for group in groups if group & cpus)),
        ]
    return groups


@given(machines, services, wanting)
def test_whoever_may_use_a_pcpu_has_one_and_stays_there(topology, services, seats) -> None:
    blocks = blocks_of(topology, topology.numbers, services)
    assert sorted(cpu for block in blocks for cpu in block.cpus) == sorted(topology.numbers), "each pCPU once"
    found = before = seat(seats, (), blocks)
    assert found.keys() == {one.vm for one in seats if one.allowed & topology.numbers}
    assert all(found[one.vm][0] in one.allowed for one in seats if one.vm in found)
    for _ in range(len(seats) + 1):
        before, seats = found, [replace(one, now=found[one.vm][0] if one.vm in found else one.now) for one in seats]
        found = seat(seats, (), blocks)
    assert found == before


@given(machines, services, st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=24))
def test_at_most_one_service_is_shared_in_part_and_only_before_pcpus_are_crowded(topology, services, now) -> None:
    blocks = blocks_of(topology, topology.numbers, services)
    found = seat([Seat(f"vm{number:02}", ANYWHERE, cpu) for number, cpu in enumerate(now)], (), blocks)
    cpus = [cpu for cpu, _ in found.values()]
    assert len(cpus) == len(now)
    used = set(cpus)
    free = {cpu for block in blocks if not block.service for cpu in block.cpus}
    partly = [group for group in together(services) if group & used and not group <= used]
    assert len(partly) <= 1
    if partly:
        assert len(now) > STACK * len(used - partly[0])
    if used - free:
        assert len(now) > len(free)
    given_out = opened(blocks, len(now))
    loads = [cpus.count(cpu) for cpu in given_out]
    assert not loads or max(loads) - min(loads) <= 1, "evenly"


@given(machines, services, st.integers(0, 24))
def test_more_batch_vms_open_more_and_close_nothing(topology, services, count) -> None:
    blocks = blocks_of(topology, topology.numbers, services)
    assert opened(blocks, count) <= opened(blocks, count + 1)
