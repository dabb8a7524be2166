"""What a tick of the agent costs, on real control groups and sleeping processes, by phase and by number of VMs.

    python -m tests.bench.tick [--vms 10 50 200 500 1000] [--ticks 200] [--json FILE]

Bars (design, section 9): with 200 VMs median at most 5 ms, 99th percentile at most 20 ms, and a cost per VM that is
flat from 10 to 1,000. Half of the VMs are critical and serve applications with response times, the policy is `fair`,
critical vCPUs are pinned, and the journal is on disk (in the folder that TMPDIR names).

Three states. *first*: nothing is held open and everything is written. *steady*: nothing is to be written. *changing*: a
quarter of the VMs has another weight at each tick. Time passes by a second a tick for what is decided, so that windows,
averages and the placement's ten seconds go on as they would; between two ticks the benchmark sleeps for a moment, as
an agent does, so that a tick does not find all of its data in the CPU's caches. Garbage is collected between ticks too,
as an agent does it; what that takes is told apart. Both wall-clock and CPU time are told:
on a machine that others use the latter is the better one.

The phases are those of ControlLoop.tick, and *report*: what the agent makes of each tick for its metrics page, the
manager and its outbox. *other* is what is left of the whole tick.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import math
import pstats
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from manager.host.kernel_host import KernelHost
from manager.host.thread_times import ThreadTimes
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.apply import Applied
from manager.loop.journal import Journal
from manager.loop.observer import Clock, LoopSettings, Observation, Observer
from manager.loop.outbox import Outbox
from manager.loop.planner import Planned
from manager.loop.schedule import COLLECT_S, collect_as_usual, postpone_garbage
from manager.loop.status import VmStatuses, tick_record, tick_status
from manager.loop.tick import ControlLoop, TickResult
from manager.model.decision import Change, Decision, Memory, Snapshot
from manager.model.histogram import Histogram
from manager.model.host import CpuTimes, VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import KnobKey
from manager.model.limits import DEFAULT_LIMITS
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import Assignment
from manager.model.window import Window
from policies.base import Policy
from policies.installed import load_policies
from tests.bench.figures import Spread, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.times import add_times, times_of
from tests.bench.vms import HOST, Listed, Vm, Vms, assignment, running_vms

SIZES = (10, 50, 200, 500, 1000)
BAR_VMS, BAR_MEDIAN_MS, BAR_P99_MS = 200, 5.0, 20.0
SLOT_S, SLOTS, SAMPLES = 5.0, 36, 500
INTERVAL_S = 1.0
CHANGED_PART = 4
FIRST_TICKS = 5
SETTLED_TICKS, MOST_SETTLING_TICKS = 5, 120
PHASES = ("ended", "collect", "decide", "place", "diff", "apply", "other", "report")
PARTS = ("of collect: read", "of apply: journal", "of apply: write")


class Stopwatch:
    """Adds up wall-clock milliseconds by name until they are taken."""

    def __init__(self) -> None:
        self._spent_ms: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Count the block under a name."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._spent_ms[name] = self._spent_ms.get(name, 0.0) + (time.perf_counter() - began_s) * 1000

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        spent_ms, self._spent_ms = self._spent_ms, {}
        return spent_ms


class TimedHost(KernelHost):
    """Counts reading VMs, from the look before it to that at the CPU time of the host after it, and writing knobs."""

    watch: Stopwatch
    _began_s = 0.0

    def look(self) -> None:
        self._began_s = time.perf_counter()
        super().look()

    def cpu_times(self) -> CpuTimes:
        times = super().cpu_times()
        spent_ms = self.watch._spent_ms
        spent_ms[PARTS[0]] = spent_ms.get(PARTS[0], 0.0) + (time.perf_counter() - self._began_s) * 1000
        return times

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        with self.watch.time(PARTS[2]):
            return super().write(instance, key, value)


class TimedJournal(Journal):
    """Counts transactions."""

    watch: Stopwatch

    def update(self, put: Mapping[KnobKey, object], drop: Sequence[KnobKey] = ()) -> None:  # type: ignore[override]
        with self.watch.time(PARTS[1]):
            super().update(put, drop)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TimedPolicy:
    """Counts decisions of a policy."""

    policy: Policy
    watch: Stopwatch

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def summary(self) -> str:
        return self.policy.summary

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        with self.watch.time("decide"):
            return self.policy.decide(snapshot, memory)


class TimedLoop(ControlLoop):
    """Counts the phases of a tick. *place* is all planning but the policy's decision."""

    watch: Stopwatch

    def _begin(self) -> tuple[Clock, tuple[Problem, ...]]:
        with self.watch.time("ended"):
            return super()._begin()

    def _plan(self, *given: object) -> Planned:  # type: ignore[override]
        with self.watch.time("plan"):
            return super()._plan(*given)  # type: ignore[arg-type]

    def _differences(self, *given: object) -> tuple[Change, ...]:  # type: ignore[override]
        with self.watch.time("diff"):
            return super()._differences(*given)  # type: ignore[arg-type]

    def _apply(self, *given: object) -> Applied:  # type: ignore[override]
        with self.watch.time("change"):
            return super()._apply(*given)  # type: ignore[arg-type]


class TimedObserver(Observer):
    """Counts reading."""

    watch: Stopwatch

    def observe(self, *given: object) -> Observation:  # type: ignore[override]
        with self.watch.time("collect"):
            return super().observe(*given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measured:
    """One tick: milliseconds by phase, of the whole, with the report; its CPU time; how many settings changed.

    ``garbage_ms`` is what collecting garbage after it took, None where it was not time for that.
    """

    phases_ms: Mapping[str, float]
    tick_ms: float
    agent_ms: float
    cpu_ms: float
    changes: int
    garbage_ms: float | None


@dataclass(frozen=True)
class Line:
    """A state at a number of VMs. ``tick_ms`` is ControlLoop.tick, ``agent_ms`` that and the report."""

    vms: int
    state: str
    changes: float
    tick_ms: Spread
    agent_ms: Spread
    cpu_ms: Spread
    phases_ms: Mapping[str, Spread]
    garbage_ms: float | None

    @property
    def per_vm_us(self) -> float:
        """Median of the tick's CPU time for each VM."""
        return self.cpu_ms.median * 1000 / self.vms


class Rig:
    """An agent's loop over the first VMs of many, with a journal and an outbox on disk."""

    def __init__(self, vms: Vms, managed: Sequence[Vm], folder: Path, times: ThreadTimes | None) -> None:
        self.watch = Stopwatch()
        self.host = TimedHost(vms.paths, Listed.of(managed), times=times)  # type: ignore[arg-type]
        self.journal = TimedJournal(folder / "journal.db", self.host.boot_id)
        self.outbox = Outbox(folder / "outbox.db", 10_000)
        self.metrics = AgentMetrics()
        self.statuses = VmStatuses()
        self.host.watch = self.journal.watch = self.watch
        policies = {name: TimedPolicy(one.policy, self.watch) for name, one in load_policies().items()}
        settings = LoopSettings(HOST, INTERVAL_S, 30.0, 20)
        self.loop = TimedLoop(self.host, self.journal, policies, settings, self._clock)
        self.loop.watch = self.watch
        observer = TimedObserver(self.host, self.journal, settings, DEFAULT_LIMITS)
        self.loop._observer, observer.watch = observer, self.watch
        self.wanted = assignment(len(managed), "fair")
        self.now_s = self._collected_s = float(math.floor(time.time() / SLOT_S) * SLOT_S)
        self._histograms = [_histogram(seed) for seed in range(7)]
        self._windows: dict[tuple[int, int], Window] = {}  # by number of the application and of the slot

    def _clock(self) -> Clock:
        return Clock(self.now_s, self.now_s)

    def slots(self) -> dict[str, tuple[Window, ...]]:
        """Response times of the last three minutes of each application. A slot that is over keeps its window."""
        newest = math.floor(self.now_s / SLOT_S)
        numbers = range(newest - SLOTS + 1, newest + 1)
        apps = range(len(self.wanted.applications))
        held = self._windows
        self._windows = {
            (app, number): held.get((app, number)) or self._window(app, number) for app in apps for number in numbers
        }
        return {
            self.wanted.applications[app].name: tuple(self._windows[app, number] for number in numbers) for app in apps
        }

    def _window(self, app: int, number: int) -> Window:
        histogram = Histogram(dict(self._histograms[(number + app) % len(self._histograms)].buckets))
        name = self.wanted.applications[app].name
        return Window(name, (number - 1) * SLOT_S, number * SLOT_S, histogram, float(SAMPLES))

    def tick(self, pause_s: float, profile: cProfile.Profile | None = None) -> Measured:
        """One tick, measured."""
        self.now_s += INTERVAL_S
        slots = self.slots()
        self.watch.take()
        time.sleep(pause_s)
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        if profile:
            profile.enable()
        result = self.loop.tick(self.wanted, slots)
        ticked_s, ticked_cpu_s = time.perf_counter(), time.thread_time()
        self._report(result)
        if profile:
            profile.disable()
        ended_s = time.perf_counter()
        spent_ms = self.watch.take()
        tick_ms = (ticked_s - began_s) * 1000
        named = {name: spent_ms.get(name, 0.0) for name in ("ended", "collect", "decide", "diff", *PARTS)}
        named["place"] = spent_ms.get("plan", 0.0) - named["decide"]
        named["apply"] = spent_ms.get("change", 0.0) - named["diff"]
        named["other"] = (
            tick_ms
            - spent_ms.get("plan", 0.0)
            - sum(spent_ms.get(name, 0.0) for name in ("ended", "collect", "change"))
        )
        named["report"] = (ended_s - ticked_s) * 1000
        problems = [problem for problem in result.problems if problem.kind is not ProblemKind.PLACEMENT]
        if problems:
            raise RuntimeError(f"the tick does not work: {problems[0]}")
        agent_ms, cpu_ms = (ended_s - began_s) * 1000, (ticked_cpu_s - began_cpu_s) * 1000
        return Measured(named, tick_ms, agent_ms, cpu_ms, len(result.outcomes), self._collect_garbage())

    def _collect_garbage(self) -> float | None:
        if self.now_s - self._collected_s < COLLECT_S:
            return None
        self._collected_s = self.now_s
        began_s = time.perf_counter()
        gc.collect()
        return (time.perf_counter() - began_s) * 1000

    def _report(self, result: TickResult) -> None:
        """What the agent does after a tick (manager.loop.agent)."""
        owned = sum(not entry.owned.external for entry in self.journal.entries.values())
        self.metrics.observe(result, owned, True)
        self.outbox.put([*result.records, *result.events, tick_record(result)])
        tick_status(result, 0, owned, True)
        self.statuses.of(result, self.journal, self.host.migrating())

    def close(self) -> None:
        """Put everything back."""
        self.loop.release("benchmark ends")
        self.host.forget(frozenset())
        self.journal.close()
        self.outbox.close()


def _histogram(seed: int) -> Histogram:
    """Response times of a slot, log-normal about 10 ms."""
    chance = random.Random(seed)
    return Histogram.of(chance.lognormvariate(math.log(10_000), 0.5) for _ in range(SAMPLES))


@contextmanager
def rig_of(vms: Vms, managed: Sequence[Vm], times: ThreadTimes | None) -> Iterator[Rig]:
    """A rig with files of its own."""
    with tempfile.TemporaryDirectory(dir=vms.folder) as folder:
        rig = Rig(vms, managed, Path(folder), times)
        try:
            yield rig
        finally:
            rig.close()


def settle(rig: Rig, vms: Vms, managed: Sequence[Vm]) -> None:
    """Tick until nothing changes any more. Critical VMs have used CPU time, so that demands are not all zero."""
    rig.tick(0.0)
    vms.burst(managed[0::2])
    quiet = 0
    for _ in range(MOST_SETTLING_TICKS):
        quiet = 0 if rig.tick(0.0).changes else quiet + 1
        if quiet == SETTLED_TICKS:
            return
    raise RuntimeError(f"after {MOST_SETTLING_TICKS} ticks the settings still change")


@contextmanager
def garbage_postponed() -> Iterator[None]:
    """As in an agent that runs."""
    postpone_garbage()
    try:
        yield
    finally:
        collect_as_usual()
        gc.unfreeze()


def alternate(wanted: Assignment, number: int) -> Assignment:
    """The same with another registered weight for a part of the VMs."""
    weight = 1500 + 100 * (number % 2)
    changed = tuple(
        replace(spec, weight=weight) if index % CHANGED_PART == 0 else spec for index, spec in enumerate(wanted.vms)
    )
    return replace(wanted, vms=changed)


def line(vms: int, state: str, measured: Sequence[Measured]) -> Line:
    """The figures of some ticks."""
    phases = {name: Spread.of([one.phases_ms[name] for one in measured]) for name in (*PHASES, *PARTS)}
    return Line(
        vms,
        state,
        sum(one.changes for one in measured) / len(measured),
        Spread.of([one.tick_ms for one in measured]),
        Spread.of([one.agent_ms for one in measured]),
        Spread.of([one.cpu_ms for one in measured]),
        phases,
        max((one.garbage_ms for one in measured if one.garbage_ms is not None), default=None),
    )


def measure(
    vms: Vms, managed: Sequence[Vm], ticks: int, pause_s: float, profiled: str, times: ThreadTimes | None
) -> Iterator[Line]:
    """The three states at one number of VMs."""
    count = len(managed)
    profile = cProfile.Profile() if profiled else None
    first = []
    for _ in range(FIRST_TICKS):
        with rig_of(vms, managed, times) as rig:
            first.append(rig.tick(pause_s, profile if profiled == "first" else None))
    yield line(count, "first", first)
    with rig_of(vms, managed, times) as rig, garbage_postponed():
        settle(rig, vms, managed)
        steady = profile if profiled == "steady" else None
        yield line(count, "steady", [rig.tick(pause_s, steady) for _ in range(ticks)])
        same = rig.wanted
        changing = []
        for number in range(ticks):
            rig.wanted = alternate(same, number)
            changing.append(rig.tick(pause_s, profile if profiled == "changing" else None))
        yield line(count, "changing", changing)
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def show(lines: Sequence[Line]) -> None:
    """Print two tables: whole ticks, and their phases."""
    console = Console(width=150)
    whole = Table(
        "VMs", "state", "changes", "tick median ms", "p99", "with report", "p99", "CPU ms", "CPU us a VM", "bar"
    )
    for one in lines:
        bars = ""
        if one.vms == BAR_VMS:
            bars = f"{verdict(one.agent_ms.median, BAR_MEDIAN_MS)}, {verdict(one.agent_ms.p99, BAR_P99_MS)}"
        numbers = (one.tick_ms.median, one.tick_ms.p99, one.agent_ms.median, one.agent_ms.p99, one.cpu_ms.median)
        whole.add_row(
            f"{one.vms}", one.state, f"{one.changes:.0f}", *(f"{x:.2f}" for x in numbers), f"{one.per_vm_us:.0f}", bars
        )
    console.print(whole)
    phases = Table("VMs", "state", *PHASES, *PARTS, "garbage", title="median of each phase, ms; most for garbage")
    for one in lines:
        names = (*PHASES, *PARTS)
        garbage = "" if one.garbage_ms is None else f"{one.garbage_ms:.0f}"
        phases.add_row(f"{one.vms}", one.state, *(f"{one.phases_ms[name].median:.2f}" for name in names), garbage)
    console.print(phases)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--ticks", type=int, default=200, help="of each state but the first")
    add_times(parser)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="sleep before each tick")
    parser.add_argument("--profile", choices=("first", "steady", "changing"), default="", help="and print a profile")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    lines: list[Line] = []
    with undone_when_told_to_end(), running_vms(max(options.vms)) as (vms, started), times_of(options.times) as times:
        for count in options.vms:
            measured = measure(vms, started[:count], options.ticks, options.pause_ms / 1000, options.profile, times)
            lines.extend(measured)
    print(machine())
    show(lines)
    bars = {"vms": BAR_VMS, "median_ms": BAR_MEDIAN_MS, "p99_ms": BAR_P99_MS}
    write_json(options.json, {"bars": bars, "results": [asdict(one) for one in lines]})


if __name__ == "__main__":
    main()
