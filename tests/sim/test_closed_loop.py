"""Every policy in closed loop with the simulated host: it settles, keeps still, recovers, and does not starve batch."""

from __future__ import annotations

import functools
from dataclasses import replace
from statistics import fmean

import pytest

from manager.loop.tick import TickResult
from manager.model.knobs import Knob
from manager.model.law import Law
from manager.model.registration import Sla
from manager.sim.compare import by_policy, installed, run_all, run_once
from manager.sim.generate import random_scenario
from manager.sim.results import RunResult
from manager.sim.scenario import BatchSpec, Constant, Fault, FaultKind, Scenario
from manager.sim.scenario_files import load_scenario
from manager.sim.simulation import Simulation
from policies.auto_room import MOST_LOST
from tests.sim.build import app, scenario

POLICIES = ("equal", "priority", "fair", "isolation", "auto")
FEEDBACK = ("fair", "isolation")
BATCH = (BatchSpec("batch", 4),)


def steady(load: float, cgroup: int = 2, seed: int = 1, **fields: object) -> Scenario:
    """Three applications of different size that need ``load`` of four pCPUs all the time, and batch for the rest."""
    apps = tuple(
        app(name, Constant(4 * load * part / 0.03), mean_ms=30.0, vcpus=4, sla_ms=sla_ms)
        for name, part, sla_ms in (("small", 0.15, 300.0), ("middle", 0.35, 400.0), ("large", 0.5, 500.0))
    )
    made = {"pcpus": 4, "batch": BATCH, "cgroup": cgroup, "seed": seed, "duration_s": 1200.0, "settle_s": 120.0}
    return scenario(*apps, **(made | fields))


@pytest.mark.parametrize(
    ("load", "cgroup", "policy"),
    [
        *((load, cgroup, policy) for load, cgroup in ((0.3, 1), (0.6, 2), (0.8, 1)) for policy in (*FEEDBACK, "auto")),
        *((0.8, 1, policy) for policy in ("equal", "priority")),  # whose weights no load changes
    ],
)
def test_weights_keep_still_under_constant_load(load: float, cgroup: int, policy: str) -> None:
    result = run_once(steady(load, cgroup), policy)
    assert {vm.name: vm.weight_changes_per_hour for vm in result.vms if vm.weight_changes_per_hour > 90} == {}
    assert result.weight_changes_per_hour <= 120


@pytest.mark.parametrize("policy", FEEDBACK)
def test_the_default_law_is_steadier_than_the_published_one(policy: str) -> None:
    default, published = (run_once(steady(0.6), name) for name in (policy, policy + ":published"))
    assert default.weight_changes_per_hour < published.weight_changes_per_hour / 5


def test_fair_brings_the_response_times_of_a_spike_closer_together() -> None:
    def unlikeness(policy: str) -> float:
        result = run_once(load_scenario("spike"), policy)
        calm, spiking = (fmean(one or 0.0 for one in seen.percentile_ms[110:150]) for seen in result.applications)
        return spiking / calm

    assert 1.0 < unlikeness("fair") < unlikeness("priority")


def test_isolation_lets_the_spiking_one_pay() -> None:
    result = run_once(load_scenario("spike"), "isolation")
    calm, spiking = result.applications
    before, during = (
        fmean(one or 0.0 for one in calm.percentile_ms[part]) for part in (slice(40, 90), slice(100, 150))
    )
    assert during < 1.2 * before
    assert fmean(one or 0.0 for one in spiking.percentile_ms[100:150]) > 1.5 * during


def follow(simulation: Simulation) -> list[TickResult]:
    """Run to the end; what each tick saw and did, but for those in which the agent was down."""
    steps = [simulation.step() for _ in range(Simulation.count_intervals(simulation.scenario))]
    return [step for step in steps if step is not None]


FAULTS = [
    Fault(FaultKind.SOURCE_SILENT, 200, 90, "middle"),
    Fault(FaultKind.VM_RESTART, 200, 20, "middle-web"),
    Fault(FaultKind.MANAGER_AWAY, 200, 90),
    Fault(FaultKind.AGENT_RESTART, 200, 30),
    Fault(FaultKind.WRITE_ERROR, 200, 60, "middle-web"),
    Fault(FaultKind.READ_ERROR, 200, 60, "middle-web"),
    Fault(FaultKind.LIBVIRT_AWAY, 200, 60),
]


CALM = steady(0.5, duration_s=600.0)


@functools.cache
def undisturbed(policy: str) -> RunResult:
    """Without a fault, which is the same for all of them."""
    return run_once(CALM, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_every_policy_recovers_from_every_fault(policy: str, fault: Fault) -> None:
    simulation = Simulation(replace(CALM, faults=(fault,)), installed(), policy)
    ticks = follow(simulation)
    result = simulation.result()
    assert ticks[-1].problems == ()
    for seen, unhurt in zip(result.vms, undisturbed(policy).vms, strict=True):
        late = fmean(seen.weights[-24:])
        assert late == pytest.approx(fmean(unhurt.weights[-24:]), rel=0.6), seen.name
    simulation.release()
    originals = {vm.weight for vm in simulation.world.vms.values()}
    assert originals == {simulation.world.scale.default}


@pytest.mark.parametrize("policy", [*FEEDBACK, "fair:published"])
@pytest.mark.parametrize("cgroup", [1, 2])
def test_batch_is_never_starved_below_its_floor(policy: str, cgroup: int) -> None:
    """Critical VMs that want more than the host has; the floor is an average over ``floor_window_s``."""
    law = Law(batch_floor=0.05, floor_window_s=30.0)
    apps = tuple(app(name, Constant(100.0), mean_ms=30.0, vcpus=4, timeout_s=2.0) for name in ("a", "b"))
    crowded = scenario(*apps, pcpus=4, batch=BATCH, cgroup=cgroup, duration_s=600.0, law=law)
    simulation = Simulation(crowded, installed(), policy.removesuffix(":published"), published=":published" in policy)
    ticks = follow(simulation)
    got = [sum(vm.cpu_share for vm in tick.snapshot.vms if not vm.critical) for tick in ticks if tick.number > 12]
    windows = [fmean(got[start : start + 12]) for start in range(len(got) - 12)]
    assert min(windows) >= 0.8 * law.batch_floor
    assert fmean(got) < 4 * law.batch_floor, "no more is taken from the critical ones than the floor asks for"


def test_an_application_without_requests_gives_its_weight_up_and_gets_it_back() -> None:
    load = (Constant(40.0, 200.0), Constant(0.0, 400.0), Constant(40.0, 300.0))
    apps = (app("busy", Constant(60.0), mean_ms=30.0, vcpus=4), app("sleeper", *load, mean_ms=30.0, vcpus=4))
    result = run_once(scenario(*apps, pcpus=4, batch=BATCH, duration_s=900.0), "fair")
    weights = {vm.name: vm.weights for vm in result.vms}["sleeper-web"]
    assert weights[119] <= 200, "decayed to about the least weight"
    assert weights[-1] > 1000


def test_pins_do_not_move_while_weights_do() -> None:
    apps = tuple(app(name, Constant(30.0), mean_ms=20.0) for name in ("a", "b"))
    simulation = Simulation(scenario(*apps, pcpus=4, batch=BATCH, pinning=True, duration_s=300.0), installed(), "fair")
    ticks = follow(simulation)
    moved = [record for tick in ticks for record in tick.records if record.knob in {Knob.VCPU_PIN, Knob.EMULATOR_PIN}]
    assert moved == []


def test_two_slas_on_one_host_are_kept_by_the_one_that_is_nearer_to_missing_it() -> None:
    """The same load and service times, but one promise is tighter: it gets the larger weight."""
    tight, loose = (
        replace(app(name, Constant(45.0), mean_ms=30.0, vcpus=4), sla=Sla(sla_ms))
        for name, sla_ms in (("tight", 150.0), ("loose", 600.0))
    )
    weights = {vm.name: vm.weights[-1] for vm in run_once(scenario(tight, loose, pcpus=4, batch=BATCH), "fair").vms}
    assert weights["tight-web"] > 1.5 * weights["loose-web"]


def test_fair_misses_slas_for_no_longer_than_the_others_over_random_scenarios(thorough: bool) -> None:
    """A sample; `equipoise sim compare --random 200` is the whole, see docs/internals/simulator.md."""
    policies = ("fair", "priority", "equal", "fair:published")
    numbers = range(20, 28 if thorough else 23)
    violated = {
        one.policy: one.violated_s for one in by_policy(run_all([random_scenario(n) for n in numbers], policies))
    }
    assert all(violated["fair"] <= violated[name] for name in policies), violated


def test_auto_saves_those_that_overload_lets_violate_their_slas_and_costs_batch_no_more_than_it_may() -> None:
    auto, priority = (run_once(load_scenario("critical-overcommit"), policy) for policy in ("auto", "priority"))
    assert auto.violated_share < priority.violated_share * 0.7
    assert auto.batch_progress is not None and priority.batch_progress is not None
    assert auto.batch_progress > (1 - MOST_LOST) * priority.batch_progress
    assert auto.weight_changes_per_hour < 60
    assert auto.changes_per_hour < 1000, "room does not come and go with each interval"


def test_auto_floats_where_pinned_vcpus_would_share_pcpus_while_others_idle() -> None:
    crowded = random_scenario(2029)
    assert crowded.pinning
    pinned, floating = (run_once(crowded, policy).violated_share for policy in ("priority", "auto"))
    assert floating < pinned / 2
