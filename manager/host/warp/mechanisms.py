"""The warps of a host's VMs, by every mechanism that it has: read, set, and read back in the mechanism's own unit."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts
from manager.host.files import open_file, read_number, write
from manager.host.process import refusal
from manager.host.registry import CgroupCpu, HostPaths
from manager.host.sched_ext import LINK, PINS, SchedExt, Warp
from manager.host.warp.bvt_file import WARP_FILE
from manager.host.warp.offers import offers_of
from manager.host.warp.slices import attributes, default_slice_ns, set_slice, slice_of
from manager.model.knobs import Knob, KnobKey, KnobValue
from manager.model.warp import EJECTED, LOADED, OUTDATED, UNLOADED, Mechanism

_LARGEST_CLASS = 2
_UNLOAD_S = 2.0
_FILES = {Mechanism.BVT: Knob.BVT_WARP, Mechanism.GROUP_IDENTITY: Knob.GROUP_IDENTITY}


@dataclass(frozen=True, slots=True)
class WarpTarget:
    """A VM whose process is known to run: its own CPU cgroup, None where it has none, and its vCPU threads."""

    uuid: str
    folder: Path | None
    vcpus: Sequence[tuple[int, int]]


class Mechanisms:
    """Belongs to the control loop's thread. ``offers`` are those that were looked for, the best first."""

    def __init__(self, paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None) -> None:
        """Find out what there is. Raises nothing: what cannot be found out counts as not there."""
        self.offers = tuple(offers_of(paths, mounts, cpu))
        there = {offer.rung for offer in self.offers if offer.there}
        self._file_knob = next((knob for rung, knob in _FILES.items() if rung in there), None)
        self._default_slice_ns = default_slice_ns() if Mechanism.SLICE in there else None
        self._link = paths.root / PINS / LINK
        self._sched_ext = SchedExt(paths)

    def read(self, vm: WarpTarget) -> dict[KnobKey, int]:
        """What the VM has of each mechanism; nothing of one that ended, such as with its thread or scheduler.

        Raises HostError.
        """
        keys = [KnobKey(vm.uuid, knob) for knob in (Knob.WARP, self._file_knob) if knob and vm.folder]
        if self._default_slice_ns is not None:
            keys += [KnobKey(vm.uuid, Knob.SLICE, index) for index, _ in vm.vcpus]
        found: dict[KnobKey, int] = {}
        for key in keys:
            with contextlib.suppress(VmVanished):
                value = self._held(key, vm)
                if value is not None:
                    found[key] = value
        return found

    def write(self, key: KnobKey, value: KnobValue, vm: WarpTarget) -> int:
        """Set one knob and return what it then holds. Raises VmVanished, HostError."""
        if not isinstance(value, int):
            raise HostError(f"{key.knob} takes a number, not {value!r}", errno.EINVAL)
        if key.knob is Knob.SLICE:
            set_slice(thread_of(key, vm), value)
        elif key.knob is Knob.WARP:
            self._sched_ext.set_warp(_cgroup_id(vm), Warp(value))
        else:
            self._write_file(key.knob, value, vm)
        held = self._held(key, vm)
        if held is None:
            raise VmVanished(f"{key.knob} {key.index} is gone", errno.ESRCH)
        return held

    def scheduler(self) -> int:
        """Whether our sched_ext scheduler decides: LOADED or OUTDATED, EJECTED if only its pin is left, UNLOADED."""
        if self._sched_ext.active:
            return LOADED if self._sched_ext.current else OUTDATED
        return EJECTED if self._link.exists() else UNLOADED

    def set_scheduler(self, value: KnobValue) -> int:
        """Load our scheduler (LOADED) or remove it, wait until it decides or does not, and say what is then.

        Raises HostError.
        """
        if value == LOADED:
            self._sched_ext.load()
            return self.scheduler()
        self._sched_ext.unload()
        deadline_s = time.monotonic() + _UNLOAD_S  # the kernel gives tasks back a moment later
        while self._sched_ext.active and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return self.scheduler()

    def counters(self) -> dict[str, int]:
        """What our scheduler counted since it was loaded. Raises HostError."""
        return self._sched_ext.counters()

    def _held(self, key: KnobKey, vm: WarpTarget) -> int | None:
        """What a knob holds, None where there is no such thing (any more). Raises VmVanished, HostError."""
        if key.knob is Knob.SLICE:
            defaults = {self._default_slice_ns, int(attributes(0).runtime)}  # it changes when pCPUs come and go
            return slice_of(thread_of(key, vm), defaults - {None, 0})
        if key.knob is Knob.WARP:
            return self._sched_ext.warp(_cgroup_id(vm)).warp_us if self._sched_ext.active else None
        with _opened(vm) as descriptor:
            try:
                return read_number(descriptor)
            except ValueError as error:
                raise HostError(f"{WARP_FILE} of {vm.folder}: {error}", errno.EIO) from error

    def _write_file(self, knob: Knob, value: int, vm: WarpTarget) -> None:
        if knob is not self._file_knob:
            raise HostError(f"this kernel's {WARP_FILE}, if it has one, does not take {knob}", errno.ENOENT)
        if knob is Knob.GROUP_IDENTITY and abs(value) > _LARGEST_CLASS:
            raise HostError(f"group identity takes a class of -2 to 2, never {value}", errno.EINVAL)
        with _opened(vm) as descriptor:
            write(descriptor, str(value).encode())


@contextlib.contextmanager
def _opened(vm: WarpTarget) -> Iterator[int]:
    if vm.folder is None:
        raise HostError("the VM has no CPU cgroup of its own", errno.ENOENT)
    descriptor = open_file(vm.folder / WARP_FILE, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def thread_of(key: KnobKey, vm: WarpTarget) -> int:
    """The thread of the vCPU that a knob is of. Raises VmVanished."""
    tid = dict(vm.vcpus).get(key.index)
    if tid is None:
        raise VmVanished(f"there is no vCPU {key.index}", errno.ESRCH)
    return tid


def _cgroup_id(vm: WarpTarget) -> int:
    """The id of a control group is the inode number of its folder. Raises VmVanished, HostError."""
    if vm.folder is None:
        raise HostError("the VM has no CPU cgroup of its own", errno.ENOENT)
    try:
        return vm.folder.stat().st_ino
    except OSError as error:
        raise refusal(f"{vm.folder}", error) from error
