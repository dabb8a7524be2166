"""Arithmetic on Prometheus histograms: what was observed between two readings of cumulative buckets. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from manager.model.histogram import bucket_of

Series = frozenset[tuple[str, str]]
"""The labels of a series, without ``le``."""
Cumulative = Mapping[float, float]
"""Observations at or below each bound, in seconds; ``inf`` holds all."""

_POSITIONS = 200


def increase(before: Cumulative, now: Cumulative) -> dict[float, float]:
    """Observations per bucket (by its upper bound) between two readings of one series.

    A counter that went down was reset, and began from 0. Bounds that were not there before count from 0 too.
    """
    reset = any(count < before.get(bound, 0.0) for bound, count in now.items())
    since = {bound: count - (0.0 if reset else before.get(bound, 0.0)) for bound, count in now.items()}
    bounds = sorted(since)
    counts = {bounds[0]: since[bounds[0]]} if bounds else {}
    for low, high in pairwise(bounds):
        counts[high] = max(0.0, since[high] - since[low])  # not below 0: buckets are not read at one instant
    return counts


def to_histogram(increases: Mapping[float, float]) -> dict[int, int]:
    """Counts by our buckets: each of Prometheus' evenly spread between its bounds, as in histogram_quantile.

    What is above the highest finite bound counts at that bound.
    """
    buckets: dict[int, int] = {}
    low_s = 0.0
    for high_s in sorted(increases):
        count = round(increases[high_s])
        finite_s = low_s if math.isinf(high_s) else high_s
        places = min(count, _POSITIONS)
        for place in range(places):
            time_s = low_s + (finite_s - low_s) * (place + 0.5) / places
            bucket = bucket_of(time_s * 1e6)
            # The counts of all places together are the bucket's.
            share = count * (place + 1) // places - count * place // places
            buckets[bucket] = buckets.get(bucket, 0) + share
        low_s = finite_s
    return buckets


MOST_KEPT = 20_000
"""So many buckets of series are remembered, besides those of the last reading: their names may change all the time."""


class BucketCounter:
    """Turns readings of all series of a query into what was observed since the reading before.

    Series are distinguished by a hash of their labels, as these may be long.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, Cumulative]] = {}  # with when it was seen, the oldest first

    def update(self, reading: Mapping[Series, Cumulative], now_s: float, keep_s: float = 300.0) -> dict[int, int]:
        """Counts by our buckets. A series counts from its second reading on.

        Series that are missing for a while, as after a failed scrape, go on where they were for up to ``keep_s``.
        """
        total: dict[float, float] = {}
        for series, now in reading.items():
            key = hash(series)
            before = self._before.pop(key, None)
            if before is not None:
                for bound, count in increase(before[1], now).items():
                    total[bound] = total.get(bound, 0.0) + count
            self._before[key] = now_s, now
        kept = sum(len(cumulative) for _, cumulative in self._before.values()) - sum(map(len, reading.values()))
        for key, (seen_s, cumulative) in list(self._before.items())[: len(self._before) - len(reading)]:
            if seen_s < now_s - keep_s or kept > MOST_KEPT:
                del self._before[key]
                kept -= len(cumulative)
        return to_histogram(total)
