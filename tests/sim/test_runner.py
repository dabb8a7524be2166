"""The real control loop on a simulated host."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from manager.model.histogram import Histogram
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind
from manager.model.registration import Sla
from manager.model.source import SourceState
from manager.sim.compare import by_policy, by_scenario, installed, run_all, run_once, worse
from manager.sim.results import alone_cores, app_interval, app_result
from manager.sim.scenario import BatchPhase, BatchSpec, Constant, Fault, FaultKind, Scenario
from manager.sim.services import AppSlot, joined
from manager.sim.sim_report import comparison_table, run_json, run_tables, worse_table
from manager.sim.simulation import EPOCH_S, Simulation, ticks_per_interval
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.sim.build import app, scenario

POLICIES = {"equal": EQUAL, "priority": PRIORITY}
BATCH = (BatchSpec("batch", 2),)


def crowded(**fields: object) -> Scenario:
    """Two applications that need 60 % of the host, and batch work for all of it."""
    apps = (app("a", Constant(60.0), vcpus=2), app("b", Constant(60.0), vcpus=2))
    return scenario(*apps, batch=BATCH, duration_s=120.0, settle_s=20.0, **fields)


def test_ticks_come_when_slots_end_with_all_of_the_slot() -> None:
    simulation = Simulation(crowded(), POLICIES, "priority")
    for number in range(1, 16):
        result = simulation.step()
        assert result is not None
        assert result.at_s == EPOCH_S + 5 * number
        for view in result.snapshot.applications:
            assert view.window is not None
            assert (view.window.start_s, view.window.end_s) == (result.at_s - 5, result.at_s)
            assert view.window.rate_rps == pytest.approx(60, abs=20)
            assert [slot.end_s for slot in view.slots] == [
                EPOCH_S + 5 * k for k in range(max(1, number - 11), number + 1)
            ]


def test_the_loop_controls_the_host_and_puts_everything_back() -> None:
    simulation = Simulation(crowded(pinning=True, pcpus=6), POLICIES, "priority")
    simulation.step()
    weights = {name: vm.weight for name, vm in simulation.world.vms.items()}
    assert weights == {"a-web": 10_000, "b-web": 10_000, "batch-1": 1, "batch-2": 1}
    pins = {vcpu.allowed for vm in simulation.world.vms.values() if vm.app for vcpu in vm.vcpus}
    assert len(pins) == 4
    assert all(len(pin) == 1 for pin in pins)
    simulation.release()
    for vm in simulation.world.vms.values():
        assert vm.weight == CPU_WEIGHT_V2.default
        assert all(len(vcpu.allowed) == 6 for vcpu in vm.vcpus)


def test_priority_helps_critical_vms_at_the_cost_of_batch() -> None:
    equal, priority = (Simulation(crowded(), POLICIES, name).run() for name in ("equal", "priority"))
    for before, after in zip(equal.applications, priority.applications, strict=True):
        assert max(one or 0 for one in after.percentile_ms[2:]) < max(one or 0 for one in before.percentile_ms[2:])
    assert equal.batch_progress is not None
    assert priority.batch_progress is not None
    assert priority.batch_progress <= equal.batch_progress
    assert priority.batch_progress == pytest.approx(0.4, abs=0.05)
    assert priority.batch_share == pytest.approx(0.4, abs=0.05)
    assert all(share == pytest.approx(1.0) for share in priority.host_cpu_share)
    assert priority.weight_changes_per_hour == 0
    assert [vm.weights for vm in priority.vms] == [(10_000,) * 24] * 2 + [(1,) * 24] * 2


def test_a_silent_source_leaves_the_policy_without_windows_but_not_the_result() -> None:
    simulation = Simulation(crowded(faults=(Fault(FaultKind.SOURCE_SILENT, 20, 50, "a"),)), POLICIES, "priority")
    ends: list[float] = []
    for _ in range(24):
        result = simulation.step()
        assert result is not None
        view = result.snapshot.applications[0]
        ends.append(round(result.at_s - (view.window.end_s if view.window else 0)))
    assert ends == [0, 0, 0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, *[0] * 11]
    assert simulation.telemetry.statuses()[0].state is SourceState.OK
    assert len([one for one in simulation.result().applications[0].percentile_ms if one]) == 24


def test_an_agent_that_restarts_leaves_settings_as_they_are_and_goes_on() -> None:
    simulation = Simulation(crowded(faults=(Fault(FaultKind.AGENT_RESTART, 29, 20),)), POLICIES, "priority")
    ticked = [simulation.step() is not None for _ in range(24)]
    assert ticked == [True] * 5 + [False] * 4 + [True] * 15
    assert simulation.result().vms[0].weights == (10_000,) * 24
    simulation.release()
    assert {vm.weight for vm in simulation.world.vms.values()} == {100}


@pytest.mark.parametrize("kind", [FaultKind.WRITE_ERROR, FaultKind.READ_ERROR, FaultKind.VM_RESTART])
def test_the_loop_recovers_from_faults_of_a_vm(kind: FaultKind) -> None:
    simulation = Simulation(crowded(faults=(Fault(kind, 0.5, 30, "a-web"),)), POLICIES, "priority")
    result = simulation.run()
    assert simulation.world.vms["a-web"].weight == 10_000
    assert {vm.weight for name, vm in simulation.world.vms.items() if name != "a-web"} == {10_000, 1}
    assert bool(result.notes) == (kind is FaultKind.READ_ERROR)


def test_weight_changes_are_counted_after_settling() -> None:
    class Restless:
        name = "restless"
        summary = "Changes its mind every interval."

        def decide(self, snapshot, memory):  # type: ignore[no-untyped-def]
            decision = EQUAL.decide(snapshot, None)
            turn = 0 if memory is None else memory
            goals = tuple(
                replace(goal, weight=200 + turn % 2) if goal.vm == "a-web" else goal for goal in decision.weights
            )
            return replace(decision, weights=goals, memory=turn + 1)

    result = Simulation(crowded(), {"restless": Restless()}, "restless").run()
    changes = {vm.name: vm.weight_changes_per_hour for vm in result.vms}
    assert changes == {"a-web": 20 / (100 / 3600), "b-web": 0, "batch-1": 0, "batch-2": 0}
    assert result.weight_changes_per_hour == 720


SLA = Sla(100.0, 95.0)
JUDGED = [
    (AppSlot(Histogram.of([50_000.0] * 10).buckets, 10, 0, 0, 0.0), 50.0, 0.0),
    (AppSlot(Histogram.of([150_000.0] * 10).buckets, 10, 0, 0, 0.0), 150.0, 0.5),
    (AppSlot(Histogram.of([50_000.0] * 19 + [900_000.0]).buckets, 20, 0, 0, 0.0), 50.0, 0.0),
    (AppSlot({}, 0, 0, 0, 0.0), None, 0.0),
    (AppSlot({}, 0, 0, 0, 0.05), None, 0.0),
    (AppSlot({}, 0, 0, 0, 0.4), 400.0, 3.0),  # nothing was answered, and somebody waits
]


@pytest.mark.parametrize(("slot", "percentile_ms", "excess"), JUDGED)
def test_how_an_interval_is_judged(slot: AppSlot, percentile_ms: float | None, excess: float) -> None:
    found = app_interval(slot, SLA, 5.0)
    assert found.percentile_ms == (None if percentile_ms is None else pytest.approx(percentile_ms, rel=0.01))
    assert found.excess == pytest.approx(excess, abs=0.02)
    assert found.rate_rps == slot.answered / 5


def test_how_intervals_are_summed_up() -> None:
    found = app_result("a", SLA, [slot for slot, _, _ in JUDGED], 5.0)
    assert found.violated_share == pytest.approx(2 / 6)
    assert found.worst_excess == pytest.approx(3.0)
    assert found.mean_excess == pytest.approx(1.75, abs=0.01)
    assert found.answered == 40


def test_what_batch_would_get_alone() -> None:
    groups = (BatchSpec("hog", 2, 2), BatchSpec("wave", 1, 1, on_ms=10, off_ms=30))
    assert alone_cores(groups, 8) == {"hog": 2.0, "wave": 0.25}
    assert alone_cores(groups, 2) == pytest.approx({"hog": 2.0 * 2 / 4.25, "wave": 0.25 * 2 / 4.25})


def test_a_batch_vm_that_is_always_idle_has_no_progress() -> None:
    idle = BatchSpec("idle", phases=(BatchPhase(0.0, 60.0),))
    assert alone_cores((idle,), 2) == {"idle": 0.0}
    for batch, share in (((idle,), None), ((idle, BatchSpec("hog")), pytest.approx(1, abs=0.2))):
        result = run_once(scenario(app("a", Constant(10.0)), batch=batch, duration_s=20.0), "equal")
        progress = {vm.name: vm.progress for vm in result.vms}
        assert (progress["idle"], result.batch_progress) == (None, share)
        assert run_tables(result)


def test_a_comparison_is_in_order_and_the_same_as_single_runs() -> None:
    made = [replace(crowded(), name=name, duration_s=30.0) for name in ("x", "y")]
    done: list[int] = []
    results = run_all(made, ["priority", "equal"], seeds=2, on_done=lambda: done.append(1))
    assert [(one.scenario, one.policy, one.seed) for one in results] == [
        (name, policy, seed) for name in "xy" for policy in ("priority", "equal") for seed in (1, 2)
    ]
    assert len(done) == 8
    assert results[3] == run_once(made[0], "equal", 2)
    single, overall = by_scenario(results), by_policy(results)
    assert [(one.scenario, one.policy, one.runs) for one in single] == [
        ("x", "priority", 2),
        ("x", "equal", 2),
        ("y", "priority", 2),
        ("y", "equal", 2),
    ]
    assert [(one.policy, one.runs) for one in overall] == [("priority", 4), ("equal", 4)]
    assert overall[0].violated_s == pytest.approx(sum(one.violated_s for one in single if one.policy == "priority"))


def test_scenarios_in_which_a_policy_is_worse_are_found() -> None:
    results = run_all([replace(crowded(), duration_s=30.0)], ["priority"])
    [good] = by_scenario(results)
    bad = replace(good, policy="equal", violated_share=good.violated_share + 0.2)
    [found] = worse([good, bad], "equal")
    assert (found.scenario, found.than) == ("test", "priority")
    assert worse([good, bad], "priority") == []
    assert worse_table([found], "equal", 1).row_count == 1
    assert "Simulated" in str(comparison_table([good, bad], "Simulated: x").title)


def test_results_say_that_they_are_simulated() -> None:
    result = Simulation(replace(crowded(), duration_s=20.0), POLICIES, "priority").run()
    body = json.loads(json.dumps(run_json(result)))
    assert body["simulated"] is True
    assert body["applications"]["a"]["weights"] == {"a-web": [10_000] * 4}
    assert len(body["applications"]["a"]["p95_ms"]) == len(body["host_cpu_share"]) == 4
    assert all(str(table.title).startswith("Simulated") for table in run_tables(result))


def test_weights_of_an_application_are_those_of_its_own_vms() -> None:
    hold = BatchSpec("shop-batch", critical=True)
    result = run_once(scenario(app("shop", vms=2), app("shop-eu"), batch=(hold,), duration_s=5.0), "equal")
    found = run_json(result)["applications"]
    assert {name: list(one["weights"]) for name, one in found.items()} == {
        "shop": ["shop-web-1", "shop-web-2"],
        "shop-eu": ["shop-eu-web"],
    }


def test_knobs_are_named_as_registered() -> None:
    simulation = Simulation(crowded(), POLICIES, "priority")
    result = simulation.step()
    assert result is not None
    assert {spec.name for spec in result.specs.values()} == set(simulation.world.vms)
    knobs = {key.knob for domain in result.specs for key in result.knobs(domain)}
    assert knobs == {Knob.WEIGHT, Knob.IDLE, Knob.QUOTA, Knob.VCPU_PIN, Knob.EMULATOR_PIN}, "those that are simulated"


@pytest.mark.parametrize(
    ("interval_s", "tick_s", "expected"),
    [(5.0, None, 1), (5.0, 5.0, 1), (5.0, 60.0, 1), (5.0, 0.02, 100), (5.0, 0.5, 10), (5.0, 2.0, 2), (0.06, 0.02, 1)],
)
def test_ticks_divide_the_interval(interval_s: float, tick_s: float | None, expected: int) -> None:
    assert ticks_per_interval(interval_s, tick_s) == expected


def test_ticks_within_an_interval_change_nothing_of_what_is_judged() -> None:
    """Static weights: the world is the same however often the loop looks at it."""
    usual = Simulation(crowded(), POLICIES, "priority").run()
    assert Simulation(crowded(), POLICIES, "priority", tick_s=5.0).run() == usual
    steps: list[int] = []
    often = Simulation(crowded(), POLICIES, "priority", tick_s=0.5)
    result = often.run(lambda: steps.append(often.intervals))
    assert steps == list(range(1, 25))
    assert result.applications == usual.applications
    assert result.batch_progress == pytest.approx(usual.batch_progress)
    assert result.host_cpu_share == pytest.approx(usual.host_cpu_share)


@pytest.mark.parametrize("tick_s", [0.2, 0.05])
def test_a_policy_sees_a_slot_for_each_tick(tick_s: float) -> None:
    simulation = Simulation(crowded(), POLICIES, "priority", tick_s=tick_s)
    for number in range(1, 60):
        result = simulation.step()
        assert result is not None
        assert result.at_s == pytest.approx(EPOCH_S + tick_s * number)
        assert result.snapshot.interval_s == pytest.approx(tick_s)
        window = result.snapshot.applications[0].window
        assert window is not None
        assert (window.start_s, window.end_s) == pytest.approx((result.at_s - tick_s, result.at_s), abs=1e-5)
        assert len(result.snapshot.applications[0].slots) == number


@pytest.mark.parametrize("policy", ["fair", "auto", "parties", "heracles"])
def test_policies_decide_each_twentieth_of_a_second(policy: str) -> None:
    """As with any interval `parties` leaves this host as it is."""
    simulation = Simulation(replace(crowded(), interval_s=0.05, duration_s=20.0), installed(), policy)
    results = [simulation.step() for _ in range(400)]
    assert not [problem for result in results if result for problem in result.problems]
    outcomes = {record.outcome for result in results if result for record in result.records}
    assert (OutcomeKind.APPLIED in outcomes) is (policy != "parties")
    assert outcomes <= {OutcomeKind.APPLIED, OutcomeKind.RESTORED}
    windows = [result.snapshot.applications[0].window for result in results[200:] if result]
    assert all(window is not None for window in windows)


def test_slots_one_after_the_other_are_joined() -> None:
    first, then = AppSlot({1: 2, 3: 1}, 2, 1, 4, 9.0), AppSlot({3: 5}, 5, 0, 1, 0.5)
    assert joined(first, then) == AppSlot({1: 2, 3: 6}, 7, 1, 5, 0.5)
