"""The CPU controller: where it is, whether it takes weights, the idle class and quotas, and whether it counts."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path

from manager.errors import HostError
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.doctor.check import Check, CheckResult, Subject, degraded, ignored, missing, warning, works
from manager.host.doctor.kernel_text import text_of
from manager.host.doctor.scratch import cpu_hierarchy, is_enabled, on_scratch_group, refused_value
from manager.host.doctor.weights_act import weights_act
from manager.host.registry import CGROUP_USAGE, CGROUP_V1, IDLE_FILE, CgroupCpu
from manager.model.finding import FindingStatus

_AREA = "CPU weights"
_PARTITIONS = ("machine.slice", "machine")  # libvirt's, with systemd and without
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def _cgroup(subject: Subject) -> CheckResult:
    mounts = read_mounts(subject.paths)
    cpu = cpu_controller(mounts)
    if cpu is None:
        return missing(
            "no cgroup hierarchy has the cpu controller",
            "mount cgroup v2 (systemd.unified_cgroup_hierarchy=1), or v1's cpu controller; it may be switched off with"
            " cgroup_disable=cpu",
        )
    return works(f"cgroup v{cpu.version}: {cpu.weight_file} below {mounts.by_controller[cpu.controller][0]}")


def _delegation(subject: Subject) -> CheckResult:
    try:
        _, cpu, root = cpu_hierarchy(subject.paths)
    except HostError as error:
        return missing(str(error), "see the finding `cgroup`")
    if cpu is CGROUP_V1:
        return works("cgroup v1: every group below the root has the controller's files")
    partition = next((root / name for name in _PARTITIONS if (root / name).exists()), None)
    has_vms = partition is not None and any(entry.is_dir() for entry in partition.iterdir())
    for folder in (root, *([partition] if partition is not None and has_vms else [])):
        if not is_enabled(cpu, folder):
            seen = f"cpu is not in {folder}/cgroup.subtree_control: groups below it have no weight"
            if not has_vms:
                return warning(seen, "start a VM, which makes libvirt or systemd enable it, and run this again")
            return missing(f"{seen}, and VMs are running", f"echo +cpu > {folder}/cgroup.subtree_control")
    below = f"the root and {partition.name}" if partition is not None and has_vms else "the root; no VM is running yet"
    return works(f"cpu is enabled for groups below {below}")


def _cannot_make(error: OSError) -> CheckResult:
    """For a scratch group that the kernel refuses."""
    return missing(
        f"no scratch cgroup can be made: {error}",
        "run as root with the cgroup hierarchy mounted writable (in a container: --cgroupns=host and a writable mount)",
    )


def _weight(subject: Subject) -> CheckResult:
    try:
        result = on_scratch_group(subject, try_weights)
    except HostError as error:
        return missing(str(error), "see the finding `cgroup`")
    except OSError as error:
        if error.errno in _REFUSED:
            return _cannot_make(error)
        raise
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


def _usage(subject: Subject) -> CheckResult:
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


def _schedstat(subject: Subject) -> CheckResult:
    if text_of(subject.paths.process(1) / "schedstat") is None:
        return degraded("no /proc/PID/schedstat: how long vCPUs wait is unknown", "run a kernel with CONFIG_SCHED_INFO")
    return works("how long a thread waits for a pCPU is counted (/proc/PID/schedstat)")


CHECKS = (
    Check("cgroup", _AREA, "CPU controller", _cgroup, essential=True),
    Check("cgroup-delegation", _AREA, "Delegation", _delegation, essential=True),
    Check("cpu-weight", _AREA, "Weights are taken", _weight, essential=True),
    Check("cpu-weight-acts", _AREA, "Weights act", weights_act),
    Check("cpu-idle", _AREA, "Idle class for batch", partial(on_scratch_group, attempt=try_idle)),
    Check("cpu-quota", _AREA, "Limits", partial(on_scratch_group, attempt=try_quota)),
    Check("cpu-usage", _AREA, "CPU time of groups", _usage),
    Check("schedstat", _AREA, "vCPU wait", _schedstat),
)
