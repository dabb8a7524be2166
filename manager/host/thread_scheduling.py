"""How vCPU threads are scheduled: policy, nice value, EEVDF's slice, and limits of their groups' real-time CPU time.

The limits are those of CONFIG_RT_GROUP_SCHED on cgroup v1: Documentation/scheduler/sched-rt-group.rst. cgroup v2 has
none. Under libvirt each vCPU's thread is in a group of its own inside its VM's, under systemd inside one more. A slice
of a thread is honoured since Linux 6.12 for SCHED_OTHER.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, groups_above_vms
from manager.host.files import LIBC, inode, number_in, put_number, refused, succeeded
from manager.host.knob_files import KnobFiles, VmTarget, checked_number
from manager.host.registry import CGROUP_V1, RT_PERIOD_FILE, RT_RUNTIME_FILE, CgroupCpu
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.scheduling import LIMIT_PERIOD_US, OTHER, is_real_time, joined, parted

DEFAULT = 0
"""Stands for the kernel's own slice, which it follows when that changes: sched_runtime 0."""
_TRIED_NS = 300_000
_DEADLINE = 6
_RESET_ON_FORK = 1
# Numbers of sched_setattr and sched_getattr: asm/unistd_64.h and its like; aarch64 and riscv64 share the generic table.
_SYSCALLS = {
    "x86_64": (314, 315),
    "aarch64": (274, 275),
    "riscv64": (274, 275),
    "ppc64le": (355, 356),
    "s390x": (345, 346),
}


class Attributes(ctypes.Structure):
    """struct sched_attr, linux/sched/types.h; times in nanoseconds."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def attributes(tid: int) -> Attributes:
    """How a thread (0: the calling one) is scheduled. Raises VmVanished when it is gone, HostError."""
    answer = Attributes()
    _call(1, tid, ctypes.byref(answer), ctypes.sizeof(answer), 0)
    return answer


def set_attributes(tid: int, wanted: Attributes) -> None:
    """Schedule a thread so. Raises VmVanished when it is gone, HostError."""
    wanted.size = ctypes.sizeof(wanted)
    _call(0, tid, ctypes.byref(wanted), 0)


def _call(which: int, *arguments: object) -> None:
    numbers = _SYSCALLS.get(os.uname().machine)
    if numbers is None:
        raise HostError(f"the number of sched_setattr on {os.uname().machine} is not known here", errno.ENOSYS)
    with refused(f"{('sched_setattr', 'sched_getattr')[which]} of thread {arguments[0]}"):
        succeeded(LIBC.syscall(numbers[which], *arguments))


def set_slice(tid: int, slice_ns: int) -> None:
    """Set the slice, 0.1 to 100 ms or DEFAULT; all else of the thread stays. Raises VmVanished, HostError."""
    wanted = attributes(tid)
    if wanted.policy != OTHER:
        raise HostError(f"thread {tid} is not in SCHED_OTHER: its slice would be something else", errno.EINVAL)
    wanted.runtime = slice_ns
    set_attributes(tid, wanted)


def slice_of(tid: int, defaults: Collection[int | None]) -> int | None:
    """The slice of a thread in nanoseconds, DEFAULT for one of ``defaults``; None for a thread not in SCHED_OTHER.

    The kernel does not distinguish a slice that was set from an equal one that was not. Raises VmVanished, HostError.
    """
    held = attributes(tid)
    if held.policy != OTHER:
        return None
    slice_ns = int(held.runtime)
    return DEFAULT if slice_ns in defaults else slice_ns


def default_slice_ns() -> int | None:
    """The kernel's slice, None where slices of threads are not honoured; tried on a thread that ends with it."""
    seen: list[int] = []

    def look() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # it has the policy of who started it
            for slice_ns in (_TRIED_NS, DEFAULT):
                set_slice(0, slice_ns)
                seen.append(int(attributes(0).runtime))
        except (HostError, OSError):
            return

    thread = threading.Thread(target=look, name="slice")
    thread.start()
    thread.join()
    return seen[1] if len(seen) == 2 and seen[0] == _TRIED_NS and seen[1] else None


def scheduling_of(tid: int) -> int | None:
    """Policy and level of a thread as one number, None in SCHED_DEADLINE. Raises VmVanished, HostError."""
    held = attributes(tid)
    if held.policy == _DEADLINE:
        return None
    return joined(held.policy, held.priority if is_real_time(joined(held.policy, 0)) else held.nice)


def set_scheduling(tid: int, value: int) -> None:
    """Set them. A thread that leaves real-time gets the kernel's own slice. Raises VmVanished, HostError."""
    policy, level = parted(value)
    held = attributes(tid)
    if is_real_time(value):
        set_attributes(tid, Attributes(policy=policy, flags=held.flags & _RESET_ON_FORK, priority=level))
        return
    if held.policy != policy:
        set_attributes(tid, Attributes(policy=policy, flags=held.flags & _RESET_ON_FORK, nice=level))
    # sched_setattr(2) would make the kernel's slice the thread's own, and takes no nice value with SCHED_IDLE
    with refused(f"setpriority of thread {tid}"):
        os.setpriority(os.PRIO_PROCESS, tid, level)


class Schedulings(KnobFiles):
    """Policies and nice values of vCPU threads, and limits of their groups. Belongs to the control loop's thread."""

    def __init__(self, mounts: CgroupMounts, cpu: CgroupCpu | None) -> None:
        """Find out whether there are limits; nothing is written."""
        root = mounts.by_controller[cpu.controller][0] if cpu is CGROUP_V1 else None
        self._root = root if root and (root / RT_RUNTIME_FILE).exists() else None
        self.limits = self._root is not None
        """Whether this kernel limits real-time threads by group; without, no thread is made real-time."""
        self._above: dict[int, Path] | None = None

    def keys(self, vm: VmTarget | None) -> Iterator[KnobKey]:
        """Of each vCPU's thread and group, of the VM's own groups, and under HOST_UUID of those above them, from the
        outermost on. Of the host: the root as number 0 and all groups above VMs, those of VMs that ended among them.
        """
        if vm is not None:
            yield from (KnobKey(vm.uuid, Knob.SCHEDULING, index) for index, _ in vm.vcpus)
        if self._root is None:
            return
        if vm is None:
            yield from (KnobKey(HOST_UUID, Knob.RT_RUNTIME, number) for number in (0, *self._known_above()))
        elif vm.folder is not None:
            for folder in reversed(vm.folder.parents):
                if self._root in folder.parents:
                    number = _id(folder)
                    self._known_above()[number] = folder
                    yield KnobKey(HOST_UUID, Knob.RT_RUNTIME, number)
            yield from (KnobKey(vm.uuid, Knob.RT_RUNTIME, index) for index in range(len(_own_groups(vm))))
            yield from (KnobKey(vm.uuid, Knob.VCPU_RT_RUNTIME, index) for index, _ in vm.vcpus)

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        """None for a thread in SCHED_DEADLINE."""
        if key.knob is Knob.SCHEDULING and vm is not None:
            return scheduling_of(vm.thread(key))
        return _runtime_us(self._folder(key, vm))

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        """EPERM for a thread that nothing would stop, were it real-time."""
        wanted = checked_number(key, value)
        if key.knob is Knob.SCHEDULING and vm is not None:
            tid = vm.thread(key)
            if is_real_time(wanted):
                self._require_limit(key, tid, vm)
            set_scheduling(tid, wanted)
            return
        folder = self._folder(key, vm)
        period_us = number_in(folder / RT_PERIOD_FILE)
        if period_us != LIMIT_PERIOD_US:
            raise HostError(f"{folder / RT_PERIOD_FILE} is {period_us}, not {LIMIT_PERIOD_US}", errno.EINVAL)
        put_number(folder / RT_RUNTIME_FILE, wanted)

    def _folder(self, key: KnobKey, vm: VmTarget | None) -> Path:
        """The group that a limit is of. Raises VmVanished, HostError."""
        folder: Path | None = None
        if key.uuid == HOST_UUID:
            folder = self._known_above().get(key.index) if key.index else self._root
            if key.index and folder is not None and _id(folder) != key.index:  # made again under its name
                folder = None
        elif self._root is not None and vm is not None and vm.folder is not None:
            groups = _own_groups(vm)
            if key.knob is Knob.VCPU_RT_RUNTIME:
                folder = groups[-1] / f"vcpu{key.index}"
            elif key.index < len(groups):
                folder = groups[key.index]
        if folder is None:
            raise VmVanished(f"there is no group for {key.knob} {key.index}", errno.ENOENT)
        return folder

    def _known_above(self) -> dict[int, Path]:
        """Groups above VMs by id: those seen, and at the first time all that have some real-time CPU time."""
        if self._above is None:
            self._above = {}
            for folder in groups_above_vms(self._root) if self._root else ():
                with contextlib.suppress(VmVanished):
                    if _runtime_us(folder):
                        self._above[_id(folder)] = folder
        return self._above

    def _require_limit(self, key: KnobKey, tid: int, vm: VmTarget) -> None:
        """The thread is in its vCPU's group, and that stops it. Raises VmVanished, HostError."""
        limited, threads = False, ""
        if self._root is not None and vm.folder is not None:
            folder = self._folder(KnobKey(key.uuid, Knob.VCPU_RT_RUNTIME, key.index), vm)
            limited = 0 < _runtime_us(folder) < number_in(folder / RT_PERIOD_FILE)
            with refused(f"{folder}"):
                threads = (folder / CGROUP_V1.threads_file).read_text()
        if not limited or str(tid) not in threads.split():
            raise HostError(f"vCPU {key.index} is in no group that limits it: not made real-time", errno.EPERM)


def _own_groups(vm: VmTarget) -> tuple[Path, ...]:
    """Those that hold the groups of a VM's threads, the outer one first."""
    inner = vm.group / "libvirt"
    return (vm.group, inner) if inner.is_dir() else (vm.group,)


def _runtime_us(folder: Path) -> int:
    return number_in(folder / RT_RUNTIME_FILE)


def _id(folder: Path) -> int:
    """The id of a control group, of which the last 31 bits suffice. Raises VmVanished, HostError."""
    return inode(folder) & 2**31 - 1
