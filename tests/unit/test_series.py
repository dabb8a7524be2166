"""Ticks as lines of a chart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.budget import Steps
from manager.control.series import host_lines
from manager.model.records import TickRecord, VmTick
from manager.model.registration import VmClass

CLASSES = {"web": VmClass.CRITICAL, "hog": VmClass.BATCH}
ONE = Steps(0, 10, 1, 5)


def tick(time_s: float, busy: float = 0.9, **shares: float) -> TickRecord:
    vms = tuple(VmTick(vm, share, share / 10, round(share * 1000), "enforce") for vm, share in shares.items())
    return TickRecord(time_s, "fair", "enforce", busy, vms)


def test_shares_are_means_and_weights_are_the_last() -> None:
    ticks = [tick(1, 0.5, web=0.1, hog=0.2), tick(9, 0.7, web=0.3, hog=0.4)]
    [step], (hog, web) = host_lines("kvm1", ticks, CLASSES, ONE)
    assert (step.ticks, step.host_cpu_share, step.critical_share, step.batch_share) == (2, 0.6, 0.2, 0.3)
    assert step.other_share == pytest.approx(0.1)
    assert (hog.vm, hog.host, hog.vm_class, hog.cpu_share, hog.run_delay_share, hog.weight, hog.mode) == (
        "hog",
        "kvm1",
        VmClass.BATCH,
        [0.3],
        [0.03],
        [400],
        ["enforce"],
    )
    assert web.weight == [300]


def test_a_step_without_ticks_is_unknown_and_not_zero() -> None:
    steps, [web] = host_lines("kvm1", [tick(25, web=0.3)], CLASSES, Steps(0, 10, 4, 5))
    assert [step.ticks for step in steps] == [0, 0, 1, 0]
    assert [step.host_cpu_share for step in steps] == [None, None, 0.9, None]
    assert web.cpu_share == [None, None, 0.3, None]
    assert [step.other_share for step in steps] == [None, None, pytest.approx(0.6), None]


def test_a_vm_that_came_later_has_the_mean_of_the_ticks_that_tell_of_it() -> None:
    [step], vms = host_lines("kvm1", [tick(1, web=0.2), tick(2, web=0.2, hog=0.4)], CLASSES, ONE)
    assert [vm.cpu_share for vm in vms] == [[0.4], [0.2]]
    assert step.batch_share == 0.2, "of the whole step"


def test_what_is_not_registered_and_ticks_of_other_times_are_left_out() -> None:
    ticks = [tick(-1, web=1.0), tick(5, 0.9, web=0.2, gone=0.5), tick(10, web=1.0)]
    [step], vms = host_lines("kvm1", ticks, CLASSES, ONE)
    assert [vm.vm for vm in vms] == ["web"]
    assert step.other_share == pytest.approx(0.7)


def test_power_is_the_mean_of_the_ticks_that_know_it() -> None:
    ticks = [replace(tick(1), power_watts=100.0), tick(2), replace(tick(3), power_watts=200.0)]
    steps, _ = host_lines("kvm1", [*ticks, tick(12)], CLASSES, Steps(0, 10, 2, 5))
    assert [step.power_watts for step in steps] == [150.0, None]


def test_vms_have_their_parts_of_the_power_without_the_idle_part() -> None:
    ticks = [replace(tick(1, 0.8, web=0.2, hog=0.6), power_watts=180.0), tick(12, 0.8, web=0.2)]
    _, (hog, web) = host_lines("kvm1", ticks, CLASSES, Steps(0, 10, 2, 5), idle_part=0.5)
    assert (hog.power_watts, web.power_watts) == ([60.0, None], [20.0, None]), "of 180 W, 100 W are idle"
    _, (hog, _) = host_lines("kvm1", ticks, CLASSES, Steps(0, 10, 2, 5), idle_part=0.0)
    assert hog.power_watts == [135.0, None]
