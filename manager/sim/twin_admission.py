"""May this VM come? The twin of a host with one VM more: what becomes of everybody's response times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from manager.errors import SettingsError
from manager.model.histogram import Histogram
from manager.model.registration import VmClass
from manager.model.units import percent
from manager.model.verdict import FitVerdict
from manager.sim.parallel import on_all_cores
from manager.sim.scenario import AppSpec, BatchPhase, BatchSpec, Constant, Scenario
from manager.sim.twin import AppTwin, PlayAll, Twin
from manager.sim.twin_play import Played
from manager.sim.twin_prediction import PercentileSpan, play_seeds, refuse_without_predictions, span, violated_share

NEWCOMER = "newcomer"
WORSE_BY = 0.05
"""A part: violated in so many more of the intervals, or a percentile that is so much longer, is worse."""
_GETS = 0.9


@dataclass(frozen=True, slots=True)
class NewVm:
    """A VM that may come. ``demand_pcpus``: what it wants to use; None: all its vCPUs, always.

    ``like``: it serves requests as the VMs of that application, or of that tier of it (`shop/db`), with the same SLA;
    ``rate_rps`` of them, None: as many as each of these VMs does.
    """

    vm_class: VmClass
    vcpus: int
    demand_pcpus: float | None = None
    like: str = ""
    rate_rps: float | None = None


@dataclass(frozen=True, slots=True)
class AppWithout:
    """An application with and without the new VM; ``without`` None: it comes with it."""

    name: str
    percentile: float
    target_ms: float
    without: PercentileSpan | None
    then: PercentileSpan | None
    violated_without: float
    violated: float


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer, with its reasons. ``gets_pcpus``: CPU time that the new VM gets, a second; it ``wants_pcpus``."""

    vm: NewVm
    policy: str
    verdict: FitVerdict
    reasons: tuple[str, ...]
    apps: tuple[AppWithout, ...]
    refused: Mapping[str, str]
    wants_pcpus: float
    gets_pcpus: float


def may_come(
    twin: Twin,
    vm: NewVm,
    policy: str,
    run_all: PlayAll = on_all_cores,
    on_step: Callable[[], None] = lambda: None,
) -> Admission:
    """Run the twin with one VM more under ``policy``; ``on_step`` is called after each run.

    Raises SettingsError for a VM that cannot be, and TwinRefused where no application of the twin is predicted.
    """
    refuse_without_predictions(twin)
    scenario, name, wants_pcpus = with_vm(twin, vm)
    before = twin.runs
    if policy != twin.observed.policy:
        before = tuple(play_seeds(twin, twin.scenario, policy, run_all, lambda: None))
    runs = play_seeds(twin, scenario, policy, run_all, on_step)
    apps = [_compared(twin, app, app.name, before, runs) for app in twin.predicted]
    if vm.like:
        apps.append(_compared(twin, _model(twin, vm)[0], name, None, runs))
    gets_pcpus = fmean(sum(run.pcpus[one.name] for one in scenario.vms if _is_of(one.name, name)) for run in runs)
    findings = list(_findings(apps, twin.refused))
    if not vm.like and vm.vm_class is VmClass.CRITICAL and gets_pcpus < _GETS * wants_pcpus:
        findings.append((FitVerdict.NO, f"it would get {gets_pcpus:.2f} of the {wants_pcpus:.2f} pCPUs that it wants"))
    verdicts = [verdict for verdict, _ in findings]
    verdict = next((one for one in (FitVerdict.NO, FitVerdict.UNSURE) if one in verdicts), FitVerdict.YES)
    reasons = [reason for found, reason in findings if found is verdict]
    if verdict is FitVerdict.YES:
        reasons = ["every SLA that is predicted is met with it, with its whole interval"]
    return Admission(vm, policy, verdict, tuple(reasons), tuple(apps), twin.refused, wants_pcpus, gets_pcpus)


def models_of(twin: Twin) -> frozenset[str]:
    """What a VM may be ``like``: applications that the twin predicts, those of one tier also without its name."""
    predicted = {app.name for app in twin.predicted}
    specs = [spec for spec in twin.scenario.applications if spec.name in predicted]
    tiers = {f"{spec.name}/{tier.name}" for spec in specs for tier in spec.tiers}
    return frozenset(tiers | {spec.name for spec in specs if len(spec.tiers) == 1})


def with_vm(twin: Twin, vm: NewVm) -> tuple[Scenario, str, float]:
    """The twin's scenario with the VM, its name there, and how many pCPUs it wants. Raises SettingsError."""
    scenario = twin.scenario
    name = NEWCOMER
    taken = {one.name for one in scenario.vms} | {app.name for app in scenario.applications}
    while any(_is_of(one, name) for one in taken):
        name += "-vm"
    if vm.like:
        app, wants_pcpus = _serving(twin, vm, name)
        return replace(scenario, applications=(*scenario.applications, app)), name, wants_pcpus
    wants_pcpus = vm.vcpus if vm.demand_pcpus is None else vm.demand_pcpus
    if not 0 < wants_pcpus <= vm.vcpus:
        raise SettingsError(f"--demand {wants_pcpus:g} is refused: use more than 0, and at most --vcpus, {vm.vcpus}")
    phases = (BatchPhase(wants_pcpus / vm.vcpus, scenario.duration_s),) if wants_pcpus < vm.vcpus else ()
    group = BatchSpec(name, vcpus=vm.vcpus, phases=phases, critical=vm.vm_class is VmClass.CRITICAL)
    return replace(scenario, batch=(*scenario.batch, group)), name, wants_pcpus


def _is_of(vm: str, name: str) -> bool:
    return vm == name or vm.startswith(f"{name}-")


def _serving(twin: Twin, vm: NewVm, name: str) -> tuple[AppSpec, float]:
    """An application of one VM that serves requests like those of another, and how many pCPUs it wants."""
    app, place = _model(twin, vm)
    model = next(spec for spec in twin.scenario.applications if spec.name == app.name)
    tier = model.tiers[place]
    length_s = sum(segment.for_s for segment in model.load)
    mean_rps = sum(segment.peak_rps * segment.for_s for segment in model.load) / length_s
    rate_rps = mean_rps / tier.vms if vm.rate_rps is None else vm.rate_rps
    load = tuple(Constant(segment.peak_rps * rate_rps / mean_rps, segment.for_s) for segment in model.load)
    made = replace(model, name=name, tiers=(replace(tier, vms=1, vcpus=vm.vcpus),), load=load)
    return made, rate_rps * tier.service.mean_ms / 1000


def _model(twin: Twin, vm: NewVm) -> tuple[AppTwin, int]:
    """The application that the VM is to be like, and the number of its tier. Raises SettingsError."""
    name, _, tier_name = vm.like.partition("/")
    known = {app.name: app for app in twin.predicted}
    if vm.vm_class is VmClass.BATCH:
        raise SettingsError("--like is refused with --class batch: batch VMs serve no requests")
    if vm.demand_pcpus is not None:
        raise SettingsError("--demand is refused with --like: requests take what they took; use --rate")
    if name not in known:
        raise SettingsError(f"--like {vm.like!r} is refused: use {' or '.join(known)}, which the twin predicts")
    tiers = [tier.name for spec in twin.scenario.applications if spec.name == name for tier in spec.tiers]
    if tier_name not in tiers and (tier_name or len(tiers) > 1):
        raise SettingsError(f"--like {vm.like!r} is refused: use {' or '.join(f'{name}/{tier}' for tier in tiers)}")
    return known[name], tiers.index(tier_name) if tier_name else 0


def _compared(
    twin: Twin, app: AppTwin, name: str, before: Sequence[Played] | None, runs: Sequence[Played]
) -> AppWithout:
    from_s, to_s = twin.scenario.settle_s, twin.scenario.duration_s
    target_ms = app.application.sla.response_time_ms if app.application.sla else 0.0
    first = round(from_s / twin.scenario.interval_s)

    def violated(of_runs: Sequence[Played]) -> float:
        slots = (list(map(Histogram, run.counts[name][first:])) for run in of_runs)
        return fmean(violated_share(each, app.percentile, target_ms) for each in slots)

    return AppWithout(
        name,
        app.percentile,
        target_ms,
        None if before is None else span(app, before, name, from_s, to_s),
        span(app, runs, name, from_s, to_s),
        0.0 if before is None else violated(before),
        violated(runs),
    )


def _findings(apps: Sequence[AppWithout], refused: Mapping[str, str]) -> Iterator[tuple[FitVerdict, str]]:
    """What speaks against the VM, or leaves it open."""
    for app in apps:
        target, then, without = f"{app.target_ms:g} ms", app.then, app.without
        what = f"p{app.percentile:g} of {app.name}"
        if then is None:
            yield FitVerdict.NO, f"{app.name} would answer nothing"
        elif without is not None and without.ms > app.target_ms:
            if then.ms > without.ms * (1 + WORSE_BY):
                yield FitVerdict.NO, f"{what} is {without.text} without it, above {target}, and would be {then.text}"
        elif then.low_ms > app.target_ms:
            yield FitVerdict.NO, f"{what} would be {then.text}, above {target}"
        elif app.violated > app.violated_without + WORSE_BY:
            shares = f"{percent(app.violated)} of the intervals, {percent(app.violated_without)} without it"
            yield FitVerdict.NO, f"the SLA of {app.name} would be violated in {shares}"
        elif then.high_ms > app.target_ms:
            yield FitVerdict.UNSURE, f"{what} would be {then.text}: {target} is within that interval"
    for name, reason in refused.items():
        yield FitVerdict.UNSURE, f"nothing is predicted of {name}: {reason}"
