"""Packed histograms are the histograms that were packed, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET, Histogram
from manager.model.packed_histogram import UnreadHistogram, pack, pack_plain, unpack

counts = st.integers(0, 200) | st.integers(0, 2**53) | st.sampled_from([127, 128, 2**14, 2**63 - 1])
histograms = st.dictionaries(st.integers(FIRST_BUCKET, LAST_BUCKET), counts, max_size=200).map(Histogram)


@given(histograms)
def test_a_packed_histogram_is_read_back(histogram: Histogram) -> None:
    assert unpack(pack(histogram)) == histogram


@given(histograms)
def test_equal_histograms_are_packed_alike(histogram: Histogram) -> None:
    backwards = Histogram(dict(sorted(histogram.buckets.items(), reverse=True)))
    assert pack(backwards) == pack(histogram)


@given(histograms)
def test_an_unread_histogram_is_the_one_that_was_packed(histogram: Histogram) -> None:
    unread = UnreadHistogram(pack(histogram))
    assert (unread == histogram, histogram == unread) == (True, True)
    assert (unread.count, pack(unread), pack_plain(unread)) == (histogram.count, pack(histogram), pack_plain(histogram))
    assert unread != Histogram({**histogram.buckets, FIRST_BUCKET: histogram.buckets.get(FIRST_BUCKET, 0) + 1})
    assert pickle.loads(pickle.dumps(unread)) == histogram


@given(histograms, histograms, st.floats(0, 100, exclude_min=True))
def test_an_unread_histogram_is_asked_without_its_buckets(one: Histogram, other: Histogram, percentile: float) -> None:
    unread = UnreadHistogram(pack(one))
    assert unread.percentile_us(percentile) == one.percentile_us(percentile)
    assert unread.merge(UnreadHistogram(pack(other))) == one.merge(other) == one.merge(UnreadHistogram(pack(other)))
    with pytest.raises(ValueError, match="not in"):
        unread.percentile_us(0)


@given(histograms)
def test_an_unread_histogram_is_packed_again_like_the_one_it_was(histogram: Histogram) -> None:
    """Also where it comes from those that are compressed together."""
    assert pack(UnreadHistogram(pack_plain(histogram))) == pack(histogram)


@given(st.binary(max_size=300))
def test_an_unread_histogram_can_always_be_read(content: bytes) -> None:
    try:
        unread = UnreadHistogram(content)
    except ValueError:
        with pytest.raises(ValueError, match="histogram"):
            unpack(content)
        return
    assert unread.count == unpack(content).count


@given(st.binary(max_size=300))
def test_other_bytes_are_refused_by_value_error(content: bytes) -> None:
    try:
        histogram = unpack(content)
    except ValueError:
        return
    assert all(FIRST_BUCKET <= bucket <= LAST_BUCKET for bucket in histogram.buckets)


@given(histograms, st.data())
def test_bytes_that_are_cut_off_are_refused(histogram: Histogram, data: st.DataObject) -> None:
    packed = pack(histogram)
    if packed:
        length = data.draw(st.integers(1, len(packed) - 1))
        with pytest.raises(ValueError, match="histogram"):
            unpack(packed[:length])


@pytest.mark.parametrize("content", [b"\x03\x01\x02\x00\x01\x05", b"\x01\xff\xff\x00\x01\x05", b"\x01\x01\x02\x00\x00"])
def test_other_formats_and_impossible_buckets_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="histogram"):
        unpack(content)


@pytest.mark.parametrize("count", [-1, 2**63])
def test_counts_that_no_database_keeps_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        pack(Histogram({500: count}))


def test_what_an_application_answers_in_an_interval_takes_a_tenth_of_its_json() -> None:
    chance = random.Random(0)
    histogram = Histogram.of(chance.lognormvariate(math.log(10_000), 0.5) for _ in range(200))
    written = json.dumps({str(bucket): count for bucket, count in sorted(histogram.buckets.items())})
    assert len(pack(histogram)) < len(written) / 10
