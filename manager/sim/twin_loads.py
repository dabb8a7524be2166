"""How much load would an application stand beside batch VMs? A host's twin, with loads and batch VMs that never came.

It answers by simulation what interference tables know by measurement (``manager.control.interference_table``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from manager.errors import SettingsError
from manager.model.interference import ANY_LOSS, LOSS_BOUNDS, BatchClass
from manager.sim.parallel import on_all_cores
from manager.sim.scenario import BatchPhase, BatchSpec, Constant, Scenario
from manager.sim.twin import AppTwin, PlayAll, Twin
from manager.sim.twin_play import Played, play
from manager.sim.twin_prediction import PercentileSpan, refuse_without_predictions, span

LOAD_PARTS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""The loads, as parts of the mean load of the recording."""
RUN_S = 300.0
"""Each is simulated for so long, after the scenario's time to settle."""
WANTED = {
    BatchClass.NONE: 0.0,
    BatchClass.LIGHT: 0.25,
    BatchClass.MODERATE: 0.5,
    BatchClass.HEAVY: 0.95,
    BatchClass.FULL: 1.0,
}
"""What batch VMs of each class want of all pCPUs: the most of their class; of ``full`` they always want all of it."""


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """A load in req/s beside a class of batch VMs: the percentile (None: nothing was answered) and what these lost."""

    batch: BatchClass
    rate_rps: float
    then: PercentileSpan | None
    batch_lost: float


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """The largest of the loads that meets the SLA with its whole interval, and the smallest that does not by all of it.

    With either batch VMs lose at most ``max_loss``, or more.
    """

    batch: BatchClass
    max_loss: float
    load_rps: float | None
    violated_rps: float | None


@dataclass(frozen=True, slots=True)
class SimulatedTable:
    """All of an application. ``mean_rps``: its load in the recording, above which everything is extrapolated."""

    app: AppTwin
    target_ms: float
    mean_rps: float
    points: tuple[SimulatedPoint, ...]

    @property
    def rows(self) -> tuple[SimulatedLoad, ...]:
        """By class of batch VMs, and by what these may lose, from the least."""
        return tuple(_row(self, batch, bound) for batch in BatchClass for bound in LOSS_BOUNDS)


def runs_of(twin: Twin) -> int:
    """How often ``simulated_table`` calls ``on_step``."""
    return len(BatchClass) * len(LOAD_PARTS) * len(twin.runs)


def simulated_table(
    twin: Twin, application: str, run_all: PlayAll = on_all_cores, on_step: Callable[[], None] = lambda: None
) -> SimulatedTable:
    """Run the twin at all loads beside all classes of batch VMs, under the policy in force; ``on_step`` after each run.

    Raises TwinRefused where no application is predicted, SettingsError where this one is not, or it has no SLA.
    """
    refuse_without_predictions(twin)
    app = next((each for each in twin.predicted if each.name == application), None)
    if app is None:
        why = twin.refused.get(application) or f"use {' or '.join(each.name for each in twin.predicted)}"
        raise SettingsError(f"application {application!r} is refused: {why}")
    if app.application.sla is None:
        raise SettingsError(f"application {application!r} is refused: it has no SLA to compare with")
    mean_rps = _mean_rps(twin, application)
    places = [(batch, part * mean_rps) for batch in BatchClass for part in LOAD_PARTS]
    seeds = range(len(twin.runs))
    jobs = [
        twin.job(scenario, twin.observed.policy, scenario.seed + more)
        for batch, rate_rps in places
        for scenario in [loaded(twin, application, batch, rate_rps)]
        for more in seeds
    ]
    runs = run_all(play, jobs, on_step)
    points = tuple(
        _point(twin, app, *place, runs[first : first + len(seeds)])
        for place, first in zip(places, range(0, len(runs), len(seeds)), strict=True)
    )
    return SimulatedTable(app, app.application.sla.response_time_ms, mean_rps, points)


def loaded(twin: Twin, application: str, batch: BatchClass, rate_rps: float) -> Scenario:
    """The twin's scenario with that load of an application, and batch VMs of that class in place of its own."""
    scenario = twin.scenario
    applications = tuple(
        replace(spec, load=(Constant(rate_rps),)) if spec.name == application else spec
        for spec in scenario.applications
    )
    critical = tuple(group for group in scenario.batch if group.critical)
    made = replace(scenario, applications=applications, batch=critical, duration_s=scenario.settle_s + RUN_S)
    names = {vm.name for vm in made.vms} | {spec.name for spec in applications}
    name = next(text for text in ("batch", *(f"batch-{number}" for number in range(len(names)))) if text not in names)
    wanted = WANTED[batch]
    if wanted:
        phases = (BatchPhase(wanted, RUN_S),) if wanted < 1 else ()
        made = replace(made, batch=(*critical, BatchSpec(name, vcpus=scenario.pcpus, phases=phases)))
        names = {vm.name for vm in made.vms}
    return replace(made, settings=tuple(each for each in scenario.settings if each.vm in names))


def _mean_rps(twin: Twin, application: str) -> float:
    [spec] = [spec for spec in twin.scenario.applications if spec.name == application]
    length_s = sum(segment.for_s for segment in spec.load)
    return sum(segment.peak_rps * segment.for_s for segment in spec.load) / length_s


def _point(twin: Twin, app: AppTwin, batch: BatchClass, rate_rps: float, runs: Sequence[Played]) -> SimulatedPoint:
    settle_s = twin.scenario.settle_s
    then = span(app, runs, app.name, settle_s, settle_s + RUN_S)
    wanted_pcpus = WANTED[batch] * twin.scenario.pcpus
    lost = max(1 - fmean(run.batch_pcpus for run in runs) / wanted_pcpus, 0.0) if wanted_pcpus else 0.0
    return SimulatedPoint(batch, rate_rps, then, lost)


def _row(table: SimulatedTable, batch: BatchClass, bound: float) -> SimulatedLoad:
    """More load never helps: what is above a load that does not meet the SLA counts for nothing."""
    load_rps = violated_rps = None
    for point in sorted((each for each in table.points if each.batch is batch), key=lambda each: each.rate_rps):
        loses = bound < ANY_LOSS and point.batch_lost > bound
        if point.then is None or point.then.low_ms > table.target_ms or loses:
            violated_rps = point.rate_rps
            break
        if point.then.high_ms > table.target_ms:
            continue
        load_rps = point.rate_rps
    return SimulatedLoad(batch, bound, load_rps, violated_rps)
