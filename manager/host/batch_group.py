"""The batch group: one control group above those of all batch VMs, so that each pCPU's queue has one entity of theirs.

On cgroup v1 it is ours, beside the groups that libvirt makes for VMs. A VM comes in by its threads: inside is a copy of
its groups, under the same names, with the same settings; so whoever looks up the group of a thread finds the VM's own
there as elsewhere. libvirt's own groups stay, empty, and their place says where the threads go back to. On cgroup v2
processes cannot be moved under systemd: there it is the slice of libvirt's partition ``/machine/batch``, which a VM is
started in, and which systemd makes and removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, CpuGroup
from manager.host.files import put_number, refused, text_of
from manager.host.knob_files import KnobFiles, VmTarget, checked_number
from manager.host.registry import CGROUP_V1, IDLE_FILE, CgroupCpu, HostPaths
from manager.model.host import NO_BATCH_GROUP, BatchGroup
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, INSIDE, OUTSIDE, PARTLY, Knob, KnobKey

FOLDER, SLICE, PARTITION = "equipoise-batch", "machine-batch.slice", "/machine/batch"
"""Its name on cgroup v1 and under systemd, and libvirt's name of the latter."""
MACHINES = ("machine", "machine.slice")
"""libvirt's default partition without and with systemd: VMs in another one stay there, as somebody put them there."""
_KNOBS = {Knob.BATCH_IDLE: Knob.IDLE, Knob.BATCH_WEIGHT: Knob.WEIGHT}
_ROUNDS = 50
"""Threads that start while others are moved are found by the next round."""
_COPIED = ("cpu.cfs_period_us", "cpu.cfs_quota_us", IDLE_FILE, "cpu.shares")
"""Settings that a copy of a group takes over, in an order in which the kernel takes them: a group in the idle class has
no weight of its own.
"""


def place(folder: Path | None, cpu: CgroupCpu | None) -> int | None:
    """Where the VM is that has this group: OUTSIDE, INSIDE or PARTLY; None where it cannot be moved.

    Raises VmVanished, HostError.
    """
    if folder is None or cpu is None:
        return None
    if cpu is not CGROUP_V1:
        return INSIDE if folder.parent.name == SLICE else None
    if folder.parent.name == FOLDER:
        return PARTLY if any(_threads(group) for group in _groups(_origin(folder))) else INSIDE
    if folder.parent.name not in MACHINES:
        return None
    copy = folder.parent / FOLDER / folder.name  # there are threads in it where a move out was cut off
    return PARTLY if any(_threads(group) for group in _groups(copy)) else OUTSIDE


def move(folder: Path, inside: bool) -> None:
    """Move all threads of the VM with this group in or out, on cgroup v1. Raises VmVanished, HostError.

    A crash amid this leaves some here and some there, and all running: to move again completes it.
    """
    origin = _origin(folder) if folder.parent.name == FOLDER else folder
    copy = origin.parent / FOLDER / origin.name
    if inside:
        _make(copy.parent)
        _copy(origin, copy, anew=not any(_threads(group) for group in _groups(copy)))
        _transfer(origin, copy)
    elif copy.is_dir():
        _copy(copy, origin, anew=True)
        _transfer(copy, origin)
        _remove(copy)
        with contextlib.suppress(OSError):  # others are in it
            copy.parent.rmdir()


def file_outside(file: Path) -> Path | None:
    """That of libvirt's own group, for a file of a group in the batch group."""
    return _origin(file.parent) / file.name if file.parent.parent.name == FOLDER else None


def _make(folder: Path) -> None:
    """The batch group, which begins with the least weight: it is never more than what its VMs had without it."""
    if not folder.is_dir():
        with refused(f"make {folder}"):
            folder.mkdir()
        put_number(folder / CGROUP_V1.weight_file, CGROUP_V1.scale.minimum)


def _origin(folder: Path) -> Path:
    return folder.parent.parent / folder.name


def _transfer(source: Path, target: Path) -> None:
    for _ in range(_ROUNDS):
        left = False
        for group in _groups(source):
            for tid in _threads(group):
                left = True
                _put(tid, target / group.relative_to(source) / CGROUP_V1.threads_file)
        if not left:
            return
    raise HostError(f"{source}: its threads start faster than they can be moved", errno.EAGAIN)


def _put(tid: int, threads: Path) -> None:
    try:
        put_number(threads, tid)
    except VmVanished:
        if not threads.exists():  # it was not the thread that ended
            raise


def _copy(source: Path, target: Path, anew: bool) -> None:
    """Make groups as those of ``source`` are, the outer ones first: an inner one's quota fits into the outer's.

    ``anew``: those that are there get the settings, too. Otherwise what they have is newer.
    """
    for group in _groups(source):
        twin = target / group.relative_to(source)
        with refused(f"make {twin}"):
            made = not twin.is_dir()
            twin.mkdir(exist_ok=True)
        if made or anew:
            _copy_settings(group, twin)


def _copy_settings(source: Path, target: Path) -> None:
    with refused(f"settings of {source}"):
        idle = text_of(source / IDLE_FILE)
        for name in _COPIED:
            wanted, held = text_of(source / name), text_of(target / name)
            if wanted != held and wanted is not None and held is not None and (name != "cpu.shares" or idle != "1"):
                (target / name).write_text(wanted)


def _groups(folder: Path) -> Iterator[Path]:
    """A group and all inside it, from the outermost on; none where there is no such group. Raises HostError."""
    for path, inside, _ in os.walk(folder):
        inside.sort()
        yield Path(path)


def _threads(group: Path) -> list[int]:
    """None of a group that is gone. Raises HostError."""
    with refused(f"threads of {group}"):
        return [int(line) for line in (text_of(group / CGROUP_V1.threads_file) or "").split()]


def _is_empty(folder: Path) -> bool:
    """Whether no thread is in a group, nor in those inside it. Raises HostError."""
    return not any(map(_threads, _groups(folder)))


def _remove(folder: Path) -> None:
    """Remove an empty group with those inside it; one that is not empty stays, with all inside it."""
    with contextlib.suppress(OSError, HostError):
        if _is_empty(folder):
            for group in reversed(list(_groups(folder))):
                group.rmdir()


class BatchGroups(KnobFiles):
    """Idle class and weight of the batch group, and what is in it. Belongs to the control loop's thread."""

    def __init__(self, paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None) -> None:
        """Nothing is made: the group comes with the first VM."""
        self._paths = paths
        self._cpu = cpu
        self._ended: set[Path] = set()
        self._looked = False
        mount = mounts.by_controller.get(cpu.controller) if cpu else None
        name = FOLDER if cpu is CGROUP_V1 else SLICE
        self._folders = [mount[0] / machine / name for machine in MACHINES] if mount else []

    @property
    def folder(self) -> Path | None:
        """The group; None where there is none."""
        return next((folder for folder in self._folders if folder.is_dir()), None)

    def seen(self, processes: Iterable[int]) -> BatchGroup:
        """The group now; the VMs of these processes are strangers where they are in it.

        On cgroup v1 none can be: the group is ours. Raises HostError.
        """
        if self.folder is None or self._cpu is None:
            return NO_BATCH_GROUP
        of_systemd = self._cpu is not CGROUP_V1
        return BatchGroup(True, sum(map(self._is_in_slice, processes)) if of_systemd else 0, of_systemd)

    def _is_in_slice(self, pid: int) -> bool:
        """Also one that ended is not."""
        with refused(f"cgroup of process {pid}"):
            text = text_of(self._paths.process(pid) / "cgroup")
        return text is not None and f"/{SLICE}/" in text

    def ended(self, folder: Path | None) -> None:
        """The VM with this group has ended: ``tidy`` removes what is left of it."""
        if folder is not None and folder.parent.name == FOLDER:
            self._ended.add(folder)

    def tidy(self) -> None:
        """Remove what VMs that ended left behind, and the group after the last.

        That is also libvirt's own group, where libvirt started anew while the VM was here: it removes only the one in
        which it found the VM. What cannot be removed yet is tried again by the next call. The first call also removes
        what an agent before this one left, whose journal was lost.
        """
        if not self._looked:
            self._looked = True
            self._remove_leftovers()
        for folder in tuple(self._ended):
            _remove(folder)
            if not folder.exists():  # nobody runs there any more
                _remove(_origin(folder))
                self._ended.discard(folder)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()

    def _remove_leftovers(self) -> None:
        """Copies in which nobody runs, and the group where nothing is left in it. systemd removes its slice itself."""
        for group in self._folders if self._cpu is CGROUP_V1 else ():
            with contextlib.suppress(OSError):
                for copy in [entry for entry in group.iterdir() if entry.is_dir()]:
                    _remove(copy)
                group.rmdir()

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        return [KnobKey(HOST_UUID, knob) for knob in _KNOBS] if vm is None and self.folder else ()

    def held(self, key: KnobKey, _vm: VmTarget | None) -> int | None:
        """No weight in the idle class."""
        with self._opened() as group:
            return group.read().value(_KNOBS[key.knob])

    def put(self, key: KnobKey, value: KnobValue, _vm: VmTarget | None) -> None:
        with self._opened() as group:
            group.write(_KNOBS[key.knob], checked_number(key, value))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[CpuGroup]:
        folder = self.folder
        if folder is None or self._cpu is None:
            raise VmVanished("there is no batch group", errno.ENOENT)
        group = CpuGroup(self._cpu, folder)
        try:
            yield group
        finally:
            group.close()
