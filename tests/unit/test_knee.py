"""The knee of response times over cache ways: curves that are known, with and without noise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.knee import BOUNDS, DEFAULT_RULES, KneeRules, curve_of, fit, separation

SPREAD = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)


def steady(**ms: float) -> dict[int, tuple[float, ...]]:
    """Six windows about each median, given as ``w4=5.0``."""
    return {int(name[1:]): tuple(value * one for one in SPREAD) for name, value in ms.items()}


@pytest.mark.parametrize(
    ("medians", "knee", "says"),
    [
        # 10 ms in all; 3 and fewer lack more than 1 ms of it, 4 lacks 0.8.
        (steady(w2=15, w3=8, w4=5.8, w5=5.2, w6=5), 4, "4 ways: 6 ways in place of 2 bring 10 ms of 15 ms; more bring"),
        (steady(w6=5, w2=15, w5=5.2, w3=8, w4=5.8), 4, "0.8 ms"),
        (steady(w2=15, w3=5, w4=5, w5=5), 3, "more bring 0 ms"),
        (steady(w2=12, w11=4), 11, "it is the most that was tried, more may bring more"),
        (steady(w2=10, w4=9, w6=8, w8=7), 8, "the most that was tried"),
        (steady(w2=5, w3=5, w4=5, w5=5), None, "does not depend on the ways: 5 ways in place of 2 bring 0 ms of 5 ms"),
        (steady(w2=5, w3=6, w4=7, w5=8), None, "does not depend on the ways"),
        # A trend without doubt, of 3 %: not worth a way.
        (steady(w2=103, w3=102, w4=101, w5=100), None, "bring 3 ms of 103 ms"),
        # Less with 3 ways than with 4 is noise: both have their mean.
        (steady(w2=20, w3=9, w4=11, w5=10), 3, "more bring 0 ms"),
        ({2: (9.0,), 4: (3.0,)}, None, "too few windows"),
        ({2: (9.0,) * 5, 4: ()}, None, "fewer than two allocations"),
        ({}, None, "fewer than two allocations"),
    ],
)
def test_the_knee_of_curves_that_are_known(medians: Mapping[int, Sequence[float]], knee: int | None, says: str) -> None:
    found = curve_of(medians)
    assert found.knee == knee, found.why
    assert says in found.why


def test_the_share_is_settable_and_bounded() -> None:
    curve = steady(w1=20, w2=15, w3=12, w4=10.5, w5=10)
    assert [curve_of(curve, KneeRules(share=share)).knee for share in (0, 0.1, 0.3, 0.5)] == [5, 4, 3, 2]
    assert BOUNDS.keys() == {one.name for one in fields(KneeRules)}
    assert all(low <= getattr(DEFAULT_RULES, name) <= high for name, (low, high) in BOUNDS.items())


def test_one_window_in_a_burst_moves_nothing() -> None:
    calm = steady(w2=15, w3=8, w4=5, w5=5, w6=5)
    shaken = {ways: (*times[:-1], 900.0) for ways, times in calm.items()}
    assert curve_of(shaken).knee == curve_of(calm).knee == 4
    assert curve_of(shaken).fitted_ms == pytest.approx(curve_of(calm).fitted_ms)


def noisy(curve: Mapping[int, float], seed: int, noise: float) -> dict[int, tuple[float, ...]]:
    """Six windows of each, off by a lognormal factor, as percentiles of few response times are."""
    chance = random.Random(seed)
    return {ways: tuple(ms * chance.lognormvariate(0, noise) for _ in range(6)) for ways, ms in curve.items()}


def test_noise_alone_is_no_effect_and_an_effect_is_not_lost_in_noise() -> None:
    flat = [curve_of(noisy(dict.fromkeys(range(2, 12), 5.0), seed, 0.15)).knee for seed in range(200)]
    assert sum(knee is not None for knee in flat) <= 6, "1 % by chance"
    bent = {ways: 5.0 + 2.0 * max(6 - ways, 0) for ways in range(2, 12)}
    knees = [curve_of(noisy(bent, seed, 0.15)).knee for seed in range(200)]
    assert None not in knees
    assert sum(knee in {5, 6, 7} for knee in knees) >= 190


def test_a_cliff_among_many_allocations_is_seen() -> None:
    cliff = {ways: 5.0 + 5.0 * (ways == 2) for ways in range(2, 19)}
    assert [curve_of(noisy(cliff, seed, 0.05)).knee for seed in range(50)] == [3] * 50


def test_the_count_of_pairs() -> None:
    # Of the nine pairs all are in order, by chance half; Mann and Whitney's variance is 3 * 3 * 7 / 12.
    assert separation([(5, 5, 6), (1, 2, 4)]) == pytest.approx((4.5 / 5.25**0.5, 4.5 / 5.25**0.5))
    assert separation([(1, 2, 4), (5, 5, 6)])[0] == pytest.approx(-4.5 / 5.25**0.5)
    assert separation([(1, 2, 3), (1, 2, 3)])[0] == 0, "ties count half"
    assert separation([(9, 9), (1, 1), (1, 1)]) == pytest.approx((4 / (8 * 7 / 12) ** 0.5,) * 2), "the best split"
    assert separation([(1.0,)]) == (0.0, 0.0)


MS = st.floats(0.1, 1000)
CURVES = st.dictionaries(st.integers(1, 20), st.lists(MS, min_size=1, max_size=6), min_size=2, max_size=8)


@given(CURVES)
def test_what_is_fitted_never_rises_and_stays_among_the_medians(times_ms: dict[int, list[float]]) -> None:
    found = curve_of(times_ms)
    medians = [median(times) for times in times_ms.values()]
    fitted = [found.fitted_ms[ways] for ways in sorted(times_ms)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(fitted))
    assert min(medians) * (1 - 1e-9) <= fitted[-1]
    assert fitted[0] <= max(medians) * (1 + 1e-9)
    assert found.knee is None or found.knee in times_ms


@given(st.lists(MS, min_size=2, max_size=12), st.lists(st.floats(-0.5, 0.5), min_size=12, max_size=12))
def test_the_fit_is_no_further_off_than_the_medians(curve: list[float], errors: list[float]) -> None:
    truth = dict(enumerate(sorted(curve, reverse=True), 1))
    seen = {ways: (ms + errors[ways - 1], 1 + ways % 3) for ways, ms in truth.items()}
    off = max(abs(seen[ways][0] - ms) for ways, ms in truth.items())
    assert all(abs(fitted - truth[ways]) <= off + 1e-6 for ways, fitted in fit(seen).items())


@given(CURVES, st.floats(0.01, 100))
def test_the_unit_does_not_matter_nor_does_the_order(times_ms: dict[int, list[float]], scale: float) -> None:
    rules = KneeRules(least_effect=0, chance=0.5)
    found = curve_of(times_ms, rules)
    turned = dict(reversed([(ways, times[::-1]) for ways, times in times_ms.items()]))
    assert curve_of(turned, rules) == found
    scaled = curve_of({ways: [one * scale for one in times] for ways, times in times_ms.items()}, rules)
    assert scaled.gain_ms == pytest.approx(found.gain_ms * scale, rel=1e-6, abs=1e-6)


@given(CURVES, st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_larger_share_never_asks_for_more_ways(times_ms: dict[int, list[float]], one: float, other: float) -> None:
    low, high = sorted((one, other))
    strict, lax = (curve_of(times_ms, KneeRules(share=share)) for share in (low, high))
    assert (strict.knee is None) == (lax.knee is None)
    if strict.knee is not None and lax.knee is not None:
        assert lax.knee <= strict.knee
        left_ms = strict.fitted_ms[strict.knee] - strict.fitted_ms[max(times_ms)]
        assert left_ms <= low * strict.gain_ms + 1e-9
