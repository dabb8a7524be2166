"""Rates of arrivals from recorded windows of response times.

A window counts requests when they are answered. A request that was answered after r seconds came r seconds earlier, so
a window's requests came spread over its length, moved back by their response times. What then varies from one interval
to the next by no more than chance is one rate: a piecewise constant Poisson rate with as few changes as explain the
counts, found by dynamic programming with pruning (Killick, Fearnhead, Eckley: "Optimal detection of changepoints with
a linear computational cost", 2012).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from manager.model.histogram import bucket_value_us
from manager.model.window import Window

_CHANGE = 4.0
"""A change of rate must explain the counts this many times ln(number of intervals) better, in log-likelihood."""


class RateStep(NamedTuple):
    """From ``start_s`` until ``end_s`` requests came at ``rate_rps``."""

    start_s: float
    end_s: float
    rate_rps: float


def arrival_steps(windows: Sequence[Window], start_s: float, end_s: float) -> tuple[RateStep, ...]:
    """Steps from ``start_s`` to ``end_s`` (seconds since the epoch), without gaps.

    ``windows``, oldest first, must know their requests. Where no window is, the rate around holds.
    """
    edges = _edges(windows, start_s, end_s)
    counts = _counts(windows, edges)
    lengths = [after - before for before, after in pairwise(edges)]
    cuts = _cuts(counts, lengths)
    return tuple(
        RateStep(edges[first], edges[end], sum(counts[first:end]) / sum(lengths[first:end]))
        for first, end in pairwise(cuts)
    )


def _edges(windows: Sequence[Window], start_s: float, end_s: float) -> list[float]:
    """Begins and ends of windows, as borders of intervals; without windows there is one."""
    borders = {border for window in windows for border in (window.start_s, window.end_s)}
    return [start_s, *sorted(border for border in borders if start_s < border < end_s), end_s]


def _counts(windows: Sequence[Window], edges: Sequence[float]) -> list[float]:
    """How many of the requests came in each interval."""
    counts = [0.0] * (len(edges) - 1)
    for window in windows:
        answered = window.histogram.count
        requests = window.requests or 0.0
        times = window.histogram.buckets if answered else {}
        if not answered and requests:
            _spread(counts, edges, window.start_s, window.end_s, requests)
        for bucket, count in times.items():
            time_s = bucket_value_us(bucket) / 1e6
            part = requests * count / answered
            _spread(counts, edges, window.start_s - time_s, window.end_s - time_s, part)
    _fill_gaps(counts, edges, windows)
    return counts


def _fill_gaps(counts: list[float], edges: Sequence[float], windows: Sequence[Window]) -> None:
    """Where no window is, the rate before holds; before the first, that after it."""
    starts = [window.start_s for window in windows]
    rate_rps: float | None = None
    for place, (start_s, end_s) in enumerate(pairwise(edges)):
        middle_s = (start_s + end_s) / 2
        latest = bisect_right(starts, middle_s) - 1
        if latest >= 0 and middle_s < windows[latest].end_s:
            rate_rps = counts[place] / (end_s - start_s)
        elif rate_rps is not None:
            counts[place] = rate_rps * (end_s - start_s)
        elif windows and place + 1 < len(counts):
            counts[place] = counts[place + 1] / (edges[place + 2] - end_s) * (end_s - start_s)


def _spread(counts: list[float], edges: Sequence[float], start_s: float, end_s: float, requests: float) -> None:
    """Count requests that came evenly between two times; what is before or after the edges is left out."""
    place = max(bisect_right(edges, start_s) - 1, 0)
    while place < len(counts) and edges[place] < end_s:
        overlap_s = min(end_s, edges[place + 1]) - max(start_s, edges[place])
        counts[place] += requests * max(overlap_s, 0.0) / (end_s - start_s)
        place += 1


def _cuts(counts: Sequence[float], lengths: Sequence[float]) -> list[int]:
    """The numbers of the intervals at which the rate changes, with 0 and the number of intervals."""
    penalty = _CHANGE * math.log(len(counts) + 1)
    total = [0.0]
    time_s = [0.0]
    for count, length_s in zip(counts, lengths, strict=True):
        total.append(total[-1] + count)
        time_s.append(time_s[-1] + length_s)
    best = [0.0]
    came_from = [0]
    candidates = [0]
    for end in range(1, len(total)):
        costs = [best[first] + _cost(total[end] - total[first], time_s[end] - time_s[first]) for first in candidates]
        lowest = min(costs)
        best.append(lowest + penalty)
        came_from.append(candidates[costs.index(lowest)])
        candidates = [first for first, cost in zip(candidates, costs, strict=True) if cost <= best[-1]] + [end]
    cuts = [len(counts)]
    while cuts[-1]:
        cuts.append(came_from[cuts[-1]])
    return cuts[::-1]


def _cost(count: float, length_s: float) -> float:
    """Minus the log-likelihood of so many arrivals at their mean rate, but for what is the same for all cuts."""
    return -count * math.log(count / length_s) if count > 0 else 0.0
