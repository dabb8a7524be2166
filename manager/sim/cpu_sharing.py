"""The processors: weighted sharing among runnable vCPUs, placement, and waiting at wake-up.

Each pCPU is shared by generalised processor sharing (Parekh and Gallager 1993), which the Linux scheduler approximates:
a vCPU of weight w runs at the rate w / W, W being the weight of all that run there. A *virtual time* of each pCPU
advances by 1 / W: a vCPU that starts work s at virtual time V ends at V + s / w whatever comes and goes meanwhile, so
an event touches one pCPU only. As in a CPU cgroup, a VM's weight is divided among its runnable vCPUs.

What sharing leaves out is *when* a vCPU that wakes gets the pCPU (``Scheduler``): where others of weight Wo run, it
takes it at once with probability w / (w + Wo). Else it waits for a random part of their slices, at most ``slice_ms``
times min(number of others, Wo / w), and then until the next scheduler tick (``tick_ms``). Waiting counts as run delay.

A floating vCPU is placed at wake-up where the runnable weight is least, preferably where it was; every ``balance_ms``
weights are evened out, and a pCPU that runs out of work takes a vCPU from the fullest one at once.

A group may be throttled (``cpu_quota``): its vCPUs then are runnable and on no pCPU, which counts as run delay, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random

from manager.sim.scenario import Scheduler

ASLEEP, WAITING, RUNNING, THROTTLED = 0, 1, 2, 3
INFINITE = math.inf

Request = tuple[float, tuple[float, ...]]
"""When a request came, and the CPU time it needs in each tier, in seconds."""


@dataclass(slots=True, eq=False)
class SimPcpu:
    """One processor. ``running`` share it; ``waiting`` are runnable and do not share it yet; ``load`` counts both."""

    index: int
    at_s: float = 0.0
    vtime: float = 0.0
    weight: float = 0.0
    load: float = 0.0
    idle_s: float = 0.0
    running: list[Vcpu] = field(default_factory=list)
    waiting: list[Vcpu] = field(default_factory=list)
    chosen: Vcpu | None = None


_load = attrgetter("load")


class SchedulingGroup(ABC):
    """What the scheduler knows of a VM: its weight, and its vCPUs."""

    def __init__(self, weight: int, vcpus: int, allowed: tuple[SimPcpu, ...]) -> None:
        """All vCPUs sleep at first."""
        self.weight = weight
        self.runnable = 0
        self.throttled = False
        self.vcpus = [Vcpu(self, index, allowed) for index in range(vcpus)]

    @abstractmethod
    def next_work(self, vcpu: Vcpu, now_s: float) -> float:
        """``vcpu`` has done its work: the CPU time in seconds of the next, or 0 to sleep. Must not wake vCPUs."""


@dataclass(slots=True, eq=False)
class Vcpu:
    """One vCPU, asleep at first, last seen on the allowed pCPU of its number.

    ``finish`` and ``mark`` are virtual times: its work's end, and up to when ``cpu_s`` is counted.
    """

    group: SchedulingGroup
    index: int
    allowed: tuple[SimPcpu, ...]
    pcpu: SimPcpu = field(init=False)
    state: int = ASLEEP
    weight: float = 0.0
    finish: float = 0.0
    mark: float = 0.0
    left_s: float = 0.0
    join_s: float = 0.0
    since_s: float = 0.0
    cpu_s: float = 0.0
    runnable_s: float = 0.0
    request: Request | None = None

    def __post_init__(self) -> None:
        self.pcpu = self.allowed[self.index % len(self.allowed)]


class SimCpus:
    """All processors. ``when`` holds the time of each pCPU's next event at its number; others may share the list."""

    def __init__(self, count: int, scheduler: Scheduler, random: Random, when: list[float]) -> None:
        """``when`` is filled for the pCPUs 0 .. count - 1."""
        self.pcpus = tuple(SimPcpu(index) for index in range(count))
        self.speed = 1.0
        self._when = when
        self._uniform = random.random
        self._slice_s = scheduler.slice_ms / 1000
        self._tick_s = scheduler.tick_ms / 1000
        when[:count] = [INFINITE] * count

    def wake(self, vcpu: Vcpu, work_s: float, now_s: float) -> None:
        """A sleeping vCPU becomes runnable with ``work_s`` seconds of CPU time to do, possibly infinitely many."""
        group = vcpu.group
        runnable = group.runnable + 1
        group.runnable = runnable
        weight = group.weight / runnable
        if runnable > 1:
            self._reweigh(group, weight, now_s)
        vcpu.weight = weight
        vcpu.left_s = work_s
        vcpu.since_s = now_s
        if group.throttled:
            vcpu.state = THROTTLED
            return
        pcpu = vcpu.pcpu
        if len(vcpu.allowed) > 1:
            load = pcpu.load
            if load > 0.0:
                for other in vcpu.allowed:
                    if other.load < load:
                        pcpu, load = other, other.load
            vcpu.pcpu = pcpu
        pcpu.load += weight
        others = pcpu.weight
        if pcpu.running and self._uniform() * (others + weight) < others:
            slices = min(len(pcpu.running), others / weight)
            tick_s = self._tick_s
            join_s = now_s + self._uniform() * slices * self._slice_s
            vcpu.join_s = join_s = (join_s // tick_s + 1) * tick_s if tick_s else join_s
            vcpu.state = WAITING
            pcpu.waiting.append(vcpu)
            self._when[pcpu.index] = min(self._when[pcpu.index], join_s)
        else:
            self._join(vcpu, pcpu, now_s)
            self._plan(pcpu)
        if others and len(vcpu.allowed) < len(self.pcpus):
            self._spread(now_s)

    def fire(self, index: int, now_s: float) -> None:
        """The event that ``when`` announced for a pCPU."""
        pcpu = self.pcpus[index]
        for vcpu in pcpu.waiting:
            if vcpu.join_s <= now_s:
                pcpu.waiting.remove(vcpu)
                self._join(vcpu, pcpu, now_s)
                self._plan(pcpu)
                return
        done = pcpu.chosen
        assert done is not None  # noqa: S101 - what announced the event
        pcpu.vtime += (now_s - pcpu.at_s) * self.speed / pcpu.weight
        pcpu.at_s = now_s
        vtime, weight = pcpu.vtime, done.weight
        done.cpu_s += weight * (vtime - done.mark)
        done.mark = vtime
        work_s = done.group.next_work(done, now_s)
        if work_s > 0.0:
            done.finish = vtime + work_s / weight
            self._plan(pcpu)
        else:
            self.sleep(done, now_s)

    def sleep(self, vcpu: Vcpu, now_s: float) -> None:
        """A runnable vCPU stops being so, whatever it had still to do."""
        pcpu, group = vcpu.pcpu, vcpu.group
        throttled = vcpu.state == THROTTLED
        if not throttled:
            self._take_off(vcpu, now_s)
        vcpu.state = ASLEEP
        vcpu.runnable_s += now_s - vcpu.since_s
        group.runnable -= 1
        if group.runnable:
            self._reweigh(group, group.weight / group.runnable, now_s)
        if not throttled:
            self._refill(pcpu, now_s)

    def throttle(self, group: SchedulingGroup, now_s: float) -> None:
        """Take all runnable vCPUs of a VM from their pCPUs, and those that wake up from now on do not get one."""
        group.throttled = True
        left = []
        for vcpu in group.vcpus:
            if vcpu.state != ASLEEP:
                self._take_off(vcpu, now_s)
                vcpu.state = THROTTLED
                left.append(vcpu.pcpu)
        for pcpu in left:
            self._refill(pcpu, now_s)

    def unthrottle(self, group: SchedulingGroup, now_s: float) -> None:
        """Let them share pCPUs again, at once: where they were, or where less weight is."""
        group.throttled = False
        for vcpu in group.vcpus:
            if vcpu.state == THROTTLED:
                if vcpu.pcpu.load > 0.0:
                    vcpu.pcpu = min((vcpu.pcpu, *vcpu.allowed), key=_load)
                vcpu.pcpu.load += vcpu.weight
                self._join(vcpu, vcpu.pcpu, now_s)
                self._plan(vcpu.pcpu)
                if len(vcpu.pcpu.running) > 1:
                    self._spread(now_s)

    def set_weight(self, group: SchedulingGroup, weight: int, now_s: float) -> None:
        """Another weight for a VM."""
        group.weight = weight
        if group.runnable:
            self._reweigh(group, weight / group.runnable, now_s)

    def set_allowed(self, vcpu: Vcpu, cpus: Iterable[int], now_s: float) -> None:
        """Let a vCPU run on these pCPUs only, of which there must be one; a runnable one moves at once if it has to."""
        vcpu.allowed = tuple(self.pcpus[cpu] for cpu in sorted(cpus))
        target = min(vcpu.allowed, key=_load)
        if vcpu.pcpu in vcpu.allowed and (target.load > 0.0 or vcpu.pcpu.load <= vcpu.weight):
            return
        if vcpu.state in (ASLEEP, THROTTLED):
            vcpu.pcpu = target
        else:
            self._move(vcpu, target, now_s)

    def set_speed(self, speed: float, now_s: float) -> None:
        """The share of every pCPU that is left for VMs, above 0."""
        for pcpu in self.pcpus:
            self._settle(pcpu, now_s)
        self.speed = speed
        for pcpu in self.pcpus:
            self._plan(pcpu)

    def balance(self, now_s: float) -> None:
        """Even out the runnable weight, and begin virtual times anew so that they stay exact."""
        for pcpu in self.pcpus:
            self._settle(pcpu, now_s)
            for vcpu in pcpu.running:
                vcpu.cpu_s += vcpu.weight * (pcpu.vtime - vcpu.mark)
                vcpu.finish -= pcpu.vtime
                vcpu.mark = 0.0
            pcpu.vtime = 0.0
            pcpu.weight = math.fsum([vcpu.weight for vcpu in pcpu.running])
            pcpu.load = pcpu.weight + math.fsum([vcpu.weight for vcpu in pcpu.waiting])
        for _ in self.pcpus:
            if not self._even_out(now_s):
                break

    def cpu_s(self, vcpu: Vcpu, now_s: float) -> float:
        """CPU time that a vCPU has had."""
        if vcpu.state == RUNNING:
            pcpu = vcpu.pcpu
            self._settle(pcpu, now_s)
            vcpu.cpu_s += vcpu.weight * (pcpu.vtime - vcpu.mark)
            vcpu.mark = pcpu.vtime
        return vcpu.cpu_s

    def delay_s(self, vcpu: Vcpu, now_s: float) -> float:
        """Time in which a vCPU was runnable and did not run."""
        runnable_s = vcpu.runnable_s + (now_s - vcpu.since_s if vcpu.state != ASLEEP else 0.0)
        return max(0.0, runnable_s - self.cpu_s(vcpu, now_s))

    def idle_s(self, now_s: float) -> float:
        """Time of all pCPUs that nothing used."""
        for pcpu in self.pcpus:
            self._settle(pcpu, now_s)
        return math.fsum(pcpu.idle_s for pcpu in self.pcpus)

    def _settle(self, pcpu: SimPcpu, now_s: float) -> None:
        elapsed_s = (now_s - pcpu.at_s) * self.speed
        if pcpu.running:
            pcpu.vtime += elapsed_s / pcpu.weight
        else:
            pcpu.idle_s += elapsed_s
        pcpu.at_s = now_s

    def _plan(self, pcpu: SimPcpu) -> None:
        """Announce the pCPU's next event. It must be settled."""
        best, chosen = INFINITE, None
        for vcpu in pcpu.running:
            if vcpu.finish < best:
                best, chosen = vcpu.finish, vcpu
        pcpu.chosen = chosen
        at_s = INFINITE
        if chosen is not None:
            ahead = best - pcpu.vtime
            at_s = pcpu.at_s + ahead * pcpu.weight / self.speed if ahead > 0.0 else pcpu.at_s
        for vcpu in pcpu.waiting:
            at_s = min(at_s, vcpu.join_s)
        self._when[pcpu.index] = at_s

    def _join(self, vcpu: Vcpu, pcpu: SimPcpu, now_s: float) -> None:
        """Let a vCPU share the pCPU; the caller plans."""
        self._settle(pcpu, now_s)
        vtime, weight = pcpu.vtime, vcpu.weight
        vcpu.state = RUNNING
        vcpu.mark = vtime
        vcpu.finish = vtime + vcpu.left_s / weight
        pcpu.running.append(vcpu)
        pcpu.weight += weight

    def _take_off(self, vcpu: Vcpu, now_s: float) -> None:
        """Take a runnable vCPU from its pCPU, with what it has left to do in ``left_s``."""
        pcpu = vcpu.pcpu
        self._settle(pcpu, now_s)
        if vcpu.state == RUNNING:
            vcpu.cpu_s += vcpu.weight * (pcpu.vtime - vcpu.mark)
            vcpu.left_s = (vcpu.finish - pcpu.vtime) * vcpu.weight
            pcpu.running.remove(vcpu)
            pcpu.weight -= vcpu.weight
        else:
            pcpu.waiting.remove(vcpu)
        pcpu.load -= vcpu.weight

    def _refill(self, pcpu: SimPcpu, now_s: float) -> None:
        """No pCPU stays idle while somebody waits for it, or could run there."""
        if not pcpu.running:
            pcpu.weight = pcpu.vtime = 0.0
            waiting, pcpu.waiting = pcpu.waiting, []
            for vcpu in waiting:
                self._join(vcpu, pcpu, now_s)
            if not waiting:
                pcpu.load = 0.0
                self._pull(pcpu, now_s)
        self._plan(pcpu)

    def _pull(self, pcpu: SimPcpu, now_s: float) -> None:
        """Bring a vCPU to an idle pCPU: from the fullest that has more than one, the one that least runs there."""
        best: Vcpu | None = None
        for source in self.pcpus:
            if len(source.running) + len(source.waiting) < 2 or (best and source.load <= best.pcpu.load):
                continue
            movable = [vcpu for vcpu in source.waiting or source.running if pcpu in vcpu.allowed]
            movable = movable or [vcpu for vcpu in source.running if pcpu in vcpu.allowed]
            if movable:
                best = min(movable, key=lambda vcpu: vcpu.weight)
        if best is not None:
            self._move(best, pcpu, now_s)

    def _move(self, vcpu: Vcpu, target: SimPcpu, now_s: float) -> None:
        """To another pCPU, where it shares at once."""
        source = vcpu.pcpu
        self._take_off(vcpu, now_s)
        vcpu.pcpu = target
        target.load += vcpu.weight
        self._join(vcpu, target, now_s)
        self._plan(target)
        self._refill(source, now_s)
        if len(target.running) > 1:
            self._spread(now_s)

    def _spread(self, now_s: float) -> None:
        """A vCPU came to a busy pCPU: those beside it may have somewhere else to go."""
        for pcpu in self.pcpus:
            if pcpu.load == 0.0:
                self._pull(pcpu, now_s)
                self._plan(pcpu)

    def _even_out(self, now_s: float) -> bool:
        """Move the heaviest vCPU whose move lowers the load of the fullest pCPU; whether there was one."""
        crowded = [pcpu for pcpu in self.pcpus if len(pcpu.running) + len(pcpu.waiting) > 1]
        if not crowded:
            return False
        emptiest = min(self.pcpus, key=_load)
        crowded.sort(key=_load, reverse=True)
        for fullest in crowded:
            limit = (fullest.load - emptiest.load) * (1 - 1e-9)
            fitting = [
                vcpu
                for vcpu in (*fullest.running, *fullest.waiting)
                if vcpu.weight < limit and emptiest in vcpu.allowed
            ]
            if fitting:
                self._move(max(fitting, key=lambda vcpu: vcpu.weight), emptiest, now_s)
                return True
        return False

    def _reweigh(self, group: SchedulingGroup, weight: float, now_s: float) -> None:
        """Give each runnable vCPU of a VM ``weight``."""
        for vcpu in group.vcpus:
            if vcpu.state == ASLEEP or vcpu.weight == weight:
                continue
            pcpu, before = vcpu.pcpu, vcpu.weight
            vcpu.weight = weight
            if vcpu.state == THROTTLED:
                continue
            pcpu.load += weight - before
            if vcpu.state == RUNNING:
                self._settle(pcpu, now_s)
                vtime = pcpu.vtime
                vcpu.cpu_s += before * (vtime - vcpu.mark)
                vcpu.mark = vtime
                vcpu.finish = vtime + (vcpu.finish - vtime) * before / weight
                pcpu.weight += weight - before
                self._plan(pcpu)
