"""The settings of the feedback law, each named and bounded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Law:
    """How response times become weights; the defaults are shown to be good in docs/how-to/simulator.md.

    ``published``: the law exactly as printed (design, section 4), without any of the following but the batch floor.
    ``min_samples``: response times that a percentile needs; windows are merged until there are as many.
    ``max_age_s``: windows that ended earlier are stale: weights are held, after ``hold_s`` they fall back to
    `priority`. ``gain``: exponent on RT / RT_SLA, which counts as at least 1 / ``largest_miss``, and above
    ``largest_miss`` for less and less again, since more weight does not save who misses by so much.
    ``demand_exponent``: that on C, below 1 for the benefit of small applications. ``smoothing``: weight of the newest
    value in the moving averages. ``dead_band``: relative changes of a weight below it are not made. ``max_step``:
    largest factor by which a weight changes in one interval. ``idle_hold_s``: an application without requests keeps
    its weight that long, then it decays by half in each ``idle_half_life_s``. ``batch_floor``: share of the host's CPU
    that batch VMs get at least, averaged over ``floor_window_s``. ``over_rate_s``: the time over which the rate is
    judged; `isolation` acts when it is above max_rate_rps, until it is below (1 - ``over_rate_margin``) of that.
    """

    published: bool = False
    min_samples: int = 50
    max_age_s: float = 30.0
    hold_s: float = 30.0
    gain: float = 2.0
    largest_miss: float = 3.0
    demand_exponent: float = 0.5
    smoothing: float = 0.2
    dead_band: float = 0.25
    max_step: float = 2.0
    idle_hold_s: float = 60.0
    idle_half_life_s: float = 30.0
    batch_floor: float = 0.01
    floor_window_s: float = 60.0
    over_rate_s: float = 10.0
    over_rate_margin: float = 0.1


DEFAULT_LAW = Law()

BOUNDS: dict[str, tuple[float, float]] = {
    "min_samples": (1, 100_000),
    "max_age_s": (1, 3600),
    "hold_s": (0, 3600),
    "gain": (0.05, 5),
    "largest_miss": (1.1, 1000),
    "demand_exponent": (0, 1),
    "smoothing": (0.01, 1),
    "dead_band": (0, 1),
    "max_step": (1.01, 1000),
    "idle_hold_s": (0, 86_400),
    "idle_half_life_s": (0.1, 86_400),
    "batch_floor": (0, 0.5),
    "floor_window_s": (1, 3600),
    "over_rate_s": (0, 3600),
    "over_rate_margin": (0, 0.9),
}
"""Least and largest value of each number."""
