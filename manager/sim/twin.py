"""The twin of a host: a scenario calibrated from a recording, and checked against a part that it was not made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Protocol

from manager.errors import TwinRefused
from manager.model.histogram import Histogram
from manager.model.registration import Application
from manager.model.units import percent
from manager.replay.recording import Recording
from manager.sim.compare import installed
from manager.sim.parallel import on_all_cores
from manager.sim.scenario import Scenario
from manager.sim.twin_effort import USUAL_EFFORT, Effort, thinned_to
from manager.sim.twin_fit import ROUNDS, WAKEUP_ROUNDS, fit
from manager.sim.twin_observation import HostObservation, observe, part
from manager.sim.twin_play import Played, TwinJob, play
from manager.sim.twin_scenario import Fitted, refusals, service_ms, twin_scenario

FITTED_PART = 0.6
"""This part of the recording, its first, is fitted; the rest is held back."""
BLOCK_S, BLOCK_ANSWERS = 30.0, 200
"""Percentiles are compared over windows that are joined until they have as much, and as many response times."""
LEAST_BLOCKS = 3
MEDIAN_BOUND, P90_BOUND = 0.25, 0.75
"""Errors up to which an application is predicted; see docs/internals/simulator.md, "The twin of a host"."""


class PlayAll(Protocol):
    """Runs jobs, such as ``on_all_cores``."""

    def __call__(
        self, function: Callable[[TwinJob], Played], jobs: Sequence[TwinJob], on_done: Callable[[], None]
    ) -> list[Played]:
        """The outcomes in the order of the jobs."""


@dataclass(frozen=True, slots=True)
class ErrorOfP:
    """How far simulated percentiles are from those measured, over ``blocks`` of the part that was held back.

    ``median`` and ``p90`` of |ln(simulated / measured)|, as a part: 0.1 for 10 %. ``overall``: of ln(simulated /
    measured) over all that was held back together, with its sign.
    """

    blocks: int
    median: float
    p90: float
    overall: float


@dataclass(frozen=True, slots=True)
class AppTwin:
    """An application of the twin. ``error`` None: it could not be compared. ``refused``: why nothing is predicted."""

    application: Application
    service_ms: tuple[float, ...]
    error: ErrorOfP | None
    refused: str

    @property
    def name(self) -> str:
        """The application's."""
        return self.application.name

    @property
    def percentile(self) -> float:
        """Of its SLA; 95 without one."""
        return self.application.sla.percentile if self.application.sla else 95.0


@dataclass(frozen=True, slots=True)
class Twin:
    """What was made of a recording. ``runs`` are those under the policy in force, a seed each.

    ``thinning``: one of so many requests is simulated.
    """

    observed: HostObservation
    fitted: Fitted
    scenario: Scenario
    apps: tuple[AppTwin, ...]
    runs: tuple[Played, ...]
    thinning: float

    @property
    def predicted(self) -> tuple[AppTwin, ...]:
        """The applications whose error is within bounds."""
        return tuple(app for app in self.apps if not app.refused)

    @property
    def refused(self) -> dict[str, str]:
        """By application, why nothing is predicted; of the others nothing."""
        return {app.name: app.refused for app in self.apps if app.refused}

    def job(self, scenario: Scenario, policy: str, seed: int) -> TwinJob:
        """A run of the whole time."""
        return TwinJob(scenario, policy, self.observed.interval_s, seed, self.thinning)


def steps(effort: Effort) -> int:
    """How often ``calibrate`` calls ``on_step`` at most."""
    return ROUNDS + WAKEUP_ROUNDS + 2 + effort.seeds


def calibrate(
    recording: Recording,
    effort: Effort = USUAL_EFFORT,
    run_all: PlayAll = on_all_cores,
    on_step: Callable[[], None] = lambda: None,
) -> Twin:
    """Make a twin. Raises TwinRefused where a recording is too short, or no application can be simulated."""
    observed, thinning = thinned_to(observe(recording), effort.most)
    if observed.policy not in installed():
        raise TwinRefused(f"policy {observed.policy}, which was in force, is not installed here")
    length_s = observed.end_s - observed.start_s
    first = part(observed, observed.start_s, observed.start_s + FITTED_PART * length_s)
    refused = refusals(first) | {
        name: f"in the part held back: {reason}"
        for name, reason in refusals(part(observed, first.end_s, observed.end_s)).items()
        if name not in refusals(first)
    }
    if refused.keys() >= {application.name for application in observed.assignment.applications}:
        raise TwinRefused(
            "; ".join(f"{name}: {reason}" for name, reason in refused.items()) or "no application is known"
        )
    fitted = fit(first, effort.requests, thinning, on_round=on_step)
    unusable = refusals(first) | refusals(observed)
    services = {
        application.name: service_ms(first, application)
        for application in observed.assignment.applications
        if application.name not in unusable
    }
    scenario = twin_scenario(observed, fitted, observed.assignment.host.name, services)
    jobs = [
        TwinJob(scenario, observed.policy, observed.interval_s, scenario.seed + more, thinning)
        for more in range(effort.seeds)
    ]
    runs = run_all(play, jobs, on_step)
    apps = tuple(
        _checked(
            application,
            tuple(services.get(application.name, ())),
            refused.get(application.name, ""),
            observed,
            runs,
            first.end_s,
        )
        for application in observed.assignment.applications
    )
    return Twin(observed, fitted, scenario, apps, tuple(runs), thinning)


def merged(runs: Sequence[Played], application: str, from_s: float, to_s: float) -> Histogram:
    """Response times of all runs between two times after the beginning."""
    return Histogram().merge(*(run.between(application, from_s, to_s) for run in runs))


def measured(observed: HostObservation, application: str, from_s: float, to_s: float) -> Histogram:
    """Recorded response times of the windows whose middle is between two times after the beginning."""
    inside = [
        window.histogram
        for window in observed.windows_of(application)
        if from_s <= (window.start_s + window.end_s) / 2 - observed.start_s < to_s
    ]
    return Histogram().merge(*inside)


def as_part(log_ratio: float) -> float:
    """An error in logarithms as a part: 0.1 for 10 %."""
    return exp(abs(log_ratio)) - 1


def _checked(
    application: Application,
    services: tuple[float, ...],
    refused: str,
    observed: HostObservation,
    runs: Sequence[Played],
    from_s: float,
) -> AppTwin:
    app = AppTwin(application, services, None, refused)
    if refused:
        return app
    ratios = [
        log(simulated_us / measured_us)
        for start_s, end_s in _blocks(observed, app.name, from_s - observed.start_s)
        if (measured_us := measured(observed, app.name, start_s, end_s).percentile_us(app.percentile))
        and (simulated_us := merged(runs, app.name, start_s, end_s).percentile_us(app.percentile))
    ]
    if len(ratios) < LEAST_BLOCKS:
        needed = f"{LEAST_BLOCKS} times {BLOCK_S:g} s with {BLOCK_ANSWERS} response times each"
        return AppTwin(application, services, None, f"too little is held back to compare with: {needed} are needed")
    errors = sorted(map(abs, ratios))
    held_s = from_s - observed.start_s, observed.end_s - observed.start_s
    whole_us = [
        histogram.percentile_us(app.percentile) or 1.0
        for histogram in (merged(runs, app.name, *held_s), measured(observed, app.name, *held_s))
    ]
    error = ErrorOfP(len(errors), as_part(_at(errors, 0.5)), as_part(_at(errors, 0.9)), log(whole_us[0] / whole_us[1]))
    return AppTwin(application, services, error, _too_large(error))


def _too_large(error: ErrorOfP) -> str:
    for value, bound, what in ((error.median, MEDIAN_BOUND, "median"), (error.p90, P90_BOUND, "90th percentile")):
        if value > bound:
            return f"the error in the part held back is too large: {what} {percent(value)}, at most {percent(bound)}"
    return ""


def _blocks(observed: HostObservation, application: str, from_s: float) -> Iterator[tuple[float, float]]:
    """Windows from a time after the beginning on, joined."""
    start_s, answers = from_s, 0
    for window in observed.windows_of(application):
        end_s = window.end_s - observed.start_s
        if end_s <= from_s:
            continue
        answers += window.histogram.count
        if end_s - start_s >= BLOCK_S and answers >= BLOCK_ANSWERS:
            yield start_s, end_s
            start_s, answers = end_s, 0


def _at(values: Sequence[float], share: float) -> float:
    """The value of sorted ones at a share of them, between two in proportion."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
