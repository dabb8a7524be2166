"""The CPU controller: where it is, whether it takes weights, the idle class and quotas, whether it counts, and whether
weights act: two busy processes on one pCPU, one with ten times the weight of the other.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from manager.errors import HostError
from manager.host.cgroup import cpu_controller, read_mounts, vm_group
from manager.host.doctor.check import (
    CheckResult,
    Subject,
    degraded,
    ignored,
    missing,
    not_tried,
    unknown,
    warning,
    works,
)
from manager.host.doctor.scratch import (
    ScratchProcess,
    cpu_hierarchy,
    is_enabled,
    on_scratch_group,
    refused_value,
    scratch_process,
)
from manager.host.files import text_of
from manager.host.registry import CGROUP_USAGE, CGROUP_V1, IDLE_FILE, CgroupCpu, HostPaths
from manager.host.sched_ext import deciding_scheduler
from manager.model.cpus import CpuSet
from manager.model.finding import FindingStatus

_PARTITIONS = ("machine.slice", "machine")  # libvirt's, with systemd and without
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_RATIO = 10
_ACTS_FROM = 3.0
_RUN_S = 0.3
_LONGEST_S = 3.0
_ENOUGH_NS = 120_000_000
"""CPU time of both together from which their ratio is believed: tens of time slices."""
_CERTAIN_NS = 8 * _ENOUGH_NS
"""The same where weights seem not to act: a pCPU that its hypervisor stops meanwhile has few, long slices."""
_WATCH_S = 0.1


def cgroup(subject: Subject) -> CheckResult:
    mounts = read_mounts(subject.paths)
    cpu = cpu_controller(mounts)
    if cpu is None:
        return missing(
            "no cgroup hierarchy has the cpu controller",
            "mount cgroup v2 (systemd.unified_cgroup_hierarchy=1), or v1's cpu controller; it may be switched off with"
            " cgroup_disable=cpu",
        )
    return works(f"cgroup v{cpu.version}: {cpu.weight_file} below {mounts.by_controller[cpu.controller][0]}")


def delegation(subject: Subject) -> CheckResult:
    try:
        cpu, root = cpu_hierarchy(subject.paths)
    except HostError as error:
        return missing(str(error), "see the finding `cgroup`")
    if cpu is CGROUP_V1:
        return works("cgroup v1: every group below the root has the controller's files")
    partition = next((root / name for name in _PARTITIONS if (root / name).exists()), None)
    has_vms = partition is not None and any(vm_group(f"/{entry.name}") for entry in partition.iterdir())
    for folder in (root, *([partition] if partition is not None and has_vms else [])):
        if not is_enabled(cpu, folder):
            seen = f"cpu is not in {folder}/cgroup.subtree_control: groups below it have no weight"
            if not has_vms:
                return warning(seen, "start a VM, which makes libvirt or systemd enable it, and run this again")
            return missing(f"{seen}, and VMs are running", f"echo +cpu > {folder}/cgroup.subtree_control")
    below = f"the root and {partition.name}" if partition is not None and has_vms else "the root; no VM is running yet"
    return works(f"cpu is enabled for groups below {below}")


def weight(subject: Subject) -> CheckResult:
    try:
        result = on_scratch_group(subject, try_weights)
    except HostError as error:
        return missing(str(error), "see the finding `cgroup`")
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return missing(
            f"no scratch cgroup can be made: {error}",
            "run as root with the cgroups mounted writable (in a container: --cgroupns=host and a writable mount)",
        )
    return replace(result, status=FindingStatus.WARNING) if result.status is FindingStatus.UNKNOWN else result


def try_weights(cpu: CgroupCpu, group: Path) -> CheckResult:
    """Write the least, the greatest and the default weight to a group, and read each back. Raises OSError."""
    file, scale = group / cpu.weight_file, cpu.scale
    if not file.exists():
        return missing(f"a new group has no {cpu.weight_file}", "run a kernel with CONFIG_FAIR_GROUP_SCHED")
    for weight in (scale.minimum, scale.maximum, scale.default):
        if wrong := refused_value(file, str(weight)):
            advice = "look for another program that sets weights of top-level groups, or report this kernel"
            return ignored(wrong, advice)
    return works(f"{cpu.weight_file} takes {scale.minimum} to {scale.maximum}, written and read back")


def try_idle(cpu: CgroupCpu, group: Path) -> CheckResult:
    """Make a group idle, and not. Raises OSError, ValueError."""
    file, advice = group / IDLE_FILE, "do without the batch idle class on this kernel"
    if not file.exists():
        return missing("a new group has no cpu.idle", "run Linux 5.15 or newer for the batch idle class")
    if wrong := refused_value(file, "1"):
        return ignored(wrong, advice)
    try:
        (group / cpu.weight_file).write_text(str(cpu.scale.default))
        held = False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        held = True
    if refused_value(file, "0"):
        return degraded("cpu.idle cannot be set back to 0", advice)
    if not held:
        return degraded(
            "cpu.idle is taken, but an idle group's weight can be written: it may not act",
            "compare response times with and without the batch idle class before relying on it",
        )
    return works("cpu.idle is taken, read back, holds the weight meanwhile, and goes back to 0")


def try_quota(cpu: CgroupCpu, group: Path) -> CheckResult:
    """Give a group half a CPU, and no limit again: Documentation/scheduler/sched-bwc.rst. Raises OSError."""
    file = group / cpu.quota_file
    if not file.exists():
        return missing(f"a new group has no {file.name}", "run a kernel with CONFIG_CFS_BANDWIDTH to limit batch VMs")
    for wanted in ("50000", "-1") if cpu.period_file else ("50000 100000", "max 100000"):
        if wrong := refused_value(file, wanted):
            return ignored(wrong, "do not rely on limits here")
    return works(f"{file.name} takes a limit and releases it")


def usage(subject: Subject) -> CheckResult:
    mounts = read_mounts(subject.paths)
    for usage in CGROUP_USAGE:
        mount = mounts.by_controller.get(usage.controller)
        text = text_of(mount[0] / usage.file) if mount else None
        if mount and text is not None and usage.key.decode() in text:
            return works(f"CPU time of groups is counted: {mount[0]}/*/{usage.file}")
    return degraded(
        "no hierarchy counts CPU time: it is taken from each QEMU process, without its vhost threads",
        "mount cgroup v2, or v1's cpuacct",
    )


def schedstat(subject: Subject) -> CheckResult:
    if text_of(subject.paths.process(1) / "schedstat") is None:
        return degraded("no /proc/PID/schedstat: how long vCPUs wait is unknown", "run a kernel with CONFIG_SCHED_INFO")
    return works("how long a thread waits for a pCPU is counted (/proc/PID/schedstat)")


@dataclass(frozen=True, slots=True)
class Race:
    """CPU time in nanoseconds that the heavy and the light process used on pCPU ``cpu``."""

    cpu: int
    heavy_ns: int
    light_ns: int

    @property
    def total_ns(self) -> int:
        """Of both."""
        return self.heavy_ns + self.light_ns

    @property
    def ratio(self) -> float:
        """How much more the heavy one got; the light one is taken to have got a microsecond at least."""
        return self.heavy_ns / max(self.light_ns, 1000)


def weights_act(subject: Subject) -> CheckResult:
    """Try it, and judge. Raises HostError, OSError, ValueError."""
    if subject.quick or subject.gentle:
        return not_tried("--quick" if subject.quick else "--gentle")

    def attempt(cpu: CgroupCpu, group: Path) -> CheckResult:
        pcpu = least_busy(subject.paths, frozenset(os.sched_getaffinity(0)))
        return judge(race(cpu, group, pcpu), deciding_scheduler(subject.paths))

    return on_scratch_group(subject, attempt)


def judge(result: Race, scheduler: str) -> CheckResult:
    """The verdict on a race under a sched_ext scheduler of that name, or none."""
    seen = f"weights {_RATIO}:1 gave CPU time {result.ratio:.1f}:1 on pCPU {result.cpu}"
    if result.total_ns < _ENOUGH_NS:
        return unknown(
            f"pCPU {result.cpu} was too busy: they got {result.total_ns / 1e6:.0f} ms in {_LONGEST_S:g} s",
            "try again when the host is less busy",
        )
    if result.ratio >= _ACTS_FROM:
        return works(seen)
    whose = f"the sched_ext scheduler {scheduler!r}" if scheduler else "this kernel"
    advice = (
        f"stop {scheduler!r}, or use one that implements cgroup_set_weight"
        if scheduler
        else "run a kernel with CONFIG_FAIR_GROUP_SCHED"
    )
    return ignored(f"{seen}: {whose} ignores them", advice, essential=True)


def least_busy(paths: HostPaths, allowed: CpuSet, watch_s: float = _WATCH_S) -> int:
    """The pCPU of ``allowed`` that idles most during ``watch_s``. Raises OSError, ValueError."""
    before = _idle_ticks(paths)
    time.sleep(watch_s)
    idle = {cpu: ticks - before.get(cpu, 0) for cpu, ticks in _idle_ticks(paths).items() if cpu in allowed}
    if not idle:
        raise ValueError(f"{paths.stat} names none of the pCPUs {sorted(allowed)}")
    return max(sorted(idle), key=idle.__getitem__)


def _idle_ticks(paths: HostPaths) -> dict[int, int]:
    """Clock ticks each pCPU idled, or waited for input and output, since boot."""
    return {int(name[3:]): ticks[3] + ticks[4] for name, ticks in cpu_ticks(paths).items() if name != "cpu"}


def cpu_ticks(paths: HostPaths) -> dict[str, list[int]]:
    """Clock ticks by kind of the host (``cpu``) and each pCPU (``cpu0``), proc_stat(5). Raises OSError, ValueError."""
    rows = (line.split() for line in paths.stat.read_text().splitlines())
    return {name: list(map(int, fields)) for name, *fields in rows if name.startswith("cpu") and len(fields) > 6}


def race(cpu: CgroupCpu, group: Path, pcpu: int) -> Race:
    """Let two processes compete on a pCPU below a scratch group, until they used enough CPU time to tell.

    The scratch group itself has a tenth of the default weight, so that VMs on that pCPU are hardly disturbed. Raises
    OSError.
    """
    (group / cpu.weight_file).write_text(str(cpu.scale.default // 10))
    if cpu is not CGROUP_V1:
        (group / "cgroup.subtree_control").write_text("+cpu")
    with ExitStack() as stack:
        racers: list[ScratchProcess] = []
        for name, weight in (("heavy", cpu.scale.default * _RATIO), ("light", cpu.scale.default)):
            below = group / name
            below.mkdir()
            (below / cpu.weight_file).write_text(str(weight))
            racer = stack.enter_context(scratch_process())
            os.sched_setaffinity(racer.pid, {pcpu})
            (below / "cgroup.procs").write_text(str(racer.pid))
            racers.append(racer)
        return _run(pcpu, *racers)


def _run(pcpu: int, heavy: ScratchProcess, light: ScratchProcess) -> Race:
    light.spin()
    heavy.spin()
    started = time.monotonic()
    first = heavy.cpu_ns(), light.cpu_ns()
    while True:
        time.sleep(_RUN_S)
        result = Race(pcpu, heavy.cpu_ns() - first[0], light.cpu_ns() - first[1])
        enough_ns = _ENOUGH_NS if result.ratio >= _ACTS_FROM else _CERTAIN_NS
        if result.total_ns >= enough_ns or time.monotonic() - started >= _LONGEST_S:
            return result
