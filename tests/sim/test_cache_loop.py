"""The agent's own loop divides a simulated cache and holds back simulated memory hogs. Everything here is simulated."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

import pytest
from rich.console import Console

from manager.model.cache import DEFAULT, BandwidthUnit
from manager.model.records import OutcomeKind
from manager.model.registration import Sla
from manager.sim.compare import installed, run_once
from manager.sim.results import GroupResult, RunResult
from manager.sim.scenario import CacheSpec, Constant, Fault, FaultKind, Scenario
from manager.sim.scenario_files import load_scenario
from manager.sim.sim_report import run_json, run_tables
from manager.sim.simulation import Simulation

SHOP, MAIL, BATCH, HELD = "equipoise-shop", "equipoise-mail", "equipoise-+batch", "equipoise-+held"


@functools.cache
def outcome(name: str) -> RunResult:
    return run_once(load_scenario(name), "priority")


@functools.cache
def undivided(name: str) -> RunResult:
    return run_once(without(load_scenario(name)), "priority")


def without(scenario: Scenario) -> Scenario:
    """The same with nothing asked for, and with no limits."""
    assert scenario.cache is not None
    apps = tuple(replace(app, cache=None) for app in scenario.applications)
    return replace(scenario, applications=apps, cache=replace(scenario.cache, mba=None), duration_s=900.0)


def group(result: RunResult, name: str) -> GroupResult:
    return next(one for one in result.groups if one.name == name)


def late(values: Sequence[float | None]) -> list[float]:
    return [value or 0.0 for value in values[len(values) // 2 :]]


def changes(values: Sequence[float]) -> int:
    return sum(one != two for one, two in itertools.pairwise(values))


def slower(result: RunResult, name: str) -> float:
    return fmean(vm.slower for vm in result.vms if vm.name.startswith(name))


def test_ways_of_its_own_keep_the_promise_of_an_application_beside_batch_that_thrashes() -> None:
    result, before = outcome("cache-thrash"), undivided("cache-thrash")
    assert before.applications[0].violated_share > 0.95
    assert result.applications[0].violated_share < 0.1
    assert max(late(result.applications[0].percentile_ms)) < 1.1 * result.applications[0].sla_ms
    assert result.applications[1].violated_share == 0
    assert slower(result, "shop") < 0.6 * slower(before, "shop")


def test_then_it_rests_and_batch_has_what_nobody_needs() -> None:
    result = outcome("cache-thrash")
    assert {one.name: changes(late(one.ways)) for one in result.groups} == dict.fromkeys(
        [DEFAULT, SHOP, MAIL, BATCH], 0
    ), "and nobody was held back"
    assert group(result, MAIL).ways[-1] == 1, "it began with a third of them, and has slack"
    assert group(result, SHOP).ways[0] < group(result, SHOP).ways[-1] < 12
    assert group(result, BATCH).ways[-1] > group(result, BATCH).ways[0]


def test_ways_that_do_not_help_go_back_to_batch() -> None:
    result = outcome("cache-useless")
    ways = group(result, SHOP).ways
    assert result.applications[0].violated_share > 0.95, "ways cannot help it"
    assert max(ways) == 18, "which was tried, not assumed"
    assert median(late(ways)) <= 3, "it needs two"
    assert sum(one > 3 for one in late(ways)) < 0.15 * len(late(ways))
    # One trial of all sizes, and one of fewer, in the last half hour.
    assert changes(late(ways)) <= 12
    assert slower(result, "shop") < 1.1


def test_ways_follow_the_load_and_rest_while_it_is_the_same() -> None:
    result = outcome("cache-varying")
    [shop], ways = result.applications, group(result, SHOP).ways
    calm, busy, after = ways[60:120], ways[150:240], ways[360:]
    assert max(calm) < min(busy)
    assert changes(calm) == changes(busy) == changes(after) == 0
    assert max(after) < min(busy), "batch has them back"
    assert shop.violated_share < 0.03
    assert undivided("cache-varying").applications[0].violated_share > 0.15


def test_the_memory_hog_is_held_back_until_the_promise_is_kept_and_the_others_are_not() -> None:
    result, before = outcome("memory-hog"), undivided("memory-hog")
    limits = group(result, HELD).bandwidth
    assert before.applications[0].violated_share > 0.95
    assert fmean(one > result.applications[0].sla_ms for one in late(result.applications[0].percentile_ms)) < 0.05
    assert changes(late(limits)) == 0
    assert 20 <= limits[-1] <= 70, "no further than needed"
    steps = [one for one, _ in itertools.groupby(limits) if one]
    assert all(0 < one - two <= 10 for one, two in itertools.pairwise(steps)), steps
    assert slower(result, "hog") > 1.5 * slower(before, "hog")
    assert slower(result, "meek") <= slower(before, "meek")


@pytest.mark.parametrize("unit", [BandwidthUnit.EIGHTH_GBPS, BandwidthUnit.MBPS])
def test_it_is_held_back_in_other_units_too_and_let_go_when_the_load_is_gone(unit: BandwidthUnit) -> None:
    made = load_scenario("memory-hog")
    assert made.cache is not None
    [shop] = made.applications
    load = (Constant(70.0, 600.0), Constant(10.0, 1200.0))
    shop = replace(shop, load=load, tiers=(replace(shop.tiers[0], vcpus=1),), sla=Sla(30.0))
    cache = replace(made.cache, mba=unit)
    result = run_once(replace(made, applications=(shop,), cache=cache, duration_s=1800.0), "priority")
    course = group(result, HELD).bandwidth
    assert any(course[:120]), "held back"
    assert course[-1] == 0, "and let go"


def test_a_hog_is_not_held_back_where_nobody_measures() -> None:
    made = load_scenario("memory-hog")
    assert made.cache is not None
    result = run_once(replace(made, cache=replace(made.cache, rmids=0), duration_s=300.0), "priority")
    assert HELD not in {one.name for one in result.groups}
    assert result.applications[0].violated_share > 0.9


def divided(**fields: object) -> Scenario:
    made = load_scenario("cache-thrash")
    return replace(made, duration_s=500.0, **fields)  # type: ignore[arg-type]


def test_every_write_is_taken_and_all_is_given_back_on_release() -> None:
    simulation = Simulation(divided(), installed(), "priority")
    ticks = [simulation.step() for _ in range(Simulation.count_intervals(simulation.scenario))]
    assert {one.kind for tick in ticks if tick for one in tick.cache.outcomes} == {OutcomeKind.APPLIED}
    assert [tick.problems for tick in ticks if tick and tick.problems] == []
    memory = simulation.world.memory
    assert memory is not None
    assert len(memory.values) == 4
    simulation.release()
    assert memory.values == {DEFAULT: memory.all_of_it()}
    assert set(memory.homes.values()) <= {DEFAULT}
    assert memory.counters.keys() == {DEFAULT}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.AGENT_RESTART, 200, 30),
        Fault(FaultKind.VM_RESTART, 200, 20, "shop-web"),
        Fault(FaultKind.WRITE_ERROR, 0.1, 60, "shop-web"),
        Fault(FaultKind.SOURCE_SILENT, 200, 90, "shop"),
    ],
    ids=lambda fault: fault.kind,
)
def test_it_recovers_from_faults(fault: Fault) -> None:
    simulation = Simulation(divided(faults=(fault,)), installed(), "priority")
    result = simulation.run()
    memory = simulation.world.memory
    assert memory is not None
    shop = simulation.world.vms["shop-web"].instance
    assert memory.home(shop).startswith(SHOP)
    assert fmean(late(result.applications[0].percentile_ms)) < 1.05 * result.applications[0].sla_ms


def test_two_domains_are_divided_alike() -> None:
    made = divided()
    spec = made.cache
    assert spec is not None
    two = CacheSpec(spec.ways, spec.way_bytes, spec.bandwidth_gbps / 2, domains=2, closids=spec.closids)
    result = run_once(replace(made, cache=two), "priority")
    assert fmean(late(result.applications[0].percentile_ms)) < result.applications[0].sla_ms
    assert group(result, SHOP).ways[-1] >= 6


def test_reports_say_what_each_group_had() -> None:
    result = outcome("memory-hog")
    body = json.loads(json.dumps(run_json(result)))
    assert body["simulated"] is True
    assert body["cache"].keys() == {"default", SHOP, BATCH, HELD}
    assert body["cache"][HELD]["bandwidth"] == list(group(result, HELD).bandwidth)
    assert body["vms"]["hog"]["slower"] > 2
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(*run_tables(result))
    text = console.export_text()
    assert "Simulated: curves" in text
    assert f"{HELD} bandwidth" in text
    assert "slower by" in text
