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
    """The CPU controller of one cgroup version. ``controller`` names its hierarchy: empty for v2.

    ``quota_file`` holds the quota in microseconds, -1 for none, and ``period_file`` its period; where that is None,
    ``quota_file`` holds both, and ``max`` for no quota.
    """

    version: int
    controller: str
    weight_file: str
    scale: WeightScale
    quota_file: str
    period_file: str | None
    threads_file: str


IDLE_FILE = "cpu.idle"
"""1 puts a group into the idle class, on v1 and v2 since Linux 5.15: Documentation/admin-guide/cgroup-v2.rst."""

RT_RUNTIME_FILE, RT_PERIOD_FILE = "cpu.rt_runtime_us", "cpu.rt_period_us"
"""Microseconds that real-time threads of a v1 group may use in a period: Documentation/scheduler/sched-rt-group.rst."""

NUMA_STAT_FILE = "memory.numa_stat"
"""Memory of a group by NUMA node: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst."""

# Documentation/scheduler/sched-design-CFS.rst, Documentation/scheduler/sched-bwc.rst
CGROUP_V1 = CgroupCpu(1, "cpu", "cpu.shares", CPU_SHARES_V1, "cpu.cfs_quota_us", "cpu.cfs_period_us", "tasks")
# Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files"
CGROUP_V2 = CgroupCpu(2, "", "cpu.weight", CPU_WEIGHT_V2, "cpu.max", None, "cgroup.threads")


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


class Below:
    """A file or folder below the root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, paths: HostPaths, _owner: type[HostPaths]) -> Path:
        return paths.root / self._path


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Files of procfs, sysfs and libvirt's run-time folder below ``root``."""

    root: Path

    mountinfo = Below("proc/self/mountinfo")
    """Mounts of this mount namespace, proc_pid_mountinfo(5)."""

    stat = Below("proc/stat")
    """CPU times in clock ticks, proc_stat(5)."""

    boot_id = Below("proc/sys/kernel/random/boot_id")
    """A UUID that changes at each boot, random(4)."""

    kernel_release = Below("proc/sys/kernel/osrelease")
    """What uname -r prints."""

    online_cpus = Below("sys/devices/system/cpu/online")
    """CPU list, Documentation/ABI/testing/sysfs-devices-system-cpu."""

    sched_ext_ops = Below("sys/kernel/sched_ext/root/ops")
    """Name of the loaded sched_ext scheduler, absent where there is none: Documentation/scheduler/sched-ext.rst."""

    def process(self, pid: int) -> Path:
        """A process's folder, proc(5)."""
        return self.root / "proc" / str(pid)

    def pid_file(self, libvirt_name: str) -> Path:
        """Where libvirt's QEMU driver notes the process of a running domain."""
        return self.pid_files / f"{libvirt_name}.pid"

    def status_file(self, libvirt_name: str) -> Path:
        """Where it notes how that domain is doing (virDomainObjFormat, src/conf/domain_conf.c)."""
        return self.pid_files / f"{libvirt_name}.xml"

    pid_files = Below("run/libvirt/qemu")
    """The folder of both."""

    def cpu(self, number: int) -> Path:
        """A CPU's folder: topology/ and cache/ (Documentation/admin-guide/cputopology.rst), cpu_capacity (0 to 1024,
        Documentation/ABI/testing/sysfs-devices-system-cpu), cpufreq/ (kHz, Documentation/admin-guide/pm/cpufreq.rst).
        """
        return self.root / f"sys/devices/system/cpu/cpu{number}"

    @property
    def core_types(self) -> tuple[Path, ...]:
        """CPU list of each core type of a hybrid x86 processor, tools/perf/Documentation/intel-hybrid.txt."""
        return tuple(self.root / f"sys/devices/{name}/cpus" for name in ("cpu_core", "cpu_atom", "cpu_lowpower"))

    nodes = Below("sys/devices/system/node")
    """Folder with node*/cpulist, a CPU list, Documentation/ABI/stable/sysfs-devices-node."""

    interfaces = Below("sys/class/net")
    """Folder of network interfaces; ``device`` links to its hardware, Documentation/ABI/testing/sysfs-class-net.

    Of a PCI device: msi_irqs/ and irq, Documentation/ABI/testing/sysfs-bus-pci.
    """

    def irq(self, number: int) -> Path:
        """An interrupt's folder with CPU lists, Documentation/core-api/irq/irq-affinity.rst."""
        return self.root / f"proc/irq/{number}"

    def irq_actions(self, number: int) -> Path:
        """Names under which drivers handle an interrupt, by commas, Documentation/ABI/testing/sysfs-kernel-irq."""
        return self.root / f"sys/kernel/irq/{number}/actions"

    own_status = Below("proc/self/status")
    """State of the reading process, its capabilities among it, proc_pid_status(5)."""

    own_namespaces = Below("proc/self/ns")
    """A link for each namespace of the reading process, namespaces(7)."""

    processes = Below("proc")
    """A folder for each process, proc(5)."""

    cpuinfo = Below("proc/cpuinfo")
    """What the CPUs can do, proc_cpuinfo(5)."""

    filesystems = Below("proc/filesystems")
    """The kinds of file systems this kernel has, proc_filesystems(5)."""

    resctrl = Below("sys/fs/resctrl")
    """Where resctrl is mounted by custom, Documentation/filesystems/resctrl.rst."""

    locks = Below("proc/locks")
    """The file locks that are held, proc_locks(5)."""

    @property
    def container_marks(self) -> tuple[Path, ...]:
        """Files that Docker, Podman and systemd-nspawn leave in a container."""
        return (self.root / ".dockerenv", self.root / "run/.containerenv", self.root / "run/systemd/container")

    sched_ext_state = Below("sys/kernel/sched_ext/state")
    """``enabled``, ``disabled`` or a state between, Documentation/scheduler/sched-ext.rst."""

    sched_features = Below("sys/kernel/debug/sched/features")
    """Scheduler features, those switched off with NO_ before them: Documentation/scheduler/sched-debug.rst."""

    group_identity_enabled = Below("proc/sys/kernel/sched_group_identity_enabled")
    """There on OpenAnolis and Alibaba Cloud Linux; 1 where cpu.bvt_warp_ns acts, as a class index."""

    bvt_place_epsilon = Below("proc/sys/kernel/sched_bvt_place_epsilon")
    """There on a kernel with Leverich's BVT patch, where cpu.bvt_warp_ns is in nanoseconds."""

    numa_balancing = Below("proc/sys/kernel/numa_balancing")
    """0: off; 1: the kernel moves memory to where it is used. Documentation/admin-guide/sysctl/kernel.rst."""

    autogroup = Below("proc/sys/kernel/sched_autogroup_enabled")
    """1: processes in the root cgroup are grouped by session, sched(7)."""

    rt_runtime_us = Below("proc/sys/kernel/sched_rt_runtime_us")
    """Microseconds of each sched_rt_period_us that real-time tasks may use; -1: all of them. sched(7)."""

    btf = Below("sys/kernel/btf/vmlinux")
    """Types of the running kernel, which BPF programs are fitted to: Documentation/bpf/btf.rst."""

    kvm = Below("dev/kvm")
    """The device of Documentation/virt/kvm/api.rst."""

    @property
    def kvm_nested(self) -> tuple[Path, ...]:
        """Y or 1 where guests may run guests: Documentation/virt/kvm/x86/running-nested-guests.rst."""
        return tuple(self.root / "sys/module" / module / "parameters/nested" for module in ("kvm_intel", "kvm_amd"))

    clocksource = Below("sys/devices/system/clocksource/clocksource0")
    """Folder of the time sources, Documentation/timers/timekeeping.rst; Linux has this one."""

    cpufreq = Below("sys/devices/system/cpu/cpufreq")
    """A folder ``policyN`` for each set of CPUs with one clock, Documentation/admin-guide/pm/cpufreq.rst."""

    smt = Below("sys/devices/system/cpu/smt")
    """``control`` and ``active``, Documentation/ABI/testing/sysfs-devices-system-cpu."""

    isolated_cpus = Below("sys/devices/system/cpu/isolated")
    """CPU list of isolcpus=, Documentation/ABI/testing/sysfs-devices-system-cpu."""

    nohz_full_cpus = Below("sys/devices/system/cpu/nohz_full")
    """CPU list of nohz_full=, Documentation/ABI/testing/sysfs-devices-system-cpu."""

    online_nodes = Below("sys/devices/system/node/online")
    """List of memory nodes, in the format of a CPU list: Documentation/ABI/stable/sysfs-devices-node."""

    def cpuidle(self, cpu: int) -> Path:
        """A folder ``stateN`` for each idle state of a CPU; latency in us. Documentation/admin-guide/pm/cpuidle.rst."""
        return self.root / f"sys/devices/system/cpu/cpu{cpu}/cpuidle"


USER_HZ_NS = 10_000_000
"""Nanoseconds of a clock tick in /proc/stat: USER_HZ is 100 on every Linux architecture libvirt runs QEMU on."""
