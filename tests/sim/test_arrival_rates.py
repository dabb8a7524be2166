"""Rates of arrivals from windows of response times."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.histogram import Histogram
from manager.model.window import Window
from manager.sim.arrival_rates import RateStep, arrival_steps


def window(place: int, requests: int, time_s: float = 0.001, slot_s: float = 5.0) -> Window:
    times = Histogram.of([time_s * 1e6] * requests)
    return Window("shop", place * slot_s, (place + 1) * slot_s, times, float(requests))


def windows(*requests: int) -> list[Window]:
    return [window(place, count) for place, count in enumerate(requests)]


def rates(steps: tuple[RateStep, ...]) -> list[tuple[float, float]]:
    return [(step.start_s, round(step.rate_rps)) for step in steps]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ((100, 110, 95, 104), [(0, 20)]),
        ((100,) * 10 + (200,) * 10, [(0, 20), (50, 40)]),
        ((0,) * 4 + (50,) * 4, [(0, 0), (20, 10)]),
        ((0, 0, 0), [(0, 0)]),
    ],
)
def test_a_rate_changes_only_where_chance_does_not_explain_it(
    requests: tuple[int, ...], expected: list[tuple[float, float]]
) -> None:
    assert rates(arrival_steps(windows(*requests), 0, 5 * len(requests))) == expected


def test_requests_count_when_they_came_not_when_they_were_answered() -> None:
    """Of a burst in the third interval that took 10 s to answer, the fifth sees the answers."""
    counts = [(0, 0.001), (0, 0.001), (0, 0.001), (0, 0.001), (1000, 10.0), (0, 0.001)]
    found = arrival_steps([window(place, count, time_s) for place, (count, time_s) in enumerate(counts)], 0, 30)
    busiest = max(found, key=lambda step: step.rate_rps)
    assert (round(busiest.start_s), round(busiest.end_s)) == (10, 15)


def test_where_no_window_is_the_rate_around_holds() -> None:
    some = [one for one in windows(*(100,) * 12) if one.start_s not in {0, 25, 30, 55}]
    assert rates(arrival_steps(some, 0, 60)) == [(0, 20)]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60))
def test_steps_have_no_gaps_and_all_requests(requests: list[int]) -> None:
    end_s = 5.0 * len(requests)
    steps = arrival_steps(windows(*requests), 0, end_s)
    assert (steps[0].start_s, steps[-1].end_s) == (0, end_s)
    assert all(before.end_s == after.start_s for before, after in pairwise(steps))
    total = sum(step.rate_rps * (step.end_s - step.start_s) for step in steps)
    # Those of the first millisecond came before the first window began.
    assert sum(requests) - 0.0011 * 400 / 5 <= total <= sum(requests) + 1e-6
