"""Ceilings of VMs on disks: what the kernel says of them, and what it takes."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from manager.control.diff import HostValues, diff
from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, read_mounts
from manager.host.disk_ceilings import LOOK_EVERY_S, DiskCeilings, number_of_disk, numbers_of_disks
from manager.host.knob_files import VmTarget
from manager.host.registry import HostPaths
from manager.model.decision import Action, Owned, Plan
from manager.model.knob_text import knob_name
from manager.model.knobs import UNEVEN, UNLIMITED, Knob, KnobKey
from tests.host.conftest import REAL, descriptors

SDB, VDA = os.makedev(8, 16), os.makedev(254, 0)


def key(number: int) -> KnobKey:
    return KnobKey("u-web", Knob.DISK_CEILING, number)


def target(folder: Path | None) -> VmTarget:
    return VmTarget("u-web", None, (), None, folder)


@pytest.fixture
def host(tmp_path: Path) -> HostPaths:
    for disk, number in (("sdb", "8:16"), ("vda", "254:0")):
        (tmp_path / "sys/block" / disk).mkdir(parents=True)
        (tmp_path / "sys/block" / disk / "dev").write_text(f"{number}\n")
    (tmp_path / "sys/block/odd").mkdir()
    return HostPaths(tmp_path)


@pytest.fixture
def ceilings(host: HostPaths, tmp_path: Path) -> DiskCeilings:
    return DiskCeilings(host, CgroupMounts({"": (tmp_path, "/")}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {SDB: UNLIMITED, VDA: UNLIMITED}),
        ("8:16 rbps=max wbps=max riops=120 wiops=120\n", {SDB: 120, VDA: UNLIMITED}),
        ("8:16 rbps=1000 wbps=max riops=max wiops=max\n", {SDB: UNLIMITED, VDA: UNLIMITED}),
        ("8:16 rbps=max wbps=max riops=120 wiops=max\n", {SDB: UNEVEN, VDA: UNLIMITED}),
        ("8:16 rbps=max wbps=max riops=1 wiops=2\n254:0 rbps=9 wbps=9 riops=7 wiops=7\n", {SDB: UNEVEN, VDA: 7}),
        ("9:9 rbps=max wbps=max riops=5 wiops=5\n", {SDB: UNLIMITED, VDA: UNLIMITED, os.makedev(9, 9): 5}),
    ],
)
def test_what_v2_says(ceilings: DiskCeilings, tmp_path: Path, text: str, found: dict[int, int]) -> None:
    (tmp_path / "io.max").write_text(text)
    assert ceilings.read(target(tmp_path)) == {key(number): value for number, value in found.items()}


@pytest.mark.parametrize(
    ("reads", "writes", "found"),
    [
        ("", "", {SDB: UNLIMITED, VDA: UNLIMITED}),
        ("8:16 120\n", "8:16 120\n254:0 5\n", {SDB: 120, VDA: UNEVEN}),
        ("254:0 5\n8:16 1\n", "254:0 5\n8:16 1\n", {SDB: 1, VDA: 5}),
    ],
)
def test_what_v1_says(host: HostPaths, tmp_path: Path, reads: str, writes: str, found: dict[int, int]) -> None:
    ceilings = DiskCeilings(host, CgroupMounts({"blkio": (tmp_path, "/")}))
    (tmp_path / "blkio.throttle.read_iops_device").write_text(reads)
    assert ceilings.read(target(tmp_path)) == {}, "one file alone"
    (tmp_path / "blkio.throttle.write_iops_device").write_text(writes)
    assert ceilings.read(target(tmp_path)) == {key(number): value for number, value in found.items()}


@pytest.mark.parametrize(
    ("settled", "actions"),
    [
        (False, [(Action.RESTORE, UNLIMITED)]),  # the agent died between the two files
        (True, [(Action.LEAVE, UNEVEN), (Action.FORGET, UNEVEN)]),  # another tool set one of them: that is told
    ],
)
def test_a_ceiling_of_which_a_half_is_left_is_not_forgotten_in_silence(
    host: HostPaths, tmp_path: Path, settled: bool, actions: list[tuple[Action, int]]
) -> None:
    ceilings = DiskCeilings(host, CgroupMounts({"blkio": (tmp_path, "/")}))
    (tmp_path / "blkio.throttle.read_iops_device").write_text("8:16 120\n")
    (tmp_path / "blkio.throttle.write_iops_device").write_text("")
    read = {KnobKey("u-web", Knob.EMULATOR_PIN): frozenset({0}), **ceilings.read(target(tmp_path))}
    journal = {key(SDB): Owned(UNLIMITED, UNLIMITED, 120, settled=settled)}
    changes = diff(Plan(undo_reason="agent stopped"), HostValues(read, frozenset({0})), journal)
    assert [(change.action, change.after) for change in changes] == actions


@pytest.mark.parametrize("text", ["8:16\n", "sdb riops=1\n", "8:16 riops=x wiops=x\n", "8:16 riops=-1 wiops=-1\n"])
def test_what_no_kernel_says_is_an_error(ceilings: DiskCeilings, tmp_path: Path, text: str) -> None:
    (tmp_path / "io.max").write_text(text)
    with pytest.raises(HostError) as raised:
        ceilings.read(target(tmp_path))
    assert raised.value.errno == errno.EIO


def test_a_vm_without_ceilings_has_none_and_files_are_closed(ceilings: DiskCeilings, tmp_path: Path) -> None:
    gc.collect()  # what tests before left open
    before = descriptors()
    for vm in (None, target(None), target(tmp_path)):
        assert ceilings.read(vm) == {}
        assert not ceilings.keys(vm)
        with pytest.raises(VmVanished):
            ceilings.write(key(SDB), 100, vm)
        ceilings.forget("u-web")
    (tmp_path / "io.max").write_text("")
    with pytest.raises(HostError):
        ceilings.write(key(SDB), -2, target(tmp_path))
    ceilings.forget("u-web")
    assert descriptors() == before


def test_what_is_written_to_v2(ceilings: DiskCeilings, tmp_path: Path) -> None:
    (tmp_path / "io.max").write_text("")
    ceilings.put(key(SDB), 120, target(tmp_path))
    assert (tmp_path / "io.max").read_text() == "8:16 riops=120 wiops=120"
    ceilings.put(key(VDA), UNLIMITED, target(tmp_path))
    assert (tmp_path / "io.max").read_text().startswith("254:0 riops=max wiops=max")


def test_disks_that_are_plugged_are_seen_after_a_while(host: HostPaths, tmp_path: Path) -> None:
    now_s = [100.0]
    ceilings = DiskCeilings(host, CgroupMounts({"": (tmp_path, "/")}), lambda: now_s[0])
    (tmp_path / "io.max").write_text("")
    assert len(ceilings.read(target(tmp_path))) == 2
    (tmp_path / "sys/block/sdc").mkdir()
    (tmp_path / "sys/block/sdc/dev").write_text("8:32\n")
    assert len(ceilings.read(target(tmp_path))) == 2
    now_s[0] += LOOK_EVERY_S
    assert len(ceilings.read(target(tmp_path))) == 3
    assert numbers_of_disks(HostPaths(tmp_path / "nowhere")) == frozenset()


def test_a_disk_is_named_by_its_numbers() -> None:
    for number in ("254:0", "8:16", "259:300", "4096:70000"):
        assert knob_name(Knob.DISK_CEILING, number_of_disk(f"{number}\n")) == f"disk {number} ceiling"


def test_ceilings_on_the_kernel_of_this_machine(disk_group_of_v1: Path) -> None:
    ceilings, vm = DiskCeilings(REAL, read_mounts(REAL)), target(disk_group_of_v1)
    found = ceilings.read(vm)
    if not found:
        pytest.skip("NOT TESTED: this kernel limits no disks, or there is none")
    assert set(found.values()) == {UNLIMITED}
    tried = next(iter(found))
    for wanted in (1, 120, 4_000_000_000, UNLIMITED):
        assert ceilings.write(tried, wanted, vm) == wanted
    assert ceilings.read(vm) == found
    with pytest.raises(HostError):
        ceilings.write(key(os.makedev(250, 77)), 100, vm)
