"""The warps of a host's VMs, by every mechanism that it has: read, set, and read back in the mechanism's own unit."""

from __future__ import annotations

import contextlib
import errno
import time

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts
from manager.host.files import inode, number_in, put_number
from manager.host.knob_files import VmTarget, checked_number
from manager.host.registry import CgroupCpu, HostPaths
from manager.host.sched_ext import LINK, PINS, SchedExt, Warp
from manager.host.warp.bvt_file import WARP_FILE
from manager.host.warp.offers import offers_of
from manager.host.warp.slices import attributes, default_slice_ns, set_slice, slice_of
from manager.model.knobs import HOST_UUID, Knob, KnobKey, KnobValue
from manager.model.warp import EJECTED, LOADED, OUTDATED, UNLOADED, Mechanism

_UNLOAD_S = 2.0
_FILES = {Mechanism.BVT: Knob.BVT_WARP, Mechanism.GROUP_IDENTITY: Knob.GROUP_IDENTITY}


class Mechanisms:
    """``KnobFiles`` of warps, and of our scheduler on the host itself.

    ``offers`` are the mechanisms that were looked for, the best first.
    """

    def __init__(self, paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None) -> None:
        """Find out what there is. Raises nothing: what cannot be found out counts as not there."""
        self.offers = tuple(offers_of(paths, mounts, cpu))
        there = {offer.mechanism for offer in self.offers if offer.there}
        self._file_knob = next((knob for mechanism, knob in _FILES.items() if mechanism in there), None)
        self._default_slice_ns = default_slice_ns() if Mechanism.SLICE in there else None
        self._link = paths.root / PINS / LINK
        self._sched_ext = SchedExt(paths)

    def read(self, vm: VmTarget | None) -> dict[KnobKey, KnobValue]:
        """What the VM has of each mechanism; nothing of one that ended, such as with its thread or scheduler.

        None: whether our scheduler decides. Raises HostError.
        """
        if vm is None:
            return {KnobKey(HOST_UUID, Knob.SCHEDULER): self.scheduler()}
        keys = [KnobKey(vm.uuid, knob) for knob in (Knob.WARP, self._file_knob) if knob and vm.folder]
        if self._default_slice_ns is not None:
            keys += [KnobKey(vm.uuid, Knob.SLICE, index) for index, _ in vm.vcpus]
        values: dict[KnobKey, KnobValue] = {}
        for key in keys:
            with contextlib.suppress(VmVanished):
                value = self._held(key, vm)
                if value is not None:
                    values[key] = value
        return values

    def write(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> int:
        """Set one knob and return what it then holds. Raises VmVanished, HostError."""
        wanted = checked_number(key, value)
        if vm is None:
            return self.set_scheduler(wanted)
        if key.knob is Knob.SLICE:
            set_slice(vm.thread(key), wanted)
        elif key.knob is Knob.WARP:
            self._sched_ext.set_warp(inode(vm.group), Warp(wanted))
        elif key.knob is self._file_knob:
            put_number(vm.group / WARP_FILE, wanted)
        else:
            raise HostError(f"this kernel's {WARP_FILE}, if it has one, does not take {key.knob}", errno.ENOENT)
        held = self._held(key, vm)
        if held is None:
            raise VmVanished(f"{key.knob} {key.index} is gone", errno.ESRCH)
        return held

    def scheduler(self) -> int:
        """Whether our sched_ext scheduler decides: LOADED or OUTDATED, EJECTED if only its pin is left, UNLOADED."""
        if self._sched_ext.active:
            return LOADED if self._sched_ext.current else OUTDATED
        return EJECTED if self._link.exists() else UNLOADED

    def set_scheduler(self, value: int) -> int:
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

    def _held(self, key: KnobKey, vm: VmTarget) -> int | None:
        """What a knob holds, None where there is no such thing (any more). Raises VmVanished, HostError."""
        if key.knob is Knob.SLICE:
            defaults = {self._default_slice_ns, int(attributes(0).runtime)}  # it changes when pCPUs come and go
            return slice_of(vm.thread(key), defaults - {None, 0})
        if key.knob is Knob.WARP:
            return self._sched_ext.warp(inode(vm.group)).warp_us if self._sched_ext.active else None
        return number_in(vm.group / WARP_FILE)
