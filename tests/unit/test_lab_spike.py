"""The load spike: its load, what it makes of what it saw, and that it can say no."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from deploy.lab.demo.load_process import of_json, to_json
from deploy.lab.demo.scene import FULLEST_ALONE, BatchShape, eased, phases_scene, spike_scene
from deploy.lab.demo.spike import seen_by
from deploy.lab.demo.spike_report import print_spike_report, spike_verdicts
from manager.model.histogram import bucket_of


def test_a_load_reaches_its_process_as_it_is() -> None:
    for scene in (phases_scene(BatchShape()), spike_scene(88.0)):
        for service in scene.services:
            spec = service.load(90.0, scene.push_interval_s)
            assert of_json(to_json(spec)) == spec


@pytest.mark.parametrize(
    ("alone_share", "factor"), [(0.0, 1), (0.3, 1), (FULLEST_ALONE, 1), (0.88, FULLEST_ALONE / 0.88)]
)
def test_on_a_slow_machine_all_loads_of_the_phases_are_smaller_alike(alone_share: float, factor: float) -> None:
    full = phases_scene(BatchShape())
    for before, after in zip(full.services, eased(full, alone_share).services, strict=True):
        assert after.rate_rps == pytest.approx(before.rate_rps * factor)
        assert after == replace(before, rate_rps=after.rate_rps)


def test_the_spike_is_twice_the_load_in_the_middle_third_and_above_what_is_agreed() -> None:
    calm, spiking = spike_scene(88.0).services
    rates = [(phase.duration_s, phase.rate_rps) for phase in spiking.load(90.0, 1.0).schedule]
    assert rates == [(30, calm.rate_rps), (30, 2 * calm.rate_rps), (30, calm.rate_rps)]
    assert calm.max_rate_rps is not None
    assert calm.rate_rps < calm.max_rate_rps < 2 * calm.rate_rps
    assert [phase.rate_rps for phase in calm.load(90.0, 1.0).schedule] == [calm.rate_rps]


def test_response_times_fall_into_intervals_and_thirds() -> None:
    def pushed(second: int, time_ms: float, count: int) -> dict[str, Any]:
        return {
            "start_epoch_s": 1000.0 + second,
            "end_epoch_s": 1001.0 + second,
            "buckets": {bucket_of(time_ms * 1000): count},
        }

    intervals = [pushed(second, 300.0 if 10 <= second < 20 else 20.0, 10) for second in range(-3, 30)]
    seen = seen_by(intervals, 1000.0, 30.0, 100.0, 5.0)
    assert seen["p95_ms"] == pytest.approx([20, 20, 300, 300, 20, 20], rel=0.02)
    assert seen["rate_rps"] == [10.0] * 6
    assert seen["violated_share"] == pytest.approx(1 / 3, abs=1e-3)
    assert [part["p95_ms"] for part in seen["parts"].values()] == pytest.approx([20, 300, 20], rel=0.02)


def run(policy: str, calm: tuple[float, float], spiking: tuple[float, float], host: float = 1.0) -> dict[str, Any]:
    """A run with the p95 of both applications before and in the spike, for an SLA of 100 ms."""

    def application(times_ms: tuple[float, float]) -> dict[str, Any]:
        parts = zip(("before", "spike", "after"), (*times_ms, times_ms[0]), strict=True)
        return {
            "sla_ms": 100.0,
            "violated_share": 0.1,
            "weights": [10_000, None],
            "parts": {name: {"p95_ms": time_ms, "count": 1000} for name, time_ms in parts},
            "client_limited": False,
        }

    return {
        "policy": policy,
        "applications": {"wiki-1": application(calm), "wiki-2": application(spiking)},
        "host_cpu_share": [host, host],
        "batch_cpu_share": [0.2, 0.2],
        "outside_cpu_share": 0.05,
        "stolen_cpu_share": 0.0,
        "load_generators_cpu_share": 0.03,
    }


GOOD = [
    run("priority", (50, 60), (50, 140)),
    run("fair", (50, 80), (50, 90)),
    run("isolation", (50, 40), (50, 300)),
]


def test_all_holds_when_it_does() -> None:
    assert [text for holds, text in spike_verdicts(GOOD) if not holds] == []


@pytest.mark.parametrize(
    ("number", "replaced", "says"),
    [
        (0, run("priority", (50, 60), (50, 90)), "static: wiki-2 violates its SLA in the spike (90 of 100 ms)"),
        (1, run("fair", (50, 110), (50, 90)), "fair: both keep the SLA in the spike (110 and 90 ms)"),
        (1, run("fair", (50, 40), (50, 90)), "fair: their p95 are alike (2.25 x, at most 1.5 x)"),
        (2, run("isolation", (50, 40), (50, 85)), "isolation: wiki-2 pays, its p95 is 2.1 x wiki-1's; with fair 1.1 x"),
        (2, run("isolation", (50, 70), (50, 300)), "isolation: wiki-1's p95 in the spike is 1.40 x before"),
        (2, run("isolation", (50, 40), (50, 300), 0.8), "isolation: the managed CPU is full (80.0 %)"),
    ],
)
def test_what_falls_short_is_said(number: int, replaced: dict[str, Any], says: str) -> None:
    runs = [*GOOD[:number], replaced, *GOOD[number + 1 :]]
    [short] = [text for holds, text in spike_verdicts(runs) if not holds]
    assert short.startswith(says)
    out = StringIO()
    result = {
        "accelerator": "tcg",
        "duration_s": 90,
        "load_cpus": [1],
        "runs": runs,
        "calibrated": True,
        "calibration": [{"spike": 2.0, "sla_ms": 100.0, "why": "measured"}],
        "restored": True,
        "kept_running": False,
        "not_restored": [],
    }
    print_spike_report(Console(file=out, width=160), result)
    assert f"FALLS SHORT {says}" in out.getvalue()
    assert "emulated (TCG)" in out.getvalue()
