"""Fits what a recording does not show directly: how service times vary, what passes outside VMs, wake-up delays.

A parameter is found by simulating the recorded time and comparing: the spread of an application's response times grows
with the variation of its service times, and the waiting of critical vCPUs with the scheduler's delays, so both are
found by bisection; that of all applications at once, in the same runs. Arrivals and service times of all runs come from
the same random numbers, so the answer is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log, sqrt
from statistics import fmean

from manager.model.histogram import Histogram, bucket_value_us
from manager.sim.arrival_rates import arrival_steps
from manager.sim.scenario import Shape
from manager.sim.twin_observation import HostObservation, part
from manager.sim.twin_play import Played, TwinJob, play
from manager.sim.twin_scenario import LEAST_ANSWERS, Fitted, FittedApp, refusals, service_ms, twin_scenario

LARGEST_CV = 3.0
"""Beyond it the spread that is compared no longer grows with the variation."""
LARGEST_WAKEUP = 8.0
ROUNDS = 7
WAKEUP_ROUNDS = 5
_NEAR = 0.2
"""A simulated wait within this part of the recorded one needs no other scheduler."""
_LEAST_WAIT = 0.002
_LEAST_OUTSIDE = 0.05
"""A part of the mean response time; less than this is not told from chance."""
_EXPONENTIAL_CVS = (0.7, 1.5)
_ALIKE = 0.1
_COMPARED = (25.0, 50.0, 75.0, 90.0, 95.0, 99.0)


def fit(
    observed: HostObservation,
    requests: float,
    thinning: float = 1.0,
    seed: int = 1,
    on_round: Callable[[], None] = lambda: None,
) -> Fitted:
    """Parameters from a part of what was observed, of which about so many ``requests`` are simulated, at most.

    That is one of ``thinning`` of those that came. ``on_round`` is called ROUNDS + WAKEUP_ROUNDS + 2 times at most.
    """
    chosen = _affordable(observed, requests * thinning)
    services = _services(observed, chosen)
    names = list(services)
    calm = {name: _calm(chosen, name, LEAST_ANSWERS * thinning) for name in names}
    recorded = {name: _recorded(chosen, name, calm[name]) for name in names}

    def run(fitted: Fitted) -> Played:
        scenario = twin_scenario(chosen, fitted, "fit", services)
        on_round()
        return play(TwinJob(scenario, chosen.policy, chosen.interval_s, seed, thinning))

    fitted = _fit_wakeup(chosen, Fitted(dict.fromkeys(names, FittedApp())), run)
    fitted = _fit_spread(fitted, recorded, calm, run)
    return _fit_shape(fitted, recorded, calm, run)


def _affordable(observed: HostObservation, requests: float) -> HostObservation:
    """The part of what was observed, in one piece, in which about so many requests came and critical VMs used least.

    All of it, where an application had too few requests in that.
    """
    total = sum(window.requests or 0.0 for window in observed.windows)
    length_s = observed.end_s - observed.start_s
    if total <= requests:
        return observed
    slot_s = observed.assignment.slot_s
    slots = round(length_s / slot_s)
    wide = max(round(slots * requests / total), 1)
    used = [0.0] * (slots + 1)
    for vm in observed.vms:
        for use in vm.uses if vm.critical else ():
            used[min(int((use.end_s - observed.start_s) / observed.assignment.slot_s), slots)] += (
                use.used * use.length_s
            )
    first = min(range(slots - wide + 1), key=lambda place: sum(used[place : place + wide]))
    start_s = observed.start_s + first * slot_s
    chosen = part(observed, start_s, start_s + wide * slot_s)
    return chosen if refusals(chosen).keys() == refusals(observed).keys() else observed


def _services(observed: HostObservation, chosen: HostObservation) -> dict[str, Sequence[float]]:
    """CPU times by application from all that was observed, of those that can be simulated in what was chosen."""
    simulated = {app.name for app in twin_scenario(chosen, Fitted(), "fit").applications}
    applications = [one for one in observed.assignment.applications if one.name in simulated]
    return {application.name: service_ms(observed, application) for application in applications}


def _calm(observed: HostObservation, application: str, least: float) -> list[tuple[float, float]]:
    """The times, after the beginning, of its lowest rates: ``least`` requests, and what is hardly higher."""
    steps = arrival_steps(observed.windows_of(application), observed.start_s, observed.end_s)
    limit_rps = requests = 0.0
    for step in sorted(steps, key=lambda step: step.rate_rps):
        if requests >= least:
            break
        limit_rps, requests = step.rate_rps, requests + step.rate_rps * (step.end_s - step.start_s)
    begin_s = observed.start_s
    return [
        (step.start_s - begin_s, step.end_s - begin_s) for step in steps if step.rate_rps <= limit_rps * (1 + _ALIKE)
    ]


def _recorded(observed: HostObservation, application: str, calm: Sequence[tuple[float, float]]) -> Histogram:
    inside = [
        window.histogram
        for window in observed.windows_of(application)
        if any(from_s <= (window.start_s + window.end_s) / 2 - observed.start_s < to_s for from_s, to_s in calm)
    ]
    return Histogram().merge(*inside)


def _played(run: Played, application: str, calm: Sequence[tuple[float, float]]) -> Histogram:
    return Histogram().merge(*(run.between(application, from_s, to_s) for from_s, to_s in calm))


def _fit_wakeup(observed: HostObservation, fitted: Fitted, run: Callable[[Fitted], Played]) -> Fitted:
    """Scale the scheduler's delays until critical vCPUs wait as long as recorded, where that depends on them."""
    if not observed.capabilities.schedstat:
        return fitted
    recorded = sum(use.waited * use.length_s for vm in observed.vms if vm.critical for use in vm.uses) / max(
        observed.seen_s, observed.interval_s
    )
    usual = run(fitted).waited
    if max(recorded, usual) < _LEAST_WAIT or abs(usual - recorded) <= _NEAR * recorded:
        return fitted
    low, high = (1.0, LARGEST_WAKEUP) if usual < recorded else (0.0, 1.0)
    best, error = 1.0, abs(usual - recorded)
    for _ in range(WAKEUP_ROUNDS):
        middle = sqrt(low * high) if low else high / 2
        waited = run(replace(fitted, wakeup=middle)).waited
        if abs(waited - recorded) < error:
            best, error = middle, abs(waited - recorded)
        low, high = (middle, high) if waited < recorded else (low, middle)
    return replace(fitted, wakeup=round(best, 4)) if error <= abs(usual - recorded) / 2 else fitted


def _fit_spread(
    fitted: Fitted,
    recorded: Mapping[str, Histogram],
    calm: Mapping[str, Sequence[tuple[float, float]]],
    run: Callable[[Fitted], Played],
) -> Fitted:
    ranges = {name: (0.0, sqrt(LARGEST_CV)) for name in recorded}
    for _ in range(ROUNDS):
        cvs = {name: ((low + high) / 2) ** 2 for name, (low, high) in ranges.items()}
        fitted = replace(fitted, apps={name: FittedApp(cv=round(cv, 4)) for name, cv in cvs.items()})
        played = run(fitted)
        for name, (low, high) in ranges.items():
            too_little = spread_ms(_played(played, name, calm[name])) < spread_ms(recorded[name])
            middle = (low + high) / 2
            ranges[name] = (middle, high) if too_little else (low, middle)
    return fitted


def _fit_shape(
    fitted: Fitted,
    recorded: Mapping[str, Histogram],
    calm: Mapping[str, Sequence[tuple[float, float]]],
    run: Callable[[Fitted], Played],
) -> Fitted:
    """Exponential where that is as good as a lognormal; and what passes outside the VMs."""
    low, high = _EXPONENTIAL_CVS
    exponential = {
        name: replace(app, shape=Shape.EXPONENTIAL, cv=1.0) if low <= app.cv <= high else app
        for name, app in fitted.apps.items()
    }
    candidates = [fitted.apps, exponential] if exponential != fitted.apps else [fitted.apps]
    runs = [run(replace(fitted, apps=apps)) for apps in candidates]
    chosen: dict[str, FittedApp] = {}
    for name, histogram in recorded.items():
        rated = []
        for apps, played in zip(candidates, runs, strict=True):
            own = _played(played, name, calm[name])
            outside_ms = _outside_ms(histogram, own)
            rated.append((_distance(histogram, own, outside_ms), replace(apps[name], outside_ms=round(outside_ms, 4))))
        chosen[name] = min(rated, key=lambda pair: pair[0])[1]
    return replace(fitted, apps=chosen)


def _outside_ms(recorded: Histogram, played: Histogram) -> float:
    """By how much responses took longer on average, as far as the fastest can have taken that much longer, too."""
    missing_ms = mean_ms(recorded) - mean_ms(played)
    if missing_ms <= _LEAST_OUTSIDE * mean_ms(recorded):
        return 0.0
    fastest_us = [histogram.percentile_us(1) or 0.0 for histogram in (recorded, played)]
    return max(min(missing_ms, (fastest_us[0] - fastest_us[1]) / 1000), 0.0)


def spread_ms(histogram: Histogram) -> float:
    """From the quarter of the fastest to the 95th percentile: what is added to all response times does not count."""
    high_us, low_us = histogram.percentile_us(95), histogram.percentile_us(25)
    return 0.0 if high_us is None or low_us is None else (high_us - low_us) / 1000


def mean_ms(histogram: Histogram) -> float:
    """Mean response time; 0 without any."""
    total_us = sum(count * bucket_value_us(bucket) for bucket, count in histogram.buckets.items())
    return total_us / histogram.count / 1000 if histogram.count else 0.0


def _distance(recorded: Histogram, played: Histogram, outside_ms: float) -> float:
    """Root mean square of the logarithms of the quotients of percentiles."""
    errors = []
    for percentile in _COMPARED:
        own, other = recorded.percentile_us(percentile), played.percentile_us(percentile)
        if own and other:
            errors.append(log((other + outside_ms * 1000) / own) ** 2)
    return sqrt(fmean(errors)) if errors else 0.0
