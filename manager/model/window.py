"""Response times of one application over one interval, and what they mean for its SLA."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from manager.model.histogram import Histogram


class SlaState(StrEnum):
    """State of an SLA. ``at_risk``: met, but by less than a tenth."""

    MET = "met"
    AT_RISK = "at_risk"
    MISSED = "missed"
    NO_DATA = "no_data"


@dataclass(frozen=True, slots=True)
class Window:
    """Response times that ended between ``start_s`` and ``end_s`` (seconds since the epoch)."""

    application: str
    start_s: float
    end_s: float
    histogram: Histogram

    @property
    def rate_rps(self) -> float:
        """Requests per second; 0 for a window without length."""
        length_s = self.end_s - self.start_s
        return self.histogram.count / length_s if length_s > 0 else 0.0

    def percentile_ms(self, percentile: float) -> float | None:
        """A percentile in milliseconds, or None without samples."""
        time_us = self.histogram.percentile_us(percentile)
        return None if time_us is None else time_us / 1000

    def age_s(self, now_s: float) -> float:
        """Seconds since the window ended, never negative."""
        return max(0.0, now_s - self.end_s)
