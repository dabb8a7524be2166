"""How an application's response time depends on its load, from what was measured while it served: no load is made.

Steps of the history are put into bands of equal width by their rate. Each band has the median of its percentiles with
an interval in which the true median lies by a stated confidence whatever their distribution (order statistics;
Conover, "Practical Nonparametric Statistics", 3.2). More load is never quicker, so the curve through the medians is an
isotonic regression (``manager.control.knee``). Its knee is where it is furthest below its chord (Satopää et al.,
"Finding a 'Kneedle' in a Haystack", 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from manager.control.knee import fit
from manager.model.numbers import digits

BANDS = 10
LEAST_STEPS = 6
"""Of so few values the extremes enclose the median with 95 % confidence; a band of fewer joins the next one."""
CONFIDENCE = 0.95
VARIED = 1.25
"""The highest rate is so many times the lowest, or the load hardly varied."""
RISES = 1.5
"""The curve rises so many times, or it has no knee."""
MUCH_BATCH = 0.25
"""Share of the host's CPU time from which on batch VMs count as running."""


class AtRate(Protocol):
    """Anything that was measured at a rate of requests, in requests per second."""

    @property
    def rate_rps(self) -> float: ...


Rated = TypeVar("Rated", bound=AtRate)


@dataclass(frozen=True, slots=True)
class LoadStep:
    """A step of the history: req/s, the SLA's percentile, and the share of its host's CPU time that batch VMs used.

    ``batch_share`` None: not known.
    """

    rate_rps: float
    percentile_ms: float
    batch_share: float | None = None


@dataclass(frozen=True, slots=True)
class LoadBand:
    """Steps of about one rate. ``rate_rps`` and ``median_ms`` are medians, ``fitted_ms`` the curve there.

    ``least_ms`` and ``most_ms`` enclose the true median. ``violated_share``: of the steps, those above the SLA.
    """

    rate_rps: float
    steps: int
    least_ms: float
    median_ms: float
    most_ms: float
    fitted_ms: float
    violated_share: float


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """The bands by rate, and what follows from them; ``why`` says what does not, and why.

    Up to ``met_rps`` the SLA was met: in each band up to there the median is certainly below it. From ``violated_rps``
    on it was violated, likewise. Between them it is not known. ``knee_rps``: beyond it response times rise faster.
    """

    bands: tuple[LoadBand, ...] = ()
    met_rps: float | None = None
    violated_rps: float | None = None
    knee_rps: float | None = None
    why: str = ""


def load_curve(steps: Sequence[LoadStep], sla_ms: float | None) -> LoadCurve:
    """The curve through these steps, in any order. ``sla_ms`` None: there is no target to compare with."""
    if len(steps) < LEAST_STEPS:
        return LoadCurve(why=f"{len(steps)} steps with response times and a rate: {LEAST_STEPS} are needed")
    groups = banded(steps)
    medians = [median(step.percentile_ms for step in group) for group in groups]
    # The fit never rises with its key, so the keys run from much load to little.
    fitted = fit({-place: (medians[place], len(group)) for place, group in enumerate(groups)})
    bands = tuple(_band(group, medians[place], fitted[-place], sla_ms) for place, group in enumerate(groups))
    slowest, fastest = bands[0].rate_rps, bands[-1].rate_rps
    if len(bands) < 2 or fastest < VARIED * slowest:
        why = f"the load hardly varied: {digits(slowest)} to {digits(fastest)} req/s"
        return LoadCurve(bands, *_limits(bands, sla_ms), why=why)
    knee_rps = _knee_rps(bands)
    why = "" if knee_rps else f"no knee: response times hardly depend on the load up to {digits(fastest)} req/s"
    return LoadCurve(bands, *_limits(bands, sla_ms), knee_rps, why)


def by_batch(steps: Sequence[LoadStep]) -> dict[str, list[LoadStep]]:
    """The steps without batch VMs and with them, where both are known; those of which that is not known in neither."""
    known = [step for step in steps if step.batch_share is not None]
    without = [step for step in known if (step.batch_share or 0.0) < MUCH_BATCH]
    beside = [step for step in known if (step.batch_share or 0.0) >= MUCH_BATCH]
    return {"without": without, "beside": beside}


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """In which the median of a distribution lies of which these, in order, were drawn: by CONFIDENCE at least.

    Of fewer than LEAST_STEPS it is all of them, by less. The ranks are those of a binomial distribution of 1/2.
    """
    count, outside, rank = len(values), 0.0, 0
    while rank < count // 2:
        outside += chance_of(rank, count, 0.5)
        if 2 * outside > 1 - CONFIDENCE:
            break
        rank += 1
    place = max(rank - 1, 0)
    return values[place], values[count - 1 - place]


def chance_of(hits: int, count: int, share: float) -> float:
    """The probability of so many hits among ``count``, each of probability ``share``, 0 < share < 1 (binomial)."""
    ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
    return math.exp(ways + hits * math.log(share) + (count - hits) * math.log1p(-share))


def banded(steps: Sequence[Rated]) -> list[list[Rated]]:
    """By rate in BANDS of equal width; one of too few steps joins the one below, the first the one above.

    ``steps`` are at least one, in any order.
    """
    ordered = sorted(steps, key=lambda step: step.rate_rps)
    lowest, highest = ordered[0].rate_rps, ordered[-1].rate_rps
    width = (highest - lowest) / BANDS or 1.0
    bands: list[list[Rated]] = [[] for _ in range(BANDS)]
    for step in ordered:
        bands[min(int((step.rate_rps - lowest) / width), BANDS - 1)].append(step)
    merged: list[list[Rated]] = []
    for band in bands:
        if merged and (len(band) < LEAST_STEPS or len(merged[-1]) < LEAST_STEPS):
            merged[-1].extend(band)
        else:
            merged.append(list(band))
    return merged


def _band(group: Sequence[LoadStep], median_ms: float, fitted_ms: float, sla_ms: float | None) -> LoadBand:
    times_ms = sorted(step.percentile_ms for step in group)
    least_ms, most_ms = median_interval(times_ms)
    violated = sum(sla_ms is not None and time_ms > sla_ms for time_ms in times_ms)
    rate_rps = median(step.rate_rps for step in group)
    return LoadBand(rate_rps, len(group), least_ms, median_ms, most_ms, fitted_ms, violated / len(group))


def _limits(bands: Sequence[LoadBand], sla_ms: float | None) -> tuple[float | None, float | None]:
    """Up to which rate the SLA was certainly met, and from which on it was certainly violated."""
    if sla_ms is None:
        return None, None
    met_rps = None
    for band in bands:
        if band.most_ms > sla_ms:
            break
        met_rps = band.rate_rps
    violated_rps = None
    for band in reversed(bands):
        if band.least_ms <= sla_ms:
            break
        violated_rps = band.rate_rps
    return met_rps, violated_rps


def _knee_rps(bands: Sequence[LoadBand]) -> float | None:
    first, last = bands[0], bands[-1]
    rise_ms, span_rps = last.fitted_ms - first.fitted_ms, last.rate_rps - first.rate_rps
    if not rise_ms or last.fitted_ms < RISES * first.fitted_ms:
        return None
    below = [
        (band.rate_rps - first.rate_rps) / span_rps - (band.fitted_ms - first.fitted_ms) / rise_ms for band in bands
    ]
    furthest = max(below)
    return bands[below.index(furthest)].rate_rps if furthest > 0 else None
