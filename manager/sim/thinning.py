"""A busy host in a fraction of the time: fewer requests, each of which takes as much longer.

Where requests come ``factor`` times as rarely, and all that takes milliseconds takes ``factor`` times as long (CPU
times, what passes outside, slices and ticks of the scheduler, periods of batch VMs and of limits, targets), queues,
shares of pCPUs and waits relative to them stay as they are: only the unit of time differs. What takes minutes, the load
and what a policy does about it, keeps its pace. So an interval shows a sample of what passes in it, a ``factor``-th,
and response times over ``factor`` are those of the host.

That holds while queues empty many times in an interval. Where they grow instead, they do so at the pace of the load,
and the time by which all requests of an interval are late is the host's own: see ``as_passed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from manager.model.histogram import Histogram, bucket_of, bucket_value_us
from manager.model.registration import Sla
from manager.sim.scenario import AppSpec, BatchSpec, Constant, Noise, Ramp, Scenario, Scheduler, Segment, Sine, TierSpec

_FASTEST = 1.0
"""The percentile of an interval's response times that tells by how much all of its requests were late."""
_LATE, _LATE_PART = 4.0, 0.02
"""An interval is late as a whole where its fastest take this many times those of the fastest interval, and this part of
the interval's length."""


def thinned(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with one of ``factor`` requests, each of which takes ``factor`` times as long.

    Timeouts stay: requests wait so long for them only where a queue grows. Raises ValueError below 1.
    """
    if factor < 1:
        raise ValueError(f"factor {factor:g} is below 1")
    if factor == 1:
        return scenario
    return replace(
        scenario,
        applications=tuple(_application(app, factor) for app in scenario.applications),
        batch=tuple(_batch(group, factor) for group in scenario.batch),
        noise=_noise(scenario.noise, factor) if scenario.noise else None,
        scheduler=_scheduler(scenario.scheduler, factor),
    )


def as_passed(slots: Sequence[Mapping[int, int]], factor: float, interval_s: float) -> tuple[Mapping[int, int], ...]:
    """Response times by bucket, of each interval of a thinned run, as they would have passed on the host.

    All are ``factor`` times as fast, but for the time by which an interval is late as a whole.
    """
    if factor == 1:
        return tuple(slots)
    late = lateness_us(slots, interval_s)
    return tuple(_quicker(slot, factor, late_us) for slot, late_us in zip(slots, late, strict=True))


def lateness_us(slots: Sequence[Mapping[int, int]], interval_s: float) -> tuple[float, ...]:
    """By how many microseconds each interval is late as a whole; 0 for those that are not.

    Between a queue that grows and one that is long by chance only time tells: then the truth is in between.
    """
    fastest_us = [Histogram(slot).percentile_us(_FASTEST) or 0.0 for slot in slots]
    least_us = max(_LATE * min(filter(None, fastest_us), default=0.0), _LATE_PART * interval_s * 1e6)
    return tuple(own_us if own_us > least_us else 0.0 for own_us in fastest_us)


def _quicker(slot: Mapping[int, int], factor: float, late_us: float) -> Mapping[int, int]:
    counts: dict[int, int] = {}
    for bucket, count in slot.items():
        time_us = bucket_value_us(bucket)
        own = bucket_of(late_us + (time_us - late_us) / factor if time_us > late_us else time_us)
        counts[own] = counts.get(own, 0) + count
    return counts


def _application(app: AppSpec, factor: float) -> AppSpec:
    return replace(
        app,
        sla=_sla(app.sla, factor),
        tiers=tuple(_tier(tier, factor) for tier in app.tiers),
        load=tuple(_segment(segment, factor) for segment in app.load),
        outside_ms=app.outside_ms * factor,
    )


def _sla(sla: Sla, factor: float) -> Sla:
    rate_rps = None if sla.max_rate_rps is None else sla.max_rate_rps / factor
    return replace(sla, response_time_ms=sla.response_time_ms * factor, max_rate_rps=rate_rps)


def _tier(tier: TierSpec, factor: float) -> TierSpec:
    return replace(tier, service=replace(tier.service, mean_ms=tier.service.mean_ms * factor))


def _segment(segment: Segment, factor: float) -> Segment:
    rate_rps = segment.rate_rps / factor
    if isinstance(segment, Constant):
        return replace(segment, rate_rps=rate_rps)
    if isinstance(segment, Ramp):
        return replace(segment, rate_rps=rate_rps, to_rps=segment.to_rps / factor)
    return Sine(rate_rps, segment.swing_rps / factor, segment.period_s, segment.for_s)


def _batch(group: BatchSpec, factor: float) -> BatchSpec:
    on_ms = None if group.on_ms is None else group.on_ms * factor
    return replace(group, on_ms=on_ms, off_ms=group.off_ms * factor, period_ms=group.period_ms * factor)


def _noise(noise: Noise, factor: float) -> Noise:
    return Noise(noise.share, noise.on_ms * factor, noise.off_ms * factor)


def _scheduler(scheduler: Scheduler, factor: float) -> Scheduler:
    return Scheduler(
        scheduler.slice_ms * factor,
        scheduler.tick_ms * factor,
        scheduler.balance_ms * factor,
        scheduler.quota_ms * factor,
    )
