"""What else runs: CPU use outside the VMs, which no weight of a VM can hold back, and programs that set what we set."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from manager.host.cgroup import parse_process_cgroups, vm_group
from manager.host.doctor.check import CheckResult, Subject, degraded, not_tried, warning, works
from manager.host.doctor.weight_check import cpu_ticks
from manager.host.files import text_of
from manager.host.registry import USER_HZ_NS, HostPaths
from manager.model.units import percent

_WATCH_S = 1.0
_MUCH_OF_HOST = 0.1
_MUCH_OF_A_CPU = 0.5
_SHOWN = 5
_SHOWN_FROM = 0.01
_NAME_LENGTH = 15  # the kernel cuts the name of a task there, proc_pid_comm(5)


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU time since boot in clock ticks: of the whole host, and of each process by pid and start time."""

    cpus: int
    busy: int
    processes: dict[tuple[int, int], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """pCPUs kept busy, of ``cpus``, by VMs and by everything else; ``names`` are those outside, busiest first."""

    cpus: int
    vms: float
    outside: float
    names: tuple[tuple[str, float], ...]


def take_sample(paths: HostPaths) -> Sample:
    """Read all processes' CPU times. Steal is no process's here. Raises OSError, ValueError."""
    ticks = cpu_ticks(paths)
    user, nice, system, _, _, irq, softirq, *_ = ticks.pop("cpu", [0] * 7)
    processes: dict[tuple[int, int], tuple[str, int]] = {}
    for pid in _pids(paths):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            before, _, rest = os.fsdecode((paths.process(pid) / "stat").read_bytes()).rpartition(")")
            fields = rest.split()  # from field 3 of proc_pid_stat(5) on
            if len(fields) >= 20:
                processes[pid, int(fields[19])] = before.partition("(")[2], int(fields[11]) + int(fields[12])
    return Sample(len(ticks), user + nice + system + irq + softirq, processes)


def _pids(paths: HostPaths) -> list[int]:
    return [int(entry.name) for entry in paths.processes.iterdir() if entry.name.isdecimal()]


def compare(paths: HostPaths, before: Sample, after: Sample, elapsed_s: float) -> CpuLoad:
    """Who used the pCPUs between two samples. What ended meanwhile counts, but has no name. Raises OSError."""
    per_cpu = USER_HZ_NS / (elapsed_s * 1e9)
    noted = _noted_pids(paths)
    busy = (after.busy - before.busy) * per_cpu
    vms = 0.0
    outside: dict[str, float] = defaultdict(float)
    for (pid, start), (name, ticks) in after.processes.items():
        used = (ticks - before.processes.get((pid, start), (name, 0))[1]) * per_cpu
        if used <= 0:
            continue
        groups = _groups(paths, pid)
        if pid == os.getpid():
            busy -= used
        elif pid in noted or any(vm_group(group) for group in groups.values()):
            vms += used
        else:
            outside[_label(name, groups)] += used
    total = max(busy - vms, 0.0)
    short_lived = total - sum(outside.values())
    if short_lived > _MUCH_OF_HOST:
        outside["processes that ended meanwhile"] = short_lived
    busiest = sorted(outside.items(), key=lambda item: -item[1])
    shown = tuple((name, used) for name, used in busiest[:_SHOWN] if used >= _SHOWN_FROM)
    return CpuLoad(after.cpus, vms, total, shown)


def _noted_pids(paths: HostPaths) -> frozenset[int]:
    """Processes of libvirt's domains by its pid files, for VMs without groups of their own."""
    pids: set[int] = set()
    for file in paths.pid_files.glob("*.pid"):
        with contextlib.suppress(OSError, ValueError):  # the domain is starting or ending
            pids.add(int(file.read_text()))
    return frozenset(pids)


def _groups(paths: HostPaths, pid: int) -> dict[str, str]:
    return parse_process_cgroups(text_of(paths.process(pid) / "cgroup") or "")


def _label(name: str, groups: dict[str, str]) -> str:
    """A name, without the numbers of kernel threads, and the top-level group, unless that is the root."""
    top = groups.get("cpu", groups.get("", "/")).strip("/").partition("/")[0]
    plain = name.partition("/")[0]
    return f"{plain} in /{top}" if top else plain


def judge_load(load: CpuLoad) -> CheckResult:
    """The verdict: degraded above a tenth of the host, a warning where one name keeps half a pCPU busy."""
    share = load.outside / max(load.cpus, 1)
    seen = (
        f"outside the VMs {load.outside:.2f} of {load.cpus} pCPUs ({percent(share)}) are busy, with VMs {load.vms:.2f}"
    )
    if load.names:
        seen += ": " + ", ".join(f"{name} {used:.2f}" for name, used in load.names)
    advice = (
        "weights compare VMs with each other, not with this: stop or move it, or hold it back with `systemctl"
        " set-property NAME.service CPUWeight=1 AllowedCPUs=...`"
    )
    if share >= _MUCH_OF_HOST:
        return degraded(seen, advice)
    if load.names and load.names[0][1] >= _MUCH_OF_A_CPU:
        return warning(seen, advice)
    return works(seen)


def load_outside(subject: Subject) -> CheckResult:
    if subject.quick:
        return not_tried("--quick")
    before, started = take_sample(subject.paths), time.monotonic()
    time.sleep(_WATCH_S)
    after, elapsed_s = take_sample(subject.paths), time.monotonic() - started
    return judge_load(compare(subject.paths, before, after, elapsed_s))


@dataclass(frozen=True, slots=True)
class Other:
    """A program by the names of its processes; what it does, and what to do about it."""

    id: str
    names: tuple[str, ...]
    does: str
    advice: str


OTHERS = (
    Other(
        "tuned",
        ("tuned",),
        "sets governors, sysctls and, with some profiles, affinities",
        "use its profile virtual-host, without plugins that set affinities or cgroups ([scheduler], cpu-partitioning)",
    ),
    Other(
        "irqbalance",
        ("irqbalance",),
        "moves interrupts between pCPUs, also onto those of critical VMs",
        "IRQBALANCE_BANNED_CPULIST= the pCPUs of critical VMs in its settings (/etc/default/irqbalance), or stop it",
    ),
    Other(
        "numad",
        ("numad",),
        "moves processes and their memory between nodes by cpusets",
        "systemctl disable --now numad: its cpusets undo pins",
    ),
    Other(
        "ksm",
        ("ksmtuned", "ksmtuned.sh"),
        "merges equal memory pages, which costs CPU time outside the VMs and makes writes wait",
        "systemctl disable --now ksmtuned ksm, or <nosharepages/> in critical domains",
    ),
    Other(
        "vdsm",
        ("vdsmd", "vdsm", "supervdsmd", "momd", "mom"),
        "oVirt's agent sets CPU shares, quotas and pins of its VMs",
        "leave CPU QoS and pinning of the VMs that Equipoise manages unset in oVirt, and switch MOM's CPU tuning off",
    ),
    Other(
        "nova-compute",
        ("nova-compute",),
        "OpenStack writes shares and pins into the domains it starts, and again at live migration",
        "give flavors of managed VMs neither hw:cpu_policy=dedicated nor quota:cpu_shares, and keep [compute]"
        " cpu_dedicated_set apart from managed_cpus",
    ),
    Other(
        "koordlet",
        ("koordlet",),
        "Koordinator sets CPU shares, quotas, group identity and resctrl groups",
        "do not run both on one host; otherwise switch its plugins CPUSuppress, CPUBurst, GroupIdentity and RdtResctrl"
        " off",
    ),
)


def running_names(paths: HostPaths) -> dict[str, int]:
    """A pid for each name that a running process has: its own, its program's, and its script's. Raises OSError."""
    pids: dict[str, int] = {}
    for pid in _pids(paths):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            folder = paths.process(pid)
            for name in _names(*(os.fsdecode((folder / file).read_bytes()) for file in ("comm", "cmdline"))):
                pids.setdefault(name, pid)
    return pids


def _names(comm: str, command_line: str) -> Iterator[str]:
    yield comm.strip()
    program, script, *_ = [*command_line.split("\0"), "", ""]
    yield PurePosixPath(program).name
    # Only an interpreter's: the first argument of anything else may be any word.
    if PurePosixPath(program).name.startswith(("python", "bash", "sh", "dash")) and not script.startswith("-"):
        yield PurePosixPath(script).name


def running(subject: Subject, other: Other) -> CheckResult:
    """Whether one of them runs."""
    pids = running_names(subject.paths)
    for name in other.names:
        pid = pids.get(name) or pids.get(name[:_NAME_LENGTH])
        if pid is not None:
            return warning(f"{name} runs (process {pid}): it {other.does}", other.advice)
    return works("not running")
