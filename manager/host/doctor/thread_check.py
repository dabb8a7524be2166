"""What can be set for single threads: affinity and the EEVDF slice, tried on a scratch process."""

from __future__ import annotations

from manager.host.doctor.check import Check, CheckResult, Subject, degraded, ignored, missing, unknown, works
from manager.host.doctor.kernel_text import text_of
from manager.host.doctor.scratch import scratch_process
from manager.host.process import affinity, set_affinity
from manager.host.registry import HostPaths
from manager.host.sched_ext import deciding_scheduler
from manager.host.warp.slices import TRIED_NS, set_slice
from manager.model.cpus import format_cpus, parse_cpus


def _affinity(subject: Subject) -> CheckResult:
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


def _slice(subject: Subject) -> CheckResult:
    with scratch_process() as scratch:
        before_ns = read_slice_ns(subject.paths, scratch.pid)
        set_slice(scratch.pid, TRIED_NS)
        after_ns = read_slice_ns(subject.paths, scratch.pid)
    return judge_slice(before_ns, after_ns, deciding_scheduler(subject.paths))


def judge_slice(before_ns: int | None, after_ns: int | None, scheduler: str) -> CheckResult:
    """The verdict on a slice that was read, set and read again, under a sched_ext scheduler of that name or none."""
    if after_ns is None or before_ns is None:
        return missing("this kernel shows no slice in /proc/PID/sched", "run Linux 6.12 or newer for slices of threads")
    if after_ns != TRIED_NS:
        return ignored(
            f"a slice of {TRIED_NS / 1e6:g} ms was set and {after_ns / 1e6:g} ms read back",
            "run Linux 6.12 or newer for slices of threads",
        )
    if scheduler:
        return degraded(
            f"taken, but the sched_ext scheduler {scheduler!r} chooses slices itself", "see the finding `sched-ext`"
        )
    return works(f"a slice of {TRIED_NS / 1e6:g} ms was set and read back; the default is {before_ns / 1e6:g} ms")


def read_slice_ns(paths: HostPaths, pid: int) -> int | None:
    """``se.slice`` of /proc/PID/sched, None where this kernel has none. Raises OSError, ValueError."""
    for line in (text_of(paths.process(pid) / "sched") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"se.slice", "slice"}:
            return int(value)
    return None


def _features(subject: Subject) -> CheckResult:
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


CHECKS = (
    Check("affinity", "Pinning", "Pinning of threads", _affinity, essential=True),
    Check("eevdf-slice", "Warp", "EEVDF slices", _slice),
    Check("sched-features", "Warp", "Scheduler features", _features),
)
