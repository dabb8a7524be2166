"""`parties` and `heracles` in closed loop with the simulated host: partitions are real, settle, and are restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from manager.loop.tick import TickResult
from manager.model.knobs import Knob
from manager.model.registration import Sla
from manager.sim.compare import installed, run_once
from manager.sim.results import RunResult
from manager.sim.scenario import BatchSpec, Constant, Fault, FaultKind, Scenario
from manager.sim.simulation import Simulation
from tests.sim.build import app, scenario

BASELINES = ("parties", "heracles")
BATCH = (BatchSpec("batch", 4),)


def roomy(**fields: object) -> Scenario:
    """Two applications that need 3.2 and 0.8 of eight pCPUs, and batch VMs for the rest."""
    apps = (
        app("large", Constant(160.0), mean_ms=20.0, vcpus=8, sla_ms=120.0),
        app("small", Constant(40.0), mean_ms=20.0, vcpus=8, sla_ms=120.0),
    )
    apps = tuple(replace(one, sla=Sla(120.0, max_rate_rps=one.load[0].rate_rps * 1.5)) for one in apps)  # type: ignore[union-attr]
    return scenario(*apps, **({"pcpus": 8, "batch": BATCH, "duration_s": 600.0, "settle_s": 120.0} | fields))


def ticks(simulation: Simulation) -> Iterator[TickResult | None]:
    """Run to the end; what each tick saw and did."""
    while simulation.intervals < Simulation.count_intervals(simulation.scenario):
        yield simulation.step()


def simulate(made: Scenario, policy: str) -> Simulation:
    policies = installed()
    return Simulation(made, policies, policy, tick_s=policies[policy].sample_s)  # type: ignore[attr-defined]


def sets(simulation: Simulation) -> Mapping[str, frozenset[int]]:
    """Where the vCPUs of each VM may run, as the simulated kernel has it."""
    host = simulation.host
    held: dict[str, frozenset[int]] = {}
    for instance in host.running().values():
        knobs = host.read(instance).knobs()
        pins = {value for key, value in knobs.items() if key.knob is Knob.VCPU_PIN}
        [held[instance.libvirt_name]] = pins  # type: ignore[misc]
    return held


def late_violations(result: RunResult) -> Mapping[str, float]:
    """Share of the intervals after two minutes in which each application's percentile was above 120 ms."""
    late = {seen.name: seen.percentile_ms[24:] for seen in result.applications}
    return {name: sum((ms or 0.0) > 120.0 for ms in course) / len(course) for name, course in late.items()}


def test_parties_gives_the_large_application_more_and_sets_are_apart() -> None:
    """Batch VMs have what is left, and float while nothing is."""
    simulation = simulate(roomy(duration_s=300.0), "parties")
    apart: list[bool] = []
    for _ in ticks(simulation):
        held = sets(simulation)
        [batch] = {cpus for name, cpus in held.items() if name.startswith("batch")}
        assert held["large-web"].isdisjoint(held["small-web"])
        left = frozenset(range(8)) - held["large-web"] - held["small-web"]
        assert batch == (left or frozenset(range(8)))
        apart.append(bool(left))
    assert sum(apart) > len(apart) / 2
    assert len(held["large-web"]) > len(held["small-web"])


def test_heracles_lets_batch_grow_and_puts_it_off_when_load_is_high() -> None:
    simulation = simulate(roomy(duration_s=60.0), "heracles")
    sizes: list[int] = []
    for _ in ticks(simulation):
        held = sets(simulation)
        assert held["large-web"] == held["small-web"]
        if held["large-web"].isdisjoint(held["batch-1"]):
            sizes.append(len(held["batch-1"]))
    assert sizes[0] == 1
    assert max(sizes) > 2
    high = roomy()
    high = replace(
        high, applications=tuple(replace(one, sla=Sla(120.0, max_rate_rps=30.0)) for one in high.applications)
    )
    loaded = simulate(high, "heracles")
    assert list(ticks(loaded))
    assert set(sets(loaded).values()) == {frozenset(range(8))}


@pytest.mark.parametrize("policy", BASELINES)
def test_with_room_slas_are_met_and_batch_advances(policy: str) -> None:
    result = run_once(roomy(), policy)
    assert max(late_violations(result).values()) < 0.3
    assert result.batch_progress is not None
    assert result.batch_progress > 0.05


@pytest.mark.parametrize("policy", BASELINES)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.SOURCE_SILENT, 200, 90, "small"),
        Fault(FaultKind.VM_RESTART, 200, 20, "small-web"),
        Fault(FaultKind.AGENT_RESTART, 200, 30),
    ],
    ids=lambda fault: fault.kind,
)
def test_faults_leave_no_problem_and_all_is_restored(policy: str, fault: Fault) -> None:
    simulation = simulate(roomy(duration_s=320.0, faults=(fault,)), policy)
    *_, last = ticks(simulation)
    assert last is not None
    assert last.problems == ()
    simulation.release()
    assert set(sets(simulation).values()) == {frozenset(range(8))}
    assert {vm.weight for vm in simulation.world.vms.values()} == {simulation.world.scale.default}
