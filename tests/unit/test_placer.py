"""Placement from interval to interval: who is placed, on what demand, and how often anything moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.placer import (
    DRIFT_PCPUS,
    INTERRUPTS_FALL,
    RECONSIDER_S,
    Averages,
    Pinned,
    PlacerMemory,
    plan_placement,
    usable_cpus,
    wants_pins,
)
from manager.model.decision import Placement, Snapshot, VmView
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import IrqSteering, PlacementRules
from manager.model.topology import NicQueue, Pcpu, Topology
from tests.unit.build import ONLINE, capabilities, view
from tests.unit.placements import machine

FLAT = Topology.flat(range(4))


def moment(
    *vms: VmView,
    rules: PlacementRules | None = None,
    topology: Topology = FLAT,
    now_s: float = 1000.0,
    managed: frozenset[int] = ONLINE,
    interrupts: dict[int, float] | None = None,
) -> Snapshot:
    seen = replace(capabilities(), topology=topology, managed_cpus=managed)
    host = HostSpec("h1", placement=rules or PlacementRules())
    return Snapshot(now_s, 5.0, host, seen, vms, interrupts=interrupts or {})


def floating(vcpus: int = 1) -> Pinned:
    return Pinned((), (ONLINE,) * vcpus)


def busy(name: str, *used: float, **options: object) -> VmView:
    return replace(view(name, vcpus=len(used)), vcpu_pcpus=used, **options)  # type: ignore[arg-type]


def settle(seen: Snapshot, memory: PlacerMemory, pinned: dict[str, Pinned]) -> tuple[Placement, PlacerMemory]:
    """Place, and take the result for where the VMs are."""
    found, memory = plan_placement(seen, pinned, frozenset(), memory)
    pinned |= {name: replace(pinned[name], now=cpus) for name, cpus in found.cpus}
    return found, memory


@pytest.mark.parametrize(
    ("vm", "pinning", "wanted"),
    [
        (view("a"), True, True),
        (view("a"), False, False),
        (view("a", VmClass.BATCH), True, False),
        (replace(view("a"), spec=replace(view("a").spec, pin=False)), True, False),
        (replace(view("a", VmClass.BATCH), spec=replace(view("a", VmClass.BATCH).spec, pin=True)), False, True),
        (view("a", mode=Mode.RELEASED), True, False),
        (view("a", vcpus=0), True, False),
    ],
)
def test_who_wants_pins(vm: VmView, pinning: bool, wanted: bool) -> None:
    seen = replace(moment(vm), host=HostSpec("h1", pinning=pinning))
    assert wants_pins(vm, seen) is wanted


def test_reserved_and_isolated_pcpus_are_left_out() -> None:
    isolated = Topology(tuple(replace(cpu, isolated=cpu.number > 1) for cpu in FLAT.cpus))
    assert usable_cpus(moment(topology=isolated)) == {0, 1}
    assert usable_cpus(moment(topology=isolated, managed=frozenset({2, 3}))) == {2, 3}, "then they are meant"
    assert usable_cpus(moment(rules=PlacementRules(reserved_cpus=frozenset({0, 9})))) == {1, 2, 3}


def test_a_limit_and_a_manual_pin_are_respected() -> None:
    limited = replace(view("a"), spec=replace(view("a").spec, cpus=frozenset({2, 3, 9})))
    pinned = {"a": floating(), "b": Pinned((3,), (frozenset({3}),))}
    found, _ = plan_placement(moment(limited, view("b")), pinned, frozenset(), PlacerMemory())
    assert dict(found.cpus) == {"a": (2,), "b": (3,)}


def test_pcpus_of_vms_that_cannot_be_read_are_taken() -> None:
    found, _ = plan_placement(moment(view("a")), {"a": floating()}, frozenset({0, 1}), PlacerMemory())
    assert dict(found.cpus) == {"a": (2,)}


def test_nothing_is_thought_over_again_while_nothing_changed() -> None:
    pinned = {name: floating() for name in "ab"}
    memory = PlacerMemory()
    settle(moment(busy("a", 0.9), busy("b", 0.1)), memory, pinned)
    first, memory = settle(moment(busy("a", 0.9), busy("b", 0.1)), PlacerMemory(), pinned)
    second, later = plan_placement(moment(busy("a", 0.1), busy("b", 0.9), now_s=1005), pinned, frozenset(), memory)
    assert second is memory.placement
    assert later.asked_s == memory.asked_s
    _, later = plan_placement(moment(busy("a", 0.1), now_s=1005), pinned, frozenset(), memory)
    assert later.asked_s == 1005, "one VM fewer"
    _, later = plan_placement(
        moment(busy("a", 0.9), busy("b", 0.1), now_s=1000 + RECONSIDER_S), pinned, frozenset(), memory
    )
    assert later.asked_s == 1000 + RECONSIDER_S
    assert first.cpus == later.placement.cpus


@pytest.mark.parametrize(("change", "again"), [(DRIFT_PCPUS / 2, False), (2 * DRIFT_PCPUS, True)])
def test_a_placement_that_had_nothing_to_move_waits_until_demand_has_drifted(change: float, again: bool) -> None:
    rules = PlacementRules(demand_window_s=1)
    pinned, memory = {name: floating() for name in "ab"}, PlacerMemory()
    for step in range(2):  # the first one places them
        _, memory = settle(crowd({"a": 0.3, "b": 0.3}, 1000.0 + step * RECONSIDER_S, rules), memory, pinned)
    assert memory.settled_for == Averages({"a": (0.3,), "b": (0.3,)})
    last = memory.placement
    for step in (2, 3, 4):  # small steps add up
        used = 0.3 + change * (step - 1) / 3
        _, memory = settle(crowd({"a": used, "b": 0.3}, 1000.0 + step * RECONSIDER_S, rules), memory, pinned)
        assert memory.asked_s == 1000.0 + step * RECONSIDER_S
    assert (memory.placement is not last) == again


def test_demand_is_averaged_over_its_window() -> None:
    memory, pinned = PlacerMemory(), {"a": floating()}
    for second in range(0, 60, 5):
        _, memory = plan_placement(moment(busy("a", 0.8), now_s=1000.0 + second), pinned, frozenset(), memory)
    assert memory.averages.demand["a"] == (pytest.approx(0.8),)
    _, memory = plan_placement(moment(busy("a", 0.0), now_s=1060), pinned, frozenset(), memory)
    assert memory.averages.demand["a"][0] == pytest.approx(0.8 * 11 / 12)
    _, memory = plan_placement(moment(view("a"), now_s=1065), pinned, frozenset(), memory)
    assert memory.averages.demand["a"][0] == pytest.approx(0.8 * 11 / 12), "unknown for once"


def test_what_waits_for_a_pcpu_wants_it() -> None:
    starved = busy("a", 0.2, 0.2, run_delay_share=1.0)
    _, memory = plan_placement(moment(starved), {"a": floating(2)}, frozenset(), PlacerMemory())
    assert memory.averages.demand["a"] == (0.7, 0.7)
    uneven = busy("a", 0.2, 0.2, run_delay_share=0.6, vcpu_waits=(0.6, 0.0))
    _, memory = plan_placement(moment(uneven), {"a": floating(2)}, frozenset(), PlacerMemory())
    assert memory.averages.demand["a"] == pytest.approx((0.8, 0.2)), "the slow one is told apart"


def crowd(loads: dict[str, float], now_s: float, rules: PlacementRules) -> Snapshot:
    return moment(*(busy(name, load) for name, load in sorted(loads.items())), rules=rules, now_s=now_s)


def test_moves_are_bounded_a_minute_and_then_go_on() -> None:
    """Eight VMs on four pCPUs, whose loads turn round: to balance them again takes more moves than one."""
    rules = PlacementRules(moves_per_min=2, min_gain=0.05, demand_window_s=1)
    loads = {name: 0.75 if index < 4 else 0.05 for index, name in enumerate("abcdefgh")}
    pinned, memory = {name: floating() for name in loads}, PlacerMemory()
    _, memory = settle(crowd(loads, 1000.0, rules), memory, pinned)
    turned = {name: 0.75 if name in "aebf" else 0.05 for name in loads}
    pairs: dict[int, str] = {}
    for name in loads:  # the worst that could happen: those that are busy now share two pCPUs
        pairs.setdefault(pinned[name].now[0], "")
        pairs[pinned[name].now[0]] += name
    together = {
        name: replace(pinned[name], now=({"a": 0, "e": 0, "b": 1, "f": 1, "c": 2, "g": 2}.get(name, 3),))
        for name in loads
    }
    moves: list[int] = []
    for step in range(8):
        before = dict(together)
        _, memory = settle(crowd(turned, 1010.0 + step * RECONSIDER_S, rules), memory, together)
        moves.append(sum(before[name].now != together[name].now for name in loads))
    assert all(sum(moves[start : start + 6]) <= 2 for start in range(3)), moves
    assert sum(moves) > 0
    on: dict[int, float] = {}
    for name, one in together.items():
        on[one.now[0]] = on.get(one.now[0], 0.0) + turned[name]
    assert max(on.values()) < 1.0, "and in the end they are apart"


@pytest.mark.parametrize(("irqs", "expected"), [(IrqSteering.OFF, 1), (IrqSteering.SERVING, 0)])
def test_interrupts_are_avoided_unless_they_are_steered(irqs: IrqSteering, expected: int) -> None:
    queue = NicQueue("eth0", 40, frozenset({0}), frozenset({0}))
    topology = Topology(FLAT.cpus, (queue,))
    seen = moment(view("a"), rules=PlacementRules(irqs=irqs), topology=topology)
    found, _ = plan_placement(seen, {"a": floating()}, frozenset(), PlacerMemory())
    assert dict(found.cpus) == {"a": (expected,)}


SERVED = Topology(FLAT.cpus, (NicQueue("eth0", 40, frozenset({0}), frozenset({0})),))


def averages(shares: list[float], before: dict[int, float] | None = None) -> list[float]:
    """The average time that pCPU 0 spends on interrupts after each interval, of five seconds each."""
    memory, found = PlacerMemory(Averages({}, before or {})), []
    for step, share in enumerate(shares):
        seen = moment(view("a"), topology=SERVED, now_s=1000.0 + 5 * step, interrupts={0: share, 1: 0.9})
        _, memory = plan_placement(seen, {"a": floating()}, frozenset(), memory)
        assert memory.averages.interrupts.keys() == {0}, "the other one serves no network interface"
        found.append(memory.averages.interrupts[0])
    return found


def test_time_on_interrupts_is_averaged_and_falls_more_slowly_than_it_rises() -> None:
    window = 60 / 5
    assert averages([0.1]) == [0.1], "the first counts whole"
    assert averages([0.3], {0: 0.1}) == [pytest.approx(0.1 + 0.2 / window)]
    assert averages([0.1], {0: 0.3}) == [pytest.approx(0.3 - 0.2 / window / INTERRUPTS_FALL)]
    steady = averages([0.25] * 20)
    assert steady == [0.25] * 20


def test_time_on_interrupts_that_could_not_be_measured_stays_as_it_was() -> None:
    memory = PlacerMemory(Averages({}, {0: 0.4}))
    _, memory = plan_placement(moment(view("a"), topology=SERVED), {"a": floating()}, frozenset(), memory)
    assert memory.averages.interrupts == {0: 0.4}


def seats_beside(share: float, steps: int, budget: int = 6) -> list[int]:
    """Where a VM is every ten seconds that begins on pCPU 0, which spends that share on interrupts; pCPU 3 is free."""
    pinned = {name: Pinned((cpu,), (ONLINE,)) for cpu, name in enumerate("abc")}
    rules, memory, found = PlacementRules(moves_per_min=budget), PlacerMemory(), []
    for step in range(steps):
        interrupts = {} if step == 0 else {0: share, 1: 0.0, 2: 0.0, 3: 0.0}
        now_s = 1000.0 + step * RECONSIDER_S
        vms = (busy(name, 0.2) for name in pinned)
        seen = moment(*vms, rules=rules, topology=SERVED, now_s=now_s, interrupts=interrupts)
        _, memory = settle(seen, memory, pinned)
        found += pinned["a"].now
    return found


def test_nobody_moves_before_anything_was_measured_and_then_for_interrupts_that_matter() -> None:
    """A stretch of 0.8 / (0.9 - 0.2) is not worth a move, one of 0.8 / (0.6 - 0.2) is."""
    assert seats_beside(0.4, 3) == [0, 3, 3], "at the first tick the constant alone would have driven it away"
    assert seats_beside(0.1, 3) == [0, 0, 0]
    assert seats_beside(0.4, 3, budget=0) == [0, 0, 0]


def test_who_moved_away_from_interrupts_does_not_come_straight_back_when_they_went_with_it() -> None:
    """Most of the time was on packets of the VM itself; its other pCPU is the sibling of another VM's."""
    queue = NicQueue("eth0", 40, frozenset({0}), frozenset({0}))
    topology = Topology(machine(cores=2, threads=2).cpus, (queue,))
    pinned = {"a": Pinned((0,), (frozenset({0, 3}),)), "b": Pinned((1,), (frozenset({1}),))}
    memory, seats = PlacerMemory(), []
    for second in range(0, 300, 5):
        own = 0.45 if pinned["a"].now == (0,) else 0.0
        interrupts = {0: 0.05 + own} if second else {}
        seen = moment(busy("a", 0.2), busy("b", 0.2), topology=topology, now_s=1000.0 + second, interrupts=interrupts)
        _, memory = settle(seen, memory, pinned)
        seats += pinned["a"].now
    assert seats[0] == 0
    assert sum(now != then for now, then in zip(seats[1:], seats, strict=False)) == 1, seats


def test_a_situation_is_another_where_an_application_is() -> None:
    """Which pCPUs batch VMs share follows from it."""
    memory = PlacerMemory()
    situations = []
    for application in ("shop", "shop", "bank"):
        seen = moment(replace(view("a"), application=application))
        _, memory = plan_placement(seen, {"a": floating()}, frozenset(), memory)
        situations.append(memory.situation)
    assert situations[0] is situations[1] is not situations[2]


def test_interrupts_that_change_from_tick_to_tick_leave_the_placement_the_same_object() -> None:
    pinned, memory = {"a": floating()}, PlacerMemory()
    found, situations = [], []
    for step in range(24):
        interrupts = {0: 0.1 + 0.01 * (step % 2), 1: 0.0}
        seen = moment(busy("a", 0.2), topology=SERVED, now_s=1000.0 + 5 * step, interrupts=interrupts)
        placement, memory = plan_placement(seen, pinned, frozenset(), memory)
        if step == 0:
            pinned = {"a": replace(pinned["a"], now=placement.cpus[0][1])}
        if step > 3:
            found.append(placement)
            situations.append(memory.situation)
    assert all(placement is found[0] for placement in found)
    assert all(situation is situations[0] for situation in situations)


def test_the_memory_of_a_vm_draws_it() -> None:
    nodes = Topology(tuple(Pcpu(number, number, number // 2, number // 2, number // 2 * 2) for number in range(4)))
    pinned = {"a": replace(floating(), nodes=frozenset({1}))}
    found, _ = plan_placement(moment(view("a"), topology=nodes), pinned, frozenset(), PlacerMemory())
    assert dict(found.cpus)["a"][0] in {2, 3}


def test_whom_the_policy_confines_is_not_placed_and_a_changed_decision_is_noticed() -> None:
    pinned = {"a": floating(), "b": floating()}
    seen = moment(view("a"), view("b"))
    both, memory = plan_placement(seen, pinned, frozenset(), PlacerMemory())
    one, memory = plan_placement(seen, pinned, frozenset(), memory, frozenset({"a"}))
    again, steady = plan_placement(seen, pinned, frozenset(), memory, frozenset({"a"}))
    assert [dict(found.cpus).keys() for found in (both, one, again)] == [{"a", "b"}, {"b"}, {"b"}]
    assert steady.situation is memory.situation, "nothing is asked anew while nothing changed"
