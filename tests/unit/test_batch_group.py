"""Who is in the batch group, and that shares stay as the policy decided."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.batch import comes_last
from manager.control.batch_membership import plan_batch_group
from manager.model.decision import Decision, IdleGoal, Snapshot, VmView, WeightGoal
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, BatchGroup, WeightScale
from manager.model.knobs import INSIDE, OUTSIDE, PARTLY, Knob
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import BatchGroupUse, PlacementRules
from tests.unit.build import capabilities, view

SCALES = {CPU_SHARES_V1: 1, CPU_WEIGHT_V2: 2}


def batch(name: str, place: int | None = OUTSIDE, own_weight: int | None = None, mode: Mode = Mode.ENFORCE) -> VmView:
    made = view(name, VmClass.BATCH, weight=2, own_weight=own_weight, mode=mode)
    return replace(made, batch_group=place, idle=False)


def moment(
    *vms: VmView,
    use: BatchGroupUse = BatchGroupUse.ON,
    needed: bool | None = None,
    group: BatchGroup | None = None,
    scale: WeightScale = CPU_SHARES_V1,
) -> Snapshot:
    host = HostSpec("h1", placement=PlacementRules(batch_group=use))
    can = replace(capabilities(scale, SCALES[scale]), needs_batch_group=needed, idle_class=True)
    group = group or BatchGroup(any(vm.batch_group for vm in vms))
    return Snapshot(1000.0, 5.0, host, can, vms, batch_group=group)


def decision(**weights: int) -> Decision:
    return Decision(tuple(WeightGoal(vm, weight, "priority") for vm, weight in sorted(weights.items())))


def weights(found: Decision) -> dict[str, int]:
    return {goal.vm: goal.weight for goal in found.weights}


@pytest.mark.parametrize(
    ("use", "needed", "grouped"),
    [
        (BatchGroupUse.ON, None, True),
        (BatchGroupUse.AUTO, True, True),
        (BatchGroupUse.AUTO, None, False),
        (BatchGroupUse.AUTO, False, False),
        (BatchGroupUse.OFF, True, False),
    ],
)
def test_it_is_used_where_it_is_asked_for_or_the_kernel_needs_it(
    use: BatchGroupUse, needed: bool | None, grouped: bool
) -> None:
    found = plan_batch_group(Decision(), moment(batch("c"), batch("d"), view("web"), use=use, needed=needed))
    assert found.vms == (("c", "d") if grouped else ())


@pytest.mark.parametrize(
    ("vms", "grouped"),
    [
        ((batch("c"), view("web")), ()),
        ((batch("c"), batch("d")), ()),
        ((batch("c", INSIDE), view("web")), ("c",)),
        ((batch("c", PARTLY), batch("d")), ("c", "d")),
        ((batch("c"), batch("d"), batch("e", own_weight=500), view("web")), ("c", "d")),
        ((batch("c"), batch("d"), batch("e", None), view("web")), ("c", "d")),
        ((batch("c"), batch("d"), batch("e", mode=Mode.RELEASED), view("web")), ("c", "d")),
    ],
)
def test_two_batch_vms_beside_a_critical_one_begin_it_and_nobody_leaves_for_being_alone(
    vms: tuple[VmView, ...], grouped: tuple[str, ...]
) -> None:
    assert plan_batch_group(Decision(), moment(*vms)).vms == grouped


@pytest.mark.parametrize("scale", SCALES)
def test_the_group_has_the_weight_of_its_vms_and_they_divide_it_as_before(scale: WeightScale) -> None:
    seen = moment(batch("c", INSIDE), batch("d", INSIDE), view("web"), scale=scale)
    found = plan_batch_group(decision(c=scale.batch, d=3 * scale.batch, web=scale.critical), seen)
    assert weights(found.decision) == {"c": scale.default, "d": 3 * scale.default, "web": scale.critical}
    assert {goal.key.knob: goal.value for goal in found.goals} == {
        Knob.BATCH_IDLE: 0,
        Knob.BATCH_WEIGHT: 4 * scale.batch,
    }


def test_a_vm_that_is_still_outside_keeps_its_weight_there() -> None:
    seen = moment(batch("c", INSIDE), batch("d"), view("web"))
    found = plan_batch_group(decision(c=2, d=2, web=10_000), seen)
    assert weights(found.decision) == {"c": 1024, "d": 2, "web": 10_000}
    assert [goal.value for goal in found.goals if goal.key.knob is Knob.BATCH_WEIGHT] == [2]


def test_the_group_is_in_the_idle_class_where_all_its_vms_are_to_be() -> None:
    seen = moment(batch("c", INSIDE), batch("d", INSIDE), view("web"))
    both = replace(decision(c=2, d=2), idle=(IdleGoal("c", True, "idle"), IdleGoal("d", True, "idle")))
    found = plan_batch_group(both, seen)
    assert [goal.value for goal in found.goals if goal.key.knob is Knob.BATCH_IDLE] == [1]
    assert not any(goal.idle for goal in found.decision.idle)
    one = plan_batch_group(replace(both, idle=both.idle[:1]), seen)
    assert [goal.value for goal in one.goals if goal.key.knob is Knob.BATCH_IDLE] == [0]
    assert one.decision.idle == both.idle[:1]


@pytest.mark.parametrize(
    ("given", "last"),
    [
        ({"c": 2, "d": 2, "web": 10_000}, True),
        ({"c": 2, "d": 3, "web": 10_000}, False),
        ({"c": 2, "web": 10_000}, False),
        ({"c": 1024, "d": 1024, "web": 1024}, False),
        ({}, False),
    ],
)
def test_batch_vms_come_last_where_each_gets_the_smallest_weight_there_is(given: dict[str, int], last: bool) -> None:
    seen = moment(batch("c"), batch("d"), batch("e", own_weight=500), view("web"))
    assert comes_last(decision(**given), seen) is last
    assert not comes_last(decision(web=10_000), moment(batch("e", own_weight=2), view("web")))


def test_a_group_that_comes_last_is_in_the_idle_class_however_its_vms_divide_it() -> None:
    seen = moment(batch("c", INSIDE), batch("d", INSIDE), view("web"))
    found = plan_batch_group(decision(c=2, d=18), seen, last=True)
    assert [goal.value for goal in found.goals if goal.key.knob is Knob.BATCH_IDLE] == [1]
    assert weights(found.decision) == {"c": 1024, "d": 9 * 1024}
    assert not found.decision.idle


@pytest.mark.parametrize(
    ("vms", "idle"),
    [
        ((batch("c"), view("web")), ["c"]),
        ((batch("c", None), view("web")), ["c"]),
        ((batch("c"),), []),
        ((batch("c", mode=Mode.RELEASED), view("web")), []),
        ((replace(batch("c"), idle=None), view("web")), []),
        ((batch("c"), batch("d"), view("web")), []),
        ((batch("c", own_weight=300), batch("d", mode=Mode.RELEASED), view("web")), []),
    ],
)
def test_the_only_batch_vm_that_comes_last_is_in_the_idle_class_by_itself(
    vms: tuple[VmView, ...], idle: list[str]
) -> None:
    asked = decision(c=2, d=2)
    found = plan_batch_group(asked, moment(*vms), last=True)
    assert [goal.vm for goal in found.decision.idle if goal.idle] == idle
    assert not plan_batch_group(asked, moment(*vms)).decision.idle
    assert not plan_batch_group(asked, moment(*vms, use=BatchGroupUse.OFF), last=True).decision.idle


@pytest.mark.parametrize(
    ("vms", "group"),
    [
        ((batch("c", INSIDE), batch("d", INSIDE)), BatchGroup(True, 1)),
        ((batch("c", INSIDE), replace(view("web"), batch_group=INSIDE)), BatchGroup(True)),
        ((batch("c", INSIDE), batch("d", INSIDE, own_weight=9)), BatchGroup(True)),
    ],
)
def test_a_group_with_others_in_it_is_left_alone_and_that_is_told(vms: tuple[VmView, ...], group: BatchGroup) -> None:
    found = plan_batch_group(decision(c=2), moment(*vms, group=group))
    assert found.goals == ()
    assert weights(found.decision) == {"c": 2}
    assert "left alone" in found.problem


def test_batch_vms_that_cannot_be_moved_are_told_and_what_to_do() -> None:
    names = ("c", "d", "e", "f", "g")
    found = plan_batch_group(Decision(), moment(*(batch(name, None) for name in names), view("web")))
    assert found.vms == ()
    assert found.note.startswith("batch VMs outside the batch group: c, d, e and 2 more; `equipoise partition`")
    assert plan_batch_group(Decision(), moment(batch("c", None), view("web"))).note == ""
    assert plan_batch_group(Decision(), moment(batch("c", INSIDE), batch("d", INSIDE), view("web"))).note == ""


def test_observed_vms_make_an_observed_group() -> None:
    seen = moment(batch("c", INSIDE), batch("d", INSIDE, mode=Mode.OBSERVE), view("web"))
    assert {goal.mode for goal in plan_batch_group(decision(c=2, d=2), seen).goals} == {Mode.OBSERVE}


@given(
    st.lists(st.integers(2, 5000), min_size=2, max_size=6),
    st.integers(1024, 262_144),
)
def test_no_share_changes(wanted: list[int], critical: int) -> None:
    """Of a pCPU that all want: a VM's share is that of its weight among all, with and without the group."""
    names = [f"b{number}" for number in range(len(wanted))]
    asked = decision(web=critical, **dict(zip(names, wanted, strict=True)))
    found = plan_batch_group(asked, moment(*(batch(name, INSIDE) for name in names), view("web")))
    inside = weights(found.decision)
    [group] = [goal.value for goal in found.goals if goal.key.knob is Knob.BATCH_WEIGHT]
    assert isinstance(group, int)
    assert group == sum(wanted)
    clamped = max(inside[name] for name in names) == CPU_SHARES_V1.maximum
    for name, weight in zip(names, wanted, strict=True):
        within = inside[name] / sum(inside[other] for other in names)
        assert clamped or within == pytest.approx(weight / sum(wanted), rel=0.01)
