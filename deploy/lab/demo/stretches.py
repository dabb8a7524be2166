"""The load generators' intervals as response times of stretches of time, for tables and pictures over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manager.model.histogram import Histogram


def stretches(pushed: Sequence[Mapping[str, Any]], began_s: float, length_s: float, count: int) -> list[Histogram]:
    """The response times of ``count`` stretches of ``length_s`` seconds from ``began_s`` (seconds since the epoch).

    ``pushed`` are a load generator's intervals; one belongs where its middle is.
    """
    parts = [Histogram()] * count
    for interval in pushed:
        middle_s = (interval["start_epoch_s"] + interval["end_epoch_s"]) / 2
        place = int((middle_s - began_s) // length_s)
        if 0 <= place < count:
            parts[place] = parts[place].merge(Histogram({int(k): v for k, v in interval["buckets"].items()}))
    return parts


def p95_ms(histogram: Histogram) -> float | None:
    """In milliseconds; None without response times."""
    time_us = histogram.percentile_us(95)
    return None if time_us is None else round(time_us / 1000, 3)
