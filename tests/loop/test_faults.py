"""Each step of a tick fails, in each way it can, for once and for a while; and the agent is killed at each of them."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.control.placement import place
from manager.loop.journal import Journal
from manager.model.knobs import Knob
from tests.conftest import SLOW_MACHINE
from tests.fakes.host import FakeHost
from tests.loop.custody import Moment, left_behind, misconduct, strayed, violated, violations
from tests.loop.resource_scenarios import RESOURCE_SCENARIOS
from tests.loop.scenarios import SCENARIOS
from tests.loop.stage import Scenario
from tests.loop.walk import (
    KILLS,
    Choose,
    Kind,
    Op,
    Walk,
    by_chance,
    faults_of,
    in_turn,
    killed_twice,
    lasting,
    undisturbed,
)

RECOVERY = 2
"""So many ticks after the last fault at most, all is as if there had been none."""

ONLY_ONCE = frozenset({Kind.ENDS, Kind.EIO_AFTER, Kind.ENOENT_AFTER, Kind.FULL_AMIDST, Kind.STALE})
"""Faults that are no different, or hardly, when they last."""

HISTORIES = (*SCENARIOS, *RESOURCE_SCENARIOS)
each_scenario = pytest.mark.parametrize("scenario", HISTORIES, ids=[one.name for one in HISTORIES])


@pytest.fixture(scope="module", autouse=True)
def remembered_placements() -> Iterator[None]:
    """Placing is a pure function and takes longer than all the rest: each question is asked once."""

    @functools.cache
    def remember(requests, topology, cpus, previous, rules, moves, interrupts):
        return place(requests, topology, cpus, dict(previous), rules, moves, dict(interrupts))

    def ask(requests, topology, cpus, previous, rules, moves, interrupts):
        known = tuple(sorted(previous.items())), rules, moves, tuple(sorted(interrupts.items()))
        return remember(tuple(requests), topology, cpus, *known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("manager.control.placer.place", ask)
        patch.setattr("manager.control.warp_plan.FIRST_RETRY_S", 0.0)  # all is tried again within the time to recover
        yield


class Calm:
    """A scenario in which nothing goes wrong: its steps, and what the host was like after each tick."""

    def __init__(self, scenario: Scenario, folder: Path, empty: Path) -> None:
        self.scenario = scenario
        self.moments: list[Moment] = []
        walk = Walk(scenario, folder, empty)
        for number in range(len(scenario.all_orders)):
            walk.order(number)
            result = walk.tick()
            assert result is not None
            assert not violations(walk) + misconduct(walk, result), f"{scenario.name}, order {number}"
            self.moments.append(Moment.of(walk))
        assert not left_behind(walk.stage, walk)
        walk.close()
        self.steps = walk.director.steps
        self.wanted = walk.wanted
        changing = {step.order for step in self.steps if step.op in KILLS}
        self.eventful = [step for step in self.steps if {step.order, step.order + 1} & changing]


class Sweep:
    """Runs a scenario again and again, and says where something was not as it must be."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._folders = (folder / str(number) for number in itertools.count())
        self._empty = folder / "empty.db"
        Journal(self._empty, FakeHost().boot_id).close()
        self.calm = Calm(scenario, self._folder(), self._empty)

    def _folder(self) -> Path:
        folder = next(self._folders)
        folder.mkdir()
        return folder

    def run(self, choose: Choose, *, released_when_killed: bool = False, ever: bool = False) -> list[str]:
        """What was wrong first; ``ever``: faults go on to the end of the scenario."""
        walk = Walk(self.calm.scenario, self._folder(), self._empty, choose)
        try:
            for number in range(len(self.calm.moments)):
                walk.order(number)
                found, lives = self._tick(walk, released_when_killed), walk.lives
                if found:
                    return self._where(walk, found)
                if released_when_killed and lives:
                    break
                last = walk.director.last_order
                if not ever and 0 <= last <= number - RECOVERY:
                    found = self._recovered(walk, number)
                    if found:
                        return self._where(walk, found)
                    if Moment.of(walk) == self.calm.moments[number]:
                        break
            return self._where(walk, self._end(walk))
        finally:
            walk.close()

    @staticmethod
    def _tick(walk: Walk, released_when_killed: bool) -> list[str]:
        result = walk.tick()
        while result is None:
            found = violations(walk)
            if found:
                return found
            walk.stage.released |= released_when_killed
            result = walk.tick()
        return violations(walk) + misconduct(walk, result)

    def _recovered(self, walk: Walk, number: int) -> list[str]:
        if any(kind is Kind.ENDS for _, kind in walk.director.hits):
            return violated(walk)
        return violated(walk) + strayed(walk, self.calm.moments[number], free=self.calm.scenario.free)

    def _end(self, walk: Walk) -> list[str]:
        """Release the host now, without a fault."""
        walk.director.choose = undisturbed
        walk.stage.released = True
        walk.director.order = len(self.calm.moments)
        for _ in range(RECOVERY):
            found = self._tick(walk, released_when_killed=False)
            if found:
                return found
        return left_behind(walk.stage, walk)

    def _where(self, walk: Walk, found: list[str]) -> list[str]:
        if not found:
            return []
        hits = [f"{step.text}: {kind}" for step, kind in walk.director.hits]
        return [f"{self.calm.scenario.name}: {'; '.join(hits)}; then in order {walk.director.order}:", *found]


@pytest.fixture
def sweep(scenario: Scenario, tmp_path: Path) -> Sweep:
    return Sweep(scenario, tmp_path)


def test_the_scenarios_use_everything(tmp_path: Path) -> None:
    calms = [
        Sweep(scenario, tmp_path / scenario.name).calm
        for scenario in HISTORIES
        if not (tmp_path / scenario.name).mkdir()
    ]
    knobs = set(Knob) - {Knob.CACHE_GROUP, Knob.CACHE_WAYS}  # test_cache_kills and test_cache_decided_faults walk those
    assert {key.knob for calm in calms for key in calm.wanted} == knobs
    assert {step.key.knob for calm in calms for step in calm.steps if step.key} == knobs
    assert {step.op for calm in calms for step in calm.steps} == set(Op)


@each_scenario
@pytest.mark.parametrize("orders", [0, 2], ids=["once", "for two ticks"])
def test_every_step_fails(sweep: Sweep, orders: int, thorough: bool) -> None:
    """In each way it can, or in one of them, in turns; on a slow machine every other step."""
    begun: set[tuple[object, ...]] = set()
    for step in sweep.calm.eventful[:: 2 if SLOW_MACHINE and not thorough else 1]:
        sort = (step.order, step.op, step.uuid)
        if orders and sort in begun:
            continue  # it fails already with the first of its sort
        begun.add(sort)
        kinds = [kind for kind in faults_of(step, orders) if not orders or kind not in ONLY_ONCE]
        for kind in kinds if thorough else in_turn(kinds, step.number):
            found = sweep.run(lasting(step.number, kind, orders))
            assert not found, "\n".join(found)


@each_scenario
@pytest.mark.parametrize("released", [False, True], ids=["going on", "released at once"])
def test_killed_at_every_step(sweep: Sweep, released: bool, thorough: bool) -> None:
    """The next agent goes on, or has but to release the host: after one step this, after the next that."""
    for step in sweep.calm.steps:
        if not thorough and released != bool(step.number % 2):
            continue
        for kind in KILLS.get(step.op, ()):
            found = sweep.run(lasting(step.number, kind), released_when_killed=released)
            assert not found, "\n".join(found)


@each_scenario
def test_killed_in_the_recovery_from_being_killed(sweep: Sweep, thorough: bool) -> None:
    deadly = [step for step in sweep.calm.steps if step.op in KILLS]
    for step in deadly[::2]:
        for later in (1, 5, 9) if thorough else in_turn((1, 5, 9), step.number):
            found = sweep.run(killed_twice(step.number, later), released_when_killed=step.number % 4 == 0)
            assert not found, "\n".join(found)


@each_scenario
@pytest.mark.parametrize("share", [0.03, 0.2])
def test_many_things_go_wrong(sweep: Sweep, share: float, thorough: bool) -> None:
    for seed in range(25 if thorough else 8):
        found = sweep.run(by_chance(random.Random(f"{sweep.calm.scenario.name} {share} {seed}"), share), ever=True)
        assert not found, "\n".join([f"seed {seed}", *found])
