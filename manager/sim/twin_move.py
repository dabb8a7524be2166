"""What does a migration do? The twin of its source without the VM, and that of its destination with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from manager.errors import TwinRefused
from manager.model.migration import MovePrediction, MoveSpan
from manager.sim.parallel import one_by_one
from manager.sim.scenario import AppSpec, BatchSpec, Scenario, tier_vms
from manager.sim.twin import AppTwin, PlayAll, Twin
from manager.sim.twin_play import Played
from manager.sim.twin_prediction import PercentileSpan, play_seeds, span


def predict_leaving(
    source: Twin, vm: str, run_all: PlayAll = one_by_one, on_step: Callable[[], None] = lambda: None
) -> tuple[MovePrediction, ...]:
    """What becomes of the applications that stay on a host when a VM leaves it.

    Raises TwinRefused for a VM that is not simulated by itself.
    """
    scenario = _without(source, vm)
    stay = [app for app in source.predicted if any(spec.name == app.name for spec in scenario.applications)]
    if not stay:
        return ()
    runs = play_seeds(source, scenario, source.observed.policy, run_all, on_step)
    return tuple(_predicted(source, app, app.name, _spanned(source, app, app.name, source.runs), runs) for app in stay)


def predict_arriving(
    source: Twin, vm: str, to: Twin, run_all: PlayAll = one_by_one, on_step: Callable[[], None] = lambda: None
) -> tuple[MovePrediction, ...]:
    """What becomes of the applications of a host to which a VM comes, and of the one that the VM serves.

    Raises TwinRefused for a VM that is not simulated by itself.
    """
    scenario, name = _with(source, vm, to)
    runs = play_seeds(to, scenario, to.observed.policy, run_all, on_step)
    found = [_predicted(to, app, app.name, _spanned(to, app, app.name, to.runs), runs) for app in to.predicted]
    served = [app for app in source.predicted if _serves(source, app, vm)]
    if not served and any(_of(source, vm)):
        raise TwinRefused(f"nothing is predicted of the application that {vm} serves")
    found += [_predicted(to, app, name, _spanned(source, app, app.name, source.runs), runs) for app in served]
    return tuple(found)


def _without(source: Twin, vm: str) -> Scenario:
    scenario, name = source.scenario, _simulated_as(source, vm)
    left = replace(
        scenario,
        applications=tuple(app for app in scenario.applications if name not in _vms(app)),
        batch=tuple(group for group in scenario.batch if group.name != name),
        settings=tuple(settings for settings in scenario.settings if settings.vm != name),
    )
    if left.applications != scenario.applications and any(len(_vms(app)) > 1 for app in _of(source, vm)):
        raise TwinRefused(f"{vm} serves its application together with other VMs of {_host(source)}")
    return left


def _with(source: Twin, vm: str, to: Twin) -> tuple[Scenario, str]:
    """The scenario of the destination with the VM, and the name of what it serves, or its own, there."""
    scenario, name = to.scenario, _simulated_as(source, vm)
    taken = {each.name for each in scenario.vms} | {app.name for app in scenario.applications}
    for app in _of(source, vm):
        if len(_vms(app)) > 1:
            raise TwinRefused(f"{vm} serves its application together with other VMs of {_host(source)}")
        arrived = replace(app, name=_free(app.name, taken))
        return replace(scenario, applications=(*scenario.applications, arrived)), arrived.name
    group: BatchSpec = next(each for each in source.scenario.batch if each.name == name)
    arrived_group = replace(group, name=_free(name, taken))
    return replace(scenario, batch=(*scenario.batch, arrived_group)), arrived_group.name


def _of(source: Twin, vm: str) -> Iterator[AppSpec]:
    """The application that a VM serves, if it is simulated."""
    name = _simulated_as(source, vm)
    return (app for app in source.scenario.applications if name in _vms(app))


def _simulated_as(source: Twin, vm: str) -> str:
    """The name of a VM in the scenario. Raises TwinRefused."""
    observed, specs = source.observed, {app.name: app for app in source.scenario.applications}
    for application in observed.assignment.applications:
        spec = specs.get(application.name)
        vms = [[each.spec.name for each in tier] for tier in observed.tier_vms(application)]
        if spec is not None and any(vm in tier for tier in vms):
            named = zip(spec.tiers, filter(None, vms), strict=True)
            return next(tier_vms(spec, tier)[names.index(vm)] for tier, names in named if vm in names)
    if any(group.name == vm for group in source.scenario.batch):
        return vm
    raise TwinRefused(f"{vm} is not simulated on {_host(source)}")


def _serves(source: Twin, app: AppTwin, vm: str) -> bool:
    return vm in app.application.vms and any(spec.name == app.name for spec in _of(source, vm))


def _vms(app: AppSpec) -> tuple[str, ...]:
    return tuple(name for tier in app.tiers for name in tier_vms(app, tier))


def _free(name: str, taken: set[str]) -> str:
    while any(each == name or each.startswith(f"{name}-") for each in taken):
        name += "-moved"
    return name


def _host(twin: Twin) -> str:
    return twin.observed.assignment.host.name


def _spanned(twin: Twin, app: AppTwin, name: str, runs: Sequence[Played]) -> PercentileSpan | None:
    return span(app, runs, name, twin.scenario.settle_s, twin.scenario.duration_s)


def _predicted(
    where: Twin, app: AppTwin, name: str, before: PercentileSpan | None, runs: Sequence[Played]
) -> MovePrediction:
    sla = app.application.sla
    return MovePrediction(
        app.name,
        _host(where),
        app.percentile,
        sla.response_time_ms if sla else 0.0,
        _rounded(before),
        _rounded(_spanned(where, app, name, runs)),
    )


def _rounded(found: PercentileSpan | None) -> MoveSpan | None:
    if found is None:
        return None
    return MoveSpan(round(found.ms, 3), round(found.low_ms, 3), round(found.high_ms, 3))
