"""Batch VMs come into the batch group, and everything is as it was when they are let go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.model.knobs import BATCH_GROUPS, INSIDE, OUTSIDE, PARTLY, Knob
from manager.model.records import OutcomeKind
from manager.model.registration import Mode, VmClass
from manager.model.rules import BatchGroupUse, PlacementRules
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

ON = PlacementRules(batch_group=BatchGroupUse.ON)


@pytest.fixture
def host(rig: Rig) -> Rig:
    """A critical VM beside two batch VMs."""
    for name, vm_class in (("web", "critical"), ("red", "batch"), ("blue", "batch")):
        rig.host.boot(name, 2)
        rig.register(name, vm_class)
    rig.control(placement=ON, pinning=False)
    return rig


def places(rig: Rig) -> list[object]:
    return [rig.value(name, Knob.BATCH_GROUP) for name in ("web", "red", "blue")]


def weights(rig: Rig) -> list[object]:
    return [rig.value(name) for name in ("web", "red", "blue")]


def test_vms_move_in_the_group_gets_their_weights_and_all_goes_back(host: Rig) -> None:
    before = host.host.settings()
    host.tick()
    assert places(host) == [OUTSIDE, INSIDE, INSIDE]
    assert host.host.batch == {Knob.BATCH_IDLE: 0, Knob.BATCH_WEIGHT: 2}
    host.tick()
    assert weights(host) == [10_000, 1024, 1024]
    assert host.host.batch[Knob.BATCH_IDLE] == 1
    assert not host.tick().outcomes, "and then it stays"
    undone = host.loop.release("test")
    assert {outcome.kind for outcome in undone.outcomes} == {OutcomeKind.RESTORED}
    assert host.host.settings() == before
    assert not host.journal.entries


def test_nothing_is_moved_on_a_host_that_is_observed(host: Rig) -> None:
    before = host.host.settings()
    host.control(mode=Mode.OBSERVE)
    result = host.tick()
    assert host.host.settings() == before
    assert (domain_uuid("red"), Knob.BATCH_GROUP) in {(one.key.uuid, one.key.knob) for one in result.outcomes}


@pytest.mark.parametrize("way", ["setting", "class", "registration", "crash"])
def test_a_vm_leaves_when_it_is_not_to_be_there_any_more(host: Rig, way: str) -> None:
    for _ in range(3):
        host.tick()
    if way == "setting":
        host.control(placement=replace(ON, batch_group=BatchGroupUse.OFF))
    elif way == "class":
        host.assignment = replace(
            host.assignment, vms=tuple(replace(vm, vm_class=VmClass.CRITICAL) for vm in host.assignment.vms)
        )
    elif way == "registration":
        host.assignment = replace(host.assignment, vms=())
    else:
        host.crash()
        host.control(mode=Mode.RELEASED)
    for _ in range(2):
        host.tick()
    assert places(host) == [OUTSIDE] * 3
    assert host.host.batch == {}
    assert not [key for key in host.journal.entries if key.knob in BATCH_GROUPS]


def test_threads_that_came_later_are_brought_in_and_it_is_no_external_change(host: Rig) -> None:
    for _ in range(3):
        host.tick()
    host.host.vms[domain_uuid("red")].place = PARTLY
    result = host.tick()
    assert places(host) == [OUTSIDE, INSIDE, INSIDE]
    assert not [event for event in result.events if event.kind == "external-change"]


def test_a_vm_that_somebody_takes_out_is_left_there_and_that_is_told(host: Rig) -> None:
    for _ in range(3):
        host.tick()
    host.host.vms[domain_uuid("red")].place = OUTSIDE
    result = host.tick()
    assert [event.kind for event in result.events] == ["external-change"]
    host.tick()
    assert places(host) == [OUTSIDE, OUTSIDE, INSIDE]


def test_a_group_that_ended_with_its_vms_is_forgotten_and_made_again(host: Rig) -> None:
    for _ in range(3):
        host.tick()
    for name in ("red", "blue"):
        host.host.stop(name)
    host.tick()
    assert not [key for key in host.journal.entries if key.knob in BATCH_GROUPS]
    for name in ("red", "blue"):
        host.host.boot(name, 2)
    for _ in range(3):
        host.tick()
    assert places(host) == [OUTSIDE, INSIDE, INSIDE]
    assert host.host.batch[Knob.BATCH_IDLE] == 1


def test_the_group_is_in_the_idle_class_for_its_vms(host: Rig) -> None:
    host.control(batch_idle=True)
    for _ in range(4):
        host.tick()
    assert host.host.batch[Knob.BATCH_IDLE] == 1
    assert [host.value(name, Knob.IDLE) for name in ("red", "blue")] == [0, 0]
    assert not host.tick().outcomes
    host.control(mode=Mode.RELEASED)
    for _ in range(2):
        host.tick()
    assert host.host.batch == {}
    assert not host.journal.entries


@pytest.mark.parametrize(("weight", "vms"), [(1024, 9), (200, 2)])
def test_a_starved_group_leaves_the_idle_class_whatever_the_critical_weights_are(
    rig: Rig, weight: int, vms: int
) -> None:
    names = [f"batch{number}" for number in range(vms)]
    rig.host.boot("web", 2)
    rig.register("web", weight=weight)
    for name in names:
        rig.host.boot(name, 2)
        rig.register(name, "batch")
    rig.control(placement=ON, pinning=False)
    for _ in range(90):
        for name in names:
            rig.host.vms[domain_uuid(name)].delay_ns += 1_000_000_000
        result = rig.tick()
    assert result.batch.raised
    assert rig.host.batch[Knob.BATCH_IDLE] == 0
