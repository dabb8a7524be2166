"""Response times of one application over one interval, and what they mean for its SLA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic_core import core_schema

from manager.model.fields import CLOSED, WIRE, Buckets, EpochS, Name, Percentile, written_as
from manager.model.histogram import Histogram

MAX_COUNT = 10**12
"""Most response times, and most requests that were posted, in a window of one origin.

So those of all origins together, and a whole hour of them, are within what agents and readers of JSON take, which is
2**53 response times and 1e15 requests, and within a BIGINT.
"""

LONGEST_DELAY_S = 6 * 3600.0
"""After an outage of the managers an agent begins to deliver what waited no later than that, see ``manager.loop.pace``.
"""


class Burn(StrEnum):
    """How urgent the burn rate of an error budget is: ``fast``: look at once, ``slow``: today, ``none``: not at all."""

    FAST = "fast"
    SLOW = "slow"
    NONE = "none"


class SlaState(StrEnum):
    """State of an SLA. ``at_risk``: met, but by less than a tenth."""

    MET = "met"
    AT_RISK = "at_risk"
    VIOLATED = "violated"
    NO_DATA = "no_data"


@dataclass(frozen=True, slots=True)
class Ready:
    """A percentile that a source computed itself, in milliseconds: of no use for any other percentile."""

    percentile: Percentile
    percentile_ms: Annotated[float, Field(ge=0, le=1e9)]
    __pydantic_config__: ClassVar = CLOSED


def _buckets(histogram: Histogram) -> Mapping[int, int]:
    return histogram.buckets


BUCKETS = written_as(Buckets, Histogram, _buckets, core_schema.dict_schema())
"""How a histogram is exchanged."""


@dataclass(frozen=True)
class _OfApplication:
    __slots__ = ()  # the window has them
    application: Name


@dataclass(frozen=True, slots=True)
class AssignedWindow:
    """Response times that ended between ``start_s`` and ``end_s`` (seconds since the epoch).

    ``requests`` is the number of requests that were served in that time: probes measure response times without seeing
    the requests of others, so it need not be the histogram's count. ``ready`` stands in place of a histogram where the
    only source answers percentiles.
    """

    start_s: Annotated[EpochS, Field(alias="start")]
    end_s: Annotated[EpochS, Field(alias="end")]
    histogram: Annotated[Histogram, BUCKETS, Field(alias="buckets")]
    requests: Annotated[Annotated[float, Field(ge=0, le=1e15)] | None, Field(description="null: unknown")] = None
    ready: Ready | None = None
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class Window(AssignedWindow, _OfApplication):
    """Response times of one application in one interval."""

    @property
    def rate_rps(self) -> float | None:
        """Requests per second, None where unknown; 0 for a window without length."""
        return rate_rps(self.requests, self.end_s - self.start_s)

    def percentile_ms(self, percentile: float) -> float | None:
        """A percentile in milliseconds, or None without samples, or where only another percentile is known."""
        if self.ready is not None:
            return self.ready.percentile_ms if self.ready.percentile == percentile else None
        time_us = self.histogram.percentile_us(percentile)
        return None if time_us is None else time_us / 1000

    def has_samples(self, at_least: int) -> bool:
        """Whether it holds enough response times for its percentile to be believed; a ready one is taken as it is."""
        return self.ready is not None or self.histogram.count >= max(at_least, 1)

    def age_s(self, now_s: float) -> float:
        """Seconds since the window ended, never negative."""
        return max(0.0, now_s - self.end_s)


def rate_rps(requests: float | None, length_s: float) -> float | None:
    """Requests per second of so many in a time, None where unknown; 0 for no time."""
    if requests is None:
        return None
    return requests / length_s if length_s > 0 else 0.0


def merge(windows: Iterable[Window]) -> Window:
    """One window of all samples of at least one window of the same application.

    Of ready percentiles the latest counts: they cannot be merged. Raises ValueError without windows.
    """
    parts = list(windows)
    if not parts:
        raise ValueError("no windows to merge")
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=lambda window: (window.end_s, window.start_s))
    known = [part.requests for part in parts if part.requests is not None]
    ready = [part.ready for part in parts if part.ready is not None]
    return Window(
        parts[0].application,
        min(part.start_s for part in parts),
        parts[-1].end_s,
        parts[0].histogram.merge(*(part.histogram for part in parts[1:])),
        sum(known) if known else None,
        ready[-1] if ready else None,
    )
