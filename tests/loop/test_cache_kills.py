"""The agent is killed after each single change of resctrl and each note of it: the next one resumes, or puts back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manager.loop.journal import CacheNote, Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.cache import DEFAULT, Mask, Slot, is_ours
from manager.model.limits import EVERYTHING
from manager.model.registration import Application, CacheControl, Tier
from policies.equal import POLICY as EQUAL
from tests.fakes.cache_host import CACHE, CacheHost
from tests.fakes.resctrl import FakeResctrl
from tests.loop.conftest import Rig
from tests.loop.stepped_tree import READ, SteppedTree

ORIGINAL = {Slot("L3", 0): 0xFFF, Slot("L3", 1): 0xFFC}

ORDERS = (
    {"shop": "4 ways"},
    {"shop": "4 ways", "bar": "3 ways"},
    {"shop": "2 ways", "bar": "5 ways"},
    {"bar": "50%"},
)


class Killed(BaseException):
    """The process is gone; nothing catches this."""


class Killer:
    """Kills when it has counted so many changes; 0: never."""

    def __init__(self) -> None:
        self.left = 0
        self.count = 0
        self.look: Callable[[], None] = lambda: None

    def take(self, what: str, _path: str, act: Callable[[], Any]) -> Any:
        result = act()
        if what != READ:
            self.changed()
        return result

    def changed(self) -> None:
        self.count += 1
        self.look()
        self.left -= 1
        if self.left == 0:
            raise Killed


class WatchedJournal(Journal):
    killer: Killer

    def __init__(self, path: Path, boot_id: str) -> None:
        super().__init__(path, boot_id)
        self._file._database.execute("PRAGMA synchronous = OFF")  # what was written outlives a killed process

    def note_cache(self, note: CacheNote | None) -> None:
        new = note != self.cache
        super().note_cache(note)
        if new:
            self.killer.changed()


class Walk(Rig):
    """Applications come, change and go, each by an order before a tick."""

    host: CacheHost
    journal: WatchedJournal

    def __init__(self, folder: Path, *, mounts: bool) -> None:
        self.killer = Killer()
        resctrl = FakeResctrl((CACHE,), rmids=64, mounted=None if mounts else frozenset({"rw"}))
        self.mounts, self.lives = mounts, 0
        super().__init__(folder, CacheHost(resctrl=resctrl, tree=SteppedTree(resctrl, self.killer.take)))
        self.killer.look = self.look
        self.original = {} if mounts else dict(ORIGINAL)
        resctrl.root.values.update(self.original)
        for name, kind in (("web", "critical"), ("db", "critical"), ("hog", "batch")):
            self.host.boot(name, 2)
            self.register(name, kind)
        self.control(cache=CacheControl.ON, cache_mount=mounts, pinning=False)

    def start(self) -> None:
        self.journal = WatchedJournal(self.folder / "journal.db", self.host.boot_id)
        self.journal.killer = self.killer
        self.loop = ControlLoop(
            self.host,
            self.journal,
            {"priority": EQUAL},
            LoopSettings("h1", 1.0, 30.0, 20),
            self.clock,
            limits=EVERYTHING,
        )

    def serve(self, **wishes: str) -> None:
        vms = {"shop": "web", "bar": "db"}
        apps = tuple(Application(app, (Tier("t", (vms[app],)),), cache=wish) for app, wish in wishes.items())
        self.assignment = replace(self.assignment, applications=apps)

    def look(self) -> None:
        """What holds at every instant: what is changed is noted, and all who run have legal ways."""
        tree = self.host.resctrl
        if tree.mounted is None:
            return
        changed = any(map(is_ours, tree.groups)) or tree.root.values != tree._fresh() | self.original
        assert self.journal.cache is not None or not (changed or (self.mounts and self.killer.left > 0))
        for name, group in tree.groups.items():
            for value in group.values.values():
                assert not CACHE.problem(Mask(value)), name

    def live(self, act: Callable[[], object]) -> None:
        """Until it was done: after a kill by the next agent."""
        while True:
            try:
                act()
                return
            except Killed:
                self.lives += 1
                self.journal.close()
                self.host.resctrl.held.clear()
                self.host.port = None
                self.start()

    def run(self, then: Callable[[Walk], None] | None = None) -> None:
        """All orders; ``then`` is what the operator does once the agent was killed, None: nothing."""
        for wishes in ORDERS:
            self.serve(**wishes)
            self.live(self.tick)
            if self.lives and then is not None:
                break
        else:
            assert self.state() == {
                DEFAULT: ("fc0", frozenset()),
                "equipoise-+batch": ("7c0", frozenset({"hog"})),
                "equipoise-bar": ("3f", frozenset({"db"})),
            }
            [of_web] = {self.host.resctrl.tasks[tid].name for tid in self.host.started[self.host.vm("web").instance]}
            assert of_web == "equipoise-web", "the others are alone in their groups"
        (then or Walk.release)(self)
        assert self.journal.cache is None
        assert self.state() == ({} if self.mounts else {DEFAULT: ("fff", frozenset())})
        assert self.mounts or self.host.ways(DEFAULT, 1) == "ffc"
        assert not self.host.resctrl.held
        assert not any(group.monitored for group in self.host.resctrl.groups.values())
        assert {self.host.group_of(name) for name in ("web", "db", "hog")} == {DEFAULT}

    def release(self) -> None:
        self.live(lambda: self.loop.release("test"))

    def switch_off(self) -> None:
        self.control(cache=CacheControl.OFF)
        self.live(self.tick)

    def state(self) -> dict[str, tuple[str, frozenset[str]]]:
        """The ways of each group and the VMs that are in none but it; none where nothing is mounted."""
        names = ("web", "db", "hog")
        groups = self.host.resctrl.groups if self.host.resctrl.mounted is not None else {}
        return {
            name: (self.host.ways(name), frozenset(vm for vm in names if name and self.host.group_of(vm) == name))
            for name in groups
        }


def changes(folder: Path, *, mounts: bool) -> int:
    folder.mkdir()
    walk = Walk(folder, mounts=mounts)
    walk.run()
    walk.journal.close()
    return walk.killer.count


@pytest.mark.parametrize("then", [None, Walk.release, Walk.switch_off])
@pytest.mark.parametrize("mounts", [False, True])
def test_killed_after_any_change(tmp_path: Path, mounts: bool, then: Callable[[Walk], None] | None) -> None:
    count = changes(tmp_path / "undisturbed", mounts=mounts)
    assert count > 30
    for at in range(1, count + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        walk = Walk(folder, mounts=mounts)
        walk.killer.left = at
        walk.run(then)
        assert walk.lives == 1, at
        walk.journal.close()
