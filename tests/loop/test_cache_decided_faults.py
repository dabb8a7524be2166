"""A policy decides ways: each step at resctrl and in the journal fails, once or for a while, or is the agent's last."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from manager.errors import JournalError
from manager.loop.journal import CacheNote, Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.cache import DEFAULT, Mask, Slot, is_ours
from manager.model.decision import Decision, Snapshot, WaysGoal
from manager.model.limits import EVERYTHING
from manager.model.problem import ProblemKind
from manager.model.registration import Application, CacheControl, Mode, Tier
from tests.fakes.cache_host import CACHE, CacheHost
from tests.fakes.resctrl import FakeResctrl
from tests.loop.conftest import Rig
from tests.loop.stepped_tree import READ, SteppedTree

ORIGINAL = {Slot("L3", 0): 0xFFF, Slot("L3", 1): 0xFFC}
"""What an operator had given all threads before."""
RECOVERY = 2
"""So many ticks after the last fault at most, all is as if there had been none."""


class Killed(BaseException):
    """The process ends here and now."""


class Kind(StrEnum):
    """What goes wrong at a step."""

    EIO = "EIO"
    EBUSY = "EBUSY"
    EINVAL = "EINVAL"
    EIO_AFTER = "EIO once it took effect"
    KILL_AFTER = "killed after"
    FULL = "disk full"


ERRNOS = {Kind.EIO: errno.EIO, Kind.EBUSY: errno.EBUSY, Kind.EINVAL: errno.EINVAL, Kind.EIO_AFTER: errno.EIO}
REFUSALS = (Kind.EIO, Kind.EBUSY, Kind.EINVAL)
"""The keeper makes no difference between these: each change fails with one of them in turn."""


@dataclass(frozen=True, slots=True)
class CacheStep:
    """The ``number``-th step of a walk, after its ``order``-th order: what it does, and the path that it concerns."""

    number: int
    order: int
    what: str
    path: str

    @property
    def text(self) -> str:
        """For the message of a failed test."""
        return f"order {self.order}, step {self.number}: {self.what} {self.path}"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What can go wrong at it."""
        if self.what == READ:
            return (Kind.EIO,)
        if self.what == "note":
            return (Kind.FULL, Kind.KILL_AFTER)
        if self.what == "mount":
            return (*REFUSALS, Kind.KILL_AFTER)
        after = (Kind.EIO_AFTER,) if self.what == "write" else ()  # folders are made and removed whole, or not
        return (REFUSALS[self.number % len(REFUSALS)], *after, Kind.KILL_AFTER)


Choose = Callable[[CacheStep], Kind | None]


@dataclass
class Director:
    """Lets each step happen, or not. ``hits`` are the steps at which something went wrong."""

    choose: Choose
    order: int = 0
    steps: list[CacheStep] = field(default_factory=list)
    hits: list[tuple[CacheStep, Kind]] = field(default_factory=list)
    look: Callable[[], None] = lambda: None

    def take(self, what: str, path: str, act: Callable[[], Any]) -> Any:
        step = CacheStep(len(self.steps), self.order, what, path)
        self.steps.append(step)
        kind = self.choose(step)
        if kind is not None:
            self.hits.append((step, kind))
        if kind is Kind.FULL:
            raise JournalError("No space left on device")
        if kind in REFUSALS:
            raise OSError(ERRNOS[kind], os.strerror(ERRNOS[kind]))
        result = act()
        if what != READ:
            self.look()
        if kind is Kind.KILL_AFTER:
            raise Killed
        if kind is Kind.EIO_AFTER:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return result


class SteppedJournal(Journal):
    """The journal, with notes of the cache that fail or are the last."""

    director: Director

    def __init__(self, path: Path, boot_id: str) -> None:
        super().__init__(path, boot_id)
        self._file._database.execute("PRAGMA synchronous = OFF")  # what was written outlives a killed process

    def note_cache(self, note: CacheNote | None) -> None:
        if note != self.cache:
            self.director.take("note", "", lambda: super(SteppedJournal, self).note_cache(note))


@dataclass
class Deciding:
    """A policy that gives each application these ways."""

    ways: dict[str, int] = field(default_factory=dict)
    name: str = "deciding"
    summary: str = "As the test says."

    def decide(self, snapshot: Snapshot, memory: object) -> Decision:
        return Decision(ways=tuple(WaysGoal(app, ways, "as decided") for app, ways in self.ways.items()))


class Walk(Rig):
    """A policy gives two applications ways, more, fewer and none, while their operator has wishes, too."""

    host: CacheHost
    journal: SteppedJournal

    def __init__(self, folder: Path, choose: Choose, *, mounts: bool) -> None:
        self.director, self.policy, self.lives = Director(choose), Deciding(), 0
        self.released = False
        resctrl = FakeResctrl((CACHE,), rmids=64, mounted=None if mounts else frozenset({"rw"}))
        super().__init__(folder, CacheHost(resctrl=resctrl, tree=SteppedTree(resctrl, self.director.take)))
        self.original = {} if mounts else dict(ORIGINAL)
        resctrl.root.values |= self.original
        for name, kind in (("web", "critical"), ("db", "critical"), ("hog", "batch")):
            self.host.boot(name, 2)
            self.register(name, kind)
        wishes = {"shop": ("web", "3 ways"), "bar": ("db", None)}
        apps = tuple(Application(app, (Tier("t", (vm,)),), cache=wish) for app, (vm, wish) in wishes.items())
        self.assignment = replace(self.assignment, applications=apps)
        self.control(cache=CacheControl.ON, cache_mount=mounts, pinning=False, policy="deciding")
        self.director.look = self.look

    def start(self) -> None:
        self.journal = SteppedJournal(self.folder / "journal.db", self.host.boot_id)
        self.journal.director = self.director
        settings, policies = LoopSettings("h1", 1.0, 30.0, 20), {"deciding": self.policy}
        self.loop = ControlLoop(self.host, self.journal, policies, settings, self.clock, limits=EVERYTHING)

    def decide(self, **ways: int) -> None:
        self.policy.ways = ways

    def release(self) -> None:
        self.released = True

    def look(self) -> None:
        """What holds at every instant: what is changed is noted, and all who run have legal ways."""
        tree = self.host.resctrl
        if tree.mounted is None:
            return
        changed = any(map(is_ours, tree.groups)) or tree.root.values != tree._fresh() | self.original
        assert self.journal.cache is not None or not changed
        for name, group in tree.groups.items():
            for value in group.values.values():
                assert not CACHE.problem(Mask(value)), name

    def live(self) -> list[str]:
        """A tick, or several: after a kill the next agent has its first; returns what it should have told."""
        hits = len(self.director.hits)
        while True:
            self.now_s += 1.0
            try:
                result = self.loop.release("test") if self.released else self.loop.tick(self.assignment, {})
            except Killed:
                self.lives += 1
                self.journal.close()
                self.host.resctrl.held.clear()
                self.host.port = None
                self.start()
                continue
            told = {problem.kind for problem in result.problems}
            told |= {ProblemKind.CACHE} if result.cache.notes else set()  # what keeps it from measuring only
            refused = {kind for step, kind in self.director.hits[hits:] if step.what != READ}
            kinds = {ProblemKind.JOURNAL: Kind.FULL in refused, ProblemKind.CACHE: bool(refused & set(REFUSALS))}
            return [f"{kind} is not told" for kind, due in kinds.items() if due and kind not in told]

    @property
    def state(self) -> tuple[object, ...]:
        """The mount, how many ways each group has where, and the group of each VM. Which ways they are depends on those
        of before, so that a fault may lead to others for good.
        """
        tree = self.host.resctrl
        groups = {} if tree.mounted is None else tree.groups
        ways = {
            name: {slot: value.bit_count() for slot, value in group.values.items()} for name, group in groups.items()
        }
        return tree.mounted, ways, {name: self.host.group_of(name) for name in ("web", "db", "hog")}

    def left_behind(self) -> list[str]:
        """What a release did not undo."""
        tree = self.host.resctrl
        wrong = {
            "the mount": tree.mounted != (frozenset({"rw"}) if self.original else None),
            "the ways of all": self.original and tree.root.values != self.original,
            "groups": set(tree.groups) != {DEFAULT} or any(group.monitored for group in tree.groups.values()),
            "VMs in groups": {self.host.group_of(name) for name in ("web", "db", "hog")} != {DEFAULT},
            "files that are held": tree.held,
            "the journal": self.journal.cache is not None or self.journal.entries,
        }
        return [f"{what} after the release" for what, is_wrong in wrong.items() if is_wrong]


Order = Callable[[Walk], object]


def nothing(_walk: Walk) -> None:
    """Nobody orders anything and the policy decides as before."""


ORDERS: tuple[Order, ...] = (
    lambda walk: walk.decide(shop=4),
    nothing,
    lambda walk: walk.decide(shop=4, bar=3),
    lambda walk: walk.decide(shop=2, bar=5),
    lambda walk: walk.decide(bar=6),  # and the shop what its operator wishes
    lambda walk: walk.host.plug_vcpu("db"),
    lambda walk: walk.decide(),
    lambda walk: walk.control(mode=Mode.OBSERVE),
    lambda walk: walk.decide(shop=5),
    lambda walk: walk.control(mode=Mode.ENFORCE),
    Walk.release,
    nothing,
    nothing,
)


class Sweep:
    """Runs the orders again and again, and says where something was not as it must be."""

    def __init__(self, folder: Path, *, mounts: bool) -> None:
        self._folders = (folder / str(number) for number in itertools.count())
        self._mounts = mounts
        walk = self._walk(lambda _step: None)
        self.states: list[object] = []
        for number in range(len(ORDERS)):
            self._order(walk, number)
            assert not walk.live()
            self.states.append(walk.state)
        assert not walk.left_behind()
        walk.journal.close()
        self.steps = walk.director.steps

    def _walk(self, choose: Choose) -> Walk:
        folder = next(self._folders)
        folder.mkdir()
        return Walk(folder, choose, mounts=self._mounts)

    @staticmethod
    def _order(walk: Walk, number: int) -> None:
        walk.director.order = number
        ORDERS[number](walk)

    def run(self, choose: Choose, *, released_when_killed: bool = False) -> list[str]:
        """What was wrong first, if anything was."""
        walk = self._walk(choose)
        try:
            found = self._recover(walk, released_when_killed) or self._end(walk)
        finally:
            walk.journal.close()
        hits = "; ".join(f"{step.text}: {kind}" for step, kind in walk.director.hits)
        return [f"{hits}; then in order {walk.director.order}", *found] if found else []

    def _recover(self, walk: Walk, released_when_killed: bool) -> list[str]:
        for number, state in enumerate(self.states):
            self._order(walk, number)
            if found := walk.live():
                return found
            if released_when_killed and walk.lives:
                return []
            hits = walk.director.hits
            if hits and hits[0][0].what == "mount" and not walk.lives:  # which is not tried again
                return []
            if hits and hits[-1][0].order <= number - RECOVERY:
                return [] if walk.state == state else [f"{walk.state}, but {state} had nothing gone wrong"]
        return []

    @staticmethod
    def _end(walk: Walk) -> list[str]:
        """Release the host now, without a fault."""
        walk.director.choose = lambda _step: None
        walk.release()
        for _ in range(RECOVERY):
            walk.live()
        return walk.left_behind()


@pytest.fixture(params=[False, True], ids=["it was mounted", "we mount it"])
def sweep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sweep]:
    yield Sweep(tmp_path, mounts=request.param)


def lasting(step: CacheStep, kind: Kind, orders: int = 0) -> Choose:
    """It goes wrong at that step, and with all of its sort until so many orders later."""

    def choose(other: CacheStep) -> Kind | None:
        later = step.number < other.number and other.order < step.order + orders and other.what == step.what
        return kind if other.number == step.number or later else None

    return choose


def test_the_orders_take_every_kind_of_step(sweep: Sweep) -> None:
    mounting = {"mount", "unmount"} if sweep.states[-1] and sweep._mounts else set()
    assert {step.what for step in sweep.steps} == {READ, "write", "make", "remove", "note"} | mounting
    assert len({str(state) for state in sweep.states}) > len(ORDERS) / 2, "the decisions differ"


@pytest.mark.parametrize("orders", [0, 2], ids=["once", "for two ticks"])
def test_every_step_fails(sweep: Sweep, orders: int, thorough: bool) -> None:
    """Each change; of the reads, which are four fifths of the steps, each third."""
    begun: set[tuple[int, str]] = set()
    for step in sweep.steps:
        if step.what == READ and step.number % 3 and not (orders or thorough):
            continue
        sort = (step.order, step.what)
        if orders and sort in begun:
            continue  # it fails already with the first of its sort
        begun.add(sort)
        for kind in step.kinds:
            if kind is Kind.KILL_AFTER or (orders and kind is Kind.EIO_AFTER):
                continue
            found = sweep.run(lasting(step, kind, orders))
            assert not found, "\n".join(found)


@pytest.mark.parametrize("released", [False, True], ids=["going on", "released at once"])
def test_killed_at_every_step(sweep: Sweep, released: bool) -> None:
    for step in sweep.steps:
        if Kind.KILL_AFTER in step.kinds:
            found = sweep.run(lasting(step, Kind.KILL_AFTER), released_when_killed=released)
            assert not found, "\n".join(found)
