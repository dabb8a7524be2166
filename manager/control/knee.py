"""How a response time depends on the cache ways that an application has: a curve that never rises, and its knee.

The curve is the isotonic regression of the medians of each allocation (pool adjacent violators; Barlow, Bartholomew,
Bremner, Brunk, "Statistical inference under order restrictions", 1972): more ways never hurt, so where a median is
above that of fewer ways this is noise, and both become their mean. If each median is off by at most x, so is the curve.

Whether there is a dependence at all shows the test of Mann and Whitney ("On a test of whether one of two random
variables is stochastically larger than the other", 1947) between the allocations up to each number of ways and those
above: over all pairs of response times, how often is that with more ways the shorter? Outliers count like any other,
and it sees a cliff as well as a slope. As one of several splits may do it, each has to by more (Bonferroni).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from manager.model.numbers import digits

BOUNDS: dict[str, tuple[float, float]] = {"share": (0, 0.5), "least_effect": (0, 1), "chance": (1e-6, 0.5)}
"""Least and largest value of each setting."""


@dataclass(frozen=True, slots=True)
class KneeRules:
    """``share``: beyond the knee more ways bring at most this part of what the whole range brings. ``least_effect``:
    the range brings at least this part of the response time with the fewest ways, or there is no dependence.
    ``chance``: at most this probability that noise alone passes for a dependence.
    """

    share: float = 0.1
    least_effect: float = 0.05
    chance: float = 0.01


DEFAULT_RULES = KneeRules()


@dataclass(frozen=True, slots=True)
class Curve:
    """``fitted_ms``: the response time by ways, never rising. ``gain_ms``: what the most ways bring over the fewest.

    ``knee``: the fewest ways from which on more bring next to nothing; None where the response time does not depend on
    them, or that is not known. ``why`` says it in words.
    """

    fitted_ms: Mapping[int, float]
    gain_ms: float
    knee: int | None
    why: str


def curve_of(times_ms: Mapping[int, Sequence[float]], rules: KneeRules = DEFAULT_RULES) -> Curve:
    """The curve of response times, each that of one window, by ways; ways without any are left out."""
    measured = {ways: times_ms[ways] for ways in sorted(times_ms) if times_ms[ways]}
    fitted = fit({ways: (median(times), len(times)) for ways, times in measured.items()})
    if len(measured) < 2:
        return Curve(fitted, 0.0, None, "nothing to compare: response times are known of fewer than two allocations")
    least, most = min(measured), max(measured)
    gain_ms = fitted[least] - fitted[most]
    z, largest_z = separation(list(measured.values()))
    least_z = NormalDist().inv_cdf(1 - rules.chance / (len(measured) - 1))
    if largest_z < least_z:
        return Curve(fitted, gain_ms, None, "too few windows to tell an effect from noise: measure for longer")
    range_text = f"{most} ways in place of {least} bring {digits(gain_ms)} ms of {digits(fitted[least])} ms"
    if z < least_z or gain_ms <= rules.least_effect * fitted[least]:
        noise = ", no more than noise does" if z < least_z else ""
        return Curve(fitted, gain_ms, None, f"the response time does not depend on the ways: {range_text}{noise}")
    knee = min(ways for ways in measured if fitted[ways] - fitted[most] <= rules.share * gain_ms)
    rest_ms = fitted[knee] - fitted[most]
    beyond = f"more bring {digits(rest_ms)} ms" if knee < most else "it is the most that was tried, more may bring more"
    return Curve(fitted, gain_ms, knee, f"{knee} ways: {range_text}; {beyond}")


def fit(medians: Mapping[int, tuple[float, int]]) -> dict[int, float]:
    """Pool adjacent violators: ``medians`` and the weight of each by ways; what comes of it never rises with these."""
    pools: list[tuple[float, int, list[int]]] = []
    for ways in sorted(medians):
        value, weight = medians[ways]
        pool = value, weight, [ways]
        while pools and pools[-1][0] <= pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            mean = before[0] + (pool[0] - before[0]) * pool[1] / total
            pool = mean, total, before[2] + pool[2]
        pools.append(pool)
    return {ways: value for value, _, members in pools for ways in members}


def separation(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mann and Whitney's count for groups that are to fall, in standard deviations above chance: of the split where it
    is the most so, and the most that so many values could come to. Ties count half.
    """
    ordered = sorted(value for group in groups for value in group)
    total, before, rank_sum = len(ordered), 0, 0.0
    splits: list[tuple[float, float]] = []
    for group in groups[:-1]:
        before += len(group)
        rank_sum += sum((bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in group)
        pairs = before * (total - before)
        deviation = math.sqrt(pairs * (total + 1) / 12)
        longer = rank_sum - before * (before + 1) / 2
        splits.append(((longer - pairs / 2) / deviation, pairs / 2 / deviation))
    return max((z for z, _ in splits), default=0.0), max((most for _, most in splits), default=0.0)
