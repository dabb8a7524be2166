"""Scenarios with fewer requests, each as much slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.model.histogram import Histogram
from manager.model.registration import Sla
from manager.sim.scenario import BatchPhase, BatchSpec, Constant, Noise, Ramp, Scenario, Scheduler, Sine
from manager.sim.thinning import as_passed, lateness_us, thinned
from tests.sim.build import app


def whole() -> Scenario:
    load = (Constant(100, 60), Ramp(100, 200, 30), Sine(50, 20, 10, 60))
    shop = replace(app("shop", *load, mean_ms=2, outside_ms=1), sla=Sla(20, max_rate_rps=300))
    phases = (BatchPhase(0.5, 10),)
    batch = (BatchSpec("wave", on_ms=10, off_ms=20), BatchSpec("part", phases=phases, period_ms=50))
    return Scenario("whole", 2, (shop,), batch, noise=Noise(0.2, 100, 300))


def test_what_takes_milliseconds_takes_longer_and_what_takes_minutes_does_not() -> None:
    made = thinned(whole(), 4)
    [shop] = made.applications
    assert shop.load == (Constant(25, 60), Ramp(25, 50, 30), Sine(12.5, 5, 10, 60))
    assert (shop.tiers[0].service.mean_ms, shop.outside_ms, shop.sla) == (8, 4, Sla(80, max_rate_rps=75))
    wave, part = made.batch
    assert (wave.on_ms, wave.off_ms, part.period_ms, part.phases) == (40, 80, 200, (BatchPhase(0.5, 10),))
    assert (made.noise, made.scheduler) == (Noise(0.2, 400, 1200), Scheduler(12, 16, 400, 400))
    assert (made.duration_s, made.interval_s, shop.timeout_s) == (1200, 5, 30)


def test_all_requests_are_one_of_one() -> None:
    assert thinned(whole(), 1) == whole()
    with pytest.raises(ValueError, match=r"factor 0\.5 is below 1"):
        thinned(whole(), 0.5)


def slot(*times_ms: float) -> dict[int, int]:
    return dict(Histogram.of(time_ms * 1000 for time_ms in times_ms).buckets)


def test_times_are_shorter_but_for_what_all_were_late() -> None:
    slots = [slot(10, 40), slot(), slot(2000, 2400), slot(90, 100)]
    assert [round(late / 1000, -2) for late in lateness_us(slots, 5)] == [0, 0, 2000, 0]
    found = [Histogram(counts) for counts in as_passed(slots, 10, 5)]
    assert [(times.percentile_us(1), times.percentile_us(100)) for times in found] == [
        (pytest.approx(1000, rel=0.03), pytest.approx(4000, rel=0.03)),
        (None, None),
        (pytest.approx(2e6, rel=0.03), pytest.approx(2.04e6, rel=0.03)),
        (pytest.approx(9000, rel=0.03), pytest.approx(10_000, rel=0.03)),
    ]
    assert as_passed(slots, 1, 5) == tuple(slots)
