"""Schedulers that warp: sched_ext and kernels with BVT, which are only looked at; and limits of real-time threads."""

from __future__ import annotations

from dataclasses import replace

from manager import bpf
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.doctor.check import Check, CheckResult, Subject, ignored, missing, warning, works
from manager.host.doctor.kernel_text import text_of
from manager.host.doctor.scratch import cpu_hierarchy, refused_value, scratch_group
from manager.host.registry import CGROUP_V1, RT_RUNTIME_FILE
from manager.host.sched_ext import deciding_scheduler
from manager.host.warp.bvt_file import FileKind, bvt_file
from manager.host.warp.offers import OLDEST_SEEN, offers_of
from manager.model.finding import FindingStatus
from manager.model.warp import ABILITIES, TITLES, Mechanism, WarpUse, chosen_only, standing

_AREA = "Warp"
_TRIED_US = 1000
_STATUSES = {
    FileKind.NANOSECONDS: FindingStatus.WORKS,
    FileKind.CLASS: FindingStatus.WORKS,
    FileKind.SWITCHED_OFF: FindingStatus.DEGRADED,
    FileKind.CRASHES: FindingStatus.WARNING,
    FileKind.UNCLEAR: FindingStatus.UNKNOWN,
    FileKind.ABSENT: FindingStatus.MISSING,
}


def _sched_ext(subject: Subject) -> CheckResult:
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


def _bvt_kernel(subject: Subject) -> CheckResult:
    mounts = read_mounts(subject.paths)
    found = bvt_file(subject.paths, mounts, cpu_controller(mounts))
    return CheckResult(_STATUSES[found.kind], found.detail, found.advice)


def _best(subject: Subject) -> CheckResult:
    """By what warps would be given here without our scheduler, and with it."""
    mounts = read_mounts(subject.paths)
    offers = offers_of(subject.paths, mounts, cpu_controller(mounts))
    own = next(offer for offer in offers if offer.mechanism is Mechanism.SCHED_EXT)
    best = standing(offers, WarpUse.ON)
    scheduler = deciding_scheduler(subject.paths)
    if scheduler and not scheduler.startswith(bpf.NAME):
        other = f"by nothing: the sched_ext scheduler {scheduler!r} of another tool decides, which no warp reaches"
        return missing(other, "stop it, or leave warps switched off")
    if scheduler:
        best = replace(own, there=True)
    mechanism = best.mechanism if best else Mechanism.NONE
    can, cannot = ABILITIES[mechanism]
    if best:
        said = f"by {TITLES[mechanism]}: it can {can}; it cannot {cannot}"
        switch = 'switch warps on with "warp": "on" for the host (docs/concepts/warp.md)'
        better = own.there and mechanism is not Mechanism.SCHED_EXT
        return works(said, switch + ', or "sched_ext" for our scheduler, which is better' * better)
    others = chosen_only(offers)
    nothing = "by nothing of this kernel that was measured to help" + f"; {others}" * bool(others)
    if own.there:
        return works(
            nothing, 'set "warp": "sched_ext" for the host to have our scheduler loaded (docs/concepts/warp.md)'
        )
    return missing(nothing, f'"warp": "on" does nothing here: {own.detail}')


def _real_time(subject: Subject) -> CheckResult:
    """Whether real-time vCPUs can be had: only where the kernel stops them at a limit, tried on a scratch group."""
    _, cpu, root = cpu_hierarchy(subject.paths)
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


CHECKS = (
    Check("sched-ext", _AREA, "sched_ext", _sched_ext),
    Check("bvt-kernel", _AREA, "BVT in the kernel", _bvt_kernel),
    Check("warp", _AREA, "Warps", _best),
    Check("real-time-limit", _AREA, "Limits of real-time threads", _real_time),
)
