"""Loading, removing, and being ejected."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from manager import bpf
from manager.errors import HostError
from manager.host.sched_ext import LINK, SchedExt, Warp
from manager.model.warp import LOADED, OUTDATED
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

PINS = Path("/sys/fs/bpf")
DEBUG = Path("/sys/kernel/debug")
HOUR_MS = 3_600_000


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


@pytest.fixture
def loads(groups: None) -> Iterator[list[Load]]:
    """Tasks that spin, sleep and fork, in groups with weights, one with a warp."""
    lab.group("a", 300)
    lab.group("a/b", 50)
    lab.group("a/c")
    begun = [Load("a/c", "spin", HOUR_MS), Load("a/b", "wave", 2, 3, HOUR_MS, nice=5), Load("", "forks", 2000, HOUR_MS)]
    for each in begun:
        each.go()
    yield begun
    for each in begun:
        each.end()


def assert_all_run(loads: Sequence[Load]) -> None:
    before = [each.used_ns() for each in loads]
    time.sleep(0.15)
    assert [each.load_name for each, used_ns in zip(loads, before, strict=True) if each.used_ns() == used_ns] == []


def test_removing_it_under_load_gives_all_tasks_back(loads: list[Load]) -> None:
    scheduler = lab.scheduler()
    scheduler.load()
    lab.set_warp("a", 20_000)
    assert_all_run(loads)
    scheduler.unload()
    until_inactive(scheduler)
    assert_all_run(loads)


def test_after_an_ejection_by_hand_all_run_and_it_can_be_loaded_again(loads: list[Load]) -> None:
    scheduler = lab.scheduler()
    scheduler.load()
    Path("/proc/sysrq-trigger").write_text("S")  # Documentation/admin-guide/sysrq.rst: back to the fair class
    until_inactive(scheduler)
    assert (PINS / LINK).exists()
    assert_all_run(loads)
    scheduler.load()
    assert scheduler.active
    assert_all_run(loads)


def test_the_watchdog_ejects_it_when_tasks_do_not_run(loads: list[Load]) -> None:
    """Here because a real-time task leaves them no time at all, as a scheduler that lost one would."""
    scheduler = lab.scheduler()
    scheduler.load()
    Path("/proc/sys/kernel/sched_rt_runtime_us").write_text("-1")
    servers = [*DEBUG.glob("sched/*_server/cpu0/runtime")]  # which give other tasks a twentieth
    before = [each.read_text() for each in servers]
    for each in servers:
        each.write_text("0")
    hog = Load("", "spin", HOUR_MS, fifo=40)
    try:
        hog.go()
        for _ in range(60):
            if not scheduler.active:
                break
            time.sleep(0.1)
    finally:
        hog.end()
        for file, value in zip(servers, before, strict=True):
            file.write_text(value)
        Path("/proc/sys/kernel/sched_rt_runtime_us").write_text("950000")
    until_inactive(scheduler)
    assert_all_run(loads)
    scheduler.load()
    assert_all_run(loads)


@pytest.mark.parametrize("decides", [False, True])
def test_a_loader_that_is_killed(loads: list[Load], decides: bool) -> None:
    """While the kernel looks at what it brought, or the moment that it decides: all tasks run, and it can be loaded."""
    scheduler = lab.scheduler()
    scheduler.unload()
    until_inactive(scheduler)
    loader = subprocess.Popen([lab.BPFTOOL, "struct_ops", "register", str(bpf.OBJECT), str(PINS)])
    time.sleep(0.1)
    while decides and not scheduler.active and loader.poll() is None:
        time.sleep(0.001)
    loader.kill()
    loader.wait()
    assert_all_run(loads)
    scheduler.load()
    assert scheduler.state == LOADED
    assert_all_run(loads)


def test_another_build_takes_the_place_of_the_one_that_is_loaded(
    loads: list[Load], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scheduler = lab.scheduler()
    scheduler.unload()
    until_inactive(scheduler)
    shipped = bpf.build_name()
    older = tmp_path / bpf.OBJECT.name
    older.write_bytes(bpf.OBJECT.read_bytes().replace(shipped.encode(), f"{bpf.NAME}_00000000".encode()))
    with monkeypatch.context() as patched:
        patched.setattr(bpf, "OBJECT", older)
        bpf.build_name.cache_clear()
        scheduler.load()
    bpf.build_name.cache_clear()
    assert scheduler.active
    assert scheduler.state == OUTDATED
    scheduler.load()
    assert scheduler.state == LOADED
    assert_all_run(loads)


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
