"""The batch group as a slice of systemd, on files: who is in it, its settings, and that nothing is made or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.batch_group import FOLDER, SLICE, BatchGroups, file_outside, move, place
from manager.host.cgroup import CgroupMounts
from manager.host.registry import CGROUP_V1, CGROUP_V2, HostPaths
from manager.model.host import NO_BATCH_GROUP, BatchGroup
from manager.model.knobs import HOST_UUID, INSIDE, OUTSIDE, PARTLY, Knob, KnobKey

RED, BLUE = (rf"machine-qemu\x2d{number}\x2d{name}.scope" for number, name in enumerate(("red", "blue"), 1))
IDLE, WEIGHT = (KnobKey(HOST_UUID, knob) for knob in (Knob.BATCH_IDLE, Knob.BATCH_WEIGHT))


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The slice with two VMs, and a folder that is none."""
    folder = tmp_path / "machine.slice" / SLICE
    for name in (RED, BLUE, "other"):
        (folder / name).mkdir(parents=True)
    for name, text in (("cpu.weight", "100\n"), ("cpu.idle", "0\n"), ("cpu.max", "max 100000\n")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def groups(tmp_path: Path) -> BatchGroups:
    for pid, below in ((1, f"{SLICE}/{RED}"), (2, BLUE)):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cgroup").write_text(f"0::/machine.slice/{below}/libvirt/emulator\n")
    return BatchGroups(HostPaths(tmp_path), CgroupMounts({"": (tmp_path, "/")}), CGROUP_V2)


def test_other_vms_are_strangers_where_they_are_in_it(group: Path, groups: BatchGroups) -> None:
    assert groups.folder == group
    assert groups.seen([]) == groups.seen([2, 3]) == BatchGroup(True, 0, True)
    assert groups.seen([1, 2]) == BatchGroup(True, 1, True)
    groups.tidy()
    assert groups.folder == group, "systemd removes its slices"


def test_settings_are_read_and_written(group: Path, groups: BatchGroups) -> None:
    assert groups.read(None) == {IDLE: 0, WEIGHT: 100}
    groups.put(WEIGHT, 2, None)
    assert (group / "cpu.weight").read_text().startswith("2")
    (group / "cpu.idle").write_text("1\n")
    assert groups.read(None) == {IDLE: 1}


def test_without_a_group_there_is_nothing(groups: BatchGroups) -> None:
    assert (groups.folder, groups.read(None), groups.seen([])) == (None, {}, NO_BATCH_GROUP)
    with pytest.raises(VmVanished):
        groups.held(WEIGHT, None)
    nowhere = BatchGroups(HostPaths(Path("/")), CgroupMounts({}), None)
    assert (nowhere.folder, nowhere.seen([])) == (None, NO_BATCH_GROUP)
    nowhere.tidy()


def vm(folder: Path, *threads: int) -> Path:
    """A VM's group with one group inside."""
    for group in (folder, folder / "emulator"):
        group.mkdir(parents=True)
        (group / "tasks").write_text("")
    (folder / "emulator/tasks").write_text("".join(f"{thread}\n" for thread in threads))
    return folder


def test_where_a_vm_is_follows_from_its_group(tmp_path: Path) -> None:
    name = "qemu-7-red.libvirt-qemu"
    outside = vm(tmp_path / "machine" / name)
    assert place(outside, CGROUP_V1) == OUTSIDE
    inside = vm(tmp_path / "machine" / FOLDER / name, 11)
    assert place(inside, CGROUP_V1) == INSIDE
    assert place(outside, CGROUP_V1) == PARTLY, "it was to go out, and a thread is left"
    (outside / "emulator/tasks").write_text("12\n")
    assert place(inside, CGROUP_V1) == PARTLY
    assert place(tmp_path / "team.partition" / name, CGROUP_V1) is None
    assert [place(folder, CGROUP_V2) for folder in (tmp_path / SLICE / RED, tmp_path / RED)] == [INSIDE, None]
    assert place(None, None) is None
    assert file_outside(inside / "cpuacct.usage") == outside / "cpuacct.usage"
    assert file_outside(outside / "cpuacct.usage") is None


def test_threads_that_cannot_be_moved_are_not_tried_for_ever(tmp_path: Path) -> None:
    """A file keeps its threads, as a group would whose threads start faster than they are moved."""
    folder = vm(tmp_path / "machine/qemu-7-red.libvirt-qemu", 4_194_304)
    (tmp_path / "machine" / FOLDER).mkdir()
    (tmp_path / "machine" / FOLDER / "cpu.shares").write_text("2\n")
    copy = tmp_path / "machine" / FOLDER / folder.name
    vm(copy)
    with pytest.raises(HostError, match="faster than they can be moved"):
        move(folder, inside=True)
