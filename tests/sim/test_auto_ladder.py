"""`auto` finds the step that helps, keeps it, ends it with its cause, and leaves alone what it cannot help."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from manager.loop.tick import TickResult
from manager.model.decision import Snapshot
from manager.model.knobs import UNLIMITED, Knob
from manager.model.registration import Mode
from manager.sim.compare import installed, run_once
from manager.sim.results import RunResult
from manager.sim.scenario import Fault, FaultKind
from manager.sim.scenario_files import load_scenario
from manager.sim.simulation import Simulation

GONE_S = 1500.0
"""When the noisy neighbour of each scenario ends."""


@dataclass(frozen=True)
class Settings:
    """What steps have set after a tick: ways of the shop, percent of bandwidth, pCPUs of the crowd; None: as usual."""

    at_s: float
    ways: int | None
    bandwidth: int | None
    quota_pcpus: float | None
    said: str


@dataclass(frozen=True)
class Course:
    """A run under `auto`: its settings tick by tick, and what came of it."""

    settings: Sequence[Settings]
    result: RunResult
    snapshot: Snapshot

    def at(self, from_s: float, to_s: float) -> list[Settings]:
        return [each for each in self.settings if from_s <= each.at_s < to_s]


def quota_pcpus(tick: TickResult) -> float | None:
    """What `crowd` is limited to."""
    quotas = [
        value / 100_000
        for domain, spec in tick.specs.items()
        for key, value in tick.knobs(domain).items()
        if spec.name == "crowd" and key.knob is Knob.QUOTA and isinstance(value, int) and value != UNLIMITED
    ]
    return next(iter(quotas), None)


@functools.cache
def course(name: str, mode: Mode = Mode.ENFORCE) -> Course:
    simulation = Simulation(load_scenario(name), installed(), "auto")
    simulation.assignment = replace(simulation.assignment, host=replace(simulation.assignment.host, mode=mode))
    settings: list[Settings] = []
    for _ in range(Simulation.count_intervals(simulation.scenario)):
        tick = simulation.step()
        assert tick is not None
        groups = simulation.world.memory.settings() if simulation.world.memory else {}
        ways, _ = groups.get("equipoise-shop", (None, 0))
        _, bandwidth = groups.get("equipoise-+held", (0, None))
        said = {each.application: each.text for each in tick.explanations}.get("shop", "")
        settings.append(Settings(simulation.world.now_s, ways, bandwidth, quota_pcpus(tick), said))
    return Course(settings, simulation.result(), tick.snapshot)


@functools.cache
def under_priority(name: str) -> RunResult:
    return run_once(load_scenario(name), "priority")


def shop_ms(result: RunResult, from_s: float, to_s: float) -> float:
    [shop] = [app for app in result.applications if app.name == "shop"]
    first, last = round(from_s / result.interval_s), round(to_s / result.interval_s)
    return median(value or 0.0 for value in shop.percentile_ms[first:last])


@pytest.mark.parametrize(("name", "target_ms"), [("noisy-cache", 10.0), ("noisy-memory", 14.0)])
def test_an_sla_is_met_that_static_weights_do_not_meet_at_no_cost_to_batch(name: str, target_ms: float) -> None:
    ours, theirs = course(name).result, under_priority(name)
    assert shop_ms(ours, 600, GONE_S) < 0.9 * target_ms
    assert ours.violated_share < 0.06 < theirs.violated_share
    assert ours.batch_progress is not None
    assert theirs.batch_progress is not None
    assert ours.batch_progress > 0.97 * theirs.batch_progress


def test_against_a_neighbour_in_the_cache_ways_are_kept() -> None:
    here = course("noisy-cache").at(600, GONE_S)
    assert {each.ways for each in here} == {10}
    assert {each.bandwidth for each in here} == {None}
    assert all("Application shop has 10 cache ways for itself (for" in each.said for each in here)
    assert "that lowered p95 of shop by 52 %" in here[0].said


def test_against_a_neighbour_on_the_memory_bus_its_bandwidth_is_limited_and_ways_are_taken_back() -> None:
    memory = course("noisy-memory")
    here = memory.at(1200, GONE_S)
    assert {each.bandwidth for each in here} <= {10, 20, 30, 40, 50}
    assert {each.ways for each in here} == {None}
    tried = memory.at(0, 120)
    assert any(each.ways for each in tried)
    assert any("Taken back" in each.said and "not shown to help" in each.said for each in tried)


def test_the_example_of_the_documentation_was_said() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/policies.md").read_text()
    [quoted] = re.findall(r"> (The memory bandwidth of hog .*?)\n\n", page, re.DOTALL)
    example = " ".join(quoted.replace("\n>", "").split())
    assert any(example in each.said for each in course("noisy-memory").settings)


def test_against_a_neighbour_on_every_pcpu_a_quota_is_kept() -> None:
    ours, theirs = course("noisy-cpu").result, under_priority("noisy-cpu")
    here = course("noisy-cpu").at(300, GONE_S)
    assert all(each.quota_pcpus is not None for each in here)
    assert ours.violated_share < 0.6 * theirs.violated_share
    assert shop_ms(ours, 300, GONE_S) < shop_ms(theirs, 300, GONE_S)


@pytest.mark.parametrize(("name", "within_s"), [("noisy-memory", 10), ("noisy-cpu", 10), ("noisy-cache", 600)])
def test_when_the_neighbour_is_gone_so_are_the_steps_against_it(name: str, within_s: float) -> None:
    after = course(name).at(GONE_S + within_s, 1e9)
    assert after
    for each in after:
        assert (each.ways, each.bandwidth, each.quota_pcpus) == (None, None, None)


def test_an_agent_that_starts_again_goes_on_with_the_steps_in_force() -> None:
    calm = load_scenario("noisy-cpu")
    restart = Fault(FaultKind.AGENT_RESTART, 400.0, calm.interval_s)
    simulation = Simulation(replace(calm, duration_s=460.0, faults=(restart,)), installed(), "auto")
    limits: list[float | None] = []
    while simulation.world.now_s < 460.0:
        tick = simulation.step()
        limits.append(None if tick is None else quota_pcpus(tick))
    down = limits.index(None, round(300 / calm.interval_s))
    assert limits[down - 1] is not None
    assert set(limits[down + 1 :]) == {limits[down - 1]}


@pytest.mark.parametrize("name", ["noisy-cache", "noisy-memory", "noisy-cpu"])
def test_it_comes_to_rest(name: str) -> None:
    set_ = [(each.ways, each.bandwidth, each.quota_pcpus) for each in course(name).settings]
    assert sum(before != after for before, after in pairwise(set_)) <= 14


def test_where_the_fault_is_in_the_application_nothing_is_tried_and_it_is_said() -> None:
    slow = course("slow-application")
    assert slow.result.changes_per_hour == 0
    assert {(each.ways, each.bandwidth, each.quota_pcpus) for each in slow.settings} == {(None, None, None)}
    assert slow.result.batch_progress == pytest.approx(under_priority("slow-application").batch_progress)
    late = slow.at(60, 1e9)
    assert sum("Look at the application itself" in each.said for each in late) > 0.95 * len(late)
    assert slow.result.notes == ()


def test_in_mode_observe_it_says_what_would_be_tried_and_changes_nothing() -> None:
    seen = course("noisy-memory", Mode.OBSERVE)
    assert {(each.ways, each.bandwidth) for each in seen.settings} == {(None, None)}
    assert any("In mode enforce, it would be tried whether it helps that" in each.said for each in seen.settings)
    assert not any("On trial" in each.said or "Taken back" in each.said for each in seen.settings)
