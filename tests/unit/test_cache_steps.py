"""From one plan to the next nothing is passed through that may not be, on a resctrl that answers as the kernel's."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.cache_plan import CacheDemand, CachePlan, Claim, allocate
from manager.control.cache_steps import CacheAction, CacheStep, plan_steps
from manager.host.resctrl.groups import Groups, move
from manager.model.cache import (
    DEFAULT,
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    CacheWish,
    Group,
    Mask,
    Resctrl,
    Slot,
    parse_wish,
    union,
)
from tests.fakes.resctrl import FakeResctrl

VMS = {f"vm{number}": 100 + number for number in range(8)}
APPS = tuple("abcde")


@dataclass
class Machine:
    """A host with a VM of one thread for each of VMS, and what is looked at after every step."""

    offered: Resctrl
    cdp: bool = False
    alone: dict[str, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = FakeResctrl(self.offered.caches, self.offered.bandwidths, cdp=self.cdp)
        if self.cdp:
            self.tree.unmount()
            self.tree.mount(frozenset({"cdp"}))
            self.offered = Resctrl(self.tree.divided, self.offered.bandwidths)
        self.tree.start(*VMS.values())
        self.groups = Groups(self.tree)

    def placed(self) -> dict[str, str]:
        return {vm: self.tree.group_of(tid) for vm, tid in VMS.items()}

    def plan(self, demand: CacheDemand) -> tuple[CachePlan, tuple[CacheStep, ...]]:
        present = self.groups.read()
        plan = allocate(self.offered, present, demand)
        return plan, plan_steps(self.offered, present, self.placed(), plan)

    def follow(self, steps: tuple[CacheStep, ...], after: CachePlan) -> None:
        """Take the steps, and look at all groups after each."""
        for step in steps:
            assert not step.shares, step
            if step.action is CacheAction.MAKE:
                self.groups.create(step.group)
            elif step.action is CacheAction.REMOVE:
                self.groups.remove(step.group)
            elif step.action is CacheAction.WRITE:
                assert self.groups.write(step.group, step.values) == step.values
            else:
                move(self.groups, step.group, functools.partial(lambda vm: [VMS[vm]], step.vm))
            self.look(after)

    def look(self, after: CachePlan) -> None:
        groups = self.groups.read()
        used = {DEFAULT, *self.placed().values()}
        for name in used:
            for slot, value in groups[name].values.items():
                cache = self.tree.cache(slot.resource)
                assert cache is None or cache.problem(Mask(value)) == ""
        for name in used:
            own = self.alone.get(name, frozenset())
            planned = after.groups.get(name)
            for domain in own & (planned.alone if planned else frozenset()):
                ways = self.ways(groups[name], domain)
                for other in used - {name}:
                    assert ways.disjoint(self.ways(groups[other], domain)), (
                        f"{name} shares ways with {other or 'default'}"
                    )

    def ways(self, group: Group, domain: int) -> Mask:
        return union(Mask(group.values[Slot(cache.name, domain)]) for cache in self.offered.divided)


def machine(ways: int, minimum: int, shareable: Mask, closids: int) -> Machine:
    cache = CacheResource("L3", Mask.span(0, ways), minimum, shareable, closids, False, (0, 1))
    return Machine(Resctrl((cache,), (BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 16, (0, 1)),)))


machines = st.builds(
    machine,
    st.integers(11, 20),
    st.integers(1, 3),
    st.sampled_from([Mask(0), Mask(3), Mask(0x600)]),
    st.integers(2, 8),
)
wishes: st.SearchStrategy[CacheWish] = st.sampled_from(["auto", "1 way", "3 ways", "6 ways", "40%", "100%"]).map(
    parse_wish
)


@st.composite
def demands(draw: st.DrawFn) -> CacheDemand:
    roles = draw(st.lists(st.sampled_from([*APPS, "batch", "held", "unmanaged"]), min_size=len(VMS), max_size=len(VMS)))
    of = {role: frozenset(vm for vm, one in zip(VMS, roles, strict=True) if one == role) for role in roles}
    claims = [
        Claim(
            app,
            of[app],
            draw(wishes),
            draw(st.frozensets(st.integers(0, 1), min_size=1)),
            draw(st.none() | st.integers(1, 9)),
        )
        for app in APPS
        if app in of
    ]
    held = of.get("held", frozenset())
    return CacheDemand(
        tuple(claims), of.get("batch", frozenset()) | held, held, draw(st.integers(0, 100)), draw(st.integers(0, 3))
    )


def check(machine: Machine, demand: CacheDemand) -> None:
    plan, steps = machine.plan(demand)
    machine.follow(steps, plan)
    groups = machine.groups.read()
    assert set(groups) == set(plan.groups)
    for name, planned in plan.groups.items():
        assert {slot: groups[name].values[slot] for slot in planned.values} == planned.values
    wanted = {vm: name for name, planned in plan.groups.items() for vm in planned.vms}
    assert machine.placed() == {vm: wanted.get(vm, DEFAULT) for vm in VMS}
    assert plan_steps(machine.offered, groups, machine.placed(), plan) == (), "what is as planned needs no step"
    machine.alone = {name: planned.alone for name, planned in plan.groups.items()}


@settings(max_examples=50, deadline=None)
@given(machines, st.lists(demands(), min_size=1, max_size=4))
def test_every_plan_is_reached(machine: Machine, wanted: list[CacheDemand]) -> None:
    for demand in wanted:
        check(machine, demand)
    check(machine, CacheDemand())
    assert (
        machine.groups.read()[DEFAULT].values
        == FakeResctrl(machine.offered.caches, machine.offered.bandwidths).root.values
    )


@settings(max_examples=40, deadline=None)
@given(machines, demands(), demands(), st.integers(0, 40))
def test_a_way_that_was_broken_off_anywhere_is_taken_up_again(
    machine: Machine, first: CacheDemand, second: CacheDemand, taken: int
) -> None:
    check(machine, first)
    plan, steps = machine.plan(second)
    machine.follow(steps[:taken], plan)
    machine.alone = {}
    check(machine, second)


@settings(max_examples=20, deadline=None)
@given(demands(), demands())
def test_data_and_code_never_cross(first: CacheDemand, second: CacheDemand) -> None:
    divided = Machine(machine(20, 1, Mask(0xC0000), 16).offered, cdp=True)
    for demand in (first, second):
        check(divided, demand)


def demand(app: str, size: str) -> CacheDemand:
    return CacheDemand((Claim(app, frozenset({"vm0"}), parse_wish(size), frozenset({0, 1})),), frozenset({"vm1"}))


def test_ways_are_taken_before_they_are_given() -> None:
    subject = machine(20, 2, Mask(0xC0000), 8)
    plan, steps = subject.plan(demand("a", "6 ways"))
    assert [(step.action.value, step.group or "default", step.vm) for step in steps] == [
        ("make", "equipoise-+batch", ""),
        ("make", "equipoise-a", ""),
        ("write", "default", ""),
        ("write", "equipoise-+batch", ""),
        ("write", "equipoise-a", ""),
        ("move", "equipoise-a", "vm0"),
        ("move", "equipoise-+batch", "vm1"),
    ]
    subject.follow(steps, plan)
    larger, steps = subject.plan(demand("a", "8 ways"))
    assert [step.group for step in steps] == ["", "equipoise-+batch", "equipoise-a"]
    subject.follow(steps, larger)
    _, steps = subject.plan(demand("a", "2 ways"))
    assert [step.group for step in steps] == ["equipoise-a", "", "equipoise-+batch"]


def test_a_vm_goes_straight_to_a_group_that_is_there_and_closids_are_free_before_they_are_needed() -> None:
    subject = machine(20, 2, Mask(0xC0000), 3)
    subject.follow(subject.plan(demand("a", "6 ways"))[1], subject.plan(demand("a", "6 ways"))[0])
    wanted = CacheDemand((Claim("b", frozenset({"vm1"}), "auto", frozenset({0})),), frozenset({"vm0"}))
    _, steps = subject.plan(wanted)
    assert [(step.action.value, step.group, step.vm) for step in steps if step.action is not CacheAction.WRITE] == [
        ("move", "equipoise-+batch", "vm0"),
        ("remove", "equipoise-a", ""),
        ("make", "equipoise-b", ""),
        ("move", "equipoise-b", "vm1"),
    ]


def test_two_groups_that_somebody_crossed_are_set_right_and_that_is_said() -> None:
    subject = machine(11, 5, Mask(0), 4)
    slots = [Slot("L3", 0), Slot("L3", 1)]
    present = {
        DEFAULT: Group(DEFAULT, dict.fromkeys(slots, 0x1F)),
        "equipoise-a": Group("equipoise-a", dict.fromkeys(slots, 0x3E0)),
    }
    plan = allocate(subject.offered, {DEFAULT: present[DEFAULT]}, demand("a", "5 ways"))
    plan = CachePlan({name: one for name, one in plan.groups.items() if name != "equipoise-+batch"})
    steps = plan_steps(subject.offered, present, {"vm0": "equipoise-a"}, plan)
    writes = [
        (step.group, step.shares) for step in steps if step.action is CacheAction.WRITE and slots[0] in step.values
    ]
    assert writes == [("", True), ("equipoise-a", False)]
