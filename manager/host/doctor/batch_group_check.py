"""Whether this kernel needs one group above all batch VMs: found out by what it does, not by its version.

Kernels with commit 6d71a9c61604 and without its revert (101f3498b4bd) let a thread that wakes up wait behind batch
groups of the least weight where several are in a queue and their weights change, as those of VMs on several pCPUs do
each time one of their threads wakes up or sleeps. So, all on one pCPU: a thread that sleeps and works by turns, in a
group of the greatest weight, and two busy processes in groups whose weights are written again and again, which are by
turns siblings of the first and together below a sibling of it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from manager.host.doctor.check import CheckResult, Subject, degraded, not_tried, unknown, works
from manager.host.doctor.scratch import ScratchProcess, on_scratch_group, scratch_process
from manager.host.doctor.weight_check import least_busy
from manager.host.registry import CGROUP_V1, CgroupCpu
from manager.model.cpus import CpuSet
from manager.model.units import percent

_ROUNDS_AT_LEAST, _ROUNDS_AT_MOST = 6, 16
_PHASE_S = 0.1
_SETTLE_S = 0.01
_OTHER_WEIGHT = 10
"""How many times the least weight a batch group has every other time."""
_LONG_NS = 2_000_000
"""Half a tick at HZ 250: who is not let run at once waits for a tick or several."""
_MANY, _FEW = 0.1, 0.05
_TIMES = 4
_ENOUGH_WAKES = 60
"""In all phases of a kind."""
_ENOUGH_WRITES = 200
"""In each phase on average: each group's weight changes every millisecond."""
# Both say that they run and wait for a line; they end by themselves soon, should no one be left to end them.
# Sleeps 1 ms and works 0.2 ms by turns. Writes how long, of the time that it woke up late, the busy processes ran: what
# else ran on the pCPU meanwhile has nothing to do with the fault.
_WAKER = """
import os, struct, time
clock, used = time.monotonic_ns, time.clock_gettime_ns
clocks = {clocks!r}
os.write(1, b"r")
if os.read(0, 1):
    end = clock() + 10_000_000_000
    while (now := clock()) < end:
        before = sum(map(used, clocks))
        time.sleep(0.001)
        late, others = clock() - now - 1_000_000, sum(map(used, clocks)) - before - 1_000_000
        os.write(1, struct.pack("q", max(min(late, others), 0)))
        now = clock()
        while clock() - now < 200_000:
            pass
"""
# Writes one text, then the other, to files by turns; and a byte for each 16 of these writes.
_WRITER = """
import os, time
texts, paths = {texts!r}, {paths!r}
os.write(1, b"r")
if os.read(0, 1):
    files = [os.open(path, os.O_WRONLY) for path in paths]
    end, written = time.monotonic() + 10, 0
    while time.monotonic() < end:
        text = texts[written // len(files) % 2]
        os.pwrite(files[written % len(files)], text, 0)
        written += 1
        if written % 16 == 0:
            os.write(1, b"w")
"""


@dataclass(frozen=True, slots=True)
class WakePhase:
    """How long batch processes ran each time while the thread should have run, nanoseconds; and how often their groups'
    weights were written.
    """

    waits_ns: tuple[int, ...]
    writes: int


Round = tuple[WakePhase, WakePhase]
"""With the batch groups apart, and with both below one group."""


def is_needed(rounds: Sequence[Round]) -> bool | None:
    """True where long waits are many and all but vanish together, False where there are hardly any, None: cannot tell.

    False asks for weights that were written often enough to show the fault, too.
    """
    apart, together = ([phases[kind] for phases in rounds] for kind in (0, 1))
    if sum(len(phase.waits_ns) for phase in together) < _ENOUGH_WAKES or _long(together) > _FEW:
        return None
    if _long(apart) >= max(_MANY, _TIMES * _long(together)):
        return True
    often = all(sum(each.writes for each in phases) >= _ENOUGH_WRITES * len(phases) for phases in (apart, together))
    enough = sum(len(phase.waits_ns) for phase in apart) >= _ENOUGH_WAKES
    return False if _long(apart) <= _FEW and often and enough else None


def _long(phases: Sequence[WakePhase]) -> float:
    """Which part of all waits was long."""
    waits = [wait for phase in phases for wait in phase.waits_ns]
    return sum(wait >= _LONG_NS for wait in waits) / max(len(waits), 1)


def judge(rounds: Sequence[Round]) -> CheckResult:
    """The verdict in words."""
    apart, together = (_long([phases[kind] for phases in rounds]) for kind in (0, 1))
    seen = (
        f"behind two batch groups whose weights change {percent(apart)} of wake-ups waited {_LONG_NS / 1e6:g} ms or"
        f" longer, with both below one group {percent(together)}"
    )
    needed = is_needed(rounds)
    if needed is None:
        return unknown(f"cannot tell: {seen}", "try again when a pCPU is less busy")
    if not needed:
        return works(f"this kernel needs no group above batch VMs: {seen}")
    return degraded(
        f"this kernel needs one group above all batch VMs: {seen}",
        "keep all batch VMs below one cgroup, of the least weight or in the idle class, or use a kernel without the"
        " fault (docs/internals/tail.md)",
    )


def batch_group(subject: Subject) -> CheckResult:
    """Try it on the least busy managed pCPU, and judge. Raises HostError, OSError, ValueError."""
    if subject.quick or subject.gentle:
        return not_tried("--quick" if subject.quick else "--gentle")
    own = frozenset(os.sched_getaffinity(0))
    allowed = subject.managed_online() & own
    if len(own) < 2 or not allowed:
        return unknown("not tried: it takes two pCPUs, one of them managed", "see the finding `affinity`")

    def attempt(cpu: CgroupCpu, group: Path) -> CheckResult:
        pcpu = least_busy(subject.paths, allowed)
        return judge(measure(cpu, group, pcpu, own - {pcpu}))

    return on_scratch_group(subject, attempt)


def measure(cpu: CgroupCpu, group: Path, pcpu: int, others: CpuSet) -> list[Round]:
    """Rounds on a pCPU below a scratch group, until they tell; writes to weights come from ``others``.

    The scratch group itself has the default weight: with less, nothing in it runs on a full pCPU for long enough to
    tell. Raises HostError, OSError.
    """
    least, greatest = cpu.scale.minimum, cpu.scale.maximum
    critical, common = _group(cpu, group, "critical", greatest), _group(cpu, group, "batch", least)
    apart, together = ([_group(cpu, above, f"batch{n}", least) for n in range(2)] for above in (group, common))
    # The groups of the other kind of phase are empty: what is written to them changes nothing.
    paths = [str(folder / cpu.weight_file) for folder in (*apart, *together)]
    writing = _WRITER.format(texts=[str(least * _OTHER_WEIGHT).encode(), str(least).encode()], paths=paths)
    with ExitStack() as stack:
        busy = [stack.enter_context(scratch_process()) for _ in apart]
        waking = _WAKER.format(clocks=[process.clock for process in busy])
        waker, writer = (stack.enter_context(scratch_process(program)) for program in (waking, writing))
        for process, folder in zip((waker, *busy), (critical, *apart), strict=True):
            os.sched_setaffinity(process.pid, {pcpu})
            (folder / "cgroup.procs").write_text(str(process.pid))
        os.sched_setaffinity(writer.pid, others)
        for process in (*busy, waker, writer):
            process.spin()
        rounds: list[Round] = []
        while len(rounds) < _ROUNDS_AT_MOST and (len(rounds) < _ROUNDS_AT_LEAST or is_needed(rounds) is None):
            rounds.append((_phase(waker, writer, busy, apart), _phase(waker, writer, busy, together)))
        return rounds


def _group(cpu: CgroupCpu, parent: Path, name: str, weight: int) -> Path:
    if cpu is not CGROUP_V1:
        (parent / "cgroup.subtree_control").write_text("+cpu")
    folder = parent / name
    folder.mkdir()
    (folder / cpu.weight_file).write_text(str(weight))
    return folder


def _phase(
    waker: ScratchProcess, writer: ScratchProcess, busy: Sequence[ScratchProcess], folders: Sequence[Path]
) -> WakePhase:
    """What came of it while the busy processes were in these groups."""
    for process, folder in zip(busy, folders, strict=True):
        (folder / "cgroup.procs").write_text(str(process.pid))
    time.sleep(_SETTLE_S)
    for process in (waker, writer):
        process.said()
    time.sleep(_PHASE_S)
    waits = struct.iter_unpack("q", waker.said())
    of_these = len(writer.said()) * 8  # half of the writes are to these groups
    return WakePhase(tuple(wait for (wait,) in waits), of_these)
