"""What a preview says of the cache is what the next tick does, and the preview itself does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.cli import plan_command
from manager.control.cache_plan import BATCH_GROUP
from manager.loop.apply import Outcome
from manager.loop.journal import CacheNote, Journal
from manager.loop.observer import LoopSettings
from manager.loop.rehearsal import Preview
from manager.loop.status import VmStatuses, tick_status
from manager.loop.tick import ControlLoop
from manager.model.cache import DEFAULT, Slot
from manager.model.knobs import HOST_UUID, Knob
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import CacheControl, Mode
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.fakes.cache_host import CACHE, CacheHost
from tests.fakes.resctrl import FakeResctrl
from tests.loop.test_cache import SHOP, CacheRig, shop


class Sealed(FakeResctrl):
    """Once ``sealed`` it fails where anything is changed."""

    sealed: bool = False

    def _sealed(self) -> None:
        assert not self.sealed, "a preview wrote"

    def make(self, path: str) -> None:
        self._sealed()
        super().make(path)

    def remove(self, path: str) -> None:
        self._sealed()
        super().remove(path)

    def mount(self, options: frozenset[str]) -> None:
        self._sealed()
        super().mount(options)

    def unmount(self) -> None:
        self._sealed()
        super().unmount()

    def command(self, group: object, leaf: str, text: str) -> None:
        self._sealed()
        super().command(group, leaf, text)  # type: ignore[arg-type]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CacheRig]:
    yield from shop(CacheRig(tmp_path, CacheHost(resctrl=Sealed((CACHE,)))))


def preview(rig: CacheRig) -> Preview:
    """As `equipoise plan` does it: twice, from a copy of the journal."""
    journal = Journal.copy_of(rig.folder / "journal.db", rig.host.boot_id)
    policies = {"equal": EQUAL, "priority": PRIORITY}
    loop = ControlLoop(rig.host, journal, policies, LoopSettings("h1", 1.0, 30.0, 20), rig.clock, limits=EVERYTHING)
    assert isinstance(rig.host.resctrl, Sealed)
    rig.host.resctrl.sealed = True
    enforced = replace(rig.assignment, host=replace(rig.assignment.host, mode=Mode.ENFORCE))
    noted = rig.journal.cache
    try:
        loop.preview(enforced, {})
        found = loop.preview(enforced, {})
        assert journal.cache == noted
    finally:
        rig.host.resctrl.sealed = False
        journal.close()
    return found


def told(outcomes: tuple[Outcome, ...]) -> list[tuple[str, str, str, str, str, str]]:
    return [(one.key.knob, one.key.uuid, one.group, one.before, one.after, one.reason) for one in outcomes]


def divided(rig: CacheRig) -> None:
    rig.tick()


def divided_otherwise(rig: CacheRig) -> None:
    rig.tick()
    rig.serve("shop", "6 ways", "web")
    rig.host.boot("bar")
    rig.register("bar")
    rig.serve("bar", "2 ways", "bar")


def taken_away(rig: CacheRig) -> None:
    rig.tick()
    rig.serve("shop", None, "web")


def restricted(rig: CacheRig) -> None:
    rig.host.resctrl.root.values[Slot("L3", 0)] = 0xFC
    rig.tick()
    rig.serve("shop", "2 ways", "web")


def too_much(rig: CacheRig) -> None:
    rig.serve("shop", "100%", "web")


def monitored(rig: CacheRig) -> None:
    rig.host.resctrl.rmids = 8
    assert rig.host.cache.offered(frozenset(range(4)))


@pytest.mark.parametrize(
    "before",
    [lambda rig: None, divided, divided_otherwise, taken_away, restricted, too_much, monitored],
    ids=["new", "divided", "divided otherwise", "taken away", "restricted", "too much", "monitored"],
)
def test_what_is_foretold_comes_to_pass(rig: CacheRig, before: Callable[[CacheRig], None]) -> None:
    before(rig)
    found = preview(rig)
    # An agent that begins anew, as the preview says it decides.
    rig.crash()
    result = rig.tick()
    assert told(found.cache.outcomes) == told(result.cache.outcomes)
    assert found.cache.groups == result.cache.groups
    assert bool(found.cache.outcomes) is (before is not divided)
    rig.loop.release("test")
    assert rig.host.ways(DEFAULT) == ("fc" if before is restricted else "fff")


def test_a_host_in_observe_is_shown_as_if_it_enforced(rig: CacheRig) -> None:
    rig.control(mode=Mode.OBSERVE)
    found = preview(rig)
    assert {one.name: one.vms for one in found.cache.groups} == {DEFAULT: (), SHOP: ("web",), BATCH_GROUP: ("hog",)}
    assert {one.kind for one in found.cache.outcomes} == {OutcomeKind.APPLIED}


def test_an_application_that_is_observed_is_told_as_such(rig: CacheRig) -> None:
    rig.serve("shop", "4 ways", "web", mode=Mode.OBSERVE)
    found = preview(rig)
    assert {one.kind for one in found.cache.outcomes} == {OutcomeKind.OBSERVED}


@pytest.mark.parametrize(("allowed", "says"), [(True, "would be mounted first"), (False, "cache_mount does not allow")])
def test_what_is_not_mounted_is_not_known(rig: CacheRig, allowed: bool, says: str) -> None:
    rig.host.resctrl.mounted = None
    rig.control(cache_mount=allowed)
    found = preview(rig)
    assert found.cache.groups == ()
    assert any(says in problem.text for problem in found.problems)


def test_what_is_left_of_a_division_that_is_not_wanted_is_told(rig: CacheRig) -> None:
    rig.control(cache=CacheControl.OFF)
    assert preview(rig).cache.outcomes == ()
    rig.control(cache=CacheControl.ON)
    rig.tick()
    rig.control(cache=CacheControl.OFF)
    found = preview(rig)
    assert {one.kind for one in found.cache.outcomes} == {OutcomeKind.RESTORED}
    assert {one.reason for one in found.cache.outcomes} == {"the cache is not to be divided any more"}


def test_a_copy_of_a_journal_knows_of_the_cache(rig: CacheRig) -> None:
    note = CacheNote(True, {Slot("L3", 0): 0xFF}, {SHOP: 2})
    rig.journal.note_cache(note)
    copy = Journal.copy_of(rig.folder / "journal.db", rig.host.boot_id)
    assert copy.cache == note
    copy.close()


def test_the_plan_in_words(rig: CacheRig) -> None:
    found = preview(rig)
    changes = [plan_command._cache_fields(one, found.names) for one in found.cache.outcomes]
    moved = {"action": "write", "vm": "web", "knob": "cache_group", "index": 0}
    assert moved | {"before": "", "after": SHOP, "reason": "for shop"} in changes
    [shop] = [one for one in changes if one["after"].startswith(f"{SHOP} L3")]
    assert (shop["vm"], shop["knob"], shop["after"]) == (None, "cache_ways", f"{SHOP} L3:0=f;1=f")
    lines = [plan_command._group_text(one) for one in plan_command._groups(found.cache)]
    assert lines == [
        "cache of all else: L3:0=ff0;1=ff0",
        "cache of batch (hog): L3:0=7f0;1=7f0",
        "cache of shop (web): L3:0=f;1=f",
    ]


def test_what_is_observed_is_reported_at_each_tick_and_is_what_enforcing_does(rig: CacheRig) -> None:
    rig.control(mode=Mode.OBSERVE)
    rig.tick()
    result = rig.tick()
    told = tick_status(result, 0, 0, True).observed
    [web, hog] = sorted(VmStatuses().of(result, rig.journal), key=lambda one: one.vm == "hog")
    assert [(one.knob, one.current, one.planned) for one in web.observed if one.knob == Knob.CACHE_GROUP] == [
        (Knob.CACHE_GROUP, "", SHOP)
    ]
    assert [one.planned for one in hog.observed if one.knob == Knob.CACHE_GROUP] == [BATCH_GROUP]
    assert (Knob.CACHE_WAYS, f"{SHOP} L3:0=f;1=f", "for shop") in [(one.knob, one.planned, one.reason) for one in told]
    rig.control(mode=Mode.ENFORCE)
    done = rig.tick()
    written = [one.after for one in done.cache.outcomes if one.key.uuid == HOST_UUID]
    assert [one.planned for one in told] == written
    assert tick_status(rig.tick(), 0, 0, True).observed == []
