"""Finds the CPU cgroup of a VM from its QEMU process, on cgroup v1 and v2, with and without systemd names.

libvirt puts the threads of a QEMU process into child groups (``emulator``, ``vcpuN``, ``iothreadN``), under systemd
inside a further group ``libvirt``. The VM's group, the one that competes with those of other VMs, is above all of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from manager.host.registry import (
    CGROUP_USAGE,
    CGROUP_V1,
    CGROUP_V2,
    IDLE_FILE,
    NUMA_STAT_FILE,
    CgroupCpu,
    CgroupUsage,
    HostPaths,
)

_CHILD_GROUP = re.compile(r"^(emulator|vcpu\d+|iothread\d+)$")
# qemu-3-NAME.libvirt-qemu without systemd, machine-qemu\x2d3\x2dNAME.scope with it
_VM_GROUP = re.compile(r"^(qemu-\d+-|machine-qemu\\x2d\d+\\x2d)")
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


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

    ``resident_file`` tells on which NUMA nodes its memory is, None where nothing counts that.
    """

    cpu_folder: Path | None
    cpu: CgroupCpu | None
    usage_file: Path | None
    usage: CgroupUsage | None
    resident_file: Path | None = None

    @property
    def weight_file(self) -> Path | None:
        """The file of its CPU weight."""
        return self.cpu_folder / self.cpu.weight_file if self.cpu_folder and self.cpu else None


def read_mounts(paths: HostPaths) -> CgroupMounts:
    """The cgroup mounts of this mount namespace, with mount points below the root folder.

    Raises OSError when mountinfo cannot be read.
    """
    found: dict[str, tuple[Path, str]] = {}
    for line in os.fsdecode(paths.mountinfo.read_bytes()).splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        mount = (paths.root / PurePosixPath(_unescape(fields[4])).relative_to("/"), _unescape(fields[3]))
        if kind[0] == "cgroup2":
            found.setdefault("", mount)
        else:
            for controller in kind[-1].split(","):
                found.setdefault(controller, mount)
    return CgroupMounts(found)


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


def find_vm_cgroup(paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None, pid: int) -> VmCgroup:
    """The groups of the VM that process ``pid`` runs. Raises OSError when the process is gone."""
    groups = parse_process_cgroups(os.fsdecode((paths.process(pid) / "cgroup").read_bytes()))
    cpu_folder = _folder(mounts, groups, cpu.controller) if cpu else None
    if cpu and cpu_folder and not (cpu_folder / cpu.weight_file).exists():  # v2: not enabled down there
        cpu_folder = None
    memory = [_folder(mounts, groups, controller) for controller in ("memory", "")]
    resident = [folder / NUMA_STAT_FILE for folder in memory if folder and (folder / NUMA_STAT_FILE).exists()]
    found = VmCgroup(cpu_folder, cpu if cpu_folder else None, None, None, resident[0] if resident else None)
    for usage in CGROUP_USAGE:
        folder = _folder(mounts, groups, usage.controller)
        if folder and (folder / usage.file).exists():
            return replace(found, usage_file=folder / usage.file, usage=usage)
    return found


def _folder(mounts: CgroupMounts, groups: dict[str, str], controller: str) -> Path | None:
    group = vm_group(groups.get(controller, ""))
    return None if group is None else mounts.folder(controller, group)


def _unescape(text: str) -> str:
    return _OCTAL_ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)
