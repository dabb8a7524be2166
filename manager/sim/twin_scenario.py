"""A scenario from what was observed of a host, and from what was fitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil

from manager.errors import TwinRefused
from manager.model.registration import Application, Mode, Sla
from manager.model.units import percent
from manager.sim.arrival_rates import arrival_steps
from manager.sim.scenario import (
    AppSpec,
    BatchPhase,
    BatchSpec,
    Constant,
    Noise,
    Scenario,
    Scheduler,
    ServiceTime,
    Shape,
    TierSpec,
    VmSettings,
    tier_vms,
)
from manager.sim.twin_observation import HostObservation, ObservedVm

LEAST_ANSWERS = 500
"""An application must have so many response times in the part that is fitted."""
LEAST_COVERAGE = 0.9
"""Response times must cover this part of the time, and each of an application's VMs must have run in it."""
FULL = 0.95
"""vCPUs that want to run for more of the time are overloaded, and how many requests came is not known."""
_CRITICAL_PERIOD_MS = 50.0
ALWAYS, _NEVER = 0.9, 0.02
_STEP = 0.1
_LEAST_OTHER = 0.01
_LONG_MS, _SHORT_MS = 1e7, 1.0


@dataclass(frozen=True, slots=True)
class FittedApp:
    """What cannot be read off a recording: how service times vary, and what passes outside the VMs."""

    shape: Shape = Shape.LOGNORMAL
    cv: float = 1.0
    outside_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """``wakeup``: times as many milliseconds as usual until a vCPU that wakes gets its pCPU; see ``Scheduler``."""

    apps: Mapping[str, FittedApp] = field(default_factory=dict)
    wakeup: float = 1.0

    def of(self, application: str) -> FittedApp:
        """Those of an application, or the usual."""
        return self.apps.get(application, FittedApp())


def refusals(observed: HostObservation) -> dict[str, str]:
    """By application, why its requests cannot be simulated; those that can are not in it."""
    found: dict[str, str] = {}
    for application in observed.assignment.applications:
        reason = next(_objections(observed, application), "")
        if reason:
            found[application.name] = reason
    return found


def service_ms(observed: HostObservation, application: Application) -> list[float]:
    """CPU time of a request in each tier, in milliseconds: all that its VMs used over all requests."""
    windows = observed.windows_of(application.name)
    requests = sum(window.requests or 0.0 for window in windows)
    rate_rps = requests / sum(window.end_s - window.start_s for window in windows)
    return [1000 * sum(vm.used for vm in vms) / rate_rps for vms in observed.tier_vms(application)]


def twin_scenario(
    observed: HostObservation, fitted: Fitted, name: str, services: Mapping[str, Sequence[float]] | None = None
) -> Scenario:
    """The observed time as a scenario.

    ``services``: CPU times by application, of which only these are simulated; else those of that time.

    Raises TwinRefused where no application can be simulated.
    """
    refused = refusals(observed)
    simulated = [
        application
        for application in observed.assignment.applications
        if application.name not in refused and (services is None or application.name in services)
    ]
    if not simulated:
        raise TwinRefused("; ".join(f"{one}: {reason}" for one, reason in refused.items()) or "no application is known")
    services = services or {application.name: service_ms(observed, application) for application in simulated}
    names: dict[str, str] = {}
    specs: list[AppSpec] = []
    for application in simulated:
        spec = _application(observed, application, services[application.name], fitted.of(application.name))
        specs.append(spec)
        for tier, vms in zip(spec.tiers, observed.tier_vms(application), strict=True):
            names.update({vm.spec.name: own for vm, own in zip(vms, tier_vms(spec, tier), strict=True)})
    batch: list[BatchSpec] = []
    for vm in observed.vms:
        if vm.spec.name not in names and vm.uses:
            names[vm.spec.name] = own = _unused(vm.spec.name, set(names.values()))
            batch.append(_batch(observed, vm, own))
    host = observed.assignment.host
    length_s = observed.end_s - observed.start_s
    default = Scheduler()
    return Scenario(
        name=name,
        pcpus=observed.pcpus,
        applications=tuple(specs),
        batch=tuple(batch),
        summary=f"The twin of host {host.name}",
        cgroup=observed.cgroup,
        interval_s=observed.assignment.slot_s,
        duration_s=length_s,
        settle_s=round(min(60.0, length_s / 10), 3),
        pinning=host.pinning,
        law=host.law,
        noise=_noise(observed),
        scheduler=replace(
            default,
            slice_ms=round(default.slice_ms * fitted.wakeup, 4),
            tick_ms=round(default.tick_ms * fitted.wakeup, 4),
        ),
        batch_idle=host.batch_idle,
        mode=Mode.ENFORCE if observed.mode is Mode.ENFORCE else Mode.OBSERVE,
        placement=replace(host.placement, reserved_cpus=frozenset(_places(observed, host.placement.reserved_cpus))),
        settings=tuple(_settings(observed, vm, names[vm.spec.name]) for vm in observed.vms if vm.spec.name in names),
    )


def _objections(observed: HostObservation, application: Application) -> Iterator[str]:
    if application.sla is None:
        yield "it has no SLA, so no percentile to predict"
    if not any(tier.vms for tier in application.tiers):
        yield "it has no VMs"
    yield from _of_vms(observed, application)
    windows = observed.windows_of(application.name)
    covered_s = sum(window.end_s - window.start_s for window in windows)
    length_s = observed.end_s - observed.start_s
    if covered_s < LEAST_COVERAGE * length_s:
        yield f"response times cover {percent(covered_s / length_s)} of the time: {percent(LEAST_COVERAGE)} are needed"
    if any(window.requests is None for window in windows):
        yield "its requests per second are not known"
    elif not any(window.requests for window in windows):
        yield "it has response times, but served no request"
    answers = sum(window.histogram.count for window in windows)
    if answers < LEAST_ANSWERS:
        yield f"it has {answers} response times: {LEAST_ANSWERS} are needed"


def _of_vms(observed: HostObservation, application: Application) -> Iterator[str]:
    here = {vm.spec.name for vm in observed.vms if vm.uses}
    for tier, vms in zip(application.tiers, observed.tier_vms(application), strict=True):
        for name in tier.vms:
            if name not in here:
                yield f"VM {name} of tier {tier.name} did not run on this host, or had stopped when it was recorded"
        for vm in vms:
            if sum(use.length_s for use in vm.uses) < LEAST_COVERAGE * observed.seen_s:
                yield f"VM {vm.spec.name} did not run all the time"
        if tier.vms and not sum(vm.used for vm in vms):
            yield f"tier {tier.name} used no CPU time"
        if sum(vm.wanted for vm in vms) > FULL * sum(vm.vcpus for vm in vms) > 0:
            yield f"the vCPUs of tier {tier.name} wanted to run all the time: it could not answer what came"


def _application(
    observed: HostObservation, application: Application, services: Sequence[float], fitted: FittedApp
) -> AppSpec:
    steps = arrival_steps(observed.windows_of(application.name), observed.start_s, observed.end_s)
    tiers = tuple(
        TierSpec(
            tier.name,
            ServiceTime(round(max(mean_ms, 0.001), 5), fitted.shape, fitted.cv)
            if fitted.shape is Shape.LOGNORMAL
            else ServiceTime(round(max(mean_ms, 0.001), 5), fitted.shape),
            vms=len(vms),
            vcpus=ceil(sum(vm.vcpus for vm in vms) / len(vms)),
        )
        for tier, vms, mean_ms in zip(application.tiers, observed.tier_vms(application), services, strict=True)
        if vms
    )
    return AppSpec(
        application.name,
        application.sla or Sla(100_000),
        tiers,
        tuple(Constant(round(step.rate_rps, 4), round(step.end_s - step.start_s, 3)) for step in steps),
        sharing=application.sharing,
        outside_ms=fitted.outside_ms,
    )


def _batch(observed: HostObservation, vm: ObservedVm, name: str) -> BatchSpec:
    """A VM whose requests are not known: how much it wanted to run, and when."""
    period_ms = _CRITICAL_PERIOD_MS if vm.critical else 100.0
    phases = _phases(observed, vm)
    if all(phase.duty == 1 for phase in phases):
        return BatchSpec(name, vcpus=vm.vcpus, critical=vm.critical)
    return BatchSpec(name, vcpus=vm.vcpus, phases=phases, period_ms=period_ms, critical=vm.critical)


def _phases(observed: HostObservation, vm: ObservedVm) -> tuple[BatchPhase, ...]:
    """What it wanted of its vCPUs, in tenths or all or nothing; like times after one another are one phase."""
    uses = {use.end_s: use for use in vm.uses}
    steps: list[tuple[float, float]] = []
    at_s, duty = observed.start_s, 0.0
    for end_s, _ in observed.seen:
        use = uses.get(end_s)
        wanted = min((use.used + use.waited) / vm.vcpus, 1.0) if use else 0.0
        duty = 1.0 if wanted >= ALWAYS else 0.0 if wanted < _NEVER else max(round(wanted / _STEP) * _STEP, _NEVER)
        if end_s > at_s:  # since the tick before, also where nothing is known of a part of it
            steps.append((round(duty, 3), end_s - at_s))
            at_s = end_s
    steps.append((round(duty, 3), max(observed.end_s - at_s, 0.0)))
    joined = [(duty, sum(length_s for _, length_s in run)) for duty, run in groupby(steps, key=lambda step: step[0])]
    return tuple(BatchPhase(duty, round(length_s, 3)) for duty, length_s in joined if length_s >= 1e-3)


def _noise(observed: HostObservation) -> Noise | None:
    share = observed.other_pcpus / observed.pcpus
    return Noise(round(min(share, 0.95), 4), _LONG_MS, _SHORT_MS) if share >= _LEAST_OTHER else None


def _settings(observed: HostObservation, vm: ObservedVm, name: str) -> VmSettings:
    spec = vm.spec
    cpus = _places(observed, spec.cpus) if spec.cpus else None
    return VmSettings(
        name,
        weight=spec.weight,
        pin=spec.pin,
        cpus=frozenset(cpus) if cpus else None,
        max_pcpus=spec.max_pcpus,
        mode=vm.mode if vm.mode is not observed.mode else None,
        initial_weight=vm.weight,
    )


def _places(observed: HostObservation, cpus: frozenset[int]) -> list[int]:
    """Numbers among the pCPUs that VMs may use, which the simulation counts from 0."""
    return [place for place, cpu in enumerate(sorted(observed.capabilities.managed_cpus)) if cpu in cpus]


def _unused(name: str, used: set[str]) -> str:
    while name in used:
        name += "-vm"
    return name
