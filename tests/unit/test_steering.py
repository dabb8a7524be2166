"""Where batch VMs and network interrupts go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.placer import Confined, Pinned, confine, confine_decided, steer_interrupts
from manager.model.cpus import CpuSet
from manager.model.decision import CpusGoal, Placement, Snapshot, VcpuPlacement, VmPlacement, VmView
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import BatchPlacement, IrqSteering, PlacementRules
from manager.model.topology import NicQueue, Topology
from tests.unit.build import ONLINE, capabilities, view
from tests.unit.placements import machine

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
    ("rule", "expected"), [(FLOAT, {}), (FENCE, {"b": {2, 3}, "c": {2, 3}}), (SINGLE, {"b": {2}, "c": {3}})]
)
def test_batch_vms_go_where_the_rule_says(rule: BatchPlacement, expected: dict) -> None:
    seen = moment(batch("b"), batch("c"), view("web"), batch=rule)
    assert cpus_of(confine(seen, placed(web=(0, 1)), floating("b", "c", "web"))) == expected


def test_a_fence_that_would_leave_nothing_is_none() -> None:
    assert confine(moment(batch("b"), batch=FENCE), placed(web=(0, 1, 2, 3)), floating("b")) == ()


def at(topology: Topology, *vms: VmView, **rules: object) -> Snapshot:
    """A moment on another host."""
    seen = replace(capabilities(), topology=topology, online_cpus=topology.numbers, managed_cpus=topology.numbers)
    return Snapshot(1000.0, 5.0, HostSpec("h1", placement=PlacementRules(**rules)), seen, vms)  # type: ignore[arg-type]


SMT = machine(cores=4, threads=2)
"""pCPUs 0 to 3, and their siblings 4 to 7."""
OFF_CORES = "batch VM: off the cores of critical VMs"
OFF_PCPUS = "batch VM: off the pCPUs of critical VMs"
BUT_SIBLINGS = f"{OFF_PCPUS}, but not off their siblings: it may use no other core"


@pytest.mark.parametrize(
    ("topology", "critical", "limit", "cpus", "reason"),
    [
        pytest.param(SMT, (0, 1), None, {2, 3, 6, 7}, OFF_CORES, id="whole cores"),
        pytest.param(SMT, (0, 4), None, {1, 2, 3, 5, 6, 7}, OFF_PCPUS, id="both threads are critical"),
        pytest.param(SMT, (0, 1, 2, 7), None, {3, 4, 5, 6}, BUT_SIBLINGS, id="a critical vCPU on each core"),
        pytest.param(SMT, (0,), {0, 4}, {4}, BUT_SIBLINGS, id="limited to a critical core"),
        pytest.param(SMT, (0,), {4, 5}, {5}, OFF_CORES, id="limited, and another core is left"),
        pytest.param(SMT, (0,), {1, 2}, {1, 2}, None, id="limited to others anyway"),
        pytest.param(SMT, tuple(range(8)), None, None, None, id="nothing is left"),
        pytest.param(machine(cores=4), (0, 1), None, {2, 3}, OFF_PCPUS, id="no siblings"),
        pytest.param(machine(cores=2, threads=4), (3,), None, {0, 2, 4, 6}, OFF_CORES, id="four threads a core"),
    ],
)
def test_a_fence_covers_whole_cores_where_it_leaves_any(
    topology: Topology, critical: tuple[int, ...], limit: set[int] | None, cpus: set[int] | None, reason: str | None
) -> None:
    vm = batch("b", cpus=frozenset(limit)) if limit else batch("b")
    pinned = {"b": Pinned((), (topology.numbers,))}
    found = confine(at(topology, vm, view("web"), batch=FENCE), placed(web=critical), pinned)
    assert cpus_of(found) == ({} if cpus is None else {"b": cpus})
    assert reason is None or [one.reason for one in found] == [reason]


def test_a_fence_leaves_the_siblings_of_pinned_batch_vms_to_others() -> None:
    pinned = {"b": Pinned((), (SMT.numbers,))}
    seen = at(SMT, batch("b"), batch("own", pin=True), view("web"), batch=FENCE)
    assert cpus_of(confine(seen, placed(web=(0,), own=(1,)), pinned)) == {"b": {2, 3, 5, 6, 7}}


def test_a_fence_covers_the_cores_of_vms_that_cannot_be_read() -> None:
    pinned = {"b": Pinned((), (SMT.numbers,))}
    seen = at(SMT, batch("b"), view("web"), batch=FENCE)
    assert cpus_of(confine(seen, placed(web=(0,)), pinned, frozenset({1}))) == {"b": {2, 3, 6, 7}}
    crowded = confine(seen, placed(web=(0, 1, 2)), pinned, frozenset({3}))
    assert cpus_of(crowded) == {"b": {4, 5, 6, 7}}


names = st.sampled_from("abcd")
threads = st.sampled_from([machine(cores=8), SMT, machine(cores=2, threads=4)])
pins = st.dictionaries(names, st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True).map(tuple), max_size=4)
limits = st.one_of(st.none(), st.frozensets(st.integers(0, 7), min_size=1))


@given(threads, pins, limits, st.frozensets(st.integers(0, 7)), st.sampled_from(list(BatchPlacement)))
def test_every_batch_vm_keeps_a_pcpu_and_stays_off_critical_ones_where_it_can(
    topology: Topology,
    critical: dict[str, tuple[int, ...]],
    limit: frozenset[int] | None,
    taken: frozenset[int],
    rule: BatchPlacement,
) -> None:
    vms = (*(view(name) for name in sorted(critical)), batch("z", cpus=limit))
    pinned = {name: Pinned((), (topology.numbers,)) for name in (*critical, "z")}
    found = cpus_of(confine(at(topology, *vms, batch=rule), placed(**critical), pinned, taken))
    cpus, allowed = found.get("z", topology.numbers), limit or topology.numbers
    assert found.keys() <= {"z"}
    assert cpus
    assert cpus <= allowed
    serving = frozenset().union(*critical.values())
    if rule is FENCE and allowed - serving:
        assert not cpus & serving
        near = topology.whole_cores(serving | taken)
        assert not cpus & near or not allowed - near
    if rule is SINGLE:
        assert len(cpus) == 1


@pytest.mark.parametrize(
    ("count", "expected"),
    [(2, {2, 3}), (3, {2, 3}), (4, {0, 1, 2, 3})],
)
def test_single_shares_all_pcpus_of_an_application_or_none(count: int, expected: set[int]) -> None:
    """Two VMs of one application, with a vCPU each: its slowest vCPU decides."""
    serving = [replace(view(name), application="shop") for name in ("db", "web")]
    vms = [batch(f"b{number}") for number in range(count)]
    seen = moment(*vms, *serving, batch=SINGLE)
    found = confine(seen, placed(db=(0,), web=(1,)), floating(*(vm.name for vm in vms)))
    assert set().union(*cpus_of(found).values()) == expected
    shared = {one.reason for one in found if one.cpus <= {0, 1}}
    assert shared == (
        {
            f"batch VM: all its threads on pCPU {cpu}, beside shop: all of its pCPUs are shared with batch"
            for cpu in (0, 1)
        }
        if count == 4
        else set()
    )


def test_single_keeps_off_the_pcpus_of_vms_that_cannot_be_read() -> None:
    found = confine(moment(batch("b"), batch=SINGLE), placed(), floating("b"), frozenset({0, 1}))
    assert cpus_of(found) == {"b": {2}}


def test_a_limit_holds_under_every_rule() -> None:
    for rule, expected in ((FLOAT, {1, 2}), (FENCE, {2}), (SINGLE, {2})):
        seen = moment(batch("b", cpus=frozenset({1, 2, 9})), view("web"), batch=rule)
        assert cpus_of(confine(seen, placed(web=(0, 1)), floating("b", "web"))) == {"b": expected}


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
