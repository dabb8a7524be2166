"""Which VMs get which weights on disks, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from manager.control.disk_plan import DiskPlan, DiskState, plan_disks
from manager.control.resource_decision import ResourceDecision
from manager.model.decision import Snapshot, VmView
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.resource_use import DeviceUse, DiskUse, ResourceUse, VmResources, Weighing
from manager.model.rules import DiskRules
from tests.unit.build import capabilities, view

WEB, HOG, OTHER = view("web"), view("hog", VmClass.BATCH), view("other", VmClass.BATCH)
BFQ, COST = Weighing.BFQ, Weighing.COST


def disk(name: str, weighing: Weighing | None) -> DeviceUse:
    return DeviceUse(name, 1e6, 100.0, 0.5, 1.0, weighing)


def uses(vm: str, *disks: str) -> VmResources:
    return VmResources(vm, disks=tuple(DiskUse(name, 0.0, 0.0) for name in disks))


def bfq(vm: str) -> KnobKey:
    return KnobKey(vm, Knob.BFQ_WEIGHT)


def cost(vm: str) -> KnobKey:
    return KnobKey(vm, Knob.IO_WEIGHT)


class Host:
    def __init__(self, *views: VmView, rules: DiskRules | None = None) -> None:
        self.views, self.rules = views, rules or DiskRules(weights=True)
        self.keys = {vm.name: (bfq(vm.name), cost(vm.name)) for vm in views}
        self.state = DiskState()
        self.decided = ResourceDecision()

    def round(self, use: ResourceUse, before: Mapping[KnobKey, int] | None = None) -> DiskPlan:
        host = HostSpec("h1", disk=self.rules)
        seen = Snapshot(1000.0, 5.0, host, capabilities(CPU_WEIGHT_V2, 2), self.views, resources=use)
        uuids = {vm.name: vm.name for vm in self.views}
        found = plan_disks(seen, uuids, self.keys, self.state, before or {}, self.decided)
        self.state = found.state
        return found


def wanted(plan: DiskPlan) -> dict[KnobKey, object]:
    return {goal.key: goal.value for goal in plan.goals}


ON_VDA = (uses("web", "vda"), uses("hog", "vda"))


@pytest.mark.parametrize(
    ("vms", "disks", "found"),
    [
        (ON_VDA, [disk("vda", BFQ)], {bfq("web"): 1000, bfq("hog"): 20}),
        (ON_VDA, [disk("vda", COST)], {cost("web"): 1000, cost("hog"): 20}),
        (ON_VDA, [disk("vda", None)], {}),
        ((uses("hog", "vda"), uses("other", "vda")), [disk("vda", BFQ)], {}),  # no critical VM
        ((uses("web", "vdb"), uses("hog", "vda")), [disk("vda", BFQ), disk("vdb", None)], {}),
        (
            (uses("web", "vda", "vdb"), uses("hog", "vda"), uses("other", "vdb")),
            [disk("vda", BFQ), disk("vdb", COST)],
            {bfq("web"): 1000, cost("web"): 1000, bfq("hog"): 20, cost("other"): 20},
        ),
        ((uses("web", ""), uses("hog", "")), [disk("vda", BFQ)], {}),  # the kernel does not tell disks apart
    ],
)
def test_vms_that_use_a_disk_where_weights_act(
    vms: tuple[VmResources, ...], disks: list[DeviceUse], found: Mapping[KnobKey, int]
) -> None:
    assert wanted(Host(WEB, HOG, OTHER).round(ResourceUse(vms, tuple(disks)))) == found


def test_nothing_is_wanted_by_default() -> None:
    assert not Host(WEB, HOG, rules=DiskRules()).round(ResourceUse(ON_VDA, (disk("vda", BFQ),))).goals


def test_a_policy_switches_them_on_and_off() -> None:
    host, use = Host(WEB, HOG, rules=DiskRules(steps=True)), ResourceUse(ON_VDA, (disk("vda", BFQ),))
    assert not host.round(use).goals
    host.decided = ResourceDecision(disk_weights="told")
    plan = host.round(use)
    assert wanted(plan) == {bfq("web"): 1000, bfq("hog"): 20}
    assert plan.goals[0].reason.startswith("told; critical: it uses a disk")
    host.decided = ResourceDecision()
    assert not host.round(use).goals


def test_weights_stay_while_a_vm_rests_and_go_with_what_makes_them_act() -> None:
    host = Host(WEB, HOG, rules=DiskRules(weights=True, batch_weight=7))
    weighted = {bfq("web"): 1000, bfq("hog"): 7}
    assert wanted(host.round(ResourceUse(ON_VDA, (disk("vda", BFQ),)))) == weighted
    assert wanted(host.round(ResourceUse((), (disk("vda", BFQ),)))) == weighted
    assert wanted(host.round(ResourceUse())) == weighted, "disks could not be read"
    assert wanted(host.round(ResourceUse(ON_VDA, (disk("vda", None),)))) == {}


def test_what_a_former_agent_set_stays_until_it_is_measured() -> None:
    host, before = Host(WEB, HOG), {bfq("web"): 1000, bfq("hog"): 20}
    assert wanted(host.round(ResourceUse(), before)) == before
    assert wanted(host.round(ResourceUse(ON_VDA, (disk("vda", COST),)))) == {cost("web"): 1000, cost("hog"): 20}


@pytest.mark.parametrize("mode", Mode)
def test_modes(mode: Mode) -> None:
    host = Host(replace(WEB, mode=mode), replace(HOG, mode=mode))
    found = host.round(ResourceUse(ON_VDA, (disk("vda", BFQ),)))
    assert {goal.mode for goal in found.goals} == (set() if mode is Mode.RELEASED else {mode})
