"""Real threads come into the batch group of a real cgroup v1, and go back to where libvirt had put them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.control.diff import HostValues, diff
from manager.errors import HostError
from manager.host import batch_group
from manager.host import handle as handle_module
from manager.host.batch_group import BatchGroups, move, place
from manager.host.cgroup import CgroupMounts, cpu_controller, find_vm_cgroup, read_mounts
from manager.host.handle import VmHandle
from manager.host.kernel_host import KernelHost
from manager.host.registry import CGROUP_V1, CGROUP_V2
from manager.model.decision import Action, Owned, Plan
from manager.model.host import NO_BATCH_GROUP, BatchGroup
from manager.model.knobs import HOST_UUID, INSIDE, OUTSIDE, PARTLY, Knob, KnobKey
from tests.host.conftest import REAL, QemuLike, remove_groups, until

VM = "qemu-7-red.libvirt-qemu"
NAMES = ("emulator", "vcpu0", "vcpu1")


@pytest.fixture
def machine() -> Iterator[Path]:
    """libvirt's default partition, in a folder of our own."""
    mounts = read_mounts(REAL)
    if os.geteuid() != 0 or cpu_controller(mounts) is not CGROUP_V1:
        pytest.skip("NOT TESTED: needs root and cgroup v1")
    top = mounts.by_controller["cpu"][0]
    mine = top / f"equipoise-batch-test-{os.getpid()}"
    for name in NAMES:
        (mine / "machine" / VM / name).mkdir(parents=True)
    yield mine / "machine"
    for path, _, _ in os.walk(mine):
        for tid in (Path(path) / "tasks").read_text().split():
            (top / "tasks").write_text(tid)
    remove_groups(mine)


@pytest.fixture
def libvirts(machine: Path, qemu: QemuLike) -> Path:
    """The groups of a running VM as libvirt makes them, with a quota of its second vCPU."""
    folder = machine / VM
    for task in Path(f"/proc/{qemu.pid}/task").iterdir():
        (folder / "emulator/tasks").write_text(task.name)
    for index in range(2):
        (folder / f"vcpu{index}/tasks").write_text(str(qemu.tids[f"CPU {index}/TCG"]))
    (folder / "cpu.shares").write_text("300")
    (folder / "vcpu1/cpu.cfs_quota_us").write_text("70000")
    return folder


def whereabouts(folder: Path) -> dict[str, list[int]]:
    """The threads in each group inside a VM's."""
    return {name: sorted(map(int, (folder / name / "tasks").read_text().split())) for name in NAMES}


def handle_of(qemu: QemuLike) -> VmHandle:
    mounts = read_mounts(REAL)
    return VmHandle(REAL, qemu.instance, find_vm_cgroup(REAL, mounts, CGROUP_V1, qemu.pid))


def test_all_threads_come_in_with_their_settings_and_go_back(libvirts: Path) -> None:
    before, inside = whereabouts(libvirts), libvirts.parent / batch_group.FOLDER / VM
    assert all(before.values())
    assert place(libvirts, CGROUP_V1) == OUTSIDE
    move(libvirts, inside=True)
    assert whereabouts(inside) == before
    assert not any(whereabouts(libvirts).values())
    assert place(inside, CGROUP_V1) == INSIDE
    assert (inside / "cpu.shares").read_text() == "300\n"
    assert (inside / "vcpu1/cpu.cfs_quota_us").read_text() == "70000\n"
    assert (inside.parent / "cpu.shares").read_text() == "2\n", "the group never has more than its VMs had"
    (inside / "cpu.shares").write_text("500")
    move(inside, inside=False)
    assert whereabouts(libvirts) == before
    assert (libvirts / "cpu.shares").read_text() == "500\n"
    assert not inside.parent.exists()


def test_a_vm_that_came_in_from_the_idle_class_goes_back_with_its_weight(libvirts: Path) -> None:
    (libvirts / "cpu.idle").write_text("1")
    move(libvirts, inside=True)
    inside = libvirts.parent / batch_group.FOLDER / VM
    assert (inside / "cpu.idle").read_text() == "1\n"
    (inside / "cpu.idle").write_text("0")
    (inside / "cpu.shares").write_text("500")
    move(inside, inside=False)
    assert [(libvirts / name).read_text() for name in ("cpu.idle", "cpu.shares")] == ["0\n", "500\n"]


def test_a_move_that_was_cut_off_is_seen_and_completed_either_way(libvirts: Path, qemu: QemuLike) -> None:
    before, inside = whereabouts(libvirts), libvirts.parent / batch_group.FOLDER / VM
    move(libvirts, inside=True)
    (inside / "cpu.shares").write_text("900")
    (libvirts / "vcpu1/tasks").write_text(str(qemu.tids["CPU 1/TCG"]))
    assert place(inside, CGROUP_V1) == PARTLY
    move(inside, inside=True)
    assert (place(inside, CGROUP_V1), whereabouts(inside)) == (INSIDE, before)
    assert (inside / "cpu.shares").read_text() == "900\n", "what was set since stays"
    (libvirts / "emulator/tasks").write_text(str(qemu.pid))
    move(libvirts, inside=False)  # whoever looks up the main thread finds libvirt's group
    assert whereabouts(libvirts) == before


def test_a_group_of_a_plugged_vcpu_is_made_too(libvirts: Path, qemu: QemuLike) -> None:
    inside = libvirts.parent / batch_group.FOLDER / VM
    move(libvirts, inside=True)
    (libvirts / "vcpu2").mkdir()
    (libvirts / "vcpu2/tasks").write_text(str(qemu.tids["worker"]))
    move(inside, inside=True)
    assert (inside / "vcpu2/tasks").read_text().split() == [str(qemu.tids["worker"])]


def test_a_plugged_vcpu_that_libvirt_groups_late_is_seen(
    libvirts: Path, qemu: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(libvirts, inside=True)
    handle = handle_of(qemu)
    plugged = qemu.tell("start CPU 2/TCG")
    readings = [handle.read(), handle.read()]
    assert [(len(state.vcpus), state.batch_group) for state in readings] == [(2, INSIDE), (3, INSIDE)]
    (libvirts / "vcpu2").mkdir()
    (libvirts / "vcpu2/tasks").write_text(str(plugged))
    assert handle.read().batch_group == PARTLY
    handle.write(KnobKey(qemu.uuid, Knob.BATCH_GROUP), INSIDE)
    handle.close()
    handle = handle_of(qemu)
    qemu.tell("end CPU 2/TCG")
    assert len([handle.read(), handle.read()][-1].vcpus) == 2
    now_s = handle_module.time.monotonic()
    monkeypatch.setattr(handle_module.time, "monotonic", lambda: now_s + handle_module.SETTLES_S)
    handle.read()  # the last look
    listed: list[int] = []
    monkeypatch.setattr(handle_module.process, "find_threads", lambda *_: listed.append(1))
    handle.read()
    assert not listed, "threads that have settled are not listed again"
    handle.close()


def test_vms_in_other_partitions_and_of_cgroup_v2_cannot_be_moved(tmp_path: Path) -> None:
    assert place(tmp_path / "team.partition" / VM, CGROUP_V1) is None
    assert place(tmp_path / "machine.slice" / VM, CGROUP_V2) is None
    assert place(tmp_path / "machine.slice/machine-batch.slice" / VM, CGROUP_V2) == INSIDE
    assert place(None, None) is None


def test_a_handle_reads_and_moves(libvirts: Path, qemu: QemuLike) -> None:
    key = KnobKey(qemu.uuid, Knob.BATCH_GROUP)
    handle = handle_of(qemu)
    assert handle.read().knobs()[key] == OUTSIDE
    assert handle.write(key, INSIDE) == INSIDE
    handle.close()
    handle = handle_of(qemu)
    state = handle.read()
    assert (state.batch_group, state.weight) == (INSIDE, 300)
    assert state.cpu_ns > 0
    assert handle.write(key, OUTSIDE) == OUTSIDE
    handle.close()


def test_a_thread_that_ends_meanwhile_is_no_failure(libvirts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = whereabouts(libvirts)
    listed, ended = batch_group._threads, 2**22 - 1

    def with_one_that_ends(group: Path) -> list[int]:
        found = listed(group)
        return [*found, ended] if found and group.name == "emulator" else found

    monkeypatch.setattr(batch_group, "_threads", with_one_that_ends)
    move(libvirts, inside=True)
    move(libvirts.parent / batch_group.FOLDER / VM, inside=False)
    assert whereabouts(libvirts) == before


def test_a_move_that_was_cut_off_before_the_first_thread_begins_anew(libvirts: Path) -> None:
    made = libvirts.parent / batch_group.FOLDER / VM
    made.mkdir(parents=True)
    move(libvirts, inside=True)
    assert (made / "cpu.shares").read_text() == "300\n"


def test_what_the_kernel_refuses_is_told_and_leaves_all_threads_where_they_are(libvirts: Path) -> None:
    before = whereabouts(libvirts)
    limited = libvirts.parent / batch_group.FOLDER
    limited.mkdir()
    (limited / "cpu.cfs_quota_us").write_text("1000")  # the quota of a vCPU does not fit into that
    with pytest.raises(HostError, match="Invalid argument"):
        move(libvirts, inside=True)
    assert whereabouts(libvirts) == before


def test_weight_and_idle_class_of_the_group(libvirts: Path) -> None:
    top = libvirts.parent.parent
    groups = BatchGroups(REAL, CgroupMounts({"cpu": (top, "/")}), CGROUP_V1)
    idle, weight = (KnobKey(HOST_UUID, knob) for knob in (Knob.BATCH_IDLE, Knob.BATCH_WEIGHT))
    assert (groups.read(None), groups.seen([])) == ({}, NO_BATCH_GROUP)
    move(libvirts, inside=True)
    assert (groups.read(None), groups.seen([])) == ({idle: 0, weight: 2}, BatchGroup(True))
    assert groups.write(weight, 40, None) == 40
    assert groups.write(idle, 1, None) == 1
    assert groups.read(None) == {idle: 1}
    with pytest.raises(HostError, match="Invalid argument"):
        groups.write(weight, 40, None)
    groups.ended(groups.folder / VM if groups.folder else None)
    groups.tidy()
    assert groups.folder is not None, "a VM runs in it"
    move(libvirts, inside=False)
    assert groups.read(None) == {}


def test_what_an_ended_vm_left_is_removed(libvirts: Path, qemu: QemuLike) -> None:
    groups = BatchGroups(REAL, CgroupMounts({"cpu": (libvirts.parent.parent, "/")}), CGROUP_V1)
    move(libvirts, inside=True)
    qemu.kill()
    groups.ended(libvirts.parent / batch_group.FOLDER / VM)
    until(lambda: groups.tidy() or groups.folder is None, "the group is gone")
    assert not libvirts.exists(), "nor is libvirt's own left, where libvirt knew of the other one only"


def test_what_an_agent_before_left_is_removed_once(libvirts: Path) -> None:
    """Copies of groups in which nobody runs; a VM that is there keeps also those of its groups that are empty."""
    groups = BatchGroups(REAL, CgroupMounts({"cpu": (libvirts.parent.parent, "/")}), CGROUP_V1)
    group = libvirts.parent / batch_group.FOLDER
    (libvirts / "iothread1").mkdir()
    move(libvirts, inside=True)
    (group / "qemu-3-gone.libvirt-qemu/vcpu0").mkdir(parents=True)
    groups.tidy()
    assert [path.name for path in group.iterdir() if path.is_dir()] == [VM]
    assert (group / VM / "iothread1").is_dir()
    (group / "qemu-4-later.libvirt-qemu").mkdir()
    groups.tidy()
    assert (group / "qemu-4-later.libvirt-qemu").is_dir(), "whoever makes groups now moves a VM into them"


def test_an_empty_group_of_an_agent_before_is_removed(machine: Path) -> None:
    (machine / batch_group.FOLDER / VM / "vcpu0").mkdir(parents=True)
    BatchGroups(REAL, CgroupMounts({"cpu": (machine.parent, "/")}), CGROUP_V1).tidy()
    assert not (machine / batch_group.FOLDER).exists()
    assert (machine / VM / "vcpu0").is_dir(), "libvirt's own group is no copy"


def test_a_move_out_that_was_cut_off_is_seen_and_completed(
    libvirts: Path, qemu: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, put = whereabouts(libvirts), batch_group._put
    inside = libvirts.parent / batch_group.FOLDER / VM
    move(libvirts, inside=True)

    def killed_after_the_emulator(tid: int, threads: Path) -> None:
        if threads.parent.name != "emulator":
            raise KeyboardInterrupt
        put(tid, threads)

    monkeypatch.setattr(batch_group, "_put", killed_after_the_emulator)
    with pytest.raises(KeyboardInterrupt):
        move(inside, inside=False)
    monkeypatch.undo()
    key = KnobKey(qemu.uuid, Knob.BATCH_GROUP)
    host = KernelHost(REAL, None)  # of the next agent, or of `equipoise release --local`
    found = host.read(qemu.instance).knobs()[key]
    owned = Owned(OUTSIDE, previous=INSIDE, intended=OUTSIDE)
    changes = diff(Plan(undo_reason="released"), HostValues({key: found}, frozenset({0, 1})), {key: owned})
    assert (found, [change.action for change in changes]) == (PARTLY, [Action.RESTORE])
    assert host.write(qemu.instance, key, OUTSIDE) == OUTSIDE
    assert whereabouts(libvirts) == before
    assert not inside.exists()


def test_a_move_that_failed_amid_is_seen(libvirts: Path, qemu: QemuLike, monkeypatch: pytest.MonkeyPatch) -> None:
    key, host, put = KnobKey(qemu.uuid, Knob.BATCH_GROUP), KernelHost(REAL, None), batch_group._put
    assert host.read(qemu.instance).batch_group == OUTSIDE

    def refused(tid: int, threads: Path) -> None:
        if threads.parent.name == "vcpu1":
            raise HostError("write: Invalid argument", errno.EINVAL)
        put(tid, threads)

    monkeypatch.setattr(batch_group, "_put", refused)
    with pytest.raises(HostError):
        host.write(qemu.instance, key, INSIDE)
    assert host.read(qemu.instance).batch_group == PARTLY
