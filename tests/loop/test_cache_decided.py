"""Ways that a policy decides take the place of what is registered, on the fake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.control.cache_plan import BATCH_GROUP
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.cache import DEFAULT
from manager.model.decision import Decision, Snapshot, WaysGoal
from manager.model.knobs import Knob
from manager.model.limits import EVERYTHING
from manager.model.registration import CacheControl
from tests.fakes.cache_host import CacheHost
from tests.loop.test_cache import SHOP, CacheRig, masks, shop

REGISTERED = {DEFAULT: "ff0", SHOP: "f", BATCH_GROUP: "7f0"}


@dataclass
class Dividing:
    """A policy that gives the shop so many ways, None: says nothing about them; ``seen``: how many it saw there are."""

    ways: int | None = None
    seen: int = 0
    name: str = "dividing"
    summary: str = "As the test says."

    def decide(self, snapshot: Snapshot, memory: object) -> Decision:
        self.seen = snapshot.cache_ways
        if self.ways is None:
            return Decision()
        return Decision(ways=(WaysGoal("shop", self.ways, f"dividing: {self.ways}"),))


class DecidedRig(CacheRig):
    """With that policy in force."""

    def start(self) -> None:
        super().start()
        self.policy = Dividing()
        settings = LoopSettings("h1", 1.0, 30.0, 20)
        policies = {"dividing": self.policy}
        self.loop = ControlLoop(self.host, self.journal, policies, settings, self.clock, EVERYTHING)

    def decide(self, ways: int | None) -> dict[str, str]:
        """The ways of each group after a tick of that decision."""
        self.policy.ways = ways
        self.last = self.tick()
        return masks(self)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DecidedRig]:
    for made in shop(DecidedRig(tmp_path, CacheHost())):
        assert isinstance(made, DecidedRig)
        made.control(policy="dividing")
        yield made


def test_the_policys_ways_take_the_place_of_the_registered_ones_and_all_goes_back(rig: DecidedRig) -> None:
    assert rig.decide(None) == REGISTERED
    assert rig.decide(6) == {DEFAULT: "fc0", SHOP: "3f", BATCH_GROUP: "7c0"}
    written = [one for one in rig.last.records if one.knob is Knob.CACHE_WAYS and one.after.startswith(f"{SHOP} L3")]
    assert [one.reason for one in written] == ["for shop: dividing: 6"]
    assert not rig.tick().cache.outcomes, "read back as decided, so nothing is to be done"
    assert rig.decide(2)[SHOP] == "3"
    assert rig.decide(None) == REGISTERED
    rig.loop.release("test")
    assert masks(rig) == {DEFAULT: "fff"}
    assert (rig.journal.cache, rig.journal.entries) == (None, {})


def test_an_application_that_asks_for_nothing_gets_what_the_policy_decides(rig: DecidedRig) -> None:
    rig.serve("shop", None, "web")
    assert rig.decide(None) == {DEFAULT: "fff"}
    assert rig.decide(3)[SHOP] == "7"
    assert rig.decide(None) == {DEFAULT: "fff"}


def test_a_decision_that_is_refused_leaves_the_ways_of_the_one_before(rig: DecidedRig) -> None:
    before = rig.decide(6)
    assert rig.decide(0) == before
    assert [problem.text for problem in rig.last.problems] == [
        "policy 'dividing' gives application 'shop' 0 ways; use a whole number of at least 1; everything stays as it is"
    ]


def test_nobody_gets_more_ways_than_can_be_given(rig: DecidedRig) -> None:
    ways = rig.decide(10**12)
    assert int(ways[SHOP], 16) & int(ways[BATCH_GROUP], 16) == 0
    assert int(ways[BATCH_GROUP], 16) > 0


def test_where_the_cache_is_not_to_be_divided_no_policy_does(rig: DecidedRig) -> None:
    rig.control(cache=CacheControl.OFF)
    assert rig.decide(6) == {DEFAULT: "fff"}
    assert not rig.last.problems


def test_a_policy_sees_how_many_ways_there_are_from_the_second_tick_on(rig: DecidedRig) -> None:
    seen = []
    for _ in range(3):
        rig.decide(None)
        seen.append(rig.policy.seen)
    rig.control(cache=CacheControl.OFF)
    rig.decide(None)
    assert [*seen, rig.policy.seen] == [0, 12, 12, 0]


def test_a_restarted_agent_goes_on_from_what_is_there(rig: DecidedRig) -> None:
    before = rig.decide(6)
    rig.crash()
    assert rig.decide(6) == before
    assert not rig.last.cache.outcomes


def test_a_preview_shows_the_ways_that_the_policy_would_give(rig: DecidedRig) -> None:
    rig.policy.ways = 6
    preview = rig.loop.preview(rig.assignment, {})
    [group] = [group for group in preview.cache.groups if group.name == SHOP]
    assert {part.ways for part in group.parts} == {6}
    assert masks(rig) == {DEFAULT: "fff"}
