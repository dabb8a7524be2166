"""Arrivals, service times and queues against what queueing theory says."""

from __future__ import annotations

import math
from itertools import islice, pairwise, takewhile
from statistics import fmean, pstdev

import pytest

from manager.model.histogram import Histogram, bucket_value_us
from manager.sim.scenario import Constant, Ramp, Segment, ServiceTime, Shape, Sine
from manager.sim.services import arrivals, random_stream, service_times
from manager.sim.world import World
from tests.sim.build import AT_ONCE, app, scenario

DURATION_S = 6000.0


def response_times(rate_rps: float, mean_ms: float, shape: Shape) -> Histogram:
    """Of one server that has a pCPU for itself."""
    one = app("shop", Constant(rate_rps), mean_ms=mean_ms, shape=shape, timeout_s=1000.0)
    world = World(scenario(one, pcpus=1, scheduler=AT_ONCE))
    world.run_until(DURATION_S)
    return Histogram(world.close_slot()["shop"].counts)


def mean_ms(histogram: Histogram) -> float:
    return sum(bucket_value_us(bucket) * count for bucket, count in histogram.buckets.items()) / histogram.count / 1000


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_exponential_service_is_an_m_m_1_queue(load: float) -> None:
    """Times in an M/M/1 system are exponential with mean 1 / (mu - lambda)."""
    found = response_times(100 * load, 10.0, Shape.EXPONENTIAL)
    expected_ms = 10.0 / (1 - load)
    assert mean_ms(found) == pytest.approx(expected_ms, rel=0.06)
    assert (found.percentile_us(95) or 0) / 1000 == pytest.approx(-math.log(0.05) * expected_ms, rel=0.06)


def waits_at_most(time: float, load: float) -> float:
    """P(wait <= time) in M/D/1, time in units of the service time (Erlang 1909)."""
    terms = ((load * (k - time)) ** k / math.factorial(k) * math.exp(-load * (k - time)) for k in range(int(time) + 1))
    return (1 - load) * math.fsum(terms)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_deterministic_service_is_an_m_d_1_queue(load: float) -> None:
    """Mean time in the system by Pollaczek and Khinchine, its 95th percentile by Erlang."""
    found = response_times(100 * load, 10.0, Shape.DETERMINISTIC)
    assert mean_ms(found) == pytest.approx(10 + 10 * load / (2 * (1 - load)), rel=0.04)
    p95_ms = (found.percentile_us(95) or 0) / 1000
    assert waits_at_most((p95_ms - 10) / 10, load) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize(
    ("service", "mean_s", "deviation_s"),
    [
        (ServiceTime(20.0), 0.02, 0.02),
        (ServiceTime(20.0, Shape.LOGNORMAL, 0.5), 0.02, 0.01),
        (ServiceTime(20.0, Shape.LOGNORMAL, 2.0), 0.02, 0.04),
        (ServiceTime(20.0, Shape.LOGNORMAL, 0.0), 0.02, 0.0),
        (ServiceTime(20.0, Shape.DETERMINISTIC), 0.02, 0.0),
    ],
)
def test_service_times_have_their_mean_and_spread(service: ServiceTime, mean_s: float, deviation_s: float) -> None:
    draw = service_times(service, random_stream("test"))
    drawn = [draw() for _ in range(200_000)]
    assert min(drawn) > 0
    assert fmean(drawn) == pytest.approx(mean_s, rel=0.02)
    assert pstdev(drawn) == pytest.approx(deviation_s, rel=0.1, abs=1e-12)


@pytest.mark.parametrize(
    ("load", "from_s", "to_s", "expected"),
    [
        ((Constant(50.0),), 0, 1000, 50_000),
        ((Constant(50.0, 100.0), Constant(150.0, 100.0)), 0, 1000, 100_000),  # starts again when it is over
        ((Constant(50.0, 100.0), Constant(150.0, 100.0)), 500, 600, 15_000),
        ((Ramp(0.0, 100.0, 1000.0),), 0, 1000, 50_000),
        ((Ramp(0.0, 100.0, 1000.0),), 500, 1000, 37_500),
        ((Sine(50.0, 50.0, 1000.0),), 0, 500, 50 * 500 + 50 * 1000 / math.pi),
        ((Constant(0.0, 100.0), Constant(10.0, 100.0)), 0, 100, 0),
        ((Constant(0.0),), 0, 100, 0),
        ((Constant(10.0, 5.0), Constant(0.0)), 5, 1000, 0),
    ],
)
def test_arrivals_follow_the_load(load: tuple[Segment, ...], from_s: float, to_s: float, expected: float) -> None:
    times = list(takewhile(lambda at_s: at_s < to_s, arrivals(load, random_stream("test"))))
    assert times == sorted(times)
    assert len([at_s for at_s in times if at_s >= from_s]) == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_gaps_between_arrivals_are_exponential() -> None:
    times = list(islice(arrivals((Constant(10.0),), random_stream("test")), 50_000))
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.1, rel=0.02)
    assert pstdev(gaps) == pytest.approx(0.1, rel=0.03)
