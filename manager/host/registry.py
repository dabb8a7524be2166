"""Each kernel file that Equipoise reads or writes, declared once: where it is, its unit, its range, its document.

Paths are relative to a root folder (``/`` on a real host), and those of a cgroup to its folder, so that tests and
containers can point elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, WeightScale


@dataclass(frozen=True, slots=True)
class CgroupCpu:
    """The CPU weight of one cgroup version. ``controller`` names its hierarchy: empty for v2."""

    version: int
    controller: str
    weight_file: str
    scale: WeightScale


# Documentation/scheduler/sched-design-CFS.rst
CGROUP_V1 = CgroupCpu(1, "cpu", "cpu.shares", CPU_SHARES_V1)
# Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files"
CGROUP_V2 = CgroupCpu(2, "", "cpu.weight", CPU_WEIGHT_V2)


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """A file with the CPU time of a cgroup, in units of ``unit_ns`` nanoseconds, after ``key`` where there is one."""

    controller: str
    file: str
    key: bytes
    unit_ns: int


CGROUP_USAGE = (
    # Documentation/admin-guide/cgroup-v1/cpuacct.rst
    CgroupUsage("cpuacct", "cpuacct.usage", b"", 1),
    # Documentation/admin-guide/cgroup-v2.rst: there also where the cpu controller is not enabled, or is v1's. On a
    # host with both, libvirt takes CPU accounting from v2 and leaves its VMs in the root of v1's cpuacct.
    CgroupUsage("", "cpu.stat", b"usage_usec ", 1000),
)


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Files of procfs, sysfs and libvirt's run-time folder below ``root``."""

    root: Path

    @property
    def mountinfo(self) -> Path:
        """Mounts of this mount namespace, proc_pid_mountinfo(5)."""
        return self.root / "proc/self/mountinfo"

    @property
    def stat(self) -> Path:
        """CPU times in clock ticks, proc_stat(5)."""
        return self.root / "proc/stat"

    @property
    def boot_id(self) -> Path:
        """A UUID that changes at each boot, random(4)."""
        return self.root / "proc/sys/kernel/random/boot_id"

    @property
    def kernel_release(self) -> Path:
        """What uname -r prints."""
        return self.root / "proc/sys/kernel/osrelease"

    @property
    def online_cpus(self) -> Path:
        """CPU list, Documentation/ABI/testing/sysfs-devices-system-cpu."""
        return self.root / "sys/devices/system/cpu/online"

    @property
    def sched_ext_ops(self) -> Path:
        """Name of the loaded sched_ext scheduler, absent where there is none: Documentation/scheduler/sched-ext.rst."""
        return self.root / "sys/kernel/sched_ext/root/ops"

    def process(self, pid: int) -> Path:
        """A process's folder, proc(5)."""
        return self.root / "proc" / str(pid)

    def pid_file(self, libvirt_name: str) -> Path:
        """Where libvirt's QEMU driver notes the process of a running domain."""
        return self.root / "run/libvirt/qemu" / f"{libvirt_name}.pid"


USER_HZ_NS = 10_000_000
"""Nanoseconds of a clock tick in /proc/stat: USER_HZ is 100 on every Linux architecture libvirt runs QEMU on."""
