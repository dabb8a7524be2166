"""Whether weights act: two busy processes on one pCPU, one with ten times the weight of the other."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from manager.host.doctor.check import CheckResult, Subject, ignored, not_tried, unknown, works
from manager.host.doctor.scratch import ScratchProcess, on_scratch_group, scratch_process
from manager.host.registry import CGROUP_V1, CgroupCpu, HostPaths
from manager.host.sched_ext import deciding_scheduler
from manager.model.cpus import CpuSet

_RATIO = 10
_ACTS_FROM = 3.0
_RUN_S = 0.3
_LONGEST_S = 3.0
_ENOUGH_NS = 120_000_000
"""CPU time of both together from which their ratio is believed: tens of time slices."""
_WATCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Race:
    """CPU time in nanoseconds that the heavy and the light process used on pCPU ``cpu``."""

    cpu: int
    heavy_ns: int
    light_ns: int

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


def judge(found: Race, scheduler: str) -> CheckResult:
    """The verdict on a race under a sched_ext scheduler of that name, or none."""
    seen = f"weights {_RATIO}:1 gave CPU time {found.ratio:.1f}:1 on pCPU {found.cpu}"
    if found.heavy_ns + found.light_ns < _ENOUGH_NS:
        got_ms = (found.heavy_ns + found.light_ns) / 1e6
        return unknown(
            f"pCPU {found.cpu} was too busy: the scratch processes got {got_ms:.0f} ms in {_LONGEST_S:g} s",
            "try again when the host is less busy",
        )
    if found.ratio >= _ACTS_FROM:
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
    after = _idle_ticks(paths)
    found = [(after[cpu] - before.get(cpu, 0), -cpu) for cpu in allowed if cpu in after]
    if not found:
        raise ValueError(f"{paths.stat} names none of the pCPUs {sorted(allowed)}")
    return -max(found)[1]


def _idle_ticks(paths: HostPaths) -> dict[int, int]:
    """Clock ticks each pCPU idled, or waited for input and output, since boot (proc_stat(5))."""
    ticks: dict[int, int] = {}
    for line in paths.stat.read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and len(fields) > 4:
            ticks[int(name[3:])] = int(fields[3]) + int(fields[4])
    return ticks


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
        found = Race(pcpu, heavy.cpu_ns() - first[0], light.cpu_ns() - first[1])
        if found.heavy_ns + found.light_ns >= _ENOUGH_NS or time.monotonic() - started >= _LONGEST_S:
            return found
