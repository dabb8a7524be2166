"""The cgroups of a VM on v1 and v2: found from its QEMU process, with and without systemd names; weight, idle class and
quota; and on which NUMA nodes its memory is.

libvirt puts the threads of a QEMU process into child groups (``emulator``, ``vcpuN``, ``iothreadN``), under systemd
inside a further group ``libvirt``. The VM's group, the one that competes with those of other VMs, is above all of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError
from manager.host.files import mounts_of, open_file, read, read_small, write
from manager.host.registry import (
    CGROUP_USAGE,
    CGROUP_V1,
    CGROUP_V2,
    IDLE_FILE,
    MEMORY_STAT_FILE,
    NUMA_STAT_FILE,
    CgroupCpu,
    CgroupUsage,
    HostPaths,
)
from manager.host.write_watch import UNWATCHED, WriteWatch
from manager.model.cpus import parse_cpus
from manager.model.host import Quota
from manager.model.knobs import UNLIMITED, Knob

_CHILD_GROUP = re.compile(r"^(emulator|vcpu\d+|iothread\d+)$")
# qemu-3-NAME.libvirt-qemu without systemd, machine-qemu\x2d3\x2dNAME.scope with it
_VM_GROUP = re.compile(r"^(qemu-\d+-|machine-qemu\\x2d\d+\\x2d)")
_MEMS_ALLOWED = re.compile(r"^Mems_allowed_list:\s*(\S+)", re.MULTILINE)
_NODE = re.compile(r"\bN(\d+)=(\d+)")
_MOST = 0.8
"""Nodes that hold this share of a VM's memory are where it is."""


@dataclass(frozen=True, slots=True)
class CgroupMounts:
    """Where the hierarchies are mounted: v1 by controller, v2 (``""``); each with the group its root stands for."""

    by_controller: dict[str, tuple[Path, str]]

    def folder(self, controller: str, group: str) -> Path | None:
        """The folder of a group in a controller's hierarchy, or None where it is not visible here."""
        mount = self.by_controller.get(controller)
        if mount is None:
            return None
        point, top = mount
        if top not in ("/", group) and not group.startswith(top + "/"):
            return None
        below = group.removeprefix(top).lstrip("/")
        return None if ".." in below.split("/") else point / below  # "..": outside this cgroup namespace


@dataclass(frozen=True, slots=True)
class VmCgroup:
    """A VM's own groups. ``cpu_folder`` None: it has none that can be weighted; ``usage`` None: none that counts.

    ``resident_file`` says on which NUMA nodes its memory is, None where nothing counts that; ``memory_folder`` is the
    group with the memory controller, ``disk_folder`` that whose disk I/O may be weighted; None where it has none.
    """

    cpu_folder: Path | None
    cpu: CgroupCpu | None
    usage_file: Path | None
    usage: CgroupUsage | None
    resident_file: Path | None = None
    memory_folder: Path | None = None
    disk_folder: Path | None = None

    @property
    def in_scope(self) -> bool:
        """Whether the group is a scope of systemd."""
        return self.cpu_folder is not None and self.cpu_folder.suffix == ".scope"


def read_mounts(paths: HostPaths) -> CgroupMounts:
    """The cgroup mounts of this mount namespace. Raises OSError when mountinfo cannot be read."""
    by_controller: dict[str, tuple[Path, str]] = {}
    for mount in mounts_of(paths, "cgroup", "cgroup2"):
        for controller in ("",) if mount.kind == "cgroup2" else mount.options:
            by_controller.setdefault(controller, (mount.point, mount.top))
    return CgroupMounts(by_controller)


def cpu_controller(mounts: CgroupMounts) -> CgroupCpu | None:
    """The cgroup version that carries the cpu controller, or None where neither does.

    A v1 mount of ``cpu`` decides; otherwise v2 does where the kernel has the controller in its single hierarchy.
    """
    if "cpu" in mounts.by_controller:
        return CGROUP_V1
    mount = mounts.by_controller.get("")
    if mount is None:
        return None
    try:
        controllers = (mount[0] / "cgroup.controllers").read_text().split()
    except OSError:
        return None
    return CGROUP_V2 if "cpu" in controllers else None


def has_idle_class(mounts: CgroupMounts, cpu: CgroupCpu) -> bool:
    """Whether groups can be put into the idle class: seen in any group below the root, which has no such file."""
    mount = mounts.by_controller.get(cpu.controller)
    try:
        return mount is not None and any((folder / IDLE_FILE).exists() for folder in mount[0].iterdir())
    except OSError:
        return False


def emulator_threads(vm_group: Path, cpu: CgroupCpu) -> Path | None:
    """The list of the threads in the group of a VM's emulator, below the VM's own; None: it has none."""
    files = (vm_group / inside / "emulator" / cpu.threads_file for inside in ("", "libvirt"))
    return next((file for file in files if file.exists()), None)


def parse_process_cgroups(text: str) -> dict[str, str]:
    """Group of a process by controller, from /proc/PID/cgroup (cgroups(7)); v2 under the empty name."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy and group.startswith("/"):
            for controller in controllers.split(","):
                groups[controller] = group
    return groups


def vm_group(group: str) -> str | None:
    """The VM's own group above the group of one of its threads.

    None when no such group is above it: then the process shares a group with others, and that group's weight must
    never be written.
    """
    parts = [part for part in group.split("/") if part]
    if parts and _CHILD_GROUP.match(parts[-1]):
        parts.pop()
    if parts and parts[-1] == "libvirt":
        parts.pop()
    if not parts or not _VM_GROUP.match(parts[-1]):
        return None
    return "/" + "/".join(parts)


def groups_above_vms(root: Path) -> Iterator[Path]:
    """The groups below a hierarchy's root that are no VM's, nor inside one, the outer ones first."""
    for path, folders, _ in os.walk(root):
        folders[:] = sorted(name for name in folders if vm_group(f"/{name}") is None)
        if path != str(root):
            yield Path(path)


def find_vm_cgroup(paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None, pid: int) -> VmCgroup:
    """The groups of the VM that process ``pid`` runs. Raises OSError when the process is gone."""
    groups = parse_process_cgroups(os.fsdecode((paths.process(pid) / "cgroup").read_bytes()))

    def file_of(controller: str, name: str) -> Path | None:
        group = vm_group(groups.get(controller, ""))
        folder = None if group is None else mounts.folder(controller, group)
        return folder / name if folder and (folder / name).exists() else None

    weight_file = file_of(cpu.controller, cpu.weight_file) if cpu else None  # none on v2: not enabled down there
    resident_file = file_of("memory", NUMA_STAT_FILE) or file_of("", NUMA_STAT_FILE)
    memory_file = file_of("memory", MEMORY_STAT_FILE) or file_of("", MEMORY_STAT_FILE)
    usages = ((file_of(usage.controller, usage.file), usage) for usage in CGROUP_USAGE)
    usage_file, usage = next(((file, usage) for file, usage in usages if file), (None, None))
    folder = weight_file.parent if weight_file else None
    memory_folder = memory_file.parent if memory_file else None
    group = vm_group(groups.get("blkio" if "blkio" in mounts.by_controller else "", ""))
    disk_folder = mounts.folder("blkio" if "blkio" in mounts.by_controller else "", group) if group else None
    return VmCgroup(folder, cpu if folder else None, usage_file, usage, resident_file, memory_folder, disk_folder)


def memory_nodes(paths: HostPaths, pid: int, resident_file: Path | None) -> frozenset[int]:
    """The NUMA nodes that a process is bound to (Mems_allowed_list, proc_pid_status(5)), or else that with most of its
    memory; empty where it is on many, or not known.

    ``resident_file`` is the memory.numa_stat of its cgroup. A host with one node has none to choose from.
    """
    with contextlib.suppress(OSError, ValueError):  # OSError: a kernel without NUMA
        online = parse_cpus(read_small(str(paths.online_nodes)).decode())
        if len(online) > 1:
            return _bound_nodes(paths, pid, online) or _filled_nodes(resident_file)
    return frozenset()


def _bound_nodes(paths: HostPaths, pid: int, online: frozenset[int]) -> frozenset[int]:
    with contextlib.suppress(OSError, ValueError):
        match = _MEMS_ALLOWED.search((paths.process(pid) / "status").read_text())
        bound = parse_cpus(match[1]) & online if match else online
        return bound if bound != online else frozenset()
    return frozenset()


def _filled_nodes(resident_file: Path | None) -> frozenset[int]:
    """By v1's line of all memory (pages), or v2's of anonymous memory (bytes)."""
    lines: list[str] = []
    if resident_file:
        with contextlib.suppress(OSError):
            lines = resident_file.read_text().splitlines()
    line = next((line for line in lines if line.startswith(("total=", "anon "))), "")
    by_node = {int(node): int(held) for node, held in _NODE.findall(line)}
    total = sum(by_node.values())
    return frozenset(node for node, held in by_node.items() if total and held >= _MOST * total)


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the group holds. ``weight`` None: it is in the idle class; the others: the kernel has no such file."""

    weight: int | None
    idle: bool | None
    quota: Quota | None

    def value(self, knob: Knob) -> int | None:
        """As a knob has it."""
        idle, quota_us = int(self.idle or 0), self.quota.quota_us if self.quota else None
        return {Knob.WEIGHT: self.weight, Knob.IDLE: idle, Knob.QUOTA: quota_us}[knob]


MOST_UNREAD = 16
"""Settings of which no change was reported are read again after so many readings."""


class CpuGroup:
    """A cgroup's files, held open."""

    def __init__(self, cpu: CgroupCpu, folder: Path, watch: WriteWatch | None = None) -> None:
        """Open them. Raises VmVanished, HostError.

        With a ``watch`` they are read again once anybody wrote there, and now and then: a write from another control
        group namespace is not reported, nor that the group is gone.
        """
        self._cpu = cpu
        self._watch = watch
        self._watched = UNWATCHED
        self._files = {Knob.WEIGHT: cpu.weight_file, Knob.IDLE: IDLE_FILE, Knob.QUOTA: cpu.quota_file}
        self._fds: dict[str, int] = {}
        self._texts: Mapping[str, bytes] = {}  # as last read, what they say, and after how many writes that was
        self._state = GroupState(None, None, None)
        self._writes: int | None = None
        self._total: int | None = None  # of the watch, when that was looked at
        self._unread = 0
        try:
            for name in filter(None, (*self._files.values(), cpu.period_file)):
                if name == cpu.weight_file or (folder / name).exists():
                    self._fds[name] = open_file(folder / name, os.O_RDWR)
            if watch is not None:
                self._watched = watch.add(folder)
        except BaseException:  # whatever ends it, no descriptor may stay open
            self.close()
            raise

    def read(self) -> GroupState:
        """All of them. Raises VmVanished, HostError; ValueError or IndexError for what no kernel writes."""
        watch = self._watch
        self._unread += 1
        if watch is None or watch.total != self._total or self._unread >= MOST_UNREAD:  # mostly nobody wrote anywhere
            writes = None if watch is None else watch.writes(self._watched)
            if writes is None or writes != self._writes or self._unread >= MOST_UNREAD:
                texts = {name: read(descriptor) for name, descriptor in self._fds.items()}
                if texts != self._texts:
                    self._state, self._texts = self._state_of(texts), texts
                self._writes, self._unread = writes, 0
            self._total = None if watch is None or writes is None else watch.total
        return self._state

    def _state_of(self, texts: Mapping[str, bytes]) -> GroupState:
        idle = bool(_number(texts[IDLE_FILE])) if IDLE_FILE in texts else None
        return GroupState(None if idle else _number(texts[self._cpu.weight_file]), idle, self._quota_of(texts))

    @property
    def spared(self) -> int:
        """How many readings more need no look at the files, as long as the ``total`` of the watch stays; 0: none."""
        return MOST_UNREAD - 1 - self._unread if self._total is not None else 0

    def spare(self, readings: int) -> None:
        """So many were not made."""
        self._unread += readings

    def write(self, knob: Knob, value: int) -> int:
        """Set weight, idle class (0 or 1) or quota (microseconds, or UNLIMITED) and return what it then holds.

        Raises VmVanished, and HostError with the kernel's errno: EINVAL for the weight of a group in the idle class.
        """
        descriptor = self._fds.get(self._files[knob])
        if descriptor is None:
            raise HostError(f"this kernel has no file for {knob}", errno.ENOENT)
        # v2 keeps the period where only the quota is written.
        unlimited = knob is Knob.QUOTA and value == UNLIMITED and self._cpu.period_file is None
        write(descriptor, b"max" if unlimited else str(value).encode())
        self._writes = self._total = None  # what it holds now is read, whatever was reported
        held = self.read().value(knob)
        return value if held is None else held

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        if self._watch is not None and self._watched != UNWATCHED:
            self._watch.remove(self._watched)
            self._watched = UNWATCHED

    def _quota_of(self, texts: Mapping[str, bytes]) -> Quota | None:
        period_file, quota_text = self._cpu.period_file, texts.get(self._cpu.quota_file)
        if quota_text is None:
            return None
        if period_file is not None:
            return Quota(_number(quota_text), _number(texts[period_file])) if period_file in texts else None
        quota, period = _whole(quota_text).split()
        return Quota(UNLIMITED if quota == b"max" else int(quota), int(period))


def _whole(text: bytes) -> bytes:
    """A file's one line, as a whole: a part of a number would pass for another. Raises HostError."""
    if not text.endswith(b"\n"):
        raise HostError(f"read: {text!r} is cut short", errno.EIO)
    return text


def _number(text: bytes) -> int:
    """The number that a file consists of. Raises HostError, ValueError."""
    return int(_whole(text))
