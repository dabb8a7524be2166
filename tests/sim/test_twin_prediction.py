"""Closed-loop predictions in a twin, against what a simulated host then did: there the truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.errors import TwinRefused
from manager.model.law import Law
from manager.model.registration import Mode
from manager.replay.recording import write_lines
from manager.sim.parallel import one_by_one
from manager.sim.scenario import BatchSpec, Constant, Scenario
from manager.sim.twin import calibrate
from manager.sim.twin_effort import Effort, thinned_to
from manager.sim.twin_observation import observe
from manager.sim.twin_play import TwinJob, play
from manager.sim.twin_prediction import ms_text, predict, student
from tests.sim.test_twin import QUICK, recording, shop, short, truth, twin_of, write


def crowded() -> Scenario:
    """Two applications that want two thirds of a pCPU, beside a batch VM."""
    blog = replace(shop(20, mean_ms=12), name="blog", load=(Constant(20, 200), Constant(30, 400)))
    return truth(shop(30), blog, batch=(BatchSpec("hog", vms=2),))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", *arguments])


@pytest.mark.parametrize("policy", ["fair", "equal"])
def test_what_another_policy_would_have_done_is_what_it_does(policy: str) -> None:
    """Within the interval that is stated, or hardly beside it."""
    scenario = crowded()
    twin = twin_of(scenario)
    found = predict(twin, policy, Law(), one_by_one)
    then = play(TwinJob(scenario, policy, scenario.interval_s, scenario.seed))
    for app in found.apps:
        times = then.between(app.name, twin.scenario.settle_s, twin.scenario.duration_s)
        true_ms = (times.percentile_us(95) or 0) / 1000
        assert app.predicted.low_ms / 1.1 < true_ms < app.predicted.high_ms * 1.1, app
        assert app.predicted.low_ms < app.predicted.ms < app.predicted.high_ms
        assert (app.violated > 0.5) == (true_ms > 1.5 * app.target_ms)
    assert [app.name for app in found.apps] == ["shop", "blog"]


def test_the_law_that_is_asked_for_is_the_one_in_force() -> None:
    twin = twin_of(crowded())
    usual, printed = (predict(twin, "fair", Law(published=on), one_by_one) for on in (False, True))
    assert usual.apps != printed.apps


def test_nothing_is_predicted_where_no_error_is_within_bounds() -> None:
    twin = twin_of(truth())
    refused = replace(twin, apps=tuple(replace(app, refused="too large") for app in twin.apps))
    with pytest.raises(TwinRefused, match="shop: too large"):
        predict(refused, "equal", Law(), one_by_one)


def busy() -> Scenario:
    """A pCPU that serves 300 requests per second beside a batch VM, two thirds of what it can."""
    made = replace(shop(300, mean_ms=2, cv=0.8), load=(Constant(300, 600),))
    return truth(made, batch=(BatchSpec("hog", vms=2),), duration_s=270.0)


@pytest.mark.parametrize("policy", ["priority", "equal"])
def test_one_of_several_requests_tells_what_all_of_them_do(policy: str) -> None:
    """Within the interval that is stated, of a full run with other random numbers."""
    twin = calibrate(recording(busy()), Effort(4000, 2, most=12_000), one_by_one)
    assert 6 < twin.thinning < 8
    found = predict(twin, policy, Law(), one_by_one)
    assert found.thinning == twin.thinning
    [app] = found.apps
    then = play(TwinJob(busy(), policy, 5.0, seed=7))
    true_ms = (then.between("shop", twin.scenario.settle_s, twin.scenario.duration_s).percentile_us(95) or 0) / 1000
    assert app.predicted.low_ms / 1.1 < true_ms < app.predicted.high_ms * 1.1
    assert (app.violated > 0.5) == (policy == "equal")


def test_the_latest_part_of_which_so_few_requests_tell_enough() -> None:
    observed = observe(recording(truth()))
    assert thinned_to(observed, 1e9) == (observed, 1.0)
    latest, thinning = thinned_to(observed, 3000)
    assert 3.5 < thinning < 4
    assert 3000 * thinning / 30 - 30 < latest.end_s - latest.start_s < 3000 * thinning / 30 + 30
    assert latest.end_s == observed.end_s
    with pytest.raises(TwinRefused, match=r"in 240 s, and no fewer than one of 3\.\d+ tells as much"):
        thinned_to(observed, 1000)


@pytest.mark.parametrize(("runs", "factor"), [(1, 3.08), (2, 3.08), (5, 1.53), (10, 1.38), (100, 1.38)])
def test_the_factor_of_few_seeds(runs: int, factor: float) -> None:
    assert student(runs) == factor


@pytest.mark.parametrize(
    ("time_ms", "text"), [(1234.5, "1234"), (74.4, "74"), (7.43, "7.4"), (0.743, "0.74"), (0.0432, "0.04")]
)
def test_times_have_two_digits(time_ms: float, text: str) -> None:
    assert ms_text(time_ms) == text


def test_replay_says_what_would_have_been_beside_what_was_measured(tmp_path: Path) -> None:
    file = write(truth(), tmp_path / "shop.jsonl")
    body = json.loads(call(file, "--policy", "equal", "--seeds", "2", "--json").stdout)
    assert (body["estimated"], body["closed_loop_refused"]) == (True, None)
    [found] = body["closed_loop"]["applications"]
    assert found["low_ms"] < found["predicted_ms"] < found["high_ms"]
    assert (found["measured_ms"] < found["predicted_ms"], found["target_ms"]) == (True, 150)
    assert body["closed_loop"]["since"] < body["closed_loop"]["until"]
    assert body["ticks"], "the open loop stays"


def test_response_times_are_said_to_be_measured_under_the_policy_of_the_latest_part(tmp_path: Path) -> None:
    """The one in force there, which was so before another one, too."""
    whole = recording(truth())
    ticks = (replace(whole.ticks[0], policy="priority"), replace(whole.ticks[1], policy="fair"), *whole.ticks[2:])
    file = tmp_path / "back.jsonl"
    file.write_text("".join(write_lines(replace(whole, ticks=ticks))))
    shown = call(str(file), "--policy", "equal", "--seeds", "2").output
    assert "measured under priority" in shown
    assert "measured under fair" not in shown


def test_the_open_loop_is_what_is_left_where_the_twin_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.test_twin.recording", lambda scenario: short(recording(scenario)))
    file = write(truth(), tmp_path / "short.jsonl")
    shown = call(file, "--policy", "equal").output
    assert "No closed loop: the recording has 145 s under policy priority" in shown
    assert "Estimated: weights on simulated" in shown
    body = json.loads(call(file, "--policy", "equal", "--json").stdout)
    assert body["closed_loop"] is None
    assert "No closed loop" not in call(file, "--policy", "equal", "--open-loop").output


def test_the_oracle_is_no_policy_of_a_host(tmp_path: Path) -> None:
    result = call(write(truth(), tmp_path / "shop.jsonl"), "--policy", "oracle")
    assert result.exit_code == 1
    assert "policy 'oracle' is refused" in result.output


def test_a_host_in_observe_is_predicted_as_if_it_were_in_enforce() -> None:
    """Nothing was written, so batch VMs had the weight of the others."""
    observed = truth(shop(15), replace(shop(10), name="blog"), batch=(BatchSpec("hog", vms=2),), mode=Mode.OBSERVE)
    twin = calibrate(recording(observed), QUICK, one_by_one)
    found = predict(twin, "priority", Law(), one_by_one)
    assert twin.scenario.mode is Mode.OBSERVE
    assert [app.name for app in found.apps] == ["shop", "blog"]
    assert all(app.predicted.high_ms < app.measured_ms for app in found.apps)
