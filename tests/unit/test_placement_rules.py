"""What holds of every placement."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.placement import PlacementRequest, VcpuNeed, place
from manager.model.decision import Placement
from manager.model.rules import PlacementRules
from manager.model.topology import Topology
from tests.unit.placements import ANYWHERE, machine, pins, worst

NAMES = ("a", "b", "c", "d", "e", "f")
MACHINES = (
    machine(cores=5),
    machine(cores=4, threads=2),
    machine(cores=2, threads=4),
    machine(cores=6, per_l3=3, irqs=[0, 4]),
    machine(cores=4, threads=2, per_l3=1, per_node=2),
    machine(cores=6, per_l3=2, per_node=2, slow={4: 0.5, 5: 0.5}),
)

machines = st.sampled_from(MACHINES)
allowed = st.one_of(st.just(ANYWHERE), st.frozensets(st.integers(0, 8), max_size=4))
needs = st.builds(VcpuNeed, st.floats(0, 1), allowed)
vcpus = st.lists(needs, min_size=1, max_size=4).map(tuple)
nodes = st.frozensets(st.integers(0, 1), max_size=2)
crowds = st.dictionaries(st.sampled_from(NAMES), st.tuples(vcpus, nodes), max_size=6).map(
    lambda wanted: [PlacementRequest(name, needs, memory) for name, (needs, memory) in wanted.items()]
)
cpu_sets = st.frozensets(st.integers(0, 9), max_size=8)
previous_pins = st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=6)
rules = st.builds(PlacementRules, min_gain=st.sampled_from([0.0, 0.1, 0.2, 0.5, 10.0]))
budgets = st.integers(0, 6)
few = settings(max_examples=60, deadline=None)


def usable(need: VcpuNeed, topology: Topology, cpus: frozenset[int]) -> frozenset[int]:
    return need.allowed & topology.numbers & cpus


def kept_or_free(asked, topology: Topology, cpus: frozenset[int], previous) -> set[tuple[str, int]]:
    """The vCPUs that could stay where they were."""
    found = set()
    for request in asked:
        before = previous.get(request.vm, ())
        for vcpu, (need, cpu) in enumerate(zip(request.vcpus, before, strict=False)):
            if cpu in usable(need, topology, cpus) and cpu not in before[:vcpu]:
                found.add((request.vm, vcpu))
    return found


@few
@given(machines, crowds, cpu_sets, previous_pins, rules, budgets)
def test_rules_of_placement(topology, asked, cpus, previous, rule, moves) -> None:
    found = place(asked, topology, cpus, previous, rule, moves)
    placed, floating = pins(found), dict(found.floating)
    assert sorted([*placed, *floating]) == sorted(request.vm for request in asked), "placed or floating"
    assert list(placed) == sorted(placed)
    for request in asked:
        choices = [usable(need, topology, cpus) for need in request.vcpus]
        if request.vm in floating:
            assert floating[request.vm].startswith("floats: ")
            assert any(len(choice) < len(choices) for choice in choices), "nobody floats who fits for certain"
            continue
        given_out = placed[request.vm]
        assert len(given_out) == len(request.vcpus), "whole or not at all"
        assert len(set(given_out)) == len(given_out), "never stacked on itself"
        assert all(cpu in choice for cpu, choice in zip(given_out, choices, strict=True)), "only where allowed"
    for one in found.vms:
        assert one.stretch > 0
        assert all(vcpu.why.startswith(f"pCPU {vcpu.cpu}: ") for vcpu in one.vcpus)


@few
@given(machines, crowds, cpu_sets, previous_pins, rules, budgets, st.randoms(use_true_random=False))
def test_no_order_matters(topology, asked, cpus, previous, rule, moves, random) -> None:
    shuffled, again = list(asked), dict(sorted(previous.items(), reverse=True))
    random.shuffle(shuffled)
    found = place(asked, topology, cpus, previous, rule, moves)
    assert place(shuffled, topology, frozenset(sorted(cpus, reverse=True)), again, rule, moves) == found


@few
@given(machines, crowds, cpu_sets, rules, budgets)
def test_a_new_placement_stays_as_it_is(topology, asked, cpus, rule, moves) -> None:
    found = place(asked, topology, cpus, {}, rule, 0)
    assert place(asked, topology, cpus, pins(found), rule, moves) == found


@few
@given(machines, crowds, cpu_sets, previous_pins, rules)
def test_moves_come_to_an_end(topology, asked, cpus, previous, rule) -> None:
    found = place(asked, topology, cpus, previous, rule, 100)
    assert place(asked, topology, cpus, pins(found), rule, 100) == found


@few
@given(machines, crowds, cpu_sets, previous_pins, rules, budgets)
def test_no_more_move_than_the_budget_and_only_for_a_gain(topology, asked, cpus, previous, rule, moves) -> None:
    could_stay = kept_or_free(asked, topology, cpus, previous)
    found = pins(place(asked, topology, cpus, previous, rule, moves))
    still = pins(place(asked, topology, cpus, previous, rule, 0))
    # Who must make room within its own VM moves in both cases, and may go anywhere.
    forced = {(vm, vcpu) for vm, vcpu in could_stay if vm in still and still[vm][vcpu] != previous[vm][vcpu]}
    moved = {(vm, vcpu) for vm, vcpu in could_stay - forced if vm in found and found[vm][vcpu] != previous[vm][vcpu]}
    assert len(moved) <= moves
    assert rule.min_gain < 1 or not moved


@few
@given(machines, crowds, cpu_sets, rules)
def test_all_placed_and_more_moves_never_make_the_worst_worse(topology, asked, cpus, rule) -> None:
    """From a bad placement: the first pCPUs for everybody."""
    first = place(asked, topology, cpus, {}, rule, 0)
    bad = {name: tuple(sorted(seats)) for name, seats in pins(first).items()}
    for one in asked:
        choices = [sorted(usable(need, topology, cpus)) for need in one.vcpus]
        if all(choices):
            bad[one.vm] = tuple(choice[min(index, len(choice) - 1)] for index, choice in enumerate(choices))
    before = place(asked, topology, cpus, bad, rule, 0)
    if any(kept != bad[name] for name, kept in pins(before).items()):
        return  # some had to move, and may have done so otherwise with a budget
    assert worst(place(asked, topology, cpus, bad, rule, 100)) <= worst(before) * (1 + 1e-9)


@few
@given(machines, crowds, cpu_sets, vcpus)
def test_a_newcomer_moves_nobody_where_no_move_is_worth_it(topology, asked, cpus, more) -> None:
    rule = PlacementRules(min_gain=1.0)
    first = pins(place(asked, topology, cpus, {}, rule, 0))
    later = pins(place([*asked, PlacementRequest("0", more)], topology, cpus, first, rule, 6))
    assert first.items() <= later.items()


@few
@given(machines, crowds, cpu_sets, st.sampled_from(NAMES))
def test_who_leaves_moves_nobody_without_a_budget(topology, asked, cpus, leaver) -> None:
    first = pins(place(asked, topology, cpus, {}, PlacementRules(), 0))
    staying = [request for request in asked if request.vm != leaver]
    later = pins(place(staying, topology, cpus, first, PlacementRules(), 0))
    assert {name: seats for name, seats in first.items() if name != leaver} == later


@few
@given(machines, st.lists(st.lists(st.floats(0, 0.3), min_size=1, max_size=3), max_size=4))
def test_no_pcpu_is_shared_while_there_are_enough(topology, demands) -> None:
    """Up to loads that make a core's threads too slow together."""
    asked = [
        PlacementRequest(str(number), tuple(VcpuNeed(demand, ANYWHERE) for demand in one))
        for number, one in enumerate(demands)
    ]
    found = place(asked, topology, topology.numbers, {}, PlacementRules(), 0)
    given_out = [cpu for seats in pins(found).values() for cpu in seats]
    cores = {cpu.number: cpu.core for cpu in topology.cpus}
    slow = any(cpu.capacity < 1 for cpu in topology.cpus)
    if len(given_out) <= len(topology.cpus) and not slow and found.floating == ():
        assert len(set(given_out)) == len(given_out)
    one_node = len({(cpu.l3, cpu.node) for cpu in topology.cpus}) == 1
    if len(given_out) <= len(set(cores.values())) and one_node:
        assert len({cores[cpu] for cpu in given_out}) == len(given_out), "cores before siblings"


def test_nothing_asked_nothing_placed() -> None:
    assert place([], Topology(), frozenset(), {}, PlacementRules(), 0) == Placement()
