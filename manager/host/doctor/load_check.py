"""CPU use outside the VMs, which no weight of a VM can hold back."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass

from manager.host.cgroup import parse_process_cgroups, vm_group
from manager.host.doctor.check import Check, CheckResult, Subject, degraded, not_tried, warning, works
from manager.host.registry import USER_HZ_NS, HostPaths

_AREA = "Load"
_WATCH_S = 1.0
_MUCH_OF_HOST = 0.1
_MUCH_OF_A_CPU = 0.5
_SHOWN = 5
_SHOWN_FROM = 0.01


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
    """Read all processes' CPU times. Steal is nobody's here. Raises OSError, ValueError."""
    cpus = busy = 0
    for line in paths.stat.read_text().splitlines():
        name, *fields = line.split()
        if name == "cpu":
            user, nice, system, _, _, irq, softirq = (int(field) for field in fields[:7])
            busy = user + nice + system + irq + softirq
        elif name.startswith("cpu"):
            cpus += 1
    processes: dict[tuple[int, int], tuple[str, int]] = {}
    for entry in paths.processes.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        name_text, _, rest = os.fsdecode(text).rpartition(")")
        fields = rest.split()  # from field 3 of proc_pid_stat(5) on
        if len(fields) >= 20:
            name = name_text.partition("(")[2]
            processes[int(entry.name), int(fields[19])] = (name, int(fields[11]) + int(fields[12]))
    return Sample(cpus, busy, processes)


def compare(paths: HostPaths, before: Sample, after: Sample, elapsed_s: float) -> CpuLoad:
    """Who used the pCPUs between two samples. What ended meanwhile counts, but has no name. Raises OSError."""
    per_cpu = USER_HZ_NS / (elapsed_s * 1e9)
    noted = _noted_pids(paths)
    vms = 0.0
    own = 0.0
    outside: dict[str, float] = defaultdict(float)
    for key, (name, ticks) in after.processes.items():
        used = (ticks - before.processes.get(key, (name, 0))[1]) * per_cpu
        if used <= 0:
            continue
        if key[0] == os.getpid():
            own = used
            continue
        groups = _groups(paths, key[0])
        if key[0] in noted or any(vm_group(group) for group in groups.values()):
            vms += used
        else:
            outside[_label(name, groups)] += used
    busy = max(0.0, (after.busy - before.busy) * per_cpu - own)
    total = max(busy - vms, 0.0)
    named = sorted(outside.items(), key=lambda item: -item[1])
    short_lived = total - sum(used for _, used in named)
    if short_lived > _MUCH_OF_HOST:
        named = sorted([*named, ("processes that ended meanwhile", short_lived)], key=lambda item: -item[1])
    shown = tuple((name, used) for name, used in named[:_SHOWN] if used >= _SHOWN_FROM)
    return CpuLoad(after.cpus, vms, total, shown)


def _noted_pids(paths: HostPaths) -> frozenset[int]:
    """Processes of libvirt's domains by its pid files, for VMs without groups of their own."""
    found: set[int] = set()
    for file in paths.pid_file("any").parent.glob("*.pid"):
        try:
            found.add(int(file.read_text()))
        except (OSError, ValueError):  # the domain is starting or ending
            continue
    return frozenset(found)


def _groups(paths: HostPaths, pid: int) -> dict[str, str]:
    try:
        return parse_process_cgroups(os.fsdecode((paths.process(pid) / "cgroup").read_bytes()))
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _label(name: str, groups: dict[str, str]) -> str:
    """A name, without the numbers of kernel threads, and the top-level group, unless that is the root."""
    group = groups.get("cpu", groups.get("", "/"))
    top = "/" + group.strip("/").partition("/")[0]
    plain = name.partition("/")[0]
    return plain if top == "/" else f"{plain} in {top}"


def judge_load(load: CpuLoad) -> CheckResult:
    """The verdict: degraded above a tenth of the host, a warning where one name keeps half a pCPU busy."""
    share = load.outside / max(load.cpus, 1)
    seen = f"outside the VMs {load.outside:.2f} of {load.cpus} pCPUs ({share:.0%}) are busy, with VMs {load.vms:.2f}"
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


def _load(subject: Subject) -> CheckResult:
    if subject.quick:
        return not_tried("--quick")
    before, started = take_sample(subject.paths), time.monotonic()
    time.sleep(_WATCH_S)
    after, elapsed_s = take_sample(subject.paths), time.monotonic() - started
    return judge_load(compare(subject.paths, before, after, elapsed_s))


CHECKS = (Check("load-outside", _AREA, "Load outside the VMs", _load),)
