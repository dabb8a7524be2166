"""A mergeable histogram of response times with a bounded relative error.

Buckets grow geometrically, as in DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch
with relative-error guarantees", VLDB 2019): with ``GAMMA = (1 + e) / (1 - e)`` every value of a bucket is within the
relative error ``e`` of the bucket's representative, and merging adds counts, so percentiles of several sources are
those of all their samples together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import merge

RELATIVE_ERROR = 0.01
MIN_US = 10.0
MAX_US = 100_000_000.0
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(GAMMA)
FIRST_BUCKET = math.ceil(math.log(MIN_US) / _LOG_GAMMA)
LAST_BUCKET = math.ceil(math.log(MAX_US) / _LOG_GAMMA)


def bucket_of(time_us: float) -> int:
    """Bucket number of a response time in microseconds; times outside 10 us .. 100 s count in the edge buckets."""
    if time_us <= MIN_US:
        return FIRST_BUCKET
    return math.ceil(math.log(min(time_us, MAX_US)) / _LOG_GAMMA)


def bucket_value_us(bucket: int) -> float:
    """The representative of a bucket, in microseconds: at most 1 % from any time the bucket holds."""
    return 2 * GAMMA**bucket / (GAMMA + 1)


def rank_of(percentile: float, count: int) -> int:
    """Which of so many samples, from the least on, is a percentile. Raises ValueError for one not in (0, 100]."""
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile {percentile} is not in (0, 100]")
    return min(max(1, math.ceil(count * percentile / 100)), count)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per bucket number. Immutable: ``merge`` and ``of`` make new ones.

    What was asked of it last is kept, because SLA state and policy ask the same of each newest slot in each tick.
    """

    buckets: Mapping[int, int] = field(default_factory=dict)
    _count: int | None = field(default=None, init=False, compare=False, repr=False)
    _percentile_us: tuple[float, float | None] | None = field(default=None, init=False, compare=False, repr=False)

    @staticmethod
    def of(times_us: Iterable[float]) -> Histogram:
        """Count response times given in microseconds."""
        buckets: dict[int, int] = {}
        for time_us in times_us:
            bucket = bucket_of(time_us)
            buckets[bucket] = buckets.get(bucket, 0) + 1
        return Histogram(buckets)

    @property
    def count(self) -> int:
        """Number of samples."""
        count = self._count
        if count is None:
            count = sum(self.buckets.values())
            object.__setattr__(self, "_count", count)
        return count

    @property
    def span(self) -> tuple[int, int]:
        """The lowest and the highest bucket of a histogram that has any."""
        return min(self.buckets), max(self.buckets)

    def merge(self, *others: Histogram) -> Histogram:
        """The histogram of all samples of this one and the others."""
        buckets = dict(self.items())
        for other in others:
            for bucket, count in other.items():
                buckets[bucket] = buckets.get(bucket, 0) + count
        return Histogram(buckets)

    def items(self) -> Iterable[tuple[int, int]]:
        """Each bucket number with its count."""
        return self.buckets.items()

    def percentile_us(self, percentile: float) -> float | None:
        """Nearest-rank percentile (0 < percentile <= 100) in microseconds, or None without samples.

        Raises ValueError for a percentile outside that range.
        """
        asked = self._percentile_us
        if asked is None or asked[0] != percentile:
            asked = percentile, self._find_us(percentile)
            object.__setattr__(self, "_percentile_us", asked)
        return asked[1]

    def falling(self) -> Iterable[tuple[int, int]]:
        """Each bucket number with its count, the highest first."""
        buckets = self.buckets
        return ((bucket, buckets[bucket]) for bucket in sorted(buckets, reverse=True))

    def _find_us(self, percentile: float) -> float | None:
        return _reached_us(self.falling(), percentile, self.count)


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """The ``merge`` of many histograms: by places in a list, in two thirds of the time."""
    some = [histogram for histogram in histograms if histogram.count]
    if not some:
        return Histogram()
    spans = [histogram.span for histogram in some]
    lowest, highest = min(first for first, _ in spans), max(last for _, last in spans)
    counts = [0] * (highest + 1)
    for histogram in some:
        for bucket, count in histogram.items():
            counts[bucket] += count
    return Histogram({bucket: count for bucket, count in enumerate(counts[lowest:], lowest) if count})


def joint_percentile_us(histograms: Collection[Histogram], percentile: float) -> float | None:
    """A percentile of the samples of several histograms together, as of their ``merge``, which is not made.

    Raises ValueError for a percentile outside (0, 100].
    """
    count = sum(histogram.count for histogram in histograms)
    return _reached_us(merge(*(histogram.falling() for histogram in histograms), reverse=True), percentile, count)


def _reached_us(falling: Iterable[tuple[int, int]], percentile: float, count: int) -> float | None:
    """Of so many samples: the percentiles that are asked for are near the end."""
    rank = rank_of(percentile, count)
    for bucket, of_bucket in falling:
        count -= of_bucket
        if count < rank:
            return bucket_value_us(bucket)
    return None
