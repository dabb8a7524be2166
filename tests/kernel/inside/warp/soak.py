"""A random workload: everything that may happen to tasks, groups and CPUs, while a scheduler is watched.

Every task wants the CPU again and again, so that one whose CPU time stands still was lost.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

CPUS = Path("/sys/devices/system/cpu")
LEAVES = ("a", "b", "m/x", "m/y/vcpu0")  # only these may have tasks
GROUPS = (*LEAVES, "m", "m/y")
MOST_TASKS = 12
MOST_SPINNING = 3
LEAST_ONLINE = 2
STANDS_STILL_NS = 3_000_000_000
"""The scheduler lets nobody wait for much more than one second; the kernel's watchdog comes after two."""
HOUR_MS = 3_600_000
START_PRIORITY = 45


@dataclass(slots=True)
class Task:
    """One load, when it was last seen to have run, and how much until then."""

    load: Load
    kind: str
    told: str
    seen_ns: int
    used_ns: int = 0


@dataclass(slots=True)
class Soak:
    """The state of a run. ``done`` counts its operations by name."""

    scheduler: SchedExt
    chance: random.Random
    tasks: list[Task] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def online(self) -> list[int]:
        return sorted(os.sched_getaffinity(1))

    def start(self) -> None:
        """A task that sleeps and wakes, one that spins, or one that forks."""
        spinning = sum(each.kind == "spin" for each in self.tasks)
        kind = self.chance.choice(["wave", "wave", "forks", *(["spin"] if spinning < MOST_SPINNING else [])])
        on_ms, off_ms = self.chance.choice([(1, 4), (2, 20), (6, 42), (20, 5)])
        arguments = {"wave": (on_ms, off_ms, HOUR_MS), "forks": (on_ms * 200, HOUR_MS), "spin": (HOUR_MS,)}[kind]
        # It first measures its loop, which would take long where there is little time left.
        load = Load("", kind, *arguments, fifo=START_PRIORITY)
        os.sched_setscheduler(load.process.pid, os.SCHED_OTHER, os.sched_param(0))
        self._move(load)
        load.go()
        self.tasks.append(Task(load, kind, f"{kind}{arguments} {load.process.pid}", time.monotonic_ns()))

    def _move(self, load: Load) -> None:
        (lab.CGROUPS / self.chance.choice(LEAVES) / "cgroup.procs").write_text(str(load.process.pid))

    def end(self) -> None:
        if self.tasks:
            self.tasks.pop(self.chance.randrange(len(self.tasks))).load.end()

    def move(self) -> None:
        if self.tasks:
            self._move(self.chance.choice(self.tasks).load)

    def affinity(self) -> None:
        online = self.online()
        if self.tasks:
            chosen = self.chance.sample(online, self.chance.choice([1, 1, 2, len(online)]))
            os.sched_setaffinity(self.chance.choice(self.tasks).load.process.pid, chosen)

    def nice(self) -> None:
        if self.tasks:
            pid = self.chance.choice(self.tasks).load.process.pid
            os.setpriority(os.PRIO_PROCESS, pid, self.chance.choice([-10, -1, 0, 0, 3, 19]))

    def policy(self) -> None:
        """Real-time only for those that sleep."""
        if self.tasks:
            task = self.chance.choice(self.tasks)
            policies = [os.SCHED_OTHER, os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE]
            real_time = [os.SCHED_FIFO, os.SCHED_RR] if task.kind == "forks" else []
            policy = self.chance.choice([*policies, *real_time])
            os.sched_setscheduler(task.load.process.pid, policy, os.sched_param(int(policy in real_time)))

    def weight(self) -> None:
        name, value = self.chance.choice([("weight", self.chance.choice([1, 20, 100, 100, 700, 10_000])), ("idle", 1)])
        folder = lab.CGROUPS / self.chance.choice(GROUPS)
        (folder / "cpu.idle").write_text("0")  # else the weight cannot be written
        (folder / f"cpu.{name}").write_text(str(value))

    def warp(self) -> None:
        lab.set_warp(
            self.chance.choice(GROUPS),
            self.chance.choice([0, 1000, 12_000, 50_000, 200_000]),
            self.chance.choice([0, 2000]),
        )

    def group(self) -> None:
        """One that comes, has a task for a while, and goes."""
        folder = lab.group(f"m/{self.chance.randrange(1000)}x")
        lab.set_warp(str(folder.relative_to(lab.CGROUPS)), 5000)
        load = Load("", "wave", 1, 1, HOUR_MS, fifo=START_PRIORITY)
        os.sched_setscheduler(load.process.pid, os.SCHED_OTHER, os.sched_param(0))
        (folder / "cgroup.procs").write_text(str(load.process.pid))
        load.go()
        time.sleep(0.02)
        load.end()
        folder.rmdir()

    def cpu(self) -> None:
        """CPU 0 always stays."""
        online = self.online()
        cpu = self.chance.randrange(1, os.cpu_count() or 1)
        if cpu not in online or len(online) > LEAST_ONLINE:
            (CPUS / f"cpu{cpu}/online").write_text(str(int(cpu not in online)))

    def look(self) -> None:
        """Raise AssertionError for what must not be."""
        assert self.scheduler.active, "the kernel ejected the scheduler"
        now_ns = time.monotonic_ns()
        for each in self.tasks:
            used_ns = each.load.used_ns()
            if used_ns != each.used_ns:
                each.used_ns, each.seen_ns = used_ns, now_ns
            stands_ns = now_ns - each.seen_ns
            assert stands_ns < STANDS_STILL_NS, f"{each.told} did not run for {stands_ns / 1e6:.0f} ms"
        counters = self.scheduler.counters()
        for name, before in self.counters.items():
            assert before <= counters[name] < 1 << 62, f"counter {name}: {before}, then {counters[name]}"
        self.counters = counters

    def step(self) -> None:
        """One operation."""
        operations: list[Callable[[], None]] = [
            *(self.start, self.start, self.end, self.move, self.move, self.affinity, self.affinity, self.nice),
            *(self.policy, self.weight, self.warp, self.warp, self.group, self.cpu),
        ]
        if len(self.tasks) >= MOST_TASKS:
            operations = [self.end]
        chosen = self.chance.choice(operations)
        chosen()
        self.done[chosen.__name__] = self.done.get(chosen.__name__, 0) + 1


@contextmanager
def restored(soak: Soak) -> Iterator[None]:
    """End all tasks, and bring all CPUs and no group back, whatever happened."""
    try:
        yield
    finally:
        for each in soak.tasks:
            each.load.end()
        for file in CPUS.glob("cpu[1-9]*/online"):
            file.write_text("1")
        lab.remove_groups()


def run(scheduler: SchedExt, seconds: float, seed: int) -> Soak:
    """Do things at random for so long. Raises AssertionError with the seed for what must not be."""
    soak = Soak(scheduler, random.Random(seed))
    for name in GROUPS:
        lab.group(name)
    with restored(soak):
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                soak.step()
                time.sleep(soak.chance.uniform(0.0, 0.1))
                soak.look()
        except (AssertionError, OSError) as error:
            told = [each.told for each in soak.tasks]
            raise AssertionError(f"seed {seed}: {error}; after {soak.done}; tasks {told}") from error
    return soak
