"""Consolidation factors: what VMs want of the CPU over what there is."""

from __future__ import annotations

import pytest

from manager.control.consolidation import Consolidation, consolidation, overfull
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Mode


def tick(*vms: tuple[str, float, float]) -> TickRecord:
    return TickRecord(
        0.0, "priority", Mode.ENFORCE, 0.5, tuple(VmTick(vm, used, waited, 1, Mode.ENFORCE) for vm, used, waited in vms)
    )


def test_means_of_what_vms_ran_and_waited_for() -> None:
    ticks = [tick(("web", 0.25, 0.5), ("hog", 0.5, 9.0)), tick(("web", 0.25, 0.0), ("gone", 1.0, 0.0))]
    found = consolidation(ticks, {"web": 2, "hog": 3}, frozenset({"web"}), 4)
    assert (found.critical_pcpus, found.batch_pcpus) == (1.25, 1.5), "no VM wants more than its vCPUs"
    assert (found.critical, found.total) == (0.3125, 0.6875)


def test_nothing_was_recorded() -> None:
    assert consolidation([], {}, frozenset(), 4) == Consolidation(4)


@pytest.mark.parametrize(("critical", "demand", "full"), [(True, 3.0, False), (True, 3.1, True), (False, 9.0, False)])
def test_critical_vms_must_all_have_what_they_want(critical: bool, demand: float, full: bool) -> None:
    after = Consolidation(4, 1.0, 2.0).with_vm(critical, demand)
    assert bool(overfull(after)) is full
    assert after.total == pytest.approx((3.0 + demand) / 4)
