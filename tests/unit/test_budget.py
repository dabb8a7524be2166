"""Periods of response times: judged, added up, cut into steps, and what they say of a promise."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.budget import (
    MAX_PERIODS,
    Period,
    Steps,
    Violation,
    budget,
    by_step,
    cut_range,
    joined,
    judge,
    total,
)
from manager.model.histogram import Histogram
from manager.model.registration import Sla
from manager.model.window import Ready, Window

BEGIN_S = 1_200_000_000.0
SLA = Sla(response_time_ms=100.0)


def slot(number: int, *times_ms: float, requests: float | None = None, ready: Ready | None = None) -> Period:
    """A slot of 5 s, judged from 2 response times on."""
    start_s = BEGIN_S + 5 * number
    histogram = Histogram.of(percentile_ms * 1000 for percentile_ms in times_ms)
    return judge(Window("shop", start_s, start_s + 5, histogram, requests, ready), start_s, 5.0, SLA, 2)


def spans(*seconds: tuple[float, float]) -> list[tuple[float, float]]:
    return [(BEGIN_S + start, BEGIN_S + end) for start, end in seconds]


@pytest.mark.parametrize(
    ("period", "judged", "violated"),
    [
        (slot(0, 50, 50), 1, 0),
        (slot(0, 150, 150), 1, 1),
        (slot(0, 150), 0, 0),
        (slot(0), 0, 0),
        (slot(0, ready=Ready(95, 101)), 1, 1),
        (slot(0, ready=Ready(99, 101)), 0, 0),
    ],
)
def test_a_slot_is_judged_when_it_holds_enough(period: Period, judged: int, violated: int) -> None:
    assert (period.slots, period.judged, period.violated) == (1, judged, violated)
    assert [(one.start_s, one.end_s) for one in period.violations] == (spans((0, 5)) if violated else [])


def test_without_a_promise_nothing_is_judged() -> None:
    window = slot(0, 150, 150).window
    assert judge(window, BEGIN_S, 5.0, None, 2).judged == 0


def test_percentiles_are_those_of_all_response_times_and_not_averaged() -> None:
    whole = total("shop", [slot(0, *[10] * 99), slot(1, 1000)], BEGIN_S, BEGIN_S + 10)
    assert whole.window.percentile_ms(50) == pytest.approx(10, rel=0.01)
    assert whole.window.percentile_ms(95) == pytest.approx(10, rel=0.01)  # an average would be about 500
    assert whole.window.percentile_ms(100) == pytest.approx(1000, rel=0.01)


def test_requests_are_added_where_they_are_known() -> None:
    known, unknown = slot(0, 1, requests=7), slot(1, 1)
    assert total("shop", [known, unknown, known], BEGIN_S, BEGIN_S + 15).window.requests == 14
    assert total("shop", [unknown], BEGIN_S, BEGIN_S + 5).window.requests is None


def test_of_ready_percentiles_the_largest_counts_and_none_beside_response_times() -> None:
    ready = [slot(0, ready=Ready(99, 900)), slot(1, ready=Ready(95, 40)), slot(2, ready=Ready(95, 30))]
    whole = total("shop", ready, BEGIN_S, BEGIN_S + 15)
    assert (whole.window.percentile_ms(95), whole.window.percentile_ms(99)) == (40, None)
    counted = total("shop", [*ready, slot(3, 10, 10)], BEGIN_S, BEGIN_S + 20)
    assert counted.window.percentile_ms(95) == pytest.approx(10, rel=0.01)


def test_a_violation_ends_with_a_slot_that_is_met_or_cannot_be_judged() -> None:
    bad, few, good = (150.0, 150.0), (150.0,), (1.0, 1.0)
    contents = [bad, bad, few, bad, good, bad, bad, bad]
    whole = total("shop", [slot(number, *times) for number, times in enumerate(contents)], BEGIN_S, BEGIN_S + 40)
    assert [(one.start_s, one.end_s) for one in whole.violations] == spans((0, 10), (15, 20), (25, 40))
    found = budget(whole, 40, SLA, 0.99)
    assert (found.length_s, found.since_s, found.judged, found.violated) == (40, BEGIN_S, 7, 6)
    assert (found.violated_share, found.longest_violation_s) == (6 / 7, 15)


def test_a_violation_goes_on_over_the_border_of_minutes() -> None:
    slots = [slot(number, 150, 150) for number in range(24)]
    minutes = [total("shop", slots[:12], BEGIN_S, BEGIN_S + 60), total("shop", slots[12:], BEGIN_S + 60, BEGIN_S + 120)]
    assert total("shop", minutes, BEGIN_S, BEGIN_S + 120).violations == (Violation(BEGIN_S, BEGIN_S + 120, 24),)


def test_a_budget_of_nothing() -> None:
    found = budget(total("shop", [], BEGIN_S, BEGIN_S + 60), 60, SLA, 0.99)
    assert (found.judged, found.violated_share, found.longest_violation_s, found.percentile_ms) == (0, None, 0, None)


def test_spans_are_joined_over_gaps_that_are_small_enough() -> None:
    parts = [Violation(0, 5, 1), Violation(5, 10, 1), Violation(20, 25, 1), Violation(36, 40, 1)]
    assert joined(parts) == (Violation(0, 10, 2), Violation(20, 25, 1), Violation(36, 40, 1))
    assert joined(parts, 10) == (Violation(0, 25, 3), Violation(36, 40, 1))


@pytest.mark.parametrize(
    ("length_s", "points", "slot_s", "period_s", "step_s"),
    [
        (3600, 300, 5, 5, 15),
        (3600, 2000, 5, 5, 5),
        (60, 300, 0.2, 0.2, 0.4),
        (86_400, 300, 5, 60, 300),
        (30 * 86_400, 300, 5, 3600, 3 * 3600),
        (30 * 86_400, 2000, 5, 3600, 3600),
        (7200, 300, 300, 300, 300),
        (86_400 * 2, 2000, 90, 90, 90),
        (86_400 * 5, 2000, 90, 3600, 3600),
    ],
)
def test_a_range_is_cut_into_steps_of_the_finest_periods_that_can_be_read(
    length_s: float, points: int, slot_s: float, period_s: float, step_s: float
) -> None:
    steps = cut_range(BEGIN_S, BEGIN_S + length_s, points, slot_s)
    assert (steps.period_s, steps.step_s) == (period_s, pytest.approx(step_s))


def test_what_is_not_kept_any_more_is_read_from_what_is() -> None:
    hour = (BEGIN_S, BEGIN_S + 3600, 300, 5.0)
    assert cut_range(*hour, slots_from_s=BEGIN_S + 1).period_s == 60
    assert cut_range(*hour, slots_from_s=BEGIN_S + 1, minutes_from_s=BEGIN_S + 1).period_s == 3600
    assert cut_range(*hour, slots_from_s=BEGIN_S, minutes_from_s=BEGIN_S + 1).period_s == 5


@given(
    since_s=st.integers(0, 4_000_000_000),
    length_s=st.floats(0.2, 732 * 86_400),
    points=st.integers(10, 2000),
    slot_s=st.sampled_from([0.2, 0.5, 1, 5, 7, 60, 90, 300]),
)
def test_any_range_is_covered_by_few_enough_steps(since_s: int, length_s: float, points: int, slot_s: float) -> None:
    steps = cut_range(since_s, since_s + length_s, points, slot_s)
    assert 1 <= steps.count <= points
    assert steps.first_s <= since_s + 0.001
    assert steps.first_s + steps.count * steps.step_s >= since_s + length_s - 0.001
    assert steps.first_s / steps.step_s == pytest.approx(round(steps.first_s / steps.step_s), abs=1e-3)
    assert steps.step_s / steps.period_s == pytest.approx(round(steps.step_s / steps.period_s))
    assert length_s <= MAX_PERIODS * steps.period_s or steps.period_s == 3600


@given(st.lists(st.tuples(st.integers(0, 59), st.sampled_from([(1.0, 1.0), (150.0, 150.0), (150.0,)])), max_size=60))
def test_steps_hold_all_that_the_periods_held(content: list[tuple[int, tuple[float, ...]]]) -> None:
    periods = [slot(number, *times) for number, times in sorted(dict(content).items())]
    whole = total("shop", periods, BEGIN_S, BEGIN_S + 300)
    found = by_step("shop", periods, Steps(BEGIN_S, 15.0, 20, 5.0), math.inf, 5.0)
    assert [one.start_s for one in found] == [BEGIN_S + 15 * place for place in range(20)]
    again = total("shop", found, BEGIN_S, BEGIN_S + 300)
    assert (again.slots, again.judged, again.violated) == (whole.slots, whole.judged, whole.violated)
    assert again.window.histogram == whole.window.histogram
    assert again.violations == whole.violations


def test_the_rate_of_the_step_at_hand_is_not_diluted_by_what_is_still_to_come() -> None:
    steps = Steps(BEGIN_S, 60.0, 2, 5.0)
    periods = [slot(number, 1, requests=100) for number in range(14)]  # 70 s
    past, current = by_step("shop", periods, steps, BEGIN_S + 71, 5.0)
    assert (past.window.rate_rps, current.window.rate_rps) == (20, 20)
    _, over = by_step("shop", periods, steps, BEGIN_S + 120, 5.0)
    assert over.window.rate_rps == pytest.approx(200 / 60)


@pytest.mark.parametrize(("slot_s", "step_s"), [(7.0, 60.0), (45.0, 60.0), (90.0, 120.0), (300.0, 300.0)])
def test_a_steady_rate_is_steady_where_slots_do_not_divide_steps(slot_s: float, step_s: float) -> None:
    first = math.ceil(BEGIN_S / slot_s)
    windows = [
        Window("shop", place * slot_s, (place + 1) * slot_s, Histogram.of([1000.0]), 10 * slot_s)
        for place in range(first, first + 200)
    ]
    periods = [judge(window, window.start_s, slot_s, SLA, 1) for window in windows]
    found = by_step(
        "shop", periods, Steps(math.ceil(first * slot_s / step_s) * step_s, step_s, 10, 60.0), math.inf, slot_s
    )
    assert [one.window.rate_rps for one in found] == pytest.approx([10.0] * 10)
