"""Scenario files, and scenarios made up at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from manager.errors import SettingsError
from manager.model.cache import BandwidthUnit
from manager.model.registration import CacheControl, Sharing, VmClass
from manager.sim.generate import random_scenario
from manager.sim.scenario import (
    CacheSpec,
    Constant,
    Fault,
    FaultKind,
    MemoryUse,
    MissCurve,
    Ramp,
    SampleRoute,
    Scenario,
    ServiceTime,
    Shape,
    Sine,
)
from manager.sim.scenario_files import load_scenario, parse_scenario, shipped
from manager.sim.world import World

FULL = """
summary = "everything"
pcpus = 4
cgroup = 1
interval_s = 1
duration_s = 60
settle_s = 5
seed = 9
pinning = true
law = { published = true, min_samples = 10, max_age_s = 12 }
noise = { share = 0.1, on_ms = 100, off_ms = 900 }
scheduler = { slice_ms = 1, tick_ms = 2, balance_ms = 50 }
[cache]
ways = 12
way_size = "1.5MiB"
bandwidth_gbps = 20
domains = 2
minimum_ways = 2
shareable_ways = 1
closids = 4
mba = "eighth_gbps"
rmids = 8
[[applications]]
name = "shop"
response_time_ms = 100
percentile = 99
max_rate_rps = 30
sharing = "isolation"
source = "manager"
timeout_s = 3
cache = "auto"
tiers = [
    { name = "web", vms = 2, vcpus = 2, mean_ms = 5, memory = { working_set = "4MiB", penalty = 2, traffic_gbps = 1 } },
    { name = "db", service = "lognormal", mean_ms = 7, cv = 2 },
]
load = [
    { rate_rps = 10, for_s = 5 },
    { rate_rps = 10, to_rps = 20, for_s = 5 },
    { rate_rps = 20, swing_rps = 5, period_s = 10, for_s = 20 },
]
[[batch]]
name = "batch"
vms = 3
vcpus = 2
on_ms = 6
off_ms = 42
memory = { working_set = "1GiB", penalty = 0.5, traffic_gbps = 8, curve = "cliff" }
[[faults]]
kind = "vm_restart"
target = "shop-web-2"
at_s = 3
for_s = 4
"""
CACHE = 'cache = { ways = 8, way_size = "1MiB", bandwidth_gbps = 20 }'
MEMORY = 'memory = { working_set = "2MiB", penalty = 1, traffic_gbps = 1 }'
SMALL = """
pcpus = 2
[[applications]]
name = "shop"
response_time_ms = 100
tiers = [{ name = "web", mean_ms = 5 }]
load = [{ rate_rps = 10 }]
"""


def test_a_file_says_everything() -> None:
    made = parse_scenario(FULL, "full")
    [app] = made.applications
    assert (made.name, made.pcpus, made.cgroup, made.interval_s, made.seed, made.pinning) == (
        "full",
        4,
        1,
        1.0,
        9,
        True,
    )
    assert (made.law.published, made.law.min_samples, made.law.max_age_s) == (True, 10, 12.0)
    assert (app.sla.response_time_ms, app.sla.percentile, app.sla.max_rate_rps) == (100, 99, 30)
    assert (app.sharing, app.route, app.timeout_s) == (Sharing.ISOLATION, SampleRoute.MANAGER, 3.0)
    assert [tier.service for tier in app.tiers] == [ServiceTime(5.0), ServiceTime(7.0, Shape.LOGNORMAL, 2.0)]
    assert app.load == (Constant(10, 5), Ramp(10, 20, 5), Sine(20, 5, 10, 20))
    assert made.faults == (Fault(FaultKind.VM_RESTART, 3, 4, "shop-web-2"),)
    assert made.cache == CacheSpec(12, 1.5 * (1 << 20), 20.0, 2, 2, 1, 4, BandwidthUnit.EIGHTH_GBPS, 8)
    assert [tier.memory for tier in app.tiers] == [MemoryUse(float(4 << 20), 2.0, 1.0), None]
    assert made.batch[0].memory == MemoryUse(float(1 << 30), 0.5, 8.0, MissCurve.CLIFF)
    assignment = made.assignment("equal")
    assert (assignment.host.cache, assignment.applications[0].cache) == (CacheControl.ON, "auto")
    names = ["shop-web-1", "shop-web-2", "shop-db", "batch-1", "batch-2", "batch-3"]
    assert [vm.name for vm in made.vms] == names
    assert [vm.vm_class for vm in made.vms] == [VmClass.CRITICAL] * 3 + [VmClass.BATCH] * 3
    World(made).run_until(60.0)


def test_what_is_not_said_has_defaults() -> None:
    made = parse_scenario(SMALL, "small")
    assert made == Scenario("small", 2, made.applications)
    assert made.applications[0].load == (Constant(10.0),)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("pcpus = 2", "pcpus = 0", "pcpus = 0 is refused: use a whole number from 1 to 256"),
        ("pcpus = 2", "pcpus = 2.5", "pcpus = 2.5 is refused"),
        ("pcpus = 2", "pcpus = true", "pcpus = True is refused"),
        ("pcpus = 2", "", "pcpus is missing"),
        ("pcpus = 2", "pcpus = 2\npcpu = 3", "pcpu is not a field here: use"),
        ("pcpus = 2", "pcpus = 2\ninterval_s = 0.04", "interval_s = 0.04 is refused: use a number from 0.05 to 300"),
        ("pcpus = 2", "pcpus = 2\ninterval_s = nan", "interval_s = nan is refused"),
        ("pcpus = 2", "pcpus = 2\nsummary = 3", "summary = 3 is refused: use a text"),
        ("pcpus = 2", "pcpus = 2\npinning = 1", "pinning = 1 is refused: use true or false"),
        ("pcpus = 2", "pcpus = 2\nnoise = 1", "noise: 1 is refused: use a table"),
        ("pcpus = 2", "pcpus = 2\nlaw = { gain = 6 }", "law.gain = 6 is refused: use a number from 0.05 to 5"),
        ("pcpus = 2", "pcpus = 2\nlaw = { gian = 1 }", "law.gian is not a field here"),
        ("pcpus = 2", "pcpus = 2\nlaw = { min_samples = 1.5 }", "law.min_samples = 1.5 is refused"),
        ("pcpus = 2", "pcpus = ", "not TOML"),
        ("= 100", "= 0", "applications[0].response_time_ms = 0 is refused"),
        ("= 100", "= 100\nmax_rate_rps = 0", "applications[0].max_rate_rps = 0 is refused: use a number above 0 to"),
        (
            "pcpus = 2",
            "pcpus = 2\nplacement = { resume_latency_us = -1 }",
            "placement.resume_latency_us = -1 is refused: use a whole number from 0 to",
        ),
        ('"shop"', '"a b"', "applications[0].name = 'a b' is refused"),
        ("pcpus = 2", f"pcpus = 2\n{CACHE.replace('8', '40')}", "cache.ways = 40 is refused: use a whole number"),
        ("pcpus = 2", f"pcpus = 2\n{CACHE.replace('1MiB', '40%')}", "cache.way_size = '40%' is refused: use a size"),
        ("pcpus = 2", f"pcpus = 2\n{CACHE.replace('}', ', mba = 1 }')}", "cache.mba = 1 is refused: use 'percent' or"),
        (
            "pcpus = 2",
            f"pcpus = 2\n{CACHE.replace('}', ', limits_bandwidth = false, mba = 1 }')}",
            "cache.mba is not a field here",
        ),
        ("= 100", "= 100\ncache = 'much'", "applications[0].cache = 'much' is refused: use auto, or a size"),
        ("mean_ms = 5", f"mean_ms = 5, {MEMORY}", "cache = nothing is refused: use a table where VMs have one named"),
        (
            "mean_ms = 5",
            f"mean_ms = 5, {MEMORY.replace('2MiB', '2 ways')}",
            "applications[0].tiers[0].memory.working_set = '2 ways' is refused: use a size such as",
        ),
        ("mean_ms = 5", "vcpus = 1", "applications[0].tiers[0].mean_ms is missing"),
        ("mean_ms = 5", "mean_ms = 5, cv = 2", "applications[0].tiers[0].cv = 2 is refused"),
        ("mean_ms = 5", "mean_ms = 5, service = 'x'", "use 'exponential' or 'lognormal' or 'deterministic'"),
        ("rate_rps = 10", "rate_rps = -1", "applications[0].load[0].rate_rps = -1 is refused"),
        ("rate_rps = 10", "rate_rps = 10, to_rps = 5", "applications[0].load[0].for_s is missing"),
        ("load = [{ rate_rps = 10 }]", "load = []", "applications[0].load = [] is refused: use a list of at least one"),
        ("load = [{ rate_rps = 10 }]", "load = [1]", "applications[0].load[0]: 1 is refused: use a table"),
        ("rate_rps = 10 }]", "rate_rps = 10 }]\n[[batch]]\nname = 'shop-web'", "the name 'shop-web' is used twice"),
        (
            "rate_rps = 10 }]",
            "rate_rps = 10 }]\n[[faults]]\nkind = 'vm_restart'\nat_s = 1\nfor_s = 1",
            "faults[0].target = '' is refused: use shop-web",
        ),
        (
            "rate_rps = 10 }]",
            "rate_rps = 10 }]\n[[faults]]\nkind = 'manager_away'\nat_s = 1\nfor_s = 1\ntarget = 'x'",
            "faults[0].target = 'x' is refused",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_range(before: str, after: str, says: str) -> None:
    assert before in SMALL
    with pytest.raises(SettingsError) as refused:
        parse_scenario(SMALL.replace(before, after), "small")
    assert str(refused.value).startswith("scenario small: ")
    assert says in str(refused.value)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SMALL)
    assert load_scenario(str(tmp_path / "mine.toml")).name == "mine"
    with pytest.raises(SettingsError, match=r"neither one of .*spike.* nor a file"):
        load_scenario("nonexistent")


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_are_whole_and_run(name: str) -> None:
    made = load_scenario(name)
    assert made.name == name
    assert made.summary
    for app in made.applications:
        length_s = sum(segment.for_s for segment in app.load)
        assert length_s >= made.duration_s or made.duration_s % length_s == 0
    for fault in made.faults:
        assert fault.at_s + fault.for_s < made.duration_s
    world = World(replace(made, duration_s=60.0))
    world.run_until(60.0)
    assert all(slot.answered for slot in world.close_slot().values())


def test_all_that_was_promised_is_shipped() -> None:
    wanted = "spike ramp diurnal flash-crowd idle overload flapping critical-overcommit dying-source"
    wanted += " cache-thrash cache-useless cache-varying memory-hog"
    assert set(wanted.split()) <= set(shipped())


def test_random_scenarios_are_plausible_and_differ() -> None:
    made = [random_scenario(seed) for seed in range(200)]
    assert made == [random_scenario(seed) for seed in range(200)]
    assert {len(one.applications) for one in made} == {2, 3, 4, 5, 6}
    assert {one.pcpus for one in made} == {2, 4, 8, 16}
    assert {one.cgroup for one in made} == {1, 2}
    assert {type(segment) for one in made for app in one.applications for segment in app.load} == {Constant, Ramp, Sine}
    for what in (
        lambda one: one.noise,
        lambda one: one.faults,
        lambda one: one.pinning,
        lambda one: len(one.batch) > 1,
    ):
        assert 5 < len([one for one in made if what(one)]) < 195
    for one in made:
        demands = [
            app.load[0].peak_rps and tier.service.mean_ms * _mean_rps(app.load) / 1000
            for app in one.applications
            for tier in app.tiers
        ]
        assert 0.25 * one.pcpus < sum(demands) < 0.95 * one.pcpus
        for app in one.applications:
            assert app.sla.response_time_ms > 3.5 * sum(tier.service.mean_ms for tier in app.tiers)
            assert all(segment.peak_rps >= 0 for segment in app.load)
            assert all(1 <= tier.vcpus <= one.pcpus for tier in app.tiers)


def _mean_rps(load: tuple[Constant | Ramp | Sine, ...]) -> float:
    if len(load) == 1:
        return load[0].rate_rps
    sums = [(s.rate_rps + s.to_rps) / 2 * s.for_s if isinstance(s, Ramp) else s.rate_rps * s.for_s for s in load]
    return sum(sums) / sum(segment.for_s for segment in load)
