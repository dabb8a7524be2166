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
        return self.pid_files / f"{libvirt_name}.pid"

    def status_file(self, libvirt_name: str) -> Path:
        """Where it notes how that domain is doing (virDomainObjFormat, src/conf/domain_conf.c)."""
        return self.pid_files / f"{libvirt_name}.xml"

    @property
    def pid_files(self) -> Path:
        """The folder of both."""
        return self.root / "run/libvirt/qemu"

    def cpu(self, number: int) -> Path:
        """A CPU's folder: topology/ and cache/ (Documentation/admin-guide/cputopology.rst), cpu_capacity (0 to 1024,
        Documentation/ABI/testing/sysfs-devices-system-cpu), cpufreq/ (kHz, Documentation/admin-guide/pm/cpufreq.rst).
        """
        return self.root / f"sys/devices/system/cpu/cpu{number}"

    @property
    def core_types(self) -> tuple[Path, ...]:
        """CPU list of each core type of a hybrid x86 processor, tools/perf/Documentation/intel-hybrid.txt."""
        return tuple(self.root / f"sys/devices/{name}/cpus" for name in ("cpu_core", "cpu_atom", "cpu_lowpower"))

    @property
    def nodes(self) -> Path:
        """Folder with node*/cpulist, a CPU list, Documentation/ABI/stable/sysfs-devices-node."""
        return self.root / "sys/devices/system/node"

    @property
    def interfaces(self) -> Path:
        """Folder of network interfaces; ``device`` links to its hardware, Documentation/ABI/testing/sysfs-class-net.

        Of a PCI device: msi_irqs/ and irq, Documentation/ABI/testing/sysfs-bus-pci.
        """
        return self.root / "sys/class/net"

    def irq(self, number: int) -> Path:
        """An interrupt's folder with CPU lists, Documentation/core-api/irq/irq-affinity.rst."""
        return self.root / f"proc/irq/{number}"

    def irq_actions(self, number: int) -> Path:
        """Names under which drivers handle an interrupt, by commas, Documentation/ABI/testing/sysfs-kernel-irq."""
        return self.root / f"sys/kernel/irq/{number}/actions"

    @property
    def own_status(self) -> Path:
        """State of the reading process, its capabilities among it, proc_pid_status(5)."""
        return self.root / "proc/self/status"

    @property
    def own_namespaces(self) -> Path:
        """A link for each namespace of the reading process, namespaces(7)."""
        return self.root / "proc/self/ns"

    @property
    def processes(self) -> Path:
        """A folder for each process, proc(5)."""
        return self.root / "proc"

    @property
    def cpuinfo(self) -> Path:
        """What the CPUs can do, proc_cpuinfo(5)."""
        return self.root / "proc/cpuinfo"

    @property
    def filesystems(self) -> Path:
        """The kinds of file systems this kernel has, proc_filesystems(5)."""
        return self.root / "proc/filesystems"

    @property
    def resctrl(self) -> Path:
        """Where resctrl is mounted by custom, Documentation/filesystems/resctrl.rst."""
        return self.root / "sys/fs/resctrl"

    @property
    def locks(self) -> Path:
        """The file locks that are held, proc_locks(5)."""
        return self.root / "proc/locks"

    @property
    def container_marks(self) -> tuple[Path, ...]:
        """Files that Docker, Podman and systemd-nspawn leave in a container."""
        return (self.root / ".dockerenv", self.root / "run/.containerenv", self.root / "run/systemd/container")

    @property
    def sched_ext_state(self) -> Path:
        """``enabled``, ``disabled`` or a state between, Documentation/scheduler/sched-ext.rst."""
        return self.root / "sys/kernel/sched_ext/state"

    @property
    def sched_features(self) -> Path:
        """Scheduler features, those switched off with NO_ before them: Documentation/scheduler/sched-debug.rst."""
        return self.root / "sys/kernel/debug/sched/features"

    @property
    def group_identity_enabled(self) -> Path:
        """There on OpenAnolis and Alibaba Cloud Linux; 1 where cpu.bvt_warp_ns acts, as a class index."""
        return self.root / "proc/sys/kernel/sched_group_identity_enabled"

    @property
    def bvt_place_epsilon(self) -> Path:
        """There on a kernel with Leverich's BVT patch, where cpu.bvt_warp_ns is in nanoseconds."""
        return self.root / "proc/sys/kernel/sched_bvt_place_epsilon"

    @property
    def numa_balancing(self) -> Path:
        """0: off; 1: the kernel moves memory to where it is used. Documentation/admin-guide/sysctl/kernel.rst."""
        return self.root / "proc/sys/kernel/numa_balancing"

    @property
    def autogroup(self) -> Path:
        """1: processes in the root cgroup are grouped by session, sched(7)."""
        return self.root / "proc/sys/kernel/sched_autogroup_enabled"

    @property
    def rt_runtime_us(self) -> Path:
        """Microseconds of each sched_rt_period_us that real-time tasks may use; -1: all of them. sched(7)."""
        return self.root / "proc/sys/kernel/sched_rt_runtime_us"

    @property
    def btf(self) -> Path:
        """Types of the running kernel, which BPF programs are fitted to: Documentation/bpf/btf.rst."""
        return self.root / "sys/kernel/btf/vmlinux"

    @property
    def kvm(self) -> Path:
        """The device of Documentation/virt/kvm/api.rst."""
        return self.root / "dev/kvm"

    @property
    def kvm_nested(self) -> tuple[Path, ...]:
        """Y or 1 where guests may run guests: Documentation/virt/kvm/x86/running-nested-guests.rst."""
        return tuple(self.root / "sys/module" / module / "parameters/nested" for module in ("kvm_intel", "kvm_amd"))

    @property
    def clocksource(self) -> Path:
        """Folder of the time sources, Documentation/timers/timekeeping.rst; Linux has this one."""
        return self.root / "sys/devices/system/clocksource/clocksource0"

    @property
    def cpufreq(self) -> Path:
        """A folder ``policyN`` for each set of CPUs with one clock, Documentation/admin-guide/pm/cpufreq.rst."""
        return self.root / "sys/devices/system/cpu/cpufreq"

    @property
    def smt(self) -> Path:
        """``control`` and ``active``, Documentation/ABI/testing/sysfs-devices-system-cpu."""
        return self.root / "sys/devices/system/cpu/smt"

    @property
    def isolated_cpus(self) -> Path:
        """CPU list of isolcpus=, Documentation/ABI/testing/sysfs-devices-system-cpu."""
        return self.root / "sys/devices/system/cpu/isolated"

    @property
    def nohz_full_cpus(self) -> Path:
        """CPU list of nohz_full=, Documentation/ABI/testing/sysfs-devices-system-cpu."""
        return self.root / "sys/devices/system/cpu/nohz_full"

    @property
    def online_nodes(self) -> Path:
        """List of memory nodes, in the format of a CPU list: Documentation/ABI/stable/sysfs-devices-node."""
        return self.root / "sys/devices/system/node/online"

    def cpuidle(self, cpu: int) -> Path:
        """A folder ``stateN`` for each idle state of a CPU; latency in us. Documentation/admin-guide/pm/cpuidle.rst."""
        return self.root / f"sys/devices/system/cpu/cpu{cpu}/cpuidle"


USER_HZ_NS = 10_000_000
"""Nanoseconds of a clock tick in /proc/stat: USER_HZ is 100 on every Linux architecture libvirt runs QEMU on."""
