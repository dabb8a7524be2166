"""The agent's keeper of the cache is killed after any change, of resctrl or its journal: the next one goes on from
there, or gives everything back.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.host.process import find_threads
from manager.host.resctrl.resctrl_cache import ResctrlCache, unmount_ours
from manager.loop.cache_keeper import CacheKeeper
from manager.loop.cache_reading import CacheSeen
from manager.loop.journal import CacheNote, Journal
from manager.model.cache import DEFAULT, Slot
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import Capabilities, VmInstance
from manager.model.records import OutcomeKind
from manager.model.registration import Application, CacheControl, HostSpec, Mode, Tier, VmClass, VmSpec
from manager.model.window import SlaState
from tests.host.conftest import REAL
from tests.kernel.inside.resctrl.host import POINT, DeadlyTree, Host, Vm

Wishes = Mapping[str, str]
"""The cache that each application asks for, by its name, which is its VM's."""

ORDERS: tuple[Wishes, ...] = (
    {"shop": "4 ways"},
    {"shop": "2 ways", "mail": "5 ways"},
    {"mail": "50%"},
)
NOTHING: Wishes = {}
DOMAINS = {0: frozenset({0, 1}), 1: frozenset({2, 3})}
ONLINE = frozenset(range(4))


class DeadlyJournal(Journal):
    """Notes count as changes of ``tree``."""

    tree: DeadlyTree

    def note_cache(self, note: CacheNote | None) -> None:
        new = note != self.cache
        super().note_cache(note)
        if new:
            self.tree.count()


@dataclass
class Walk:
    """One agent after the other, in processes of their own. ``mounts``: they find resctrl unmounted and mount it."""

    vms: Mapping[str, Vm]
    journal: Path
    mounts: bool
    lives: int = 0

    def seen(self, wishes: Wishes) -> CacheSeen:
        """What a tick of the control loop knows; without wishes the host is to be released."""
        mode = Mode.ENFORCE if wishes else Mode.RELEASED
        specs = {name: VmSpec(name, VmClass.BATCH if name == "batch" else VmClass.CRITICAL) for name in self.vms}
        snapshot = Snapshot(
            1.0,
            1.0,
            HostSpec("guest", mode=mode, cache=CacheControl.ON, cache_mount=self.mounts),
            Capabilities("", "", 2, None, ONLINE, ONLINE, True),
            tuple(VmView(spec, 1, 0.0, 0.0, mode, None, name) for name, spec in specs.items()),
            tuple(
                ApplicationView(Application(name, (Tier("t", (name,)),), cache=wish), None, SlaState.NO_DATA)
                for name, wish in wishes.items()
            ),
        )
        running = {name: VmInstance(name, name, one.pid, 0) for name, one in self.vms.items()}
        # mail runs in the second domain only
        cpus = {name: DOMAINS[1] | (DOMAINS[0] if name != "mail" else frozenset()) for name in self.vms}
        return CacheSeen(snapshot, running, specs if wishes else {}, {name: name for name in specs}, cpus, "test")

    def tick(self, wishes: Wishes, deadly: int = -1) -> int:
        """A new agent does all that is to be done, and tells how much that was."""
        tree = DeadlyTree(deadly)
        journal = DeadlyJournal(self.journal, "this boot")
        journal.tree = tree
        port = ResctrlCache(tree, lambda vm, _afresh: threads(vm.pid), lambda _level: DOMAINS)
        result = CacheKeeper(port, journal, time.monotonic).tick(self.seen(wishes))
        assert not result.problems
        assert {one.kind for one in result.outcomes} <= {OutcomeKind.APPLIED, OutcomeKind.RESTORED}
        port.close()
        journal.close()
        return tree.changes

    def live(self, wishes: Wishes, deadly: int) -> bool:
        """An agent in a process of its own; whether it died before it had done all."""
        gc.freeze()  # its garbage collection would touch, and so copy, every page
        child = os.fork()
        if child == 0:
            try:
                self.tick(wishes, deadly)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - whatever it is must not run the parent's tests
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
        assert os.WTERMSIG(status) == signal.SIGKILL
        self.lives += 1
        return True

    def noted(self) -> CacheNote | None:
        journal = Journal(self.journal, "this boot")
        try:
            return journal.cache
        finally:
            journal.close()


def threads(pid: int) -> frozenset[int]:
    found = find_threads(REAL, pid)
    return frozenset((*found.emulator, *(tid for _, tid in (*found.vcpus, *found.iothreads))))


@pytest.fixture
def slight() -> Iterator[Mapping[str, Vm]]:
    """VMs of two threads each: between these, and between steps, is everywhere that one can be killed."""
    started = {name: Vm(name, ("CPU 0/KVM",)) for name in ("shop", "mail", "batch")}
    yield started
    for one in started.values():
        one.kill()


@pytest.fixture(params=[False, True], ids=["mounted", "mounted by us"])
def walk(
    request: pytest.FixtureRequest, slight: Mapping[str, Vm], host: Host, tmp_path: Path
) -> Iterator[tuple[Walk, Callable[[], dict[str, str]]]]:
    """And how to tell what is there. Where it was mounted, the default group had not everything."""
    if request.param:
        unmount_ours(host.tree, host.groups)
        state = lambda: {str(path): "" for path in POINT.iterdir()}  # noqa: E731
    else:
        (POINT / "schemata").write_text("L3:0=3ffff;1=ffffc\n")
        state = host.state
    yield Walk(slight, tmp_path / "journal.db", request.param), state
    if request.param:
        host.tree.mount(frozenset())


def test_killed_after_every_change(
    walk: tuple[Walk, Callable[[], dict[str, str]]], host: Host, record_property: Callable[[str, object], None]
) -> None:
    """Each agent makes a single change and is killed, on all the way there and back."""
    walked, state = walk
    original = state()
    for wishes in ORDERS:
        while walked.live(wishes, 1):
            pass
    assert walked.noted() is not None
    inside = Host(walked.vms, host.tree)
    groups = inside.groups.read()
    told = {name: tuple(f"{one.values[Slot('L3', domain)]:x}" for domain in DOMAINS) for name, one in groups.items()}
    first = "fffff" if walked.mounts else "3ffff"
    assert told == {
        DEFAULT: (first, "ffc00"),
        "equipoise-+batch": ("7ffff", "7fc00"),
        "equipoise-mail": ("fffff", "3ff"),
    }
    assert inside.placed() == {"shop": DEFAULT, "mail": "equipoise-mail", "batch": "equipoise-+batch"}
    inside.groups.close()
    while walked.live(NOTHING, 1):
        pass
    assert walked.noted() is None
    assert state() == original
    record_property("kills", walked.lives)
    assert walked.lives > 25


def test_everything_is_given_back_from_anywhere(
    walk: tuple[Walk, Callable[[], dict[str, str]]], record_property: Callable[[str, object], None]
) -> None:
    """An agent is killed after its first change, the second, …; the next one has but to release the host."""
    walked, state = walk
    original = state()
    while walked.live(ORDERS[0], walked.lives + 1):
        walked.tick(NOTHING)
        assert state() == original
    walked.tick(NOTHING)
    assert walked.noted() is None
    assert state() == original
    record_property("kills", walked.lives)
    assert walked.lives > 8
