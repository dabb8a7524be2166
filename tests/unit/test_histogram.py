"""The histogram of response times against the exact samples it was made of."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.histogram import (
    FIRST_BUCKET,
    LAST_BUCKET,
    MAX_US,
    MIN_US,
    RELATIVE_ERROR,
    Histogram,
    bucket_of,
    bucket_value_us,
    joint_percentile_us,
    merged,
)
from manager.model.packed_histogram import as_packed

TOLERANCE = RELATIVE_ERROR * (1 + 1e-9)  # for the rounding of floats at a bucket's very edge

times = st.floats(MIN_US, MAX_US) | st.sampled_from([MIN_US, MAX_US, 1000.0, 1e6])
samples = st.lists(times, max_size=60)
percentiles = st.integers(1, 10_000).map(lambda hundredths: hundredths / 100)


def exact(times_us: list[float], percentile: float) -> float:
    """The nearest-rank percentile of the samples themselves."""
    rank = max(1, math.ceil(Fraction(str(percentile)) * len(times_us) / 100))
    return sorted(times_us)[rank - 1]


@given(times)
def test_a_bucket_stands_for_its_times_within_one_percent(time_us: float) -> None:
    bucket = bucket_of(time_us)
    assert FIRST_BUCKET <= bucket <= LAST_BUCKET
    assert abs(bucket_value_us(bucket) - time_us) <= TOLERANCE * time_us


@given(times, times)
def test_buckets_are_ordered_as_their_times(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert bucket_of(low) <= bucket_of(high)


@pytest.mark.parametrize("bucket", [FIRST_BUCKET, FIRST_BUCKET + 1, 500, LAST_BUCKET - 1, LAST_BUCKET])
def test_a_representative_is_in_its_own_bucket(bucket: int) -> None:
    assert bucket_of(bucket_value_us(bucket)) == bucket


@pytest.mark.parametrize(
    ("time_us", "bucket"),
    [
        (-1.0, FIRST_BUCKET),
        (0.0, FIRST_BUCKET),
        (1e-300, FIRST_BUCKET),
        (MIN_US, FIRST_BUCKET),
        (MAX_US, LAST_BUCKET),
        (math.nextafter(MAX_US, math.inf), LAST_BUCKET),
        (1e300, LAST_BUCKET),
        (math.inf, LAST_BUCKET),
    ],
)
def test_times_out_of_range_count_in_the_edge_buckets(time_us: float, bucket: int) -> None:
    assert bucket_of(time_us) == bucket


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        bucket_of(math.nan)


@given(samples, percentiles)
def test_a_percentile_is_the_exact_one_within_one_percent(times_us: list[float], percentile: float) -> None:
    found = Histogram.of(times_us).percentile_us(percentile)
    if not times_us:
        assert found is None
        return
    wanted = exact(times_us, percentile)
    assert found == pytest.approx(wanted, rel=TOLERANCE)


@given(st.lists(times, min_size=1, max_size=60), percentiles, st.randoms(use_true_random=False))
def test_percentiles_lie_between_the_extremes_whatever_the_order(times_us, percentile, random) -> None:
    histogram = Histogram.of(times_us)
    found = histogram.percentile_us(percentile)
    assert bucket_value_us(bucket_of(min(times_us))) <= found <= bucket_value_us(bucket_of(max(times_us)))
    shuffled = list(times_us)
    random.shuffle(shuffled)
    assert Histogram.of(shuffled).percentile_us(percentile) == found


@given(st.lists(times, min_size=1, max_size=40), percentiles, percentiles)
def test_a_higher_percentile_is_no_shorter_time(times_us: list[float], one: float, other: float) -> None:
    histogram = Histogram.of(times_us)
    low, high = sorted((one, other))
    assert histogram.percentile_us(low) <= histogram.percentile_us(high)


@given(st.lists(samples, max_size=4))
def test_merging_is_counting_all_samples_together(groups: list[list[float]]) -> None:
    parts = [Histogram.of(group) for group in groups]
    whole = Histogram().merge(*parts)
    assert whole == Histogram.of(time_us for group in groups for time_us in group)
    assert whole.count == sum(len(group) for group in groups)
    assert parts == [Histogram.of(group) for group in groups], "merging changes none of its parts"


@pytest.mark.parametrize(("percentile", "rank"), [(0.001, 1), (1, 1), (5, 1), (5.1, 2), (50, 10), (95, 19), (95.1, 20)])
def test_nearest_rank(percentile: float, rank: int) -> None:
    times_us = [100.0 * 2**power for power in range(20)]
    found = Histogram.of(times_us).percentile_us(percentile)
    assert found == pytest.approx(times_us[rank - 1], rel=TOLERANCE)


@pytest.mark.parametrize("percentile", [0, -1, 100.1, math.nan, math.inf])
def test_a_percentile_out_of_range_is_refused(percentile: float) -> None:
    with pytest.raises(ValueError, match=r"is not in \(0, 100\]"):
        Histogram.of([100.0]).percentile_us(percentile)


def test_what_was_asked_before_changes_no_answer() -> None:
    asked, fresh = Histogram({300: 90, 400: 10}), Histogram({300: 90, 400: 10})
    before = asked.percentile_us(50)
    assert asked.percentile_us(99) != before == asked.percentile_us(50) == fresh.percentile_us(50)
    with pytest.raises(ValueError, match="percentile 0"):
        asked.percentile_us(0)
    assert asked.percentile_us(50) == before
    assert (asked.count, asked) == (fresh.count, Histogram({300: 90, 400: 10}))
    assert repr(asked) == repr(Histogram({300: 90, 400: 10}))
    more = asked.merge(Histogram({500: 900}))
    assert (more.count, more.percentile_us(50)) == (1000, Histogram({500: 1}).percentile_us(50))
    assert Histogram().percentile_us(50) is None is Histogram().percentile_us(50)


def test_counts_in_the_millions_keep_their_rank() -> None:
    histogram = Histogram({500: 949_999_999, 600: 50_000_001})
    assert histogram.percentile_us(95) == bucket_value_us(600)
    assert histogram.percentile_us(94.9) == bucket_value_us(500)


@given(st.lists(st.tuples(samples, st.booleans()), max_size=5))
def test_many_are_merged_as_one_by_one(parts: list[tuple[list[float], bool]]) -> None:
    histograms = [as_packed(Histogram.of(times_us)) if packed else Histogram.of(times_us) for times_us, packed in parts]
    assert merged(histograms) == Histogram().merge(*histograms)


@given(st.lists(st.tuples(samples, st.booleans()), max_size=4), percentiles)
def test_a_joint_percentile_is_that_of_all_samples_together(
    parts: list[tuple[list[float], bool]], asked: float
) -> None:
    histograms = [as_packed(Histogram.of(times_us)) if packed else Histogram.of(times_us) for times_us, packed in parts]
    assert joint_percentile_us(histograms, asked) == Histogram().merge(*histograms).percentile_us(asked)
