"""Loading, removing, and being ejected."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.sched_ext import LINK, SchedExt, Warp
from tests.kernel.inside.warp import lab

PINS = Path("/sys/fs/bpf")


def until_inactive(scheduler: SchedExt) -> None:
    for _ in range(200):
        if not scheduler.active:
            return
        time.sleep(0.01)
    pytest.fail("the scheduler is still active")


def test_it_stays_without_its_loader_and_goes_with_its_pin() -> None:
    scheduler = lab.scheduler()
    assert not scheduler.active
    scheduler.load()
    assert scheduler.active
    assert (PINS / LINK).exists()
    scheduler.load()
    scheduler.unload()
    until_inactive(scheduler)
    assert list(PINS.iterdir()) == []
    scheduler.unload()


def test_after_an_ejection_it_can_be_loaded_again() -> None:
    scheduler = lab.scheduler()
    scheduler.load()
    Path("/proc/sysrq-trigger").write_text("S")  # Documentation/admin-guide/sysrq.rst: back to the fair class
    until_inactive(scheduler)
    assert (PINS / LINK).exists()
    scheduler.load()
    assert scheduler.active


def test_warps_are_read_back(bvt: SchedExt) -> None:
    assert bvt.warp(12345) == Warp(0)
    bvt.set_warp(12345, Warp(12_000, 5_000))
    assert bvt.warp(12345) == Warp(12_000, 5_000)
    bvt.set_warp(12345, Warp(0))
    assert bvt.warp(12345) == Warp(0)


def test_a_group_that_goes_takes_its_warp_along(bvt: SchedExt) -> None:
    number = lab.group("gone").stat().st_ino
    bvt.set_warp(number, Warp(1000))
    lab.remove_groups()
    for _ in range(200):  # the kernel tells it some time after
        if bvt.warp(number) == Warp(0):
            return
        time.sleep(0.01)
    pytest.fail("the warp is still there")


def test_a_loader_that_is_not_there() -> None:
    scheduler = SchedExt(lab.scheduler()._paths, "/no/bpftool")
    lab.scheduler().unload()
    until_inactive(scheduler)
    with pytest.raises(HostError, match="/no/bpftool"):
        scheduler.load()
