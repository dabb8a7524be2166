"""Where batch VMs and network interrupts go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.placer import Confined, Pinned, confine, confine_decided, steer_interrupts
from manager.model.cpus import CpuSet
from manager.model.decision import CpusGoal, Placement, Snapshot, VcpuPlacement, VmPlacement, VmView
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import BatchPlacement, IrqSteering, PlacementRules
from manager.model.topology import NicQueue, Topology
from tests.unit.build import ONLINE, capabilities, view

FLOAT, FENCE, SINGLE = BatchPlacement


def batch(name: str, **changes: object) -> VmView:
    found = view(name, VmClass.BATCH)
    return replace(found, spec=replace(found.spec, **changes))  # type: ignore[arg-type]


def moment(*vms: VmView, **rules: object) -> Snapshot:
    queues = tuple(NicQueue("eth0", 40 + n, ONLINE, frozenset({0}), managed=n == 1) for n in range(3))
    seen = replace(
        capabilities(), topology=Topology(Topology.flat(ONLINE).cpus, (*queues, NicQueue("eth1", 50, ONLINE, ONLINE)))
    )
    return Snapshot(1000.0, 5.0, HostSpec("h1", placement=PlacementRules(**rules)), seen, vms)  # type: ignore[arg-type]


def placed(**cpus: tuple[int, ...]) -> Placement:
    return Placement(tuple(VmPlacement(n, tuple(VcpuPlacement(c, "") for c in cs), 1.0) for n, cs in cpus.items()))


def floating(*names: str) -> dict[str, Pinned]:
    return {name: Pinned((), (ONLINE,)) for name in names}


def cpus_of(found: tuple[Confined, ...]) -> dict[str, set[int]]:
    return {one.vm: set(one.cpus) for one in found}


@pytest.mark.parametrize(
    ("rule", "expected"), [(FLOAT, {}), (FENCE, {"b": {2, 3}, "c": {2, 3}}), (SINGLE, {"b": {0}, "c": {1}})]
)
def test_batch_vms_go_where_the_rule_says(rule: BatchPlacement, expected: dict) -> None:
    seen = moment(batch("b"), batch("c"), view("web"), batch=rule)
    assert cpus_of(confine(seen, placed(web=(0, 1)), floating("b", "c", "web"))) == expected


def test_a_fence_that_would_leave_nothing_is_none() -> None:
    assert confine(moment(batch("b"), batch=FENCE), placed(web=(0, 1, 2, 3)), floating("b")) == ()


def test_a_limit_holds_under_every_rule() -> None:
    for rule, expected in ((FLOAT, {1, 2}), (FENCE, {2}), (SINGLE, {1})):
        seen = moment(batch("b", cpus=frozenset({1, 2, 9})), batch=rule)
        assert cpus_of(confine(seen, placed(web=(0, 1)), floating("b"))) == {"b": expected}


def test_what_somebody_else_restricted_stays_so() -> None:
    pinned = {"b": Pinned((), (frozenset({1, 2}),))}
    assert confine(moment(batch("b")), placed(), pinned) == (), "nothing to be done"
    assert cpus_of(confine(moment(batch("b"), batch=FENCE), placed(web=(1,)), pinned)) == {"b": {2}}


def test_a_floating_critical_vm_is_not_fenced() -> None:
    assert confine(moment(view("big"), batch=FENCE), placed(web=(0,)), floating("big")) == ()


@pytest.mark.parametrize("vm", [replace(batch("b"), mode=Mode.RELEASED), replace(batch("b"), vcpus=0)])
def test_who_is_not_concerned(vm: VmView) -> None:
    assert confine(moment(vm, batch=FENCE), placed(web=(0,)), floating("b")) == ()


def test_single_spreads_and_stays() -> None:
    names = "abcdef"
    seen = moment(*(batch(name) for name in names), batch=SINGLE)
    first = cpus_of(confine(seen, placed(), floating(*names)))
    assert sorted(min(cpus) for cpus in first.values()) == [0, 0, 1, 1, 2, 3]
    pinned = {name: Pinned((min(cpus),), (ONLINE,)) for name, cpus in first.items()}
    assert cpus_of(confine(seen, placed(), pinned)) == first
    fewer = moment(*(batch(name) for name in "bcde"), batch=SINGLE)
    assert cpus_of(confine(fewer, placed(), pinned)) == {name: first[name] for name in "bcde"}, "nobody moves"
    uneven = {name: Pinned((0,), (ONLINE,)) for name in "abc"}
    moved = cpus_of(confine(moment(*(batch(name) for name in "abc"), batch=SINGLE), placed(), uneven))
    assert sorted(min(cpus) for cpus in moved.values()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, {}),
        ({"irqs": IrqSteering.SERVING}, {40: 0, 42: 0, 50: 0}),
        ({"irqs": IrqSteering.RESERVED}, {}),
        ({"irqs": IrqSteering.RESERVED, "reserved_cpus": frozenset({3, 9})}, {40: 3, 42: 3, 50: 3}),
        ({"irqs": IrqSteering.RESERVED, "reserved_cpus": frozenset({2, 3})}, {40: 2, 42: 2, 50: 2}),
    ],
)
def test_interrupts(rules: dict, expected: dict[int, int]) -> None:
    """Queue 41 was placed by the kernel itself. Each interface begins anew."""
    seen = moment(view("web"), **rules)
    assert {one.irq: one.cpu for one in steer_interrupts(seen, placed(web=(0, 1)))} == expected


def test_interrupts_of_batch_pins_are_not_wanted() -> None:
    seen = moment(batch("b", pin=True), irqs=IrqSteering.SERVING)
    assert steer_interrupts(seen, placed(b=(2,))) == ()


def test_a_fence_and_interrupts_hold_while_a_critical_vm_cannot_be_read() -> None:
    taken = frozenset({1})
    fenced = confine(moment(batch("b"), batch=FENCE), placed(web=(0,)), floating("b"), taken)
    assert cpus_of(fenced) == {"b": {2, 3}}
    crowded = confine(moment(batch("b"), batch=FENCE), placed(web=(0, 1, 2)), floating("b"), frozenset({3}))
    assert cpus_of(crowded) == {"b": {3}}, "whoever has it: better there than on those of the critical VMs"
    seen = moment(view("web"), irqs=IrqSteering.SERVING)
    assert {one.irq: one.cpu for one in steer_interrupts(seen, placed(web=(0,)), taken)} == {40: 0, 42: 0, 50: 0}
    assert {one.cpu for one in steer_interrupts(seen, placed(), taken)} == {1}


@pytest.mark.parametrize(
    ("registered", "original", "wanted", "got"),
    [
        (None, ONLINE, {1, 2, 9}, {1, 2}),
        ({2, 3}, ONLINE, {1, 2}, {2}),
        (None, frozenset({0, 1}), {1, 2}, {1}),
        ({1, 2}, frozenset({0, 1}), {0, 1, 2}, {1}),
        (None, ONLINE, ONLINE, None),
        (None, frozenset({0, 1}), {0, 1, 2}, None),
    ],
)
def test_what_a_policy_confines_stays_within_what_is_registered_and_restricted(
    registered: set[int] | None, original: CpuSet, wanted: set[int], got: set[int] | None
) -> None:
    """None: it may run there anyway."""
    seen = moment(batch("b", cpus=registered and frozenset(registered)))
    goal = CpusGoal("b", frozenset(wanted), "why")
    found, problems = confine_decided((goal,), seen, {"b": Pinned((), (original,))})
    assert [(one.vm, set(one.cpus), one.reason) for one in found] == ([("b", got, "why")] if got else [])
    assert problems == ()


def test_where_nothing_is_left_of_what_a_policy_wants_the_registration_holds() -> None:
    goal = CpusGoal("b", frozenset({0}), "why")
    found, problems = confine_decided((goal,), moment(batch("b", cpus=frozenset({2, 3}))), floating("b"))
    assert found == (Confined("b", frozenset({2, 3}), "within its registered pCPUs"),)
    assert problems == ("b may run on pCPUs 2-3, and the policy wants 0",)
    gone = moment(replace(batch("b"), mode=Mode.RELEASED))
    assert confine_decided((goal,), gone, floating("b")) == ((), ())


def test_whom_a_policy_confines_the_rules_leave_alone_and_interrupts_follow() -> None:
    seen = moment(batch("b"), batch("c"), view("web"), batch=FENCE)
    found = confine(seen, placed(web=(0,)), floating("b", "c", "web"), decided=frozenset({"b"}))
    assert cpus_of(found) == {"c": {1, 2, 3}}
    served = moment(view("web"), irqs=IrqSteering.SERVING)
    decided = (Confined("web", frozenset({3}), "why"), Confined("b", frozenset({2}), "why"))
    assert {queue.cpu for queue in steer_interrupts(served, placed(), decided=decided)} == {3}
