"""How much of a recording a twin simulates: all of it, or of a busy host one of several requests."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from manager.errors import TwinRefused
from manager.model.numbers import digits
from manager.sim.scenario import BatchSpec
from manager.sim.twin_observation import HostObservation, least_s, part
from manager.sim.twin_scenario import ALWAYS

LEAST_ANSWERS = 40
"""An interval of a thinned run has so many response times of each application, on average."""
LONGEST, LONGEST_PERIOD = 0.25, 0.5
"""What is thinned takes this part of an interval at most: response times while queues are short, periods of VMs.

Short they are in the calmest quarter of the intervals, whose 99th percentile counts.
"""
_SLOWEST, _CALMEST = 99.0, 0.25
_EVEN = 1.05
"""A run may have so many times as many requests as are asked for, rather than less of the time."""


class Effort(NamedTuple):
    """How much is simulated: ``requests`` in a run of the fit, about, and ``seeds`` of each run of the whole time.

    ``most``: requests in a run of the whole time; where more came, one of several is simulated.
    """

    requests: float = 30_000.0
    seeds: int = 5
    most: float = 1_000_000.0


USUAL_EFFORT = Effort()


def thinned_to(observed: HostObservation, most: float) -> tuple[HostObservation, float]:
    """The latest part of what was observed that can be simulated, and which part of its requests: one of how many.

    All of it, where at most ``most`` requests came, or response times are so short, and so many, that one of several
    tells as much. Raises TwinRefused where too little of the time is left.
    """
    came = _requests(observed)
    largest = max(min(_bounds(observed), default=1.0), 1.0)
    if came <= most * largest:
        return observed, max(came / most, 1.0)
    kept_s = (observed.end_s - observed.start_s) * most * largest / came
    needed_s = least_s(observed.assignment.slot_s)
    latest = part(observed, observed.end_s - max(kept_s, needed_s), observed.end_s)
    came = _requests(latest)
    if came > _EVEN * most * largest:
        raise TwinRefused(
            f"more requests came than can be simulated here, {came:.0f} in {latest.end_s - latest.start_s:.0f} s, and"
            f" no fewer than one of {digits(largest)} tells as much: use `equipoise record` and `equipoise replay`"
        )
    return latest, max(came / most, 1.0)


def _requests(observed: HostObservation) -> float:
    return sum(max(window.requests or 0.0, window.histogram.count) for window in observed.windows)


def _bounds(observed: HostObservation) -> Iterator[float]:
    """One of how many requests suffices, by each thing that is simulated."""
    slot_s = observed.assignment.slot_s
    for application in observed.assignment.applications:
        times = [window.histogram for window in observed.windows_of(application.name) if window.histogram.count]
        if not times:
            continue
        slowest_us = sorted(histogram.percentile_us(_SLOWEST) or 0.0 for histogram in times)
        yield fmean(histogram.count for histogram in times) / LEAST_ANSWERS
        yield LONGEST * slot_s * 1e6 / slowest_us[int(_CALMEST * len(times))]
    serving = {vm for application in observed.assignment.applications for tier in application.tiers for vm in tier.vms}
    if any(vm.uses and vm.wanted < ALWAYS * vm.vcpus for vm in observed.vms if vm.spec.name not in serving):
        yield LONGEST_PERIOD * slot_s / (BatchSpec("any").period_ms / 1000)
