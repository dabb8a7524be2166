"""Response times against load: bands, their confidence, the knee, and how far the SLA was met."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.load_curve import LEAST_STEPS, LoadStep, by_batch, load_curve, median_interval


def queue(rate_rps: float, noise: float = 0.0, chance: random.Random | None = None) -> LoadStep:
    """A server that can do 100 req/s: 10 ms of work, and what is queued."""
    factor = chance.lognormvariate(0, noise) if chance else 1.0
    return LoadStep(rate_rps, 10 / (1 - rate_rps / 100) * factor)


def test_the_curve_of_a_queue_and_its_knee() -> None:
    chance = random.Random(1)
    curve = load_curve([queue(chance.uniform(5, 95), 0.1, chance) for _ in range(600)], 40.0)
    assert len(curve.bands) == 10
    assert [band.fitted_ms for band in curve.bands] == sorted(band.fitted_ms for band in curve.bands)
    for band in curve.bands[:-1]:
        assert band.least_ms <= band.median_ms <= band.most_ms
        assert band.median_ms == pytest.approx(queue(band.rate_rps).percentile_ms, rel=0.1)
    assert curve.knee_rps == pytest.approx(71, abs=9), "where the slope is that of the chord"
    assert curve.met_rps == pytest.approx(68, abs=6), "at 75 req/s it takes 40 ms"
    assert curve.violated_rps == pytest.approx(82, abs=6)
    assert curve.why == ""


def test_a_load_that_hardly_varies_has_no_knee_but_a_verdict() -> None:
    curve = load_curve([LoadStep(100 + number % 3, 10.0) for number in range(50)], 20.0)
    assert curve.knee_rps is None
    assert "hardly varied" in curve.why
    assert curve.met_rps is not None
    assert curve.violated_rps is None


def test_response_times_that_do_not_depend_on_the_load_have_no_knee() -> None:
    curve = load_curve([LoadStep(float(rate), 10.0 + rate % 2) for rate in range(10, 200)], 5.0)
    assert curve.knee_rps is None
    assert "hardly depend on the load" in curve.why
    assert (curve.met_rps, curve.violated_rps) == (None, curve.bands[0].rate_rps)


def test_response_times_of_nothing_have_no_knee() -> None:
    curve = load_curve([LoadStep(float(rate), 0.0) for rate in range(10, 200)], 5.0)
    assert (curve.knee_rps, curve.met_rps) == (None, curve.bands[-1].rate_rps)


def test_without_a_target_there_are_no_limits() -> None:
    curve = load_curve([queue(rate) for rate in range(10, 90)], None)
    assert (curve.met_rps, curve.violated_rps) == (None, None)
    assert {band.violated_share for band in curve.bands} == {0.0}


@pytest.mark.parametrize("count", range(LEAST_STEPS))
def test_too_few_steps_are_no_curve(count: int) -> None:
    curve = load_curve([queue(float(rate)) for rate in range(count)], 10.0)
    assert curve.bands == ()
    assert curve.why == f"{count} steps with response times and a rate: 6 are needed"


def test_few_steps_far_apart_join_their_neighbours() -> None:
    steps = [queue(10.0)] * 20 + [queue(50.0)] * 2 + [queue(90.0)] * 20
    curve = load_curve(steps, None)
    assert sum(band.steps for band in curve.bands) == 42
    assert all(band.steps >= LEAST_STEPS for band in curve.bands)
    assert [band.rate_rps for band in curve.bands] == [10, 90]


@pytest.mark.parametrize(
    ("count", "places"),
    [(6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60)), (1, (0, 0)), (3, (0, 2))],
)
def test_ranks_of_the_interval(count: int, places: tuple[int, int]) -> None:
    """As in tables of the sign test."""
    assert median_interval([float(place) for place in range(count)]) == places


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    chance = random.Random(7)
    holds = 0
    for _ in range(1000):
        least, most = median_interval(sorted(chance.expovariate(1) for _ in range(30)))
        holds += least <= 0.693147 <= most
    assert holds >= 940


@given(
    st.lists(
        st.builds(LoadStep, st.floats(0.1, 1e5), st.floats(0.01, 1e5), st.none() | st.floats(0, 1)),
        min_size=LEAST_STEPS,
        max_size=80,
    ),
    st.none() | st.floats(0.1, 1e4),
)
def test_every_step_is_in_one_band_and_nothing_contradicts_itself(steps: list[LoadStep], sla_ms: float | None) -> None:
    curve = load_curve(steps, sla_ms)
    assert sum(band.steps for band in curve.bands) == len(steps)
    rates = [band.rate_rps for band in curve.bands]
    assert rates == sorted(rates)
    fitted = [band.fitted_ms for band in curve.bands]
    assert all(more >= less * (1 - 1e-9) for less, more in pairwise(fitted))
    assert min(step.percentile_ms for step in steps) <= median(fitted) * (1 + 1e-9)
    if curve.met_rps is not None and curve.violated_rps is not None:
        assert curve.met_rps < curve.violated_rps
    groups = by_batch(steps)
    assert len(groups["without"]) + len(groups["beside"]) == sum(step.batch_share is not None for step in steps)
