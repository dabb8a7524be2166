"""The settings of the feedback law, each named and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import CLOSED


@dataclass(frozen=True, slots=True)
class Law:
    """How response times become weights; the defaults are shown to be good in docs/internals/simulator.md.

    ``published`` is the law of docs/concepts/policies.md as it was printed. Weights fall back to `priority`
    ``hold_s`` after windows are stale. RT / RT_SLA counts as at most ``largest_miss``; with ``fold_misses`` it counts
    for less and less above. Weight is taken from applications that meet their SLAs only where that is predicted to save
    the other, with ``help_trust`` times the room measured, and is found to after ``help_intervals``; else not for
    ``help_cool_down_s``, and each time for twice as long. `isolation` acts while the rate is above max_rate_rps, until
    it is below (1 - ``over_rate_margin``) of that.
    """

    published: Annotated[bool, Field(description="exactly as printed: nothing of the following but batch_floor")] = (
        False
    )
    min_samples: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="response times a percentile needs; windows are merged until there are as many",
        ),
    ] = 50
    max_age_s: Annotated[
        float, Field(ge=1, le=3_600, description="age at which windows are stale and weights are held")
    ] = 30.0
    hold_s: Annotated[
        float, Field(ge=0, le=3_600, description="how long they are held before they fall back to priority")
    ] = 30.0
    gain: Annotated[float, Field(ge=0.05, le=5, description="exponent on response time / target")] = 2.0
    largest_miss: Annotated[
        float,
        Field(
            ge=1.1,
            le=1_000,
            description="that quotient counts as at most this and at least its inverse",
        ),
    ] = 3.0
    fold_misses: Annotated[
        bool, Field(description="above largest_miss it counts for less and less again, down to the inverse")
    ] = False
    help_trust: Annotated[
        float,
        Field(
            ge=0,
            le=1_000,
            description="what others need may be so many times what those at ease can give",
        ),
    ] = 1.0
    help_margin: Annotated[
        float,
        Field(ge=0, le=0.9, description="how far below its SLA a response time must be for its application to give"),
    ] = 0.2
    help_intervals: Annotated[
        int,
        Field(ge=1, le=1_000, description="intervals after which it is judged whether weight taken from others helped"),
    ] = 6
    help_cool_down_s: Annotated[
        float, Field(ge=0, le=86_400, description="how long none is taken again where it did not; doubles each time")
    ] = 120.0
    demand_exponent: Annotated[float, Field(ge=0, le=1, description="exponent on the CPU used")] = 0.5
    smoothing: Annotated[float, Field(ge=0.01, le=1, description="weight of the newest value in moving averages")] = 0.2
    dead_band: Annotated[float, Field(ge=0, le=1, description="relative changes of a weight below it are not made")] = (
        0.25
    )
    max_step: Annotated[
        float, Field(ge=1.01, le=1_000, description="largest factor by which a weight changes in an interval")
    ] = 2.0
    idle_hold_s: Annotated[
        float, Field(ge=0, le=86_400, description="how long an application without requests keeps its weight")
    ] = 60.0
    idle_half_life_s: Annotated[
        float, Field(ge=0.1, le=86_400, description="time in which that weight then halves")
    ] = 30.0
    batch_floor: Annotated[
        float, Field(ge=0, le=0.5, description="share of the host's CPU that batch VMs get at least")
    ] = 0.01
    floor_window_s: Annotated[float, Field(ge=1, le=3_600, description="time over which that share is averaged")] = 60.0
    over_rate_s: Annotated[float, Field(ge=0, le=3_600, description="time over which the rate is judged")] = 10.0
    over_rate_margin: Annotated[
        float, Field(ge=0, le=0.9, description="how far below it a rate must be, to count as below")
    ] = 0.1
    __pydantic_config__: ClassVar = CLOSED


DEFAULT_LAW = Law()
