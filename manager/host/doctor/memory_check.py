"""Whether memory of VMs can be protected from being reclaimed, and held to a ceiling: written to a scratch group."""

from __future__ import annotations

from manager.host.cgroup import CgroupMounts, read_mounts
from manager.host.doctor.check import CheckResult, Subject, degraded, ignored, missing, unknown, works
from manager.host.doctor.scratch import refused_value, scratch_group
from manager.host.files import text_of
from manager.host.registry import MEMORY_HIGH_FILE, MEMORY_LOW_FILE, SOFT_LIMIT_FILE, SWAPPINESS_FILE

_AMOUNT = str(1 << 24)
_USE_V2 = "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)"
_DOCTOR_ADVICE = "do without it on this kernel"


def protection(subject: Subject) -> CheckResult:
    """``memory.low``, or the swappiness of v1. Raises OSError."""
    mounts = read_mounts(subject.paths)
    if "memory" not in mounts.by_controller:
        return _tried(mounts, MEMORY_LOW_FILE, "memory of critical VMs is reclaimed last")
    return _tried_v1(
        mounts,
        SWAPPINESS_FILE,
        "0",
        "critical VMs are not swapped out while a group above them is at its limit, or page cache is left to take; no"
        " more than that",
    )


def ceiling(subject: Subject) -> CheckResult:
    """``memory.high``, or the soft limit of v1. Raises OSError."""
    mounts = read_mounts(subject.paths)
    if "memory" not in mounts.by_controller:
        return _tried(mounts, MEMORY_HIGH_FILE, "batch VMs that grow are held back")
    return _tried_v1(
        mounts,
        SOFT_LIMIT_FILE,
        _AMOUNT,
        "it holds nobody back, but once the host is short of memory the kernel reclaims what is above it first",
    )


def _tried_v1(mounts: CgroupMounts, name: str, wanted: str, effect: str) -> CheckResult:
    root, _ = mounts.by_controller["memory"]
    with scratch_group(root) as group:
        if not (group / name).exists():
            return missing(f"a new group has no {name}", _USE_V2)
        if wrong := refused_value(group / name, wanted):
            return ignored(wrong, _DOCTOR_ADVICE)
    return degraded(f"cgroup v1: {name} is taken: {effect}", _USE_V2)


def _tried(mounts: CgroupMounts, name: str, effect: str) -> CheckResult:
    root, _ = mounts.by_controller.get("", (None, ""))
    if root is None or "memory" not in (text_of(root / "cgroup.controllers") or "").split():
        return missing("no cgroup hierarchy has the memory controller", "boot with cgroup_enable=memory")
    if "memory" not in (text_of(root / "cgroup.subtree_control") or "").split():
        return unknown(
            "not tried: the memory controller is not enabled for groups below the root",
            "start a VM, or set MemoryAccounting=yes for machine.slice",
        )
    with scratch_group(root) as group:
        for wanted in (_AMOUNT, "max", "0") if name == MEMORY_LOW_FILE else (_AMOUNT, "max"):
            if wrong := refused_value(group / name, wanted):
                return ignored(wrong, _DOCTOR_ADVICE)
    return works(f"{name} is taken and read back: {effect}")
