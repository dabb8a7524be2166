"""Each kernel file that Equipoise reads or writes, declared once: where it is, its unit, its range, its document.

Paths are relative to a root folder (``/`` on a real host), and those of a cgroup to its folder, so that tests and
containers can point elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
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

PRESSURE_FILES = ("cpu.pressure", "memory.pressure", "io.pressure")
"""Time in which threads of a v2 group waited for each resource, in microseconds: Documentation/accounting/psi.rst."""

MEMORY_STAT_FILE = "memory.stat"
"""Counters of a group's memory: Documentation/admin-guide/cgroup-v2.rst; v1's have the same names for faults."""

MEMORY_LOW_FILE, MEMORY_HIGH_FILE = "memory.low", "memory.high"
"""Bytes, or ``max``, of a v2 group that are reclaimed last, and above which it is held back: cgroup-v2.rst."""

SOFT_LIMIT_FILE = "memory.soft_limit_in_bytes"
"""Bytes of a v1 group above which memory is reclaimed from it first where the host is short: cgroup-v1/memory.rst."""

SWAPPINESS_FILE, HARD_LIMIT_FILE = "memory.swappiness", "memory.limit_in_bytes"
"""How readily the kernel swaps out pages of a v1 group rather than taking page cache, 0: not for the limit of a group
above it; and the limit of the group itself: cgroup-v1/memory.rst."""

DISK_WEIGHT_FILES = {
    1: {"bfq": "blkio.bfq.weight"},
    2: {"bfq": "io.bfq.weight", "io.cost": "io.weight"},
}
"""Shares of a group of a disk's time, by version and by what makes them act: Documentation/block/bfq-iosched.rst, and
cgroup-v2.rst, "IO Interface Files"."""

DISK_CEILING_FILES = {
    1: ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"),
    2: ("io.max",),
}
"""Requests per second of a group by disk, by version: cgroup-v1/blkio-controller.rst, cgroup-v2.rst."""

COST_FILE = "io.cost.qos"
"""At the root of v2: a line for each disk with ``enable=1`` where io.cost makes weights act."""

IO_STAT_FILE = "io.stat"
"""Bytes and requests of a v2 group by device: Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files"."""

BLKIO_FILES = tuple(
    (f"blkio.{policy}.io_service_bytes_recursive", f"blkio.{policy}.io_serviced_recursive")
    for policy in ("bfq", "throttle")
)
"""The same of a v1 group: Documentation/admin-guide/cgroup-v1/blkio-controller.rst. Each counts where its policy acts
on the device: BFQ as its scheduler, throttling before Linux 6.10 always, since then where a limit was set."""

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


@lru_cache(maxsize=1024)
def _below(root: Path, path: str) -> Path:
    """Putting a path together costs as much as reading a small file."""
    return root / path


class Below:
    """A file or folder below the root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, paths: HostPaths, _owner: type[HostPaths]) -> Path:
        return _below(paths.root, self._path)


class AllBelow:
    """Several of them."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, paths: HostPaths, _owner: type[HostPaths]) -> tuple[Path, ...]:
        return tuple(paths.root / name for name in self._names)


class EachBelow:
    """One for each number or name, which stands in place of ``{}``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, paths: HostPaths, _owner: type[HostPaths]) -> Callable[[int | str], Path]:
        return lambda number: paths.root / self._path.format(number)


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Files of procfs, sysfs and libvirt's run-time folder below ``root``, each with the document that describes it."""

    root: Path

    # Of this machine and this process: proc(5) and its proc_*(5), capabilities(7), namespaces(7), random(4)
    processes = Below("proc")  # a folder for each process
    process = EachBelow("proc/{}")
    stat = Below("proc/stat")  # CPU times in clock ticks
    cpuinfo = Below("proc/cpuinfo")  # what the CPUs can do
    filesystems = Below("proc/filesystems")  # the kinds of file systems this kernel has
    locks = Below("proc/locks")  # the file locks that are held
    mountinfo = Below("proc/self/mountinfo")  # mounts of this mount namespace
    own_status = Below("proc/self/status")  # state of the reading process, its capabilities among it
    own_namespaces = Below("proc/self/ns")  # a link for each namespace of the reading process
    boot_id = Below("proc/sys/kernel/random/boot_id")  # a UUID that changes at each boot
    kernel_release = Below("proc/sys/kernel/osrelease")  # what uname -r prints
    # Documentation/accounting/psi.rst: files ``cpu``, ``memory`` and ``io``, absent or EOPNOTSUPP where PSI is off
    pressure = Below("proc/pressure")
    meminfo = Below("proc/meminfo")  # ``MemTotal`` and others in kB, proc_meminfo(5)
    diskstats = Below("proc/diskstats")  # requests of each disk and partition, Documentation/admin-guide/iostats.rst
    block_devices = Below("sys/block")  # a folder for each whole disk, Documentation/ABI/stable/sysfs-block

    # Documentation/ABI/testing/sysfs-devices-system-cpu, admin-guide/pm/cpufreq.rst and timers/timekeeping.rst
    online_cpus = Below("sys/devices/system/cpu/online")  # CPU list
    possible_cpus = Below("sys/devices/system/cpu/possible")  # CPU list
    isolated_cpus = Below("sys/devices/system/cpu/isolated")  # CPU list of isolcpus=
    nohz_full_cpus = Below("sys/devices/system/cpu/nohz_full")  # CPU list of nohz_full=
    # a folder with topology/ and cache/ (admin-guide/cputopology.rst), cpu_capacity (0 to 1024), cpufreq/ (kHz), and
    # cpuidle/stateN (latency in us, admin-guide/pm/cpuidle.rst)
    cpu = EachBelow("sys/devices/system/cpu/cpu{}")
    # CPU list of each core type of a hybrid x86 processor, tools/perf/Documentation/intel-hybrid.txt
    core_types = AllBelow(*(f"sys/devices/{kind}/cpus" for kind in ("cpu_core", "cpu_atom", "cpu_lowpower")))
    smt = Below("sys/devices/system/cpu/smt")  # ``control`` and ``active``
    cpufreq = Below("sys/devices/system/cpu/cpufreq")  # a folder ``policyN`` for each set of CPUs with one clock
    # folders ``intel-rapl:N`` and ``intel-rapl:N:M``, also on AMD, Documentation/power/powercap/powercap.rst
    powercap = Below("sys/class/powercap")
    clocksource = Below("sys/devices/system/clocksource/clocksource0")  # folder of the time sources: Linux has this one

    # Documentation/ABI/stable/sysfs-devices-node
    nodes = Below("sys/devices/system/node")  # node*/cpulist: CPU lists
    online_nodes = Below("sys/devices/system/node/online")  # list of memory nodes, in the format of a CPU list

    # Documentation/ABI/testing/sysfs-class-net and sysfs-bus-pci: ``device`` links to the hardware, which has msi_irqs/
    # and irq where it is a PCI device
    interfaces = Below("sys/class/net")
    irq = EachBelow("proc/irq/{}")  # a folder with CPU lists, Documentation/core-api/irq/irq-affinity.rst
    irq_actions = EachBelow("sys/kernel/irq/{}/actions")  # names of handlers, by commas: sysfs-kernel-irq

    # Documentation/scheduler/sched-ext.rst, sched-debug.rst and bpf/btf.rst
    sched_ext_ops = Below("sys/kernel/sched_ext/root/ops")  # name of the loaded scheduler, absent where there is none
    sched_ext_state = Below("sys/kernel/sched_ext/state")  # ``enabled``, ``disabled`` or a state between
    sched_features = Below("sys/kernel/debug/sched/features")  # those switched off with NO_ before them
    btf = Below("sys/kernel/btf/vmlinux")  # types of the running kernel, which BPF programs are fitted to

    # Marks of kernels that have cpu.bvt_warp_ns: of OpenAnolis and Alibaba Cloud Linux, 1 where it acts, as a class
    # index; of Leverich's BVT patch, where it is in nanoseconds
    group_identity_enabled = Below("proc/sys/kernel/sched_group_identity_enabled")
    bvt_place_epsilon = Below("proc/sys/kernel/sched_bvt_place_epsilon")

    # sched(7), Documentation/admin-guide/sysctl/kernel.rst
    numa_balancing = Below("proc/sys/kernel/numa_balancing")  # 0: off; 1: memory is moved to where it is used
    autogroup = Below("proc/sys/kernel/sched_autogroup_enabled")  # 1: the root cgroup is grouped by session
    rt_runtime_us = Below("proc/sys/kernel/sched_rt_runtime_us")  # of each period for real-time tasks; -1: all of it

    resctrl = Below("sys/fs/resctrl")  # where it is mounted by custom, Documentation/filesystems/resctrl.rst
    kvm = Below("dev/kvm")  # the device of Documentation/virt/kvm/api.rst
    kvm_nested = AllBelow(*(f"sys/module/{module}/parameters/nested" for module in ("kvm_intel", "kvm_amd")))  # Y or 1
    container_marks = AllBelow(".dockerenv", "run/.containerenv", "run/systemd/container")  # Docker, Podman, nspawn

    # libvirt's QEMU driver notes in this folder the process of a running domain, and how it is doing
    # (virDomainObjFormat, src/conf/domain_conf.c)
    pid_files = Below("run/libvirt/qemu")
    pid_file = EachBelow("run/libvirt/qemu/{}.pid")
    status_file = EachBelow("run/libvirt/qemu/{}.xml")


def boot_name() -> str:
    """A name that no other start of any machine has; empty where this kernel has none."""
    try:
        return HostPaths(Path("/")).boot_id.read_text().strip()
    except OSError:
        return ""


USER_HZ_NS = 10_000_000
"""Nanoseconds of a clock tick in /proc/stat: USER_HZ is 100 on every Linux architecture libvirt runs QEMU on."""
