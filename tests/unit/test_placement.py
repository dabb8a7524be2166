"""Which pCPU each critical vCPU gets, rule by rule, and the words that say why."""

from __future__ import annotations

import pytest

from manager.control.placement_cost import INTERRUPTS, OTHER_L3, REMOTE_MEMORY, SMT_SLOWDOWN
from manager.model.decision import Placement, VcpuPlacement, VmPlacement
from manager.model.topology import Topology
from tests.unit.placements import machine, pins, put, vm, why, worst

FLAT = machine(cores=4)
SMT = machine(cores=4, threads=2)
TWO_L3 = machine(cores=8, per_l3=4)
TWO_NODES = machine(cores=8, per_l3=4, per_node=4)


@pytest.mark.parametrize(
    ("topology", "vms", "placed"),
    [
        pytest.param(FLAT, [], {}, id="nobody"),
        pytest.param(FLAT, [vm("b", 0.1), vm("a", 0.1, 0.1)], {"a": (0, 1), "b": (2,)}, id="a pCPU each"),
        pytest.param(
            SMT, [vm("a", 0.1, 0.1), vm("b", 0.1, 0.1)], {"a": (0, 1), "b": (2, 3)}, id="cores before siblings"
        ),
        pytest.param(
            machine(cores=8, per_l3=4, irqs=[0, 1]),
            [vm("a", 0.3, 0.3, 0.3, 0.3), vm("b", 0.1)],
            {"a": (4, 5, 6, 7), "b": (2,)},
            id="away from interrupts",
        ),
        pytest.param(TWO_NODES, [vm("a", 0.1, 0.1, nodes=[1])], {"a": (4, 5)}, id="by its memory"),
        pytest.param(TWO_NODES, [vm("a", 0.1, nodes=[0, 1])], {"a": (0,)}, id="memory on both nodes"),
        pytest.param(
            machine(cores=4, slow={0: 0.5, 1: 0.5}), [vm("a", 0.1, 0.1)], {"a": (2, 3)}, id="fast cores on a hybrid"
        ),
        pytest.param(
            machine(cores=4, slow={0: 0.5, 1: 0.5}),
            [vm("a", 0.7, 0.7), vm("b", 0.1, 0.1)],
            {"a": (2, 3), "b": (0, 1)},
            id="fast cores for those who need them, alike for the vCPUs of a VM",
        ),
        pytest.param(FLAT, [vm("a", 0.1, allowed=[2, 3, 9])], {"a": (2,)}, id="only where allowed"),
        pytest.param(FLAT, [vm("a", 0.9, 0.1, pins={1: 0})], {"a": (1, 0)}, id="manual pin"),
    ],
)
def test_rules(topology, vms, placed) -> None:
    found = put(topology, *vms)
    assert pins(found) == placed
    assert found.floating == ()
    assert [one.vm for one in found.vms] == sorted(placed)


def test_a_vm_stays_within_a_cache_domain() -> None:
    found = pins(put(TWO_L3, vm("a", 0.1, 0.1), vm("b", 0.1, 0.1, 0.1, 0.1)))
    assert sorted(found["b"]) in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert len({cpu // 4 for cpu in found["a"]}) == 1
    assert not set(found["a"]) & set(found["b"])


def test_own_cores_in_two_cache_domains_are_better_than_siblings_in_one() -> None:
    topology = machine(cores=4, threads=2, per_l3=2)
    found = put(topology, vm("a", 0.1, 0.1, 0.1, 0.1))
    assert sorted(cpu % 4 for cpu in pins(found)["a"]) == [0, 1, 2, 3], "a core each"
    assert worst(found) == pytest.approx(OTHER_L3)


def test_a_vm_whose_memory_is_known_is_not_torn_from_it_for_its_cache() -> None:
    topology = machine(cores=8, per_l3=2, per_node=4)
    found = put(topology, vm("a", 0.1, 0.1, 0.1, 0.1, nodes=[1]))
    assert sorted(pins(found)["a"]) == [4, 5, 6, 7]
    assert worst(found) == pytest.approx(OTHER_L3)


def test_a_vm_that_spans_cache_domains_stays_within_a_node() -> None:
    topology = machine(cores=12, per_l3=2, per_node=6)
    taken = vm("a", 0.1, 0.1, pins={0: 0, 1: 1})
    found = pins(put(topology, taken, vm("b", *[0.1] * 6)))
    assert sorted(found["b"]) == [6, 7, 8, 9, 10, 11]


def test_siblings_are_used_before_a_pcpu_is_shared() -> None:
    found = put(machine(cores=2, threads=2), vm("a", 0.1, 0.1), vm("b", 0.1, 0.1))
    assert sorted(cpu for one in pins(found).values() for cpu in one) == [0, 1, 2, 3]
    assert worst(found) < 1.1 * (1 + SMT_SLOWDOWN)


@pytest.mark.parametrize(
    ("share", "seats", "reason"),
    [
        (None, (0, 2), "pCPU 2: sibling of pCPU 0 (a vCPU 0), no IRQ"),
        (0.02, (0, 1), "pCPU 1: own core, serves IRQs (2 % of its time)"),
        (0.5, (0, 2), "pCPU 2: sibling of pCPU 0 (a vCPU 0), no IRQ"),
    ],
)
def test_a_core_that_serves_interrupts_is_as_good_as_was_measured_and_until_then_worse_than_a_sibling(
    share, seats, reason
) -> None:
    measured = {} if share is None else dict.fromkeys(range(4), share)
    found = put(machine(cores=2, threads=2, irqs=[1, 3]), vm("a", 0.1, 0.1), interrupts=measured)
    assert pins(found) == {"a": seats}
    assert why(found, "a")[1] == reason


def test_a_core_that_serves_interrupts_is_better_than_a_shared_pcpu() -> None:
    found = put(machine(cores=2, irqs=[1]), vm("a", 0.1), vm("b", 0.1))
    assert sorted(pins(found).values()) == [(0,), (1,)]
    assert worst(found) == pytest.approx(INTERRUPTS)


def test_a_crowd_is_packed_by_demand() -> None:
    vms = [vm("a", 0.9), vm("b", 0.2), vm("c", 0.2), vm("d", 0.3), vm("e", 0.3)]
    found = pins(put(machine(cores=3), *vms))
    alone = [name for name, at in found.items() if list(found.values()).count(at) == 1]
    assert alone == ["a"]
    assert found["b"] != found["c"], "the loads of both shared pCPUs are 0.5"


def test_a_manual_pin_counts_for_others() -> None:
    found = put(FLAT, vm("a", 0.5, pins={0: 0}), vm("b", 0.1, 0.1, 0.1))
    assert pins(found) == {"a": (0,), "b": (1, 2, 3)}
    assert why(found, "a") == ["pCPU 0: manual pin, own core"]


def test_a_pin_that_its_own_vm_needs_moves_the_other_vcpu_whatever_the_budget() -> None:
    found = put(FLAT, vm("a", 0.1, 0.1, pins={1: 2}), previous={"a": (2, 3)})
    assert pins(found)["a"][1] == 2
    assert pins(found)["a"][0] != 2


@pytest.mark.parametrize(
    ("request_", "cpus", "reason"),
    [
        (vm("a", 0.1, 0.1, 0.1), [0, 1], "floats: its 3 vCPUs need a pCPU each, and 2 can get one they may use"),
        (vm("a", 0.1), [], "floats: its 1 vCPUs need a pCPU each, and 0 can get one they may use"),
        (
            vm("a", 0.1, 0.1, allowed=[3, 9]),
            [0, 1, 2, 3],
            "floats: its 2 vCPUs need a pCPU each, and 1 can get one they may use",
        ),
        (
            vm("a", 0.1, 0.1, pins={0: 1, 1: 1}),
            [0, 1],
            "floats: its 2 vCPUs need a pCPU each, and 1 can get one they may use",
        ),
    ],
    ids=["more vCPUs than pCPUs", "no pCPU at all", "not allowed on more", "both pinned to one"],
)
def test_who_floats(request_, cpus, reason) -> None:
    assert put(FLAT, request_, cpus=cpus) == Placement((), (("a", reason),))


def test_who_floats_leaves_room_for_others() -> None:
    found = put(FLAT, vm("a", *[0.1] * 5), vm("b", 0.1))
    assert pins(found) == {"b": (0,)}
    assert [name for name, _ in found.floating] == ["a"]


def test_vcpus_that_an_operator_stacked_are_avoided_though_their_vm_floats() -> None:
    found = put(FLAT, vm("a", 0.5, 0.5, pins={0: 0, 1: 0}), vm("b", 0.1, 0.1))
    assert pins(found) == {"b": (1, 2)}
    found = put(FLAT, vm("a", 0.5, 0.5, pins={0: 0, 1: 0}), vm("b", 0.1), cpus=[0])
    assert why(found, "b") == ["pCPU 0: shared with a vCPU 0 and 1 more (load 1.10)"]


def test_a_matching_is_found_where_the_first_free_pcpu_leads_nowhere() -> None:
    """Three vCPUs that may each use two of four pCPUs, and one that may use the three in common."""
    request_ = vm("a", 0.1, 0.1, 0.1, 0.1)
    allowed = [{0, 1}, {0, 2}, {0, 3}, {1, 2, 3}]
    needs = tuple(
        type(need)(need.demand_pcpus, frozenset(cpus)) for need, cpus in zip(request_.vcpus, allowed, strict=True)
    )
    [(_, found)] = put(FLAT, type(request_)("a", needs)).cpus
    assert len(set(found)) == 4
    assert all(cpu in cpus for cpu, cpus in zip(found, allowed, strict=True))


@pytest.mark.parametrize(
    ("topology", "vms", "name", "reasons"),
    [
        pytest.param(FLAT, [vm("a", 0.1, 0.1)], "a", ["pCPU 0: own core", "pCPU 1: own core"], id="plain host"),
        pytest.param(
            machine(cores=8, per_l3=4, irqs=[0]),
            [vm("a", 0.1, 0.1)],
            "a",
            ["pCPU 1: own core, no IRQ", "pCPU 2: own core, same L3 as vCPU 0, no IRQ"],
            id="L3 and IRQ",
        ),
        pytest.param(
            machine(cores=2, per_l3=1, irqs=[0, 1]),
            [vm("a", 0.1, 0.1)],
            "a",
            ["pCPU 0: own core, serves IRQs", "pCPU 1: own core, other L3 than vCPU 0, serves IRQs"],
            id="other L3, IRQs",
        ),
        pytest.param(
            machine(cores=2, per_node=1),
            [vm("a", 0.1, 0.1, nodes=[0])],
            "a",
            ["pCPU 0: own core, local memory", "pCPU 1: own core, other NUMA node than vCPU 0, remote memory node"],
            id="remote memory",
        ),
        pytest.param(
            machine(cores=1, threads=2),
            [vm("a", 0.1), vm("b", 0.1)],
            "b",
            ["pCPU 1: sibling of pCPU 0 (a vCPU 0)"],
            id="sibling",
        ),
        pytest.param(
            machine(cores=1),
            [vm("a", 0.3), vm("b", 0.322), vm("c", 0.001)],
            "b",
            ["pCPU 0: shared with a vCPU 0 and 1 more (load 0.67)"],
            id="shared",
        ),
        pytest.param(
            machine(cores=1, slow={0: 0.625}), [vm("a", 0.1)], "a", ["pCPU 0: own core, capacity 0.62"], id="small core"
        ),
        pytest.param(
            machine(cores=2), [vm("a", 0.1, pins={0: 1})], "a", ["pCPU 1: manual pin, own core"], id="manual pin"
        ),
    ],
)
def test_reasons(topology, vms, name, reasons) -> None:
    assert why(put(topology, *vms), name) == reasons


def test_previous_pcpus_are_kept_in_their_order() -> None:
    assert pins(put(FLAT, vm("a", 0.1, 0.1), previous={"a": (3, 1)}, moves=9)) == {"a": (3, 1)}


@pytest.mark.parametrize(
    ("vms", "cpus", "previous", "placed"),
    [
        pytest.param([vm("a", 0.1), vm("b", 0.1)], [0, 1], {"b": (0,)}, {"a": (1,), "b": (0,)}, id="who stays keeps"),
        pytest.param([vm("a", 0.1, 0.1)], [0, 1, 2], {"a": (2,)}, {"a": (2, 0)}, id="a vCPU was plugged"),
        pytest.param([vm("a", 0.1)], [0, 1, 2], {"a": (2, 1)}, {"a": (2,)}, id="a vCPU was unplugged"),
        pytest.param([vm("a", 0.1, 0.1)], [0, 1], {"a": (5, 1)}, {"a": (0, 1)}, id="its pCPU is gone"),
        pytest.param([vm("a", 0.1, 0.1)], [0, 1], {"a": (1, 1)}, {"a": (1, 0)}, id="never stacked on itself"),
        pytest.param([vm("a", 0.1)], [0, 1], {"gone": (0,)}, {"a": (0,)}, id="what a VM left is free"),
        pytest.param([vm("a", 0.1, allowed=[1])], [0, 1], {"a": (0,)}, {"a": (1,)}, id="no longer allowed"),
        pytest.param(
            [vm("a", 0.1), vm("b", 0.1)], [0, 1], {"a": (1,), "b": (1,)}, {"a": (1,), "b": (1,)}, id="no moves"
        ),
    ],
)
def test_without_a_budget_only_those_move_who_must(vms, cpus, previous, placed) -> None:
    assert pins(put(FLAT, *vms, cpus=cpus, previous=previous)) == placed


@pytest.mark.parametrize(
    ("moves", "shared"), [(0, 4), (1, 2), (2, 0), (9, 0)], ids=["none", "one", "two", "more than needed"]
)
def test_the_budget_bounds_the_moves(moves, shared) -> None:
    """Two pairs share a pCPU each while two pCPUs are free."""
    before = {"a": (0,), "b": (0,), "c": (1,), "d": (1,)}
    found = pins(put(FLAT, *(vm(name, 0.3) for name in before), previous=before, moves=moves))
    assert sum(found[name] != at for name, at in before.items()) == min(moves, 2)
    assert sum(list(found.values()).count(at) > 1 for at in found.values()) == shared


@pytest.mark.parametrize(
    ("topology", "nodes", "loss"),
    [
        pytest.param(machine(cores=2, irqs=[0]), [], INTERRUPTS, id="interrupts"),
        pytest.param(machine(cores=2, per_node=1), [1], REMOTE_MEMORY, id="remote memory"),
        pytest.param(machine(cores=2, slow={0: 0.8}), [], 1 / 0.8 * 0.8 / (1 - 0.2 / 0.8), id="slow core"),
    ],
)
def test_a_move_must_gain_more_than_min_gain(topology, nodes, loss) -> None:
    request_ = vm("a", 0.2, nodes=nodes)
    before = {"a": (0,)}
    assert worst(put(topology, request_, previous=before)) == pytest.approx(loss)
    gain = 1 - 1 / loss
    for min_gain, seat in ((gain - 0.01, 1), (gain + 0.01, 0), (10, 0)):
        assert pins(put(topology, request_, previous=before, moves=9, min_gain=min_gain)) == {"a": (seat,)}


@pytest.mark.parametrize(("min_gain", "seat"), [(0.15, 1), (0.2, 0)], ids=["enough", "not enough"])
def test_the_gain_counts_those_who_are_joined(min_gain, seat) -> None:
    """The first shares a pCPU in either case: a stretch of 4 * 0.9 / 0.4 = 9 would come down to 4 * 0.9 / 0.48."""
    before = {"a": (0,), "b": (0,), "c": (1,)}
    vms = [vm("a", 0.1), vm("b", 0.5), vm("c", 0.42)]
    assert worst(put(machine(cores=2), *vms, previous=before)) == pytest.approx(9)
    found = put(machine(cores=2), *vms, previous=before, moves=9, min_gain=min_gain)
    assert pins(found) == {**before, "a": (seat,)}


def test_a_newcomer_moves_nobody_without_a_gain() -> None:
    first = put(SMT, vm("b", 0.1, 0.1), vm("c", 0.1, 0.1))
    later = put(SMT, vm("a", 0.1, 0.1), vm("b", 0.1, 0.1), vm("c", 0.1, 0.1), previous=pins(first), moves=9)
    assert pins(first).items() <= pins(later).items()


def test_who_leaves_makes_room_for_one_on_a_sibling() -> None:
    topology = machine(cores=2, threads=2)
    before = {"a": (0,), "b": (2,)}
    assert pins(put(topology, vm("a", 0.3), vm("b", 0.3), previous=before, moves=1)) in (
        {"a": (1,), "b": (2,)},
        {"a": (0,), "b": (1,)},
        {"a": (3,), "b": (2,)},
        {"a": (0,), "b": (3,)},
    )


def test_a_whole_vm_moves_to_its_memory_if_the_budget_allows() -> None:
    request_ = vm("a", 0.2, 0.2, 0.2, nodes=[1])
    before = {"a": (0, 1, 2)}
    assert pins(put(TWO_NODES, request_, previous=before, moves=2)) == before, "two of three would gain nothing"
    assert set(pins(put(TWO_NODES, request_, previous=before, moves=3))["a"]) <= {4, 5, 6, 7}


def test_two_vms_swap_where_both_gain() -> None:
    topology = machine(cores=2, per_node=1)
    vms = [vm("a", 0.2, nodes=[1]), vm("b", 0.2, nodes=[0])]
    before = {"a": (0,), "b": (1,)}
    assert pins(put(topology, *vms, previous=before, moves=1)) == before
    assert pins(put(topology, *vms, previous=before, moves=2)) == {"a": (1,), "b": (0,)}


def test_a_neighbour_may_move_instead_of_who_suffers() -> None:
    """The pinned VM cannot leave, so the one beside it does."""
    found = put(FLAT, vm("a", 0.5, pins={0: 0}), vm("b", 0.1), previous={"a": (0,), "b": (0,)}, moves=1)
    assert pins(found) == {"a": (0,), "b": (1,)}


@pytest.mark.parametrize("demand", [float("nan"), -1.0, 0.0, 0.04])
def test_what_is_not_measured_yet_counts_as_little(demand) -> None:
    found = put(machine(cores=1), vm("a", demand), vm("b", 0.2))
    assert why(found, "b") == ["pCPU 0: shared with a vCPU 0 (load 0.25)"]


def test_the_result_by_itself() -> None:
    found = put(Topology.flat([3]), vm("a", 0.5))
    assert found == Placement((VmPlacement("a", (VcpuPlacement(3, "pCPU 3: own core"),), 1.0),))
    assert found.cpus == (("a", (3,)),)
    assert put(FLAT) == Placement()
    assert put(Topology(), vm("a", 0.1)).vms == (), "of pCPUs that are not in the topology nothing is known"
