"""The error budget of an SLA, and how fast it burns.

An SLA is to hold in a share of intervals, the *attainment target*; the rest, 1 - target, is the error budget. The *burn
rate* is the share of violated intervals divided by it: at 1 the budget lasts exactly for its period. A rate is believed
where a short window confirms a long one (Beyer et al., "The Site Reliability Workbook", 2018, chapter 5, "Multiwindow,
multi-burn-rate alerts").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manager.model.window import Burn

PERIOD_S = 30 * 86_400.0
"""The time for which a budget is."""


@dataclass(frozen=True, slots=True)
class BurnRule:
    """Burning above ``rate`` over ``long_s`` and over ``short_s`` (seconds) is as urgent as ``burn``."""

    burn: Burn
    long_s: float
    short_s: float
    rate: float


BURN_RULES = (
    BurnRule(Burn.FAST, 3600.0, 300.0, 14.4),  # 2 % of the budget in an hour
    BurnRule(Burn.SLOW, 6 * 3600.0, 1800.0, 6.0),  # 5 % in six hours
)
WINDOWS_S = tuple(sorted({PERIOD_S, *(length for rule in BURN_RULES for length in (rule.long_s, rule.short_s))}))
"""All lengths over which intervals are counted, the shortest first."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Intervals with enough response times, and those of them that violated the SLA."""

    intervals: int = 0
    violated: int = 0

    def __add__(self, other: Judged) -> Judged:
        return Judged(self.intervals + other.intervals, self.violated + other.violated)

    @property
    def attainment(self) -> float | None:
        """The share of intervals in which the SLA held; None where none was judged."""
        return 1 - self.violated / self.intervals if self.intervals else None

    def burn_rate(self, target: float) -> float | None:
        """The share of violated intervals by what ``target``, below 1, allows; None where none was judged."""
        return self.violated / self.intervals / (1 - target) if self.intervals else None

    def budget_remaining(self, target: float) -> float | None:
        """The share of the error budget that is left, below 0 where more than it was used; None as above."""
        rate = self.burn_rate(target)
        return None if rate is None else 1 - rate


def burning(windows: Mapping[float, Judged], target: float) -> Burn:
    """How urgent it is, from intervals by length of the window that ends now (``WINDOWS_S``)."""

    def above(length_s: float, rate: float) -> bool:
        return (windows[length_s].burn_rate(target) or 0.0) > rate

    matching = (rule.burn for rule in BURN_RULES if above(rule.long_s, rule.rate) and above(rule.short_s, rule.rate))
    return next(matching, Burn.NONE)
