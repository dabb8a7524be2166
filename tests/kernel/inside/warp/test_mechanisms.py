"""Warps as the agent gives them, on a kernel with sched_ext: our scheduler from first to last, and slices."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.knob_files import VmTarget
from manager.host.registry import HostPaths
from manager.host.warp_mechanisms import WarpMechanisms
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.warp import EJECTED, LOADED, UNLOADED, Mechanism
from tests.kernel.inside.warp import lab

UUID = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"
WARP, SLICE = KnobKey(UUID, Knob.WARP), KnobKey(UUID, Knob.SLICE)
SCHEDULER = KnobKey(HOST_UUID, Knob.SCHEDULER)


@pytest.fixture
def mechanisms(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarpMechanisms]:
    monkeypatch.setenv("PATH", str(Path(lab.BPFTOOL).parent), prepend=":")
    paths = HostPaths(Path("/"))
    mounts = read_mounts(paths)
    made = WarpMechanisms(paths, mounts, cpu_controller(mounts))
    made.write(SCHEDULER, UNLOADED, None)
    yield made
    made.write(SCHEDULER, UNLOADED, None)


@pytest.fixture
def vm(groups: None) -> Iterator[VmTarget]:
    """A process in a group of its own, which stands for a vCPU."""
    folder = lab.group("vm")
    load = lab.Load("vm", "spin", 60_000)
    yield VmTarget(UUID, folder, ((0, load.process.pid),))
    load.process.kill()
    load.process.communicate()


def until(mechanisms: WarpMechanisms, state: int) -> None:
    for _ in range(200):
        if mechanisms.sched_ext.state == state:
            return
        time.sleep(0.01)
    pytest.fail(f"the scheduler is {mechanisms.sched_ext.state}, not {state}")


def test_what_this_kernel_offers(mechanisms: WarpMechanisms) -> None:
    offered = {offer.mechanism: offer.available for offer in mechanisms.offers}
    assert offered == {
        Mechanism.SCHED_EXT: True,
        Mechanism.BVT: False,
        Mechanism.GROUP_IDENTITY: False,
        Mechanism.SLICE: True,
    }


def test_our_scheduler_from_loading_to_its_end(mechanisms: WarpMechanisms, vm: VmTarget) -> None:
    assert mechanisms.read(vm) == {SLICE: 0}, "there is no warp without it"
    with pytest.raises(HostError):
        mechanisms.write(WARP, 12_000, vm)
    assert mechanisms.write(SCHEDULER, LOADED, None) == LOADED
    assert mechanisms.read(vm) == {WARP: 0, SLICE: 0}
    assert mechanisms.write(WARP, 12_000, vm) == 12_000
    assert mechanisms.read(vm)[WARP] == 12_000
    assert mechanisms.write(SCHEDULER, LOADED, None) == LOADED, "again, which keeps the warps"
    assert mechanisms.read(vm)[WARP] == 12_000
    assert mechanisms.sched_ext.counters().keys() >= {"preemptions", "borrowed_ns"}
    assert mechanisms.write(SCHEDULER, UNLOADED, None) == UNLOADED
    assert mechanisms.read(vm) == {SLICE: 0}


def test_thrown_out_it_is_known_by_its_pin_and_begins_anew_without_warps(
    mechanisms: WarpMechanisms, vm: VmTarget
) -> None:
    mechanisms.write(SCHEDULER, LOADED, None)
    mechanisms.write(WARP, 12_000, vm)
    Path("/proc/sysrq-trigger").write_text("S")  # Documentation/admin-guide/sysrq.rst: back to the fair class
    until(mechanisms, EJECTED)
    assert WARP not in mechanisms.read(vm)
    assert mechanisms.write(SCHEDULER, LOADED, None) == LOADED
    assert mechanisms.read(vm)[WARP] == 0


def test_removed_by_hand_it_is_not_there(mechanisms: WarpMechanisms) -> None:
    mechanisms.write(SCHEDULER, LOADED, None)
    lab.scheduler().unload()
    until(mechanisms, UNLOADED)


def test_a_slice_is_set_and_undone_also_while_our_scheduler_decides(mechanisms: WarpMechanisms, vm: VmTarget) -> None:
    assert mechanisms.write(SLICE, 100_000, vm) == 100_000
    mechanisms.write(SCHEDULER, LOADED, None)
    assert mechanisms.read(vm)[SLICE] == 100_000
    assert mechanisms.write(SLICE, 0, vm) == 0


def test_a_group_that_went_has_no_warp(mechanisms: WarpMechanisms, vm: VmTarget) -> None:
    mechanisms.write(SCHEDULER, LOADED, None)
    gone = VmTarget(UUID, lab.CGROUPS / "gone", ())
    assert mechanisms.read(gone) == {}
    with pytest.raises(VmVanished) as refused:
        mechanisms.write(WARP, 12_000, gone)
    assert refused.value.errno == errno.ENOENT
