"""A control loop whose every step may fail or be its last, and what must hold after each tick whatever happened.

The steps are those of the host's port that may fail, and the journal's transactions. A full disk is the kernel's own
refusal to let the journal's file grow; a kill leaves the journal's files as they are on disk at that moment, or with
the last transaction torn.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from manager.errors import HostError
from manager.host.files import refusal
from manager.loop.apply import Applied
from manager.loop.journal import Entry, Journal
from manager.loop.observer import Clock, LoopSettings, Observation
from manager.loop.planner import Planned
from manager.loop.tick import ControlLoop, TickResult, _values
from manager.model.decision import Decision, Goal, Memory, Snapshot
from manager.model.host import BatchGroup, Capabilities, CpuCounters, CpuTimes, VmInstance, VmState
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.network import UplinkPort
from manager.model.power import ClockDomain
from manager.model.registration import Mode
from manager.model.resource_use import ResourceUse
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.loop.stage import Scenario, Stage

T = TypeVar("T")
FIRST_FRAME_BYTES = 24 + 4096 + 100
"""As much of a transaction fits into the journal's log before the disk is full in the midst of it."""


class Killed(BaseException):
    """The process ends here and now."""


class Op(StrEnum):
    """What a step does."""

    LISTING = "list the running domains"
    READ = "read a VM"
    TIMES = "read the host's CPU times"
    OWN = "read the host's own knobs"
    WARPS = "read warps"
    SCHEDULING = "read scheduling"
    WRITE = "write"
    COMMIT = "commit to the journal"


class Kind(StrEnum):
    """What goes wrong at a step."""

    EIO = "EIO"
    EINVAL = "EINVAL"
    EBUSY = "EBUSY"
    ENOENT = "ENOENT"
    EIO_AFTER = "EIO once it took effect"
    ENOENT_AFTER = "ENOENT once it took effect"
    KEPT = "the kernel keeps something else"
    ENDS = "the VM ends"
    AWAY = "libvirt lists nothing"
    STALE = "libvirt's list is that of the start"
    MISSING = "one interrupt cannot be found"
    FULL = "disk full"
    FULL_AMIDST = "disk full in the midst"
    KILL_AFTER = "killed after"
    KILL_TORN = "killed in the midst"


ERRNOS = {
    Kind.EIO: errno.EIO,
    Kind.EINVAL: errno.EINVAL,
    Kind.EBUSY: errno.EBUSY,
    Kind.ENOENT: errno.ENOENT,
    Kind.EIO_AFTER: errno.EIO,
    Kind.ENOENT_AFTER: errno.ENOENT,
}
FAULTS: dict[Op, tuple[Kind, ...]] = {
    Op.LISTING: (Kind.AWAY, Kind.STALE),
    Op.READ: (Kind.EIO, Kind.ENOENT, Kind.ENDS),
    Op.TIMES: (Kind.EIO,),
    Op.OWN: (Kind.EIO, Kind.MISSING),
    Op.WARPS: (Kind.EIO, Kind.ENOENT, Kind.ENDS),
    Op.SCHEDULING: (Kind.EIO, Kind.ENOENT, Kind.ENDS),
    Op.WRITE: (*ERRNOS, Kind.KEPT, Kind.ENDS),
    Op.COMMIT: (Kind.FULL, Kind.FULL_AMIDST),
}
IN_TURN = ((Kind.EIO, Kind.EINVAL, Kind.EBUSY), (Kind.EIO_AFTER, Kind.ENOENT_AFTER))
"""The loop makes no difference between these: each write fails with one of each in turn."""
# After a step is before the next one, and before the first write of all is after the first commit.
KILLS: dict[Op, tuple[Kind, ...]] = {
    Op.WRITE: (Kind.KILL_AFTER,),
    Op.COMMIT: (Kind.KILL_AFTER, Kind.KILL_TORN),
}


@dataclass(frozen=True, slots=True)
class Step:
    """The ``number``-th step of a walk, in its ``tick``-th tick, after its ``order``-th order, on the domain ``uuid``.

    A tick in which the agent was killed is followed by another after the same order.
    """

    number: int
    order: int
    tick: int
    op: Op
    uuid: str
    key: KnobKey | None = None

    @property
    def text(self) -> str:
        """For the message of a failed test."""
        knob = f" {self.key.knob} {self.key.index}" if self.key else ""
        return f"order {self.order}, step {self.number}: {self.op}{knob} ({self.uuid or 'host'})"


def faults_of(step: Step, turn: int = 0) -> tuple[Kind, ...]:
    """What can go wrong at a step."""
    if step.op is not Op.WRITE:
        return FAULTS[step.op]
    not_now = {kind for kinds in IN_TURN for kind in kinds if kind is not kinds[(step.number + turn) % len(kinds)]}
    return tuple(kind for kind in FAULTS[step.op] if kind not in not_now)


def in_turn(kinds: Sequence[T], number: int) -> Sequence[T]:
    """One of them, if there are any."""
    return kinds and [kinds[number % len(kinds)]]


Choose = Callable[[Step], Kind | None]
"""Says what goes wrong at a step, None: nothing."""


def undisturbed(_step: Step) -> Kind | None:
    """Nothing goes wrong."""
    return None


def lasting(number: int, kind: Kind, orders: int = 0) -> Choose:
    """It goes wrong at step ``number``, and with all of its sort on that VM until so many orders later."""
    first: list[Step] = []

    def choose(step: Step) -> Kind | None:
        if step.number == number:
            first.append(step)
            return kind
        alike = first and (step.op, step.uuid) == (first[0].op, first[0].uuid)
        return kind if alike and step.order < first[0].order + orders else None

    return choose


def killed_twice(number: int, later: int) -> Choose:
    """Killed after step ``number``, and in the recovery after the first write or commit ``later`` steps on."""
    kills = [number, number + later]

    def choose(step: Step) -> Kind | None:
        if kills and step.number >= kills[0] and step.op in KILLS:
            kills.pop(0)
            return Kind.KILL_AFTER
        return None

    return choose


def by_chance(chance: random.Random, share: float) -> Choose:
    """So large a ``share`` of all steps goes wrong, in any way."""

    def choose(step: Step) -> Kind | None:
        kinds = (*FAULTS[step.op], *KILLS.get(step.op, ()))
        return chance.choice(kinds) if chance.random() < share else None

    return choose


@dataclass
class Director:
    """Lets each step happen, or not. ``hits`` are the steps at which something went wrong."""

    choose: Choose
    order: int = 0
    tick: int = 0
    steps: list[Step] = field(default_factory=list)
    hits: list[tuple[Step, Kind]] = field(default_factory=list)

    def next(self, op: Op, uuid: str = "", key: KnobKey | None = None) -> Kind | None:
        step = Step(len(self.steps), self.order, self.tick, op, uuid, key)
        self.steps.append(step)
        kind = self.choose(step)
        if kind is not None:
            self.hits.append((step, kind))
        return kind

    @property
    def hits_now(self) -> list[tuple[Step, Kind]]:
        """What went wrong in this tick."""
        return [(step, kind) for step, kind in self.hits if step.tick == self.tick]

    @property
    def last_order(self) -> int:
        """The order in whose tick something went wrong last."""
        return self.hits[-1][0].order if self.hits else -1


class FaultyHost:
    """``HostPort`` over a stage's fake host. ``planned`` are the knobs of the last plan; all others go back."""

    def __init__(self, stage: Stage, director: Director) -> None:
        self._stage, self._director = stage, director
        self.real = real = stage.host
        self.planned: frozenset[KnobKey] = frozenset()
        self._first_listing = dict(real.running())
        self.itself, self.boot_id = real.itself, real.boot_id
        self.ended, self.addresses, self.forget = real.ended, real.addresses, real.forget
        self.taps, self.look = real.taps, real.look
        self.migrating = real.migrating
        self.connected = True
        self.cache = self.resources = self.wait_alarm = None
        self.discovery = real.discovery

    @property
    def capabilities(self) -> Capabilities:
        return self.real.capabilities

    @property
    def replugs(self) -> int:
        return self.real.replugs

    def running(self) -> Mapping[str, VmInstance]:
        kind = self._director.next(Op.LISTING)
        self.connected = kind is None
        return {} if kind is Kind.AWAY else self._first_listing if kind is Kind.STALE else self.real.running()

    def read(self, instance: VmInstance, afresh: bool = True) -> VmState:
        return self._do(Op.READ, instance, lambda: self.real.read(instance, afresh))

    def counters(self, instances: Mapping[str, VmInstance]) -> Mapping[str, tuple[VmState, CpuCounters]]:
        return {}  # each reading can fail

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:
        def read() -> Mapping[KnobKey, KnobValue]:
            return self.real.knobs(instance, family)

        if instance.uuid != HOST_UUID or family is not Family.INTERRUPT:
            return self._do(Op.SCHEDULING if family is Family.SCHEDULING else Op.WARPS, instance, read)
        kind = self._director.next(Op.OWN, HOST_UUID)
        if kind is Kind.EIO:
            raise HostError("affinity of interrupt: Input/output error", errno.EIO)
        knobs = dict(read())
        if kind is Kind.MISSING and knobs:
            knobs.pop(min(knobs))
        return knobs

    def batch_group(self) -> BatchGroup:
        return self.real.batch_group()

    def uplinks(self) -> Mapping[int, UplinkPort]:
        return self.real.uplinks()

    def clocks(self) -> Mapping[int, ClockDomain]:
        return self.real.clocks()

    def lost_interrupts(self, irqs: Collection[int]) -> Collection[int]:
        return self.real.lost_interrupts(irqs)

    def warp_counters(self) -> Mapping[str, int]:
        return self.real.warp_counters()

    def cpu_times(self) -> CpuTimes:
        return self._do(Op.TIMES, self.itself, self.real.cpu_times)

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        return self._do(Op.WRITE, instance, lambda: self.real.write(instance, key, value), key, value)

    def _do(
        self,
        op: Op,
        instance: VmInstance,
        call: Callable[[], T],
        key: KnobKey | None = None,
        value: KnobValue | None = None,
    ) -> T:
        kind = self._director.next(op, instance.uuid, key)
        if kind is Kind.ENDS and instance.uuid != HOST_UUID:
            self._stage.stop(instance.libvirt_name)
        elif kind is Kind.KEPT and key is not None and (held := self.real.held(key)) is not None:
            if not isinstance(value, frozenset):
                return held
            part = self.real.write(instance, key, frozenset({min(value)}))
            if key not in self.planned:  # somebody narrowed its cpuset: no more can be given back
                self._stage.narrow(key, part)
            return part
        elif kind in {Kind.EIO_AFTER, Kind.ENOENT_AFTER, Kind.KILL_AFTER}:
            call()
            if kind is Kind.KILL_AFTER:
                raise Killed
        if kind in ERRNOS:
            raise refusal(str(op), OSError(ERRNOS[kind], os.strerror(ERRNOS[kind])))
        return call()


class FaultyJournal(Journal):
    """The journal, with transactions that fail or are the last."""

    def __init__(self, path: Path, boot_id: str, director: Director) -> None:
        super().__init__(path, boot_id)
        self._file._database.execute("PRAGMA synchronous = OFF")  # what was written outlives a killed process
        self.director = director
        self.path, self.log = path, path.with_name(path.name + "-wal")
        self.torn_at: int | None = None

    def update(self, put: Mapping[KnobKey, Entry], drop: Iterable[KnobKey] = ()) -> None:
        dropped = [key for key in drop if key in self.entries]
        if not put and not dropped:
            return
        kind = self.director.next(Op.COMMIT)
        before = self.log.stat().st_size
        if kind in {Kind.FULL, Kind.FULL_AMIDST}:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0 if kind is Kind.FULL else before + FIRST_FRAME_BYTES, hard))
            try:
                super().update(put, dropped)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            return
        super().update(put, dropped)
        if kind is Kind.KILL_TORN:
            after = self.log.stat().st_size
            assert after > before, "the log of a new file only grows"
            self.torn_at = (before + after) // 2
        if kind in {Kind.KILL_AFTER, Kind.KILL_TORN}:
            raise Killed

    def image(self, folder: Path) -> Path:
        """What is on disk when the process is killed now."""
        folder.mkdir()
        for file in (self.path, self.log):
            shutil.copy(file, folder / file.name)
        if self.torn_at is not None:
            os.truncate(folder / self.log.name, self.torn_at)
        return folder / self.path.name


@dataclass(frozen=True, slots=True)
class Told:
    """A policy that decides what the stage says of the VMs that run."""

    stage: Stage
    name: str = "told"
    summary: str = "As the scenario says."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        running = {vm.name for vm in snapshot.vms}
        wanted = self.stage.decision
        return replace(
            wanted,
            cpus=tuple(goal for goal in wanted.cpus if goal.vm in running),
            quotas=tuple(goal for goal in wanted.quotas if goal.vm in running),
            resources=tuple(goal for goal in wanted.resources if goal.vm in {"", *running}),
        )


class WatchedLoop(ControlLoop):
    """The loop; ``goals`` are those of the last plan that was to be carried out.

    Where it says that there is nothing to do, without making the plan, that is made and must change nothing.
    """

    goals: tuple[Goal, ...] = ()
    wanted: dict[KnobKey, set[KnobValue]]
    host: FaultyHost

    def show(self, use: ResourceUse) -> None:
        """What was measured since the tick before: each is a round of readings of its own."""
        self._resources.latest = replace(use)

    def _apply(self, planned: Planned, seen: Observation, only: str | None) -> Applied:
        if planned.plan is None:
            return super()._apply(planned, seen, only)
        plan = planned.plan()
        self.goals = tuple(goal for goal in plan.goals if goal.mode is Mode.ENFORCE)
        if self._inputs(planned, seen, only) == self._nothing_to_do_for:
            targets = self._targets(seen)
            assert not self._differences(plan, seen, targets, _values(seen), self._ledger(targets, only))
        for goal in self.goals:
            self.wanted.setdefault(goal.key, set()).add(goal.value)
        self.host.planned = frozenset(goal.key for goal in self.goals)
        return super()._apply(planned, seen, only)


class Walk:
    """A scenario on its way, from life to life of the agent. ``empty`` is a journal without entries, to be copied."""

    def __init__(self, scenario: Scenario, folder: Path, empty: Path, choose: Choose = undisturbed) -> None:
        self.stage = Stage(scenario)
        self.director = Director(choose)
        self.host = FaultyHost(self.stage, self.director)
        self.wanted: dict[KnobKey, set[KnobValue]] = {}
        self.lives = 0
        self._folder = folder
        self._start(shutil.copy(empty, folder / "journal.db"))

    def _start(self, path: Path) -> None:
        self.journal = FaultyJournal(path, self.host.boot_id, self.director)
        policies = {"equal": EQUAL, "priority": PRIORITY, "told": Told(self.stage)}
        settings = LoopSettings("h1", 1.0, 30.0, 20)
        self.loop = WatchedLoop(self.host, self.journal, policies, settings, self._clock, EVERYTHING)
        self.loop.wanted, self.loop.host = self.wanted, self.host

    def _clock(self) -> Clock:
        return Clock(self.stage.now_s, self.stage.now_s)

    def order(self, number: int) -> None:
        """Give the next order, or tell what happens next."""
        self.director.order = number
        self.stage.proceed(number, {key for key, one in self.journal.entries.items() if not one.owned.external})

    def tick(self) -> TickResult | None:
        """None: the agent was killed in it and started again."""
        self.stage.pass_time()
        self.director.tick += 1
        self.loop.show(self.stage.use)
        try:
            return self.loop.release("test") if self.stage.released else self.loop.tick(self.stage.assignment, {})
        except Killed:
            self.lives += 1
            image = self.journal.image(self._folder / f"life-{self.lives}")
            self.journal.close()
            self._start(image)
            return None

    def close(self) -> None:
        self.journal.close()
