"""The twin of a host, made of recordings of simulated runs, of which the truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manager.cli import main
from manager.errors import TwinRefused
from manager.model.records import VmTick
from manager.model.registration import Mode
from manager.replay.recording import Recording, write_lines
from manager.sim.generate import random_scenario
from manager.sim.parallel import one_by_one
from manager.sim.scenario import (
    AppSpec,
    BatchPhase,
    BatchSpec,
    Constant,
    Scenario,
    Scheduler,
    ServiceTime,
    Shape,
    TierSpec,
    VmSettings,
)
from manager.sim.scenario_files import load_scenario, parse_scenario, shipped
from manager.sim.scenario_text import scenario_text
from manager.sim.twin import Twin, calibrate
from manager.sim.twin_effort import Effort
from manager.sim.twin_fit import fit
from manager.sim.twin_observation import observe
from manager.sim.twin_scenario import Fitted, refusals, twin_scenario
from tests.sim.build import app
from tests.sim.recorded import recorded

QUICK = Effort(requests=4000, seeds=2)
GOLDEN = Path(__file__).parent / "golden" / "calibrate.txt"


def truth(*applications: AppSpec, **fields: object) -> Scenario:
    """One pCPU with a batch VM, for ten minutes."""
    chosen = {"pcpus": 1, "batch": (BatchSpec("hog"),), "duration_s": 600.0, **fields}
    return Scenario("truth", applications=applications or (shop(),), **chosen)  # type: ignore[arg-type]


def shop(rate_rps: float = 30.0, mean_ms: float = 10.0, cv: float = 0.5, **fields: object) -> AppSpec:
    made = app("shop", Constant(rate_rps), mean_ms=mean_ms, sla_ms=150, **fields)
    return replace(made, tiers=(TierSpec("web", ServiceTime(mean_ms, Shape.LOGNORMAL, cv)),))


@cache
def recording(scenario: Scenario, policy: str = "priority") -> Recording:
    return recorded(scenario, policy)


@cache
def twin_of(scenario: Scenario, policy: str = "priority") -> Twin:
    return calibrate(recording(scenario, policy), QUICK, one_by_one)


def write(scenario: Scenario, file: Path) -> str:
    file.write_text("".join(write_lines(recording(scenario))))
    return str(file)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", "calibrate", *arguments])


@pytest.mark.parametrize("name", shipped())
def test_a_scenario_is_read_as_it_was_written(name: str) -> None:
    scenario = replace(load_scenario(name), cache=None)
    if not any(tier.memory for one in scenario.applications for tier in one.tiers):
        assert parse_scenario(scenario_text(scenario), name) == scenario


def test_all_that_a_twin_has_is_read_as_it_was_written() -> None:
    scenario = truth(
        shop(outside_ms=1.5),
        batch=(BatchSpec("hog", phases=(BatchPhase(1.0, 10), BatchPhase(0.5, 5)), period_ms=50, critical=True),),
        scheduler=Scheduler(1.5, 2.0),
        batch_idle=True,
        mode=Mode.OBSERVE,
        settings=(VmSettings("hog", 7, True, frozenset({0}), 0.5, Mode.OBSERVE, 200),),
        summary='quoted "x" \\ \x7f é',
    )
    assert parse_scenario(scenario_text(scenario), "truth") == scenario


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(10, 45), st.floats(4, 14), st.floats(0.1, 1.2))
def test_arrivals_and_service_times_are_recovered(rate_rps: float, mean_ms: float, cv: float) -> None:
    """Rates within 5 %, CPU times within 5 %, how they vary within 0.3, and nothing outside that was not there."""
    made = recorded(truth(shop(rate_rps, mean_ms, cv)), "priority")
    observed = observe(made)
    fitted = fit(observed, 6000)
    [spec] = twin_scenario(observed, fitted, "twin").applications
    [load] = spec.load
    assert load.peak_rps == pytest.approx(rate_rps, rel=0.05)
    assert spec.tiers[0].service.mean_ms == pytest.approx(mean_ms, rel=0.05)
    assert fitted.of("shop").cv == pytest.approx(cv, abs=0.3)
    assert fitted.of("shop").outside_ms < 0.15 * mean_ms


def test_what_passes_outside_the_vms_is_recovered() -> None:
    assert twin_of(truth(shop(outside_ms=8.0))).fitted.of("shop").outside_ms == pytest.approx(8, abs=1)


def test_late_wakeups_are_recovered_from_vcpu_waits() -> None:
    late = truth(shop(20), pcpus=2, scheduler=Scheduler(12, 16), batch=(BatchSpec("hog", vms=2),))
    twin = twin_of(late, "equal")
    assert 2.5 < twin.fitted.wakeup < 6, "four times as late as usual"


def test_a_step_of_load_and_phases_of_batch_are_recovered() -> None:
    stepped = replace(shop(), load=(Constant(20, 300), Constant(60, 300)))
    phases = (BatchPhase(1.0, 200), BatchPhase(0.0, 100))
    made = recording(truth(stepped, batch=(BatchSpec("hog", phases=phases),)))
    twin = twin_scenario(observe(made), Fitted(), "twin")
    assert [(round(one.peak_rps, -1), one.for_s) for one in twin.applications[0].load] == [(20, 300), (60, 300)]
    found = [(one.duty, round(one.for_s, -1)) for one in twin.batch[0].phases if one.for_s > 5]
    assert found == [(1, 200), (0, 100), (1, 200), (0, 100)]


def test_settings_are_as_they_were() -> None:
    own = (VmSettings("shop-web", 500, True, frozenset({1})), VmSettings("hog", max_pcpus=0.25, initial_weight=3))
    made = recorded(truth(pcpus=2, batch_idle=True, pinning=True, settings=own, cgroup=1), "priority")
    found = twin_scenario(observe(made), Fitted(), "twin")
    assert (found.batch_idle, found.pinning, found.cgroup, found.pcpus) == (True, True, 1, 2)
    web, hog = found.settings_of("shop-web"), found.settings_of("hog")
    assert (web.weight, web.pin, web.cpus, hog.max_pcpus) == (500, True, frozenset({1}), 0.25)


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_the_error_is_that_of_a_part_that_was_held_back(policy: str) -> None:
    [found] = twin_of(truth(shop(40), shop_two()), policy).apps[:1]
    assert found.error is not None
    assert found.error.blocks >= 3
    assert found.error.median < 0.2
    assert not found.refused


def shop_two() -> AppSpec:
    return replace(shop(20), name="blog")


def test_the_same_recording_gives_the_same_twin() -> None:
    assert calibrate(recording(truth()), QUICK, one_by_one) == twin_of(truth())


def test_a_load_that_behaves_otherwise_in_the_part_held_back_is_refused() -> None:
    """Requests of the last four minutes take five times their CPU time, of which the first part shows nothing."""
    made, slow = recording(truth(shop(10))), recording(truth(shop(10, mean_ms=50)))
    from_s = made.from_s + 360
    mixed = replace(
        made,
        ticks=(
            *(one for one in made.ticks if one.time_s <= from_s),
            *(one for one in slow.ticks if one.time_s > from_s),
        ),
        windows=(
            *(one for one in made.windows if one.end_s <= from_s),
            *(one for one in slow.windows if one.end_s > from_s),
        ),
    )
    [found] = calibrate(mixed, QUICK, one_by_one).apps
    assert "the error in the part held back is too large: median" in found.refused


def short(made: Recording) -> Recording:
    return replace(made, ticks=made.ticks[:30])


def changed(made: Recording) -> Recording:
    return replace(made, ticks=(*(replace(one, policy="equal") for one in made.ticks[:-20]), *made.ticks[-20:]))


def under_a_strange_policy(made: Recording) -> Recording:
    return replace(made, ticks=tuple(replace(one, policy="strange") for one in made.ticks))


def without_sla(made: Recording) -> Recording:
    apps = tuple(replace(one, sla=None) for one in made.assignment.applications)
    return replace(made, assignment=replace(made.assignment, applications=apps))


def without_rates(made: Recording) -> Recording:
    return replace(made, windows=tuple(replace(one, requests=None) for one in made.windows))


def probed_alone(made: Recording) -> Recording:
    return replace(made, windows=tuple(replace(one, requests=0.0) for one in made.windows))


def without_pcpus(made: Recording) -> Recording:
    return replace(made, capabilities=replace(made.capabilities, managed_cpus=frozenset()))


def without_half_the_windows(made: Recording) -> Recording:
    return replace(made, windows=made.windows[::2])


def without_vm(made: Recording) -> Recording:
    def left(vms: tuple[VmTick, ...]) -> tuple[VmTick, ...]:
        return tuple(vm for vm in vms if vm.vm != "shop-web")

    return replace(made, ticks=tuple(replace(one, vms=left(one.vms)) for one in made.ticks))


def stopped(made: Recording, name: str = "shop-web") -> Recording:
    """It has no vCPUs any more of which a manager could say how many there are."""
    return replace(made, vms=tuple(vm for vm in made.vms if vm.vm != name))


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (short, r"the recording has 145 s under policy priority: record 240 s"),
        (changed, r"the recording has 95 s under policy priority"),
        (under_a_strange_policy, "policy strange, which was in force, is not installed here"),
        (without_sla, "shop: it has no SLA"),
        (without_rates, "shop: its requests per second are not known"),
        (probed_alone, "shop: it has response times, but served no request"),
        (without_pcpus, "no pCPU of the host may be given to VMs"),
        (without_half_the_windows, "shop: response times cover 50 % of the time: 90 % are needed"),
        (without_vm, "shop: VM shop-web of tier web did not run on this host, or had stopped when it was recorded"),
        (stopped, "shop: VM shop-web of tier web did not run on this host, or had stopped when it was recorded"),
    ],
)
def test_a_recording_that_does_not_do_is_refused(spoilt: Callable[[Recording], Recording], says: str) -> None:
    with pytest.raises(TwinRefused, match=says):
        calibrate(spoilt(recording(truth())), QUICK, one_by_one)


def test_an_application_of_few_requests_or_overloaded_is_not_predicted_and_the_others_are() -> None:
    rare, full = replace(shop(1), name="rare"), replace(shop(20, mean_ms=60), name="full")
    made = recording(truth(shop(), rare, full, pcpus=2), "priority")
    twin = calibrate(made, QUICK, one_by_one)
    reasons = {one.name: one.refused for one in twin.apps}
    assert "response times: 500 are needed" in reasons["rare"]
    assert "the vCPUs of tier web wanted to run all the time" in reasons["full"]
    assert reasons["shop"] == ""
    assert {group.name for group in twin.scenario.batch if group.critical} == {"rare-web", "full-web"}


def test_what_was_left_out_and_is_not_modelled_is_said() -> None:
    made = recording(truth())
    host = replace(made.assignment.host, warp="on", cache="on")
    early = (replace(one, policy="equal") for one in made.ticks[:20])
    spoilt = replace(made, assignment=replace(made.assignment, host=host), ticks=(*early, *made.ticks[20:]))
    assert list(observe(spoilt).notes) == [
        "20 of 121 ticks are left out: before, policy equal was in force in mode enforce",
        "warps are not modelled",
        "cache partitions are not modelled",
    ]


def test_a_vm_that_had_stopped_is_told_from_one_that_is_not_registered_any_more() -> None:
    made = stopped(recording(truth(batch=(BatchSpec("hog"), BatchSpec("gone")))), "hog")
    kept = tuple(vm for vm in made.assignment.vms if vm.name != "gone")
    spoilt = replace(made, assignment=replace(made.assignment, vms=kept))
    assert list(observe(spoilt).notes) == [
        "left out, no longer registered: gone; what they used counts as other load",
        "left out, had stopped when it was recorded: hog; what they used counts as other load",
    ]


@pytest.mark.parametrize("seed", range(0, 40, 8))
def test_random_hosts_are_observed_as_they_are(seed: int) -> None:
    scenario = replace(random_scenario(seed), faults=(), duration_s=300.0)
    observed = observe(recording(scenario, "priority"))
    assert observed.pcpus == scenario.pcpus
    assert sum(vm.used for vm in observed.vms) + observed.other_pcpus == pytest.approx(scenario.pcpus, rel=0.15)
    assert set(refusals(observed)) <= {one.name for one in scenario.applications}


def test_the_command_states_the_error_and_writes_a_scenario_that_runs(tmp_path: Path) -> None:
    file, out = write(truth(), tmp_path / "shop.jsonl"), tmp_path / "twin.toml"
    result = call(file, "--out", str(out), "--seeds", "2", "--json")
    body = json.loads(result.stdout)
    [found] = body["applications"]
    assert (body["simulated"], found["predicted"], found["refused"]) == (True, True, None)
    assert 0 < found["error"]["median"] <= found["error"]["p90"]
    assert load_scenario(str(out)).applications[0].name == "shop"
    assert CliRunner().invoke(main, ["sim", "run", str(out), "--policy", "priority"]).exit_code == 0


def test_golden_output(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shown = call(write(truth(), tmp_path / "shop.jsonl"), "--seeds", "2").stdout
    assert shown == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("nonexistent.jsonl",), 1, "nonexistent.jsonl cannot be read"),
        (("FILE", "--seeds", "1"), 2, "1 is not in the range 2<=x<=100"),
        (("FILE", "--out", "no/such/folder.toml"), 2, "no/such/folder.toml cannot be written: there is no folder"),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, arguments: tuple[str, ...], status: int, says: str) -> None:
    file = write(truth(), tmp_path / "shop.jsonl")
    result = call(*(file if one == "FILE" else one for one in arguments))
    assert result.exit_code == status
    assert says in result.output
    assert "Traceback" not in result.output
