"""The SLA that static weights break in a spike, found from what was measured under them, or that there is none."""

from __future__ import annotations

import json
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deploy.lab.demo import picture, spike
from deploy.lab.demo.__main__ import main
from deploy.lab.demo.calibrate import (
    CALM_HEADROOM,
    MARGIN,
    NEIGHBOUR_HEADROOM,
    SPIKES,
    Static,
    calibrate,
    judged,
    static_of,
    violated_share,
)
from deploy.lab.demo.scene import SPIKE_BASE_OF_CAPACITY, spike_scene, with_sla, with_spike
from deploy.lab.demo.spike_report import print_spike_report, spike_verdicts
from tests.unit.test_lab_spike import GOOD, run

TIMES_MS = st.floats(0.1, 60_000)


@pytest.mark.parametrize(
    ("seen", "sla_ms"),
    [
        (Static(51, 85, 182), 145.6),  # a run of docs/internals/lab.md
        (Static(59, 85, 161), 128.8),
        (Static(60, 70, 102), None),  # that of the review: 102 of 180 ms
        (Static(10, 200, 220), None),  # the other one suffers alike: no policy can share that out
        (Static(100, 90, 180), None),  # hardly slower than without a spike
        (Static(None, 85, 182), None),
        (Static(51, 85, None), None),
        (Static(51, None, 182), None),
    ],
)
def test_an_sla_that_static_weights_break_and_others_may_keep(seen: Static, sla_ms: float | None) -> None:
    found = calibrate(seen)
    assert found.sla_ms == (None if sla_ms is None else pytest.approx(sla_ms))
    assert found.why


@given(calm_ms=TIMES_MS, neighbour_ms=TIMES_MS, spike_ms=TIMES_MS)
def test_an_sla_is_broken_in_the_spike_and_kept_before_it(calm_ms: float, neighbour_ms: float, spike_ms: float) -> None:
    sla_ms = calibrate(Static(calm_ms, neighbour_ms, spike_ms)).sla_ms
    if sla_ms is None:
        assert spike_ms < MARGIN * max(CALM_HEADROOM * calm_ms, NEIGHBOUR_HEADROOM * neighbour_ms) * 1.01
    else:
        rounding = pytest.approx(0, abs=0.001)
        assert spike_ms - MARGIN * sla_ms == rounding
        assert sla_ms >= CALM_HEADROOM * calm_ms - 0.001
        assert sla_ms >= NEIGHBOUR_HEADROOM * neighbour_ms - 0.001


@given(calm_ms=TIMES_MS, neighbour_ms=TIMES_MS, spike_ms=TIMES_MS, slower=st.floats(1, 10))
def test_a_slower_spike_never_takes_the_sla_away(
    calm_ms: float, neighbour_ms: float, spike_ms: float, slower: float
) -> None:
    if calibrate(Static(calm_ms, neighbour_ms, spike_ms)).sla_ms is not None:
        assert calibrate(Static(calm_ms, neighbour_ms, spike_ms * slower)).sla_ms is not None


def test_spikes_rise_beyond_what_was_measured_to_be_served() -> None:
    assert list(SPIKES) == sorted(SPIKES)
    assert SPIKE_BASE_OF_CAPACITY * (1 + SPIKES[1]) < 1 < SPIKE_BASE_OF_CAPACITY * (1 + SPIKES[-1])
    base = spike_scene(100)
    for times in SPIKES:
        calm, spiking = with_spike(base, times).services
        assert (calm, spiking.spike_rps) == (base.services[0], pytest.approx(times * spiking.rate_rps))
        assert spiking.max_rate_rps is not None
        assert spiking.spike_rps is not None
        assert spiking.rate_rps < spiking.max_rate_rps < spiking.spike_rps, "above what is agreed"
    assert [one.sla_ms for one in with_sla(base, 12.5).services] == [12.5, 12.5]


def test_the_static_run_itself_is_judged_by_the_sla_that_it_showed() -> None:
    static = run("priority", (50, 60), (52, 102))
    for seen in static["applications"].values():
        seen["p95_ms"] = [50.0, None, seen["parts"]["spike"]["p95_ms"], 51.0]
    seen = static_of(static, "wiki-1", "wiki-2")
    assert seen == Static(52, 60, 102)
    sla_ms = calibrate(seen).sla_ms
    assert sla_ms == pytest.approx(81.6)
    again = judged(static, sla_ms)
    assert [one["sla_ms"] for one in again["applications"].values()] == [sla_ms] * 2
    assert [one["violated_share"] for one in again["applications"].values()] == [0, pytest.approx(1 / 3, abs=1e-3)]
    found = {text: holds for holds, text in spike_verdicts([again, *GOOD[1:]])}
    assert found["static: wiki-2 violates its SLA in the spike (102 of 81.6 ms)"]


def test_without_response_times_nothing_is_violated() -> None:
    assert violated_share([None, None], 10) == 0
    assert violated_share([], 10) == 0


def test_that_none_was_found_is_said_and_is_a_failure() -> None:
    tried = [{"spike": times, "sla_ms": None, "why": f"nothing at {times:g}"} for times in SPIKES]
    result: dict[str, Any] = {
        "accelerator": "kvm",
        "duration_s": 90,
        "load_cpus": [1],
        "runs": GOOD[:1],
        "calibrated": False,
        "calibration": tried,
        "restored": True,
        "kept_running": False,
        "not_restored": [],
    }
    out = StringIO()
    print_spike_report(Console(file=out, width=160), result)
    assert "FAILED      static weights stood every spike that was tried" in out.getvalue()
    assert all(f"a spike of {one['spike']:g} x: {one['why']}" in out.getvalue() for one in tried)
    assert "holds       static" not in out.getvalue()


@pytest.mark.parametrize(("calibrated", "status"), [(True, 0), (False, 1)])
def test_the_command_ends_with_a_failure_where_nothing_was_shown(
    calibrated: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {
        "scenario": "spike",
        "accelerator": "kvm",
        "duration_s": 90,
        "load_cpus": [1],
        "runs": GOOD if calibrated else GOOD[:1],
        "calibrated": calibrated,
        "calibration": [{"spike": 2.0, "sla_ms": 100.0 if calibrated else None, "why": "measured"}],
        "restored": True,
        "kept_running": False,
        "not_restored": [],
    }
    monkeypatch.setattr(spike, "play", lambda *_given: result)
    monkeypatch.setattr("deploy.lab.demo.__main__.only_user", lambda *_given, **_named: nullcontext())
    monkeypatch.setattr(picture, "draw", lambda _result, _file: None)
    report = tmp_path / "spike.json"
    ended = CliRunner().invoke(main, ["--scenario", "spike", "--json", str(report)])
    assert ended.exit_code == status, ended.output
    assert json.loads(report.read_text())["calibrated"] is calibrated
    assert ("FAILED" in ended.output) is not calibrated


@pytest.mark.parametrize(
    ("served_rps", "drowns_at_rps", "found_rps"), [(250.0, 1e9, 250.0), (90.0, 1e9, 90.0), (15.0, 60.0, 15.0)]
)
def test_what_is_served_is_found_on_slow_machines_too(
    served_rps: float, drowns_at_rps: float, found_rps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(_scene: object, _meter: object, offered_rps: float) -> float:
        return 0.0 if offered_rps >= drowns_at_rps else min(offered_rps, served_rps)

    monkeypatch.setattr(spike, "_answered_rps", answered)
    assert spike._capacity_rps(spike_scene(100), None) == found_rps  # type: ignore[arg-type]
