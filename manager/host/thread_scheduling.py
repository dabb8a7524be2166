"""Policy and nice value of vCPU threads, and the limits of the real-time CPU time of their control groups.

The limits are those of CONFIG_RT_GROUP_SCHED on cgroup v1: Documentation/scheduler/sched-rt-group.rst. cgroup v2 has
none. Under libvirt each vCPU's thread is in a group of its own inside its VM's, under systemd inside one more.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, vm_group
from manager.host.files import inode, number_in, put_number
from manager.host.knob_files import VmTarget, checked_number
from manager.host.process import refusal
from manager.host.registry import CGROUP_V1, RT_PERIOD_FILE, RT_RUNTIME_FILE, CgroupCpu
from manager.host.warp.slices import Attributes, attributes, set_attributes
from manager.model.knobs import HOST_UUID, Knob, KnobKey, KnobValue
from manager.model.scheduling import LIMIT_PERIOD_US, is_real_time, joined, parted

_DEADLINE = 6
_RESET_ON_FORK = 1


class Schedulings:
    """Belongs to the control loop's thread. ``limits``: whether this kernel limits real-time threads by group."""

    def __init__(self, mounts: CgroupMounts, cpu: CgroupCpu | None) -> None:
        """Find out whether there are limits; nothing is written."""
        root = mounts.by_controller[cpu.controller][0] if cpu is CGROUP_V1 else None
        self._root = root if root and (root / RT_RUNTIME_FILE).exists() else None
        self._above: dict[int, Path] | None = None

    @property
    def limits(self) -> bool:
        """Whether it has; without, no thread is made real-time."""
        return self._root is not None

    def read(self, vm: VmTarget | None) -> dict[KnobKey, KnobValue]:
        """Of each vCPU's thread and group, of the VM's own groups, and under HOST_UUID of those above them.

        None: of all groups above VMs. Nothing of a thread or group that ended, nor of a thread in SCHED_DEADLINE.
        Raises HostError.
        """
        if vm is None:
            return self._of_host()
        found: dict[KnobKey, KnobValue] = {}
        for index, tid in vm.vcpus:
            with contextlib.suppress(VmVanished):
                value = scheduling_of(tid)
                if value is not None:
                    found[KnobKey(vm.uuid, Knob.SCHEDULING, index)] = value
        for key, folder in self._groups(vm):
            with contextlib.suppress(VmVanished):
                found[key] = _runtime_us(folder)
        return found

    def _of_host(self) -> dict[KnobKey, KnobValue]:
        """The limits of groups above VMs, those of VMs that ended among them, and of the root as number 0.

        Raises HostError.
        """
        if self._root is None:
            return {}
        found: dict[KnobKey, KnobValue] = {KnobKey(HOST_UUID, Knob.RT_RUNTIME): _runtime_us(self._root)}
        for number, folder in self._known_above().items():
            with contextlib.suppress(VmVanished):
                if _id(folder) == number:
                    found[KnobKey(HOST_UUID, Knob.RT_RUNTIME, number)] = _runtime_us(folder)
        return found

    def write(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> int:
        """Set one knob and return what it then holds; ``vm`` None: of a group above VMs.

        Raises VmVanished, HostError: EPERM for a thread that nothing would stop, were it real-time.
        """
        wanted = checked_number(key, value)
        if key.knob is Knob.SCHEDULING and vm is not None:
            tid = vm.thread(key)
            if is_real_time(wanted):
                self._require_limit(key, tid, vm)
            set_scheduling(tid, wanted)
            held = scheduling_of(tid)
            if held is None:
                raise HostError(f"thread {tid} is in SCHED_DEADLINE", errno.EBUSY)
            return held
        folder = self._known_above().get(key.index) if vm is None else dict(self._groups(vm)).get(key)
        if folder is None:
            raise VmVanished(f"there is no group for {key.knob} {key.index}", errno.ENOENT)
        period_us = number_in(folder / RT_PERIOD_FILE)
        if period_us != LIMIT_PERIOD_US:
            raise HostError(f"{folder / RT_PERIOD_FILE} is {period_us}, not {LIMIT_PERIOD_US}", errno.EINVAL)
        put_number(folder / RT_RUNTIME_FILE, wanted)
        return _runtime_us(folder)

    def _groups(self, vm: VmTarget) -> Iterator[tuple[KnobKey, Path]]:
        """From the outermost on. Raises HostError."""
        if self._root is None or vm.folder is None:
            return
        for folder in self._parents(vm.folder):
            number = _id(folder)
            self._known_above()[number] = folder
            yield KnobKey(HOST_UUID, Knob.RT_RUNTIME, number), folder
        inner = vm.folder / "libvirt"
        own: Sequence[Path] = (vm.folder, inner) if inner.is_dir() else (vm.folder,)
        for index, folder in enumerate(own):
            yield KnobKey(vm.uuid, Knob.RT_RUNTIME, index), folder
        for index, _ in vm.vcpus:
            yield KnobKey(vm.uuid, Knob.VCPU_RT_RUNTIME, index), own[-1] / f"vcpu{index}"

    def _parents(self, folder: Path) -> list[Path]:
        """Those between a VM's group and the root of the hierarchy, the outermost first."""
        return [parent for parent in reversed(folder.parents) if self._root in parent.parents]

    def _known_above(self) -> dict[int, Path]:
        """Groups above VMs by id: those seen, and at the first time all that have some real-time CPU time."""
        if self._above is None:
            found: dict[int, Path] = {}
            for at, folders, _ in os.walk(self._root) if self._root else ():
                folders[:] = [name for name in folders if vm_group(f"/{name}") is None]
                with contextlib.suppress(VmVanished):
                    if _runtime_us(Path(at)) and Path(at) != self._root:
                        found[_id(Path(at))] = Path(at)
            self._above = found
        return self._above

    def _require_limit(self, key: KnobKey, tid: int, vm: VmTarget) -> None:
        """The thread is in its vCPU's group, and that stops it. Raises VmVanished, HostError."""
        folder = dict(self._groups(vm)).get(KnobKey(key.uuid, Knob.VCPU_RT_RUNTIME, key.index))
        limited = folder is not None and 0 < _runtime_us(folder) < number_in(folder / RT_PERIOD_FILE)
        if folder is None or not limited or str(tid) not in _tasks(folder):
            raise HostError(f"vCPU {key.index} is in no group that limits it: not made real-time", errno.EPERM)


def scheduling_of(tid: int) -> int | None:
    """Policy and level of a thread as one number, None in SCHED_DEADLINE. Raises VmVanished, HostError."""
    found = attributes(tid)
    if found.policy == _DEADLINE:
        return None
    return joined(found.policy, found.priority if is_real_time(joined(found.policy, 0)) else found.nice)


def set_scheduling(tid: int, value: int) -> None:
    """Set them. A thread that leaves real-time gets the kernel's own slice. Raises VmVanished, HostError."""
    policy, level = parted(value)
    held = attributes(tid)
    if is_real_time(value):
        set_attributes(tid, Attributes(policy=policy, flags=held.flags & _RESET_ON_FORK, priority=level))
        return
    if held.policy != policy:
        set_attributes(tid, Attributes(policy=policy, flags=held.flags & _RESET_ON_FORK, nice=level))
    try:  # sched_setattr(2) would make the kernel's slice the thread's own, and takes no nice value with SCHED_IDLE
        os.setpriority(os.PRIO_PROCESS, tid, level)
    except OSError as error:
        raise refusal(f"setpriority of thread {tid}", error) from error


def _tasks(folder: Path) -> list[str]:
    try:
        return (folder / CGROUP_V1.threads_file).read_text().split()
    except OSError as error:
        raise refusal(f"{folder}", error) from error


def _runtime_us(folder: Path) -> int:
    return number_in(folder / RT_RUNTIME_FILE)


def _id(folder: Path) -> int:
    """The id of a control group, of which the last 31 bits tell enough. Raises VmVanished, HostError."""
    return inode(folder) & 2**31 - 1
