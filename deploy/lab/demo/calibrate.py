"""Finds a spike that static weights do not stand, and the SLA that it breaks, from measured response times. Pure.

Static weights do not depend on the SLA, so a run under them shows what an SLA may be for all runs of the same load.
What the pCPU serves does not tell that: how long requests wait in a spike differs by machine, and by the hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SPIKES = (2.0, 2.35, 2.75, 3.2)
"""How many times its load the spiking application gets, one after the other until static weights break an SLA. The last
is more than the pCPU serves as it was measured: other load makes that too little."""
MARGIN = 1.25
"""By what the p95 of the spiking application is at least above the SLA: static weights miss it by more than noise."""
CALM_HEADROOM, NEIGHBOUR_HEADROOM = 1.5, 1.1
"""How many times the SLA is at least what was measured: of both applications before the spike, of the other one in it.
An SLA below that is violated without a spike, or whatever a policy does."""


@dataclass(frozen=True, slots=True)
class Static:
    """p95 in milliseconds of a run under static weights; None where too little was answered.

    ``calm_ms`` is that of the slower application before the spike, ``neighbour_ms`` of the one without spike meanwhile.
    """

    calm_ms: float | None
    neighbour_ms: float | None
    spike_ms: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The SLA, None where the run does not allow for one, and why."""

    sla_ms: float | None
    why: str


def calibrate(seen: Static) -> Calibration:
    """The SLA that static weights break by ``MARGIN``, if it can be kept otherwise."""
    if seen.calm_ms is None or seen.neighbour_ms is None or seen.spike_ms is None:
        return Calibration(None, "an application answered nothing before or in the spike")
    least_ms = max(CALM_HEADROOM * seen.calm_ms, NEIGHBOUR_HEADROOM * seen.neighbour_ms)
    sla_ms = seen.spike_ms / MARGIN
    measured = (
        f"p95 {seen.calm_ms:.0f} ms before the spike, {seen.spike_ms:.0f} ms in it,"
        f" {seen.neighbour_ms:.0f} ms meanwhile of the other"
    )
    if sla_ms < least_ms:
        return Calibration(None, f"{measured}: no SLA is kept without the spike and clearly violated in it")
    return Calibration(round(sla_ms, 3), f"{measured}: SLA {sla_ms:.0f} ms")


def static_of(run: Mapping[str, Any], calm: str, spiking: str) -> Static:
    """What a run shows; ``calm`` and ``spiking`` are the names of the applications."""
    parts = {name: seen["parts"] for name, seen in run["applications"].items()}
    before = [parts[name]["before"]["p95_ms"] for name in (calm, spiking)]
    return Static(
        None if None in before else max(before), parts[calm]["spike"]["p95_ms"], parts[spiking]["spike"]["p95_ms"]
    )


def judged(run: Mapping[str, Any], sla_ms: float) -> dict[str, Any]:
    """The run, held against another SLA: what was measured stays as it is."""
    return {
        **run,
        "applications": {
            name: {**seen, "sla_ms": sla_ms, "violated_share": violated_share(seen["p95_ms"], sla_ms)}
            for name, seen in run["applications"].items()
        },
    }


def violated_share(times_ms: list[float | None], sla_ms: float) -> float:
    """The share of intervals with response times that violated it."""
    known = [time_ms for time_ms in times_ms if time_ms is not None]
    return round(sum(time_ms > sla_ms for time_ms in known) / max(len(known), 1), 4)
