"""What a host's response times would have been: closed loop, in its twin, with an interval.

The interval holds what differs between seeds and the twin's own error. With s the standard deviation of ln p over the
seeds, t Student's 90 % for as many, and e the larger of the twin's median error and its overall one, it reaches from
p exp(-w) to p exp(w), w = sqrt((t s)^2 + e^2). Of a busy host one of k requests is simulated, see
``manager.sim.thinning``: fewer response times differ more between seeds, and from the part held back, so that s and e
are larger. Where a queue grew in so many intervals that the percentile is theirs, the interval begins at p exp(-w) / k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, log1p, sqrt
from statistics import fmean, stdev

from manager.errors import TwinRefused
from manager.model.histogram import Histogram
from manager.model.law import Law
from manager.model.registration import Mode
from manager.sim.parallel import on_all_cores
from manager.sim.scenario import Scenario
from manager.sim.twin import AppTwin, PlayAll, Twin, measured, merged
from manager.sim.twin_play import Played, play

_STUDENT_90 = (3.08, 1.89, 1.64, 1.53, 1.48, 1.44, 1.41, 1.40, 1.38)
"""Of two runs, three, and so on; 1.28 for very many."""
_JUDGED = 20
"""An interval with fewer response times is not judged, as in the control loop."""


@dataclass(frozen=True, slots=True)
class PercentileSpan:
    """A predicted percentile in milliseconds, and the interval around it."""

    ms: float
    low_ms: float
    high_ms: float

    @property
    def text(self) -> str:
        """Such as `74 ms, 68 to 81`."""
        return f"{ms_text(self.ms)} ms, {ms_text(self.low_ms)} to {ms_text(self.high_ms)}"


@dataclass(frozen=True, slots=True)
class PredictedApp:
    """An application over the whole time but the first ``settle_s`` of the scenario.

    ``measured_ms`` and ``violated_measured``, the share of intervals, are as recorded; ``violated`` is predicted.
    """

    name: str
    percentile: float
    target_ms: float
    measured_ms: float
    predicted: PercentileSpan
    violated_measured: float
    violated: float


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What would have been under a policy. ``refused``: applications of which nothing is predicted, and why.

    ``thinning``: one of so many requests was simulated.
    """

    policy: str
    law: Law
    start_s: float
    end_s: float
    seeds: int
    apps: tuple[PredictedApp, ...]
    refused: Mapping[str, str]
    batch_measured: float
    batch: float
    thinning: float


def predict(
    twin: Twin,
    policy: str,
    law: Law,
    run_all: PlayAll = on_all_cores,
    on_step: Callable[[], None] = lambda: None,
) -> ClosedLoop:
    """Let ``policy`` with ``law`` control the twin, in mode `enforce`; ``on_step`` is called after each run.

    Raises TwinRefused where no application of the twin is predicted.
    """
    refuse_without_predictions(twin)
    scenario = replace(twin.scenario, law=law, mode=Mode.ENFORCE)
    runs = play_seeds(twin, scenario, policy, run_all, on_step)
    return ClosedLoop(
        policy,
        law,
        twin.observed.start_s + scenario.settle_s,
        twin.observed.end_s,
        len(runs),
        tuple(_predicted(twin, app, runs) for app in twin.predicted),
        twin.refused,
        fmean(run.batch_pcpus for run in twin.runs),
        fmean(run.batch_pcpus for run in runs),
        twin.thinning,
    )


def refuse_without_predictions(twin: Twin) -> None:
    """Raises TwinRefused where no application of the twin is predicted."""
    if not twin.predicted:
        raise TwinRefused("; ".join(f"{name}: {reason}" for name, reason in twin.refused.items()))


def play_seeds(
    twin: Twin, scenario: Scenario, policy: str, run_all: PlayAll, on_step: Callable[[], None]
) -> Sequence[Played]:
    """Runs with the seeds of the twin's own."""
    return run_all(play, [twin.job(scenario, policy, scenario.seed + more) for more in range(len(twin.runs))], on_step)


def span(app: AppTwin, runs: Sequence[Played], name: str, from_s: float, to_s: float) -> PercentileSpan | None:
    """The percentile of response times of ``name`` in all runs together, with the error of ``app``; None without any.

    ``name`` is the application itself, or one made after it.
    """
    together = _percentile_ms(merged(runs, name, from_s, to_s), app.percentile)
    single = [_percentile_ms(run.between(name, from_s, to_s), app.percentile) for run in runs]
    logs = [log(time_ms) for time_ms in single if time_ms]
    if not together or app.error is None:
        return None
    spread = student(len(logs)) * stdev(logs) if len(logs) > 1 else 0.0
    wide = sqrt(spread**2 + max(log1p(app.error.median), abs(app.error.overall)) ** 2)
    late = fmean(run.late_share(name, from_s, to_s) for run in runs)
    shortest = together / runs[0].thinning if late > 1 - app.percentile / 100 else together
    return PercentileSpan(together, shortest * exp(-wide), together * exp(wide))


def student(runs: int) -> float:
    """Student's t that 90 % are below, for the mean of so many runs."""
    return _STUDENT_90[min(max(runs - 2, 0), len(_STUDENT_90) - 1)]


def ms_text(time_ms: float) -> str:
    """Two digits or more, none below a hundredth."""
    return f"{time_ms:.0f}" if time_ms >= 10 else f"{time_ms:.2g}" if time_ms >= 0.1 else f"{time_ms:.2f}"


def _predicted(twin: Twin, app: AppTwin, runs: Sequence[Played]) -> PredictedApp:
    from_s, to_s = twin.scenario.settle_s, twin.scenario.duration_s
    target_ms = app.application.sla.response_time_ms if app.application.sla else 0.0
    predicted = span(app, runs, app.name, from_s, to_s)
    if predicted is None:
        raise TwinRefused(f"{app.name}: nothing was answered in the simulation")
    first = round(from_s / twin.scenario.interval_s)
    slots = [
        window.histogram
        for window in twin.observed.windows_of(app.name)
        if window.start_s >= twin.observed.start_s + from_s - 1e-3
    ]
    return PredictedApp(
        app.name,
        app.percentile,
        target_ms,
        _percentile_ms(measured(twin.observed, app.name, from_s, to_s), app.percentile),
        predicted,
        violated_share(slots, app.percentile, target_ms),
        fmean(
            violated_share(list(map(Histogram, run.counts[app.name][first:])), app.percentile, target_ms)
            for run in runs
        ),
    )


def violated_share(slots: Sequence[Histogram], percentile: float, target_ms: float) -> float:
    """Share of the intervals with enough response times in which the percentile is above the target."""
    judged = [_percentile_ms(slot, percentile) for slot in slots if slot.count >= _JUDGED]
    return sum(time_ms > target_ms for time_ms in judged) / len(judged) if judged else 0.0


def _percentile_ms(histogram: Histogram, percentile: float) -> float:
    return (histogram.percentile_us(percentile) or 0.0) / 1000
