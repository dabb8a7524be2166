"""Mechanisms for threads and warps, tried in a scratch place or only looked at: affinity, slices, sched_ext and what it
takes to load a scheduler, kernels with BVT, and limits of real-time threads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

from manager import bpf
from manager.errors import HostError
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.doctor.check import CheckResult, Subject, degraded, ignored, missing, unknown, warning, works
from manager.host.doctor.scratch import cpu_hierarchy, refused_value, scratch_group, scratch_process
from manager.host.files import mounted, text_of
from manager.host.process import affinity, set_affinity
from manager.host.registry import CGROUP_V1, RT_RUNTIME_FILE
from manager.host.sched_ext import deciding_scheduler
from manager.host.warp_mechanisms import OLDEST_SEEN, FileKind, bvt_file, offers_of, slice_offer
from manager.model.cpus import format_cpus, parse_cpus
from manager.model.finding import FindingStatus
from manager.model.warp import ABILITIES, TITLES, Mechanism, WarpUse, chosen_only, standing

_TRIED_US = 1000
_STATUSES = {
    FileKind.NANOSECONDS: FindingStatus.WORKS,
    FileKind.CLASS: FindingStatus.WORKS,
    FileKind.SWITCHED_OFF: FindingStatus.DEGRADED,
    FileKind.CRASHES: FindingStatus.WARNING,
    FileKind.UNCLEAR: FindingStatus.UNKNOWN,
    FileKind.ABSENT: FindingStatus.MISSING,
}
_BPFTOOL_S = 5
_VERSION = re.compile(r"bpftool v(\d+)\.(\d+)")
_ENOUGH = (7, 5)  # 7.1 ignores .struct_ops.link


def affinity_of_threads(subject: Subject) -> CheckResult:
    online = parse_cpus(subject.paths.online_cpus.read_text())
    with scratch_process() as scratch:
        allowed = affinity(scratch.pid)
        for wanted in (frozenset({max(allowed)}), allowed):
            set_affinity(scratch.pid, wanted)
            held = affinity(scratch.pid)
            if held != wanted:
                return ignored(
                    f"sched_setaffinity: {format_cpus(wanted)} was set and {format_cpus(held)} read back",
                    "look for a program or cpuset that sets the affinity of new processes",
                )
    if not online <= allowed:
        return degraded(
            f"it works, but of the pCPUs {format_cpus(online)} only {format_cpus(allowed)} may be used here",
            "start the agent outside cpusets and taskset; isolcpus= also takes pCPUs away from new processes",
        )
    return works("sched_setaffinity was set and read back")


def slices(subject: Subject) -> CheckResult:
    """What warps by slices would be offered, and whether another scheduler is in between."""
    offer, scheduler = slice_offer(), deciding_scheduler(subject.paths)
    if not offer.available:
        return missing(offer.detail, "run Linux 6.12 or newer for slices of threads")
    if scheduler:
        return degraded(
            f"taken, but the sched_ext scheduler {scheduler!r} chooses slices itself", "see the finding `sched-ext`"
        )
    return works(offer.detail)


def features(subject: Subject) -> CheckResult:
    try:
        text = text_of(subject.paths.sched_features)
    except PermissionError as error:
        return unknown(f"the scheduler's features cannot be read: {error}", "run as root")
    if text is None:
        return unknown(
            "the scheduler's features cannot be seen: debugfs is not mounted, or the kernel does not show them",
            "mount -t debugfs debugfs /sys/kernel/debug",
        )
    names = set(text.split())
    off = sorted(name for name in ("PREEMPT_SHORT", "WAKEUP_PREEMPTION") if f"NO_{name}" in names)
    if off:
        return degraded(
            f"switched off: {', '.join(off)}; a waking vCPU waits for longer",
            "; ".join(f"echo {name} > {subject.paths.sched_features}" for name in off),
        )
    shown = [name for name in ("PREEMPT_SHORT", "RUN_TO_PARITY", "PLACE_LAG") if names & {name, f"NO_{name}"}]
    return works(", ".join(name if name in names else f"{name} off" for name in shown) or "none that matter here")


def sched_ext(subject: Subject) -> CheckResult:
    paths = subject.paths
    state = text_of(paths.sched_ext_state)
    if state is None:
        oldest = ".".join(map(str, OLDEST_SEEN))
        return missing(
            "this kernel has no sched_ext",
            f"run Linux {oldest} or newer with CONFIG_SCHED_CLASS_EXT for warps by sched_ext; all else works without",
        )
    if state == "disabled":
        return works("there, and no scheduler is loaded")
    name = text_of(paths.sched_ext_ops) or "unknown"
    if name.startswith(bpf.NAME):
        return works(f"{state}: Equipoise's own scheduler {name!r}")
    return warning(
        f"{state}: the scheduler {name!r} of another tool decides, which may ignore CPU weights",
        f"believe the finding `cpu-weight-acts`; stop {name!r} (its service, often scx.service or scx_loader) if it"
        " ignores them",
    )


def bvt_kernel(subject: Subject) -> CheckResult:
    mounts = read_mounts(subject.paths)
    file = bvt_file(subject.paths, mounts, cpu_controller(mounts))
    return CheckResult(_STATUSES[file.kind], file.detail, file.advice)


def best(subject: Subject) -> CheckResult:
    """By what warps would be given here without our scheduler, and with it."""
    mounts = read_mounts(subject.paths)
    offers = offers_of(subject.paths, mounts, cpu_controller(mounts))
    ours = next(offer for offer in offers if offer.mechanism is Mechanism.SCHED_EXT)
    best = standing(offers, WarpUse.ON)
    scheduler = deciding_scheduler(subject.paths)
    if scheduler and not scheduler.startswith(bpf.NAME):
        other = f"by nothing: the sched_ext scheduler {scheduler!r} of another tool decides, which no warp reaches"
        return missing(other, "stop it, or leave warps switched off")
    if scheduler:
        best = replace(ours, available=True)
    mechanism = best.mechanism if best else Mechanism.NONE
    can, cannot = ABILITIES[mechanism]
    if best:
        said = f"by {TITLES[mechanism]}: it can {can}; it cannot {cannot}"
        switch = 'switch warps on with "warp": "on" for the host (docs/concepts/warp.md)'
        better = ours.available and mechanism is not Mechanism.SCHED_EXT
        return works(said, switch + ', or "sched_ext" for our scheduler, which is better' * better)
    others = chosen_only(offers)
    nothing = "by nothing of this kernel that was measured to help" + f"; {others}" * bool(others)
    if ours.available:
        return works(
            nothing, 'set "warp": "sched_ext" for the host to have our scheduler loaded (docs/concepts/warp.md)'
        )
    return missing(nothing, f'"warp": "on" does nothing here: {ours.detail}')


def real_time(subject: Subject) -> CheckResult:
    """Whether real-time vCPUs can be had: only where the kernel stops them at a limit, tried on a scratch group."""
    cpu, root = cpu_hierarchy(subject.paths)
    if cpu is not CGROUP_V1 or not (root / RT_RUNTIME_FILE).exists():
        why = "v2" if cpu is not CGROUP_V1 else "v1, of a kernel without CONFIG_RT_GROUP_SCHED"
        return missing(
            f"the cpu controller is that of cgroup {why}: no limit for real-time threads of a group",
            "VMs with scheduling fifo or rr are left as they are; give them a warp (docs/concepts/warp.md)",
        )
    with scratch_group(root) as group:
        wrong = refused_value(group / RT_RUNTIME_FILE, f"{_TRIED_US}")
    if wrong:
        return ignored(wrong, "update the kernel")
    return works(f"{RT_RUNTIME_FILE} of a group was set and read back: vCPUs can be real-time within a limit")


def btf(subject: Subject) -> CheckResult:
    if not subject.paths.btf.exists():
        return missing(f"no {subject.paths.btf}", "run a kernel with CONFIG_DEBUG_INFO_BTF")
    return works(f"{subject.paths.btf} is there")


def bpffs(subject: Subject) -> CheckResult:
    point = mounted(subject.paths, "bpf")
    if point is None:
        return missing("no BPF file system is mounted", "mount -t bpf bpf /sys/fs/bpf")
    return works(f"mounted at {point}")


def bpftool(_subject: Subject) -> CheckResult:
    program = shutil.which("bpftool")
    if program is None:
        return missing("bpftool is not installed", "install bpftool 7.5 or newer, such as from backports")
    try:
        ended = subprocess.run([program, "version"], capture_output=True, text=True, timeout=_BPFTOOL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{program} version: no answer within {_BPFTOOL_S} s") from error
    match = _VERSION.search(ended.stdout)
    if match is None:
        said = (ended.stderr or ended.stdout).strip()[:200]
        return missing(f"{program} does not run: {said}", "install bpftool for this kernel")
    version = f"{program} {match[1]}.{match[2]}"
    if (int(match[1]), int(match[2])) < _ENOUGH:
        return degraded(f"{version}: too old to keep a scheduler loaded", "install bpftool 7.5 or newer")
    return works(version)
