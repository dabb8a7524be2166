"""Slots of response times and the windows made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.judged_windows import by_slot, enough, latest, slot_number
from manager.model.histogram import Histogram
from manager.model.window import Ready, Window, merge


def slot(end_s: float, count: int = 10, requests: float | None = None, length_s: float = 5.0) -> Window:
    return Window("shop", end_s - length_s, end_s, Histogram({500: count} if count else {}), requests)


@pytest.mark.parametrize(
    ("end_s", "number"), [(5.0, 0), (5.001, 1), (10.0, 1), (12.5, 2), (1_000_000.0, 199_999), (0.5, 0)]
)
def test_a_response_time_belongs_to_the_slot_it_ended_in(end_s: float, number: int) -> None:
    assert slot_number(end_s, 5.0) == number


@given(st.integers(1, 10**9), st.sampled_from([0.2, 0.5, 1.0, 5.0, 60.0]))
def test_a_slot_s_end_belongs_to_it(number: int, length_s: float) -> None:
    assert slot_number((number + 0.5) * length_s, length_s) == number


def test_what_several_origins_know_of_a_slot_is_merged_and_other_slots_are_not() -> None:
    merged = by_slot([slot(20, 3, 30.0), slot(10, 1), slot(20, 4), slot(15, 2, 5.0)], 5.0)
    assert [(one.end_s, one.histogram.count, one.requests) for one in merged] == [
        (10, 1, None),
        (15, 2, 5),
        (20, 7, 30),
    ]


@given(st.lists(st.integers(1, 30)), st.sampled_from([0.2, 1.0, 5.0]), st.booleans())
def test_each_slot_is_there_once_and_in_order(numbers: list[int], length_s: float, of_one_origin: bool) -> None:
    told = sorted(set(numbers)) if of_one_origin else numbers
    slots = [slot((number + 1) * length_s, number, length_s=length_s) for number in told]
    counts = [number * told.count(number) for number in sorted(set(told))]
    assert [one.histogram.count for one in by_slot(slots, length_s)] == counts


def test_the_latest_window_reaches_back_over_its_length() -> None:
    slots = by_slot([slot(10, 1), slot(15, 2), Window("shop", 15, 15.1, Histogram({500: 4}))], 5.0)
    seen = latest(slots, 15.1, 5.0)
    assert seen is not None and (seen.histogram.count, seen.start_s, seen.end_s) == (6, 10, 15.1)
    stale = latest(slots, 100.0, 5.0)
    assert stale is not None and (stale.histogram.count, stale.age_s(100.0)) == (4, pytest.approx(84.9))
    assert latest((), 15.1, 5.0) is None


@pytest.mark.parametrize(
    ("counts", "wanted", "least", "got"),
    [
        ([50, 60, 70], 70, 20, 70),
        ([50, 60, 70], 71, 20, 130),
        ([50, 60, 70], 1000, 20, 180),
        ([5, 6, 7], 1000, 20, None),
        ([5, 6, 9], 1000, 20, 20),
        ([0, 0, 0], 50, 20, None),
        ([], 50, 20, None),
    ],
)
def test_as_few_slots_as_hold_enough(counts, wanted: int, least: int, got: int | None) -> None:
    slots = tuple(slot(85 + 5 * place, count) for place, count in enumerate(counts))
    found = enough(slots, 96.0, 30.0, wanted, least)
    assert (found.histogram.count if found else None) == got


def test_old_slots_do_not_count() -> None:
    assert enough((slot(60, 100),), 96.0, 30.0, 50, 20) is None
    assert enough((slot(60, 100), slot(95, 30)), 96.0, 30.0, 50, 20) == slot(95, 30)


def test_a_ready_percentile_is_enough_by_itself() -> None:
    ready = Window("shop", 90, 95, Histogram(), 100.0, Ready(95, 480.0))
    found = enough((ready,), 96.0, 30.0, 50, 20)
    assert found is not None and found.percentile_ms(95) == 480.0 and found.percentile_ms(99) is None
    assert found.has_samples(1000)


def test_merging_never_averages_percentiles() -> None:
    fast, slow = Histogram.of([1000.0] * 99 + [90_000.0]), Histogram.of([80_000.0] * 100)
    merged = merge([Window("shop", 0, 5, fast, 100.0), Window("shop", 0, 5, slow, None)])
    assert merged.percentile_ms(95) == pytest.approx(80.0, rel=0.02)
    assert merged.requests == 100.0
    with pytest.raises(ValueError, match="no windows"):
        merge([])
