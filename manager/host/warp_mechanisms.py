"""The warps of a host's VMs: which mechanisms there are, and each read, set and read back in its own unit.

Two kernels have a file cpu.bvt_warp_ns and mean something else by it, so which of the two it is, if any, is found out
before any write. The patch of Leverich and Kozyrakis takes nanoseconds. OpenAnolis and Alibaba Cloud Linux call "group
identity" what takes a class of -2 to 2 in the same file; some of their kernels crash when it is written, others have it
switched off.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from manager.errors import HostError
from manager.host.cgroup import CgroupMounts
from manager.host.files import inode, mounted, number_in, number_of, put_number
from manager.host.knob_files import KnobFiles, VmTarget, checked_number
from manager.host.registry import CgroupCpu, HostPaths
from manager.host.sched_ext import PINS, SchedExt, Warp
from manager.host.thread_scheduling import attributes, default_slice_ns, set_slice, slice_of
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.warp import LOADED, Mechanism, Offer

WARP_FILE = "cpu.bvt_warp_ns"
OLDEST_SEEN = 6, 17
"""The oldest Linux that our scheduler was seen to come to and to leave well. On 6.14 its removal while tasks were
running did not end, in a guest with one CPU."""
_UNLOAD_S = 2.0
_FILES = {Mechanism.BVT: Knob.BVT_WARP, Mechanism.GROUP_IDENTITY: Knob.GROUP_IDENTITY}
_ANOLIS = re.compile(r"^(\d+\.\d+\.\d+)-(\d+)\S*\.(?:al|an)\d", re.ASCII)
# Alibaba Cloud Linux's documentation of group identity: before there was a switch (4.19.91-26.4, 5.10.134-13) it acted
# always from the first of each pair on, up to but not the second, in other kernels never.
_ACTS_WITHOUT_SWITCH = (
    ((4, 19, 91, 24), (4, 19, 91, 26)),
    ((5, 10, 46, 7), (5, 10, 112, 11)),
)


class FileKind(Enum):
    """What the file takes, if it may be written at all."""

    NANOSECONDS = auto()
    CLASS = auto()
    SWITCHED_OFF = auto()
    CRASHES = auto()
    UNCLEAR = auto()
    ABSENT = auto()


@dataclass(frozen=True, slots=True)
class BvtFile:
    """What was found out, in words."""

    kind: FileKind
    detail: str
    advice: str = ""


def bvt_file(paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None) -> BvtFile:
    """Which of the two this kernel is; only looked at. Raises OSError, ValueError."""
    release = paths.kernel_release.read_text().strip()
    anolis = _ANOLIS.match(release)
    if re.match(r"4\.19\.91-25\.[1-5](\D|$)", release):
        advice = "upgrade to 4.19.91-26.4 or newer"
        return BvtFile(FileKind.CRASHES, f"Linux {release} crashes when {WARP_FILE} is written", advice)
    switch, patched = number_of(paths.group_identity_enabled), paths.bvt_place_epsilon.exists()
    if patched and (switch is not None or anolis):
        marks = f"Linux {release} shows marks of both the BVT patch and group identity"
        return BvtFile(FileKind.UNCLEAR, marks, f"{WARP_FILE} is left alone")
    if switch is not None:
        acts = "OpenAnolis group identity is switched on: the file takes a class of -2 to 2"
        off = "OpenAnolis group identity is there but switched off"
        advice = "sysctl kernel.sched_group_identity_enabled=1"
        return BvtFile(FileKind.CLASS, acts) if switch else BvtFile(FileKind.SWITCHED_OFF, off, advice)
    return _without_switch(_find_file(mounts, cpu), release, anolis, patched=patched)


def _without_switch(file: Path | None, release: str, anolis: re.Match[str] | None, *, patched: bool) -> BvtFile:
    if file is None and patched:
        advice = "mount the cpu controller of cgroup v1"
        return BvtFile(FileKind.SWITCHED_OFF, f"a BVT kernel, but no group has {WARP_FILE}", advice)
    if file is None:
        advice = "nothing to do: warp by sched_ext takes its place"
        return BvtFile(FileKind.ABSENT, f"no group has {WARP_FILE}: an ordinary kernel", advice)
    if patched:
        return BvtFile(FileKind.NANOSECONDS, f"a BVT kernel: {WARP_FILE} takes nanoseconds")
    if anolis is None:
        unclear = f"{file} exists, but nothing says whether it takes nanoseconds or a class"
        advice = "it is left alone; older OpenAnolis kernels look like this, newer ones say what they are"
        return BvtFile(FileKind.UNCLEAR, unclear, advice)
    version = (*map(int, anolis[1].split(".")), int(anolis[2]))
    if any(first <= version < last for first, last in _ACTS_WITHOUT_SWITCH):
        acts = f"Linux {release} has OpenAnolis group identity without a switch: the file takes a class of -2 to 2"
        return BvtFile(FileKind.CLASS, acts)
    ignored = f"Linux {release} has {WARP_FILE} and does not act on it"
    return BvtFile(FileKind.SWITCHED_OFF, ignored, "upgrade to 4.19.91-26.4, 5.10.134-13 or newer")


def _find_file(mounts: CgroupMounts, cpu: CgroupCpu | None) -> Path | None:
    """The file in the root of the cpu controller's hierarchy or in a group right below it."""
    if cpu is None:
        return None
    root = mounts.by_controller[cpu.controller][0]
    return next((file for file in (root / WARP_FILE, *sorted(root.glob(f"*/{WARP_FILE}"))) if file.exists()), None)


def offers_of(paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None, bpftool: str = "bpftool") -> list[Offer]:
    """Each mechanism, the best first, with what was seen of it. Nothing is changed, nothing is loaded."""
    try:
        file = bvt_file(paths, mounts, cpu)
    except (OSError, ValueError) as error:
        file = BvtFile(FileKind.UNCLEAR, f"it cannot be found out what {WARP_FILE} would take: {error}")
    return [
        _sched_ext_offer(paths, bpftool),
        Offer(Mechanism.BVT, file.kind is FileKind.NANOSECONDS, file.detail),
        Offer(Mechanism.GROUP_IDENTITY, file.kind is FileKind.CLASS, file.detail),
        slice_offer(),
    ]


def _sched_ext_offer(paths: HostPaths, bpftool: str) -> Offer:
    release = paths.kernel_release.read_text().strip()
    version = re.match(r"(\d+)\.(\d+)", release)
    recent = version is not None and tuple(map(int, version.groups())) >= OLDEST_SEEN
    oldest = ".".join(map(str, OLDEST_SEEN))
    needs = (
        (paths.sched_ext_state.exists(), "this kernel has no sched_ext"),
        (recent, f"Linux {release} is older than {oldest}, the oldest it is known to work on"),
        (paths.btf.exists(), f"there is no {paths.btf}, the types of this kernel"),
        (mounted(paths, "bpf") == paths.root / PINS, f"no BPF file system is mounted at /{PINS}"),
        (shutil.which(bpftool) is not None, "bpftool is not installed"),
    )
    lacking = "; ".join(why for there, why in needs if not there)
    return Offer(
        Mechanism.SCHED_EXT, not lacking, lacking or "sched_ext is there, and what it takes to load our scheduler"
    )


def slice_offer() -> Offer:
    """Whether slices of threads are honoured, tried on a thread of our own."""
    default_ns = default_slice_ns()
    if default_ns is None:
        return Offer(Mechanism.SLICE, False, "this kernel does not honour slices of threads (Linux 6.12 does)")
    default = f"the kernel's own is {default_ns / 10**6:g} ms"
    return Offer(Mechanism.SLICE, True, f"EEVDF honours a slice of a thread: one was set and read back; {default}")


class WarpMechanisms(KnobFiles):
    """Warps of VMs by every mechanism there is, and our scheduler on the host itself.

    ``offers`` are the mechanisms that were looked for, the best first.
    """

    def __init__(self, paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None) -> None:
        """Find out what there is. Raises nothing: what cannot be found out counts as not there."""
        self.offers = tuple(offers_of(paths, mounts, cpu))
        there = {offer.mechanism for offer in self.offers if offer.available}
        self._file_knob = next((knob for mechanism, knob in _FILES.items() if mechanism in there), None)
        self._default_slice_ns = default_slice_ns() if Mechanism.SLICE in there else None
        self.sched_ext = SchedExt(paths)

    def keys(self, vm: VmTarget | None) -> Iterator[KnobKey]:
        """Of each mechanism; of the host whether our scheduler decides."""
        if vm is None:
            yield KnobKey(HOST_UUID, Knob.SCHEDULER)
            return
        if vm.folder:
            yield from (KnobKey(vm.uuid, knob) for knob in (Knob.WARP, self._file_knob) if knob)
        if self._default_slice_ns is not None:
            yield from (KnobKey(vm.uuid, Knob.SLICE, index) for index, _ in vm.vcpus)

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        if vm is None:
            return self.sched_ext.state
        if key.knob is Knob.SLICE:
            defaults = {self._default_slice_ns, int(attributes(0).runtime)}  # it changes when pCPUs come and go
            return slice_of(vm.thread(key), defaults - {None, 0})
        if key.knob is Knob.WARP:
            return self.sched_ext.warp(inode(vm.group)).warp_us if self.sched_ext.active else None
        return number_in(vm.group / WARP_FILE)

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        wanted = checked_number(key, value)
        if vm is None:
            self._set_scheduler(wanted)
        elif key.knob is Knob.SLICE:
            set_slice(vm.thread(key), wanted)
        elif key.knob is Knob.WARP:
            self.sched_ext.set_warp(inode(vm.group), Warp(wanted))
        elif key.knob is self._file_knob:
            put_number(vm.group / WARP_FILE, wanted)
        else:
            raise HostError(f"this kernel's {WARP_FILE}, if it has one, does not take {key.knob}", errno.ENOENT)

    def _set_scheduler(self, value: int) -> None:
        """Load our scheduler (LOADED), or remove it and wait until it does not decide any more. Raises HostError."""
        if value == LOADED:
            self.sched_ext.load()
            return
        self.sched_ext.unload()
        deadline_s = time.monotonic() + _UNLOAD_S  # the kernel gives tasks back a moment later
        while self.sched_ext.active and time.monotonic() < deadline_s:
            time.sleep(0.01)
