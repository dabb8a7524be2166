"""Which steps may help an application at risk: who is suspected, what each is predicted to bring, and what it costs.

A third may have been shown by experiment (``auto_experiment``): then there is no suspicion, and the gain is known. Two
causes can be seen from outside. Its vCPUs wait for pCPUs: then work takes 1 / (1 - vCPU wait) times as long, and
who uses most of the CPU time beside it is suspected of that part. Or a batch VM moves most of the memory traffic: how
much slower that makes it cannot be seen, so that a usual effect is taken until a trial has shown one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from manager.control.hold_experiment import HoldFinding
from manager.control.placer import usable_cpus, wants_pins
from manager.control.warp_plan import auto_warp_us, can_warp, is_left_to_policy
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.registration import LEAST_LIMIT_PCPUS, Mode
from manager.model.units import percent
from manager.model.vcpu_wait import MATERIAL, wait_share
from policies.auto_model import AppModel, VmUse
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind
from policies.cores import batch_vms, enforced

HELD_TO = 0.1
"""A suspect that is held back in an experiment has this part of the CPU time that it used."""
LEAST_WAIT = 0.1
"""Below this part of runnable time vCPU wait is nobody's fault."""
NOISY = 0.4
"""A batch VM is suspected when it has this part of what is used beside the application."""
LEVELS = (0.5, 0.25, 0.1)
"""What is left to a noisy neighbour, step by step, of what it used."""
WAYS_LEVELS = (0.25, 0.5, 0.75)
"""Parts of the cache for an application alone, step by step."""
BANDWIDTH_EFFECT, WAYS_EFFECT = 0.4, 0.3
"""Usual fall of ln(percentile) where nobody moves memory any more, and where all ways are an application's own."""
IDLE_PART, PLACEMENT_PART, WARP_PART = 0.2, 0.3, 0.4
"""Of the effect of vCPU wait, what the idle class, another placement, and a warp, are taken to save."""
IDLE_COST, PLACEMENT_COST, WARP_COST, WAYS_COST, BANDWIDTH_COST = 0.05, 0.05, 0.02, 0.15, 0.5
"""What batch VMs lose, as a part: of the whole, of the ways that are taken, and of the bandwidth that a VM loses."""
OTHERS_COST = 0.05
"""What others may lose by another placement, by ways or by a warp, in ln(percentile / target)."""


@dataclass(frozen=True, slots=True)
class _Case:
    """An application at risk, and its VM that waits most. ``wait``: the part of its runnable time."""

    app: AppModel
    view: ApplicationView
    vms: Sequence[VmView]
    worst: VmView
    wait: float
    snapshot: Snapshot
    in_force: Mapping[tuple[StepKind, str], StepInForce]
    finding: HoldFinding | None

    @property
    def by_wait(self) -> float:
        """ln of how many times as long work takes for vCPU wait."""
        return -math.log(1 - min(self.wait, 0.99)) if self.wait >= LEAST_WAIT else 0.0

    @property
    def waits(self) -> str:
        return f"{self.worst.name} waits for pCPUs {percent(self.wait)} of its runnable time"

    def step(self, kind: StepKind, target: str = "", amount: float = 1.0, level: float = 1.0) -> LadderStep:
        return LadderStep(kind, target, amount, self.app.name, level)


def candidates(
    snapshot: Snapshot,
    applications: Sequence[AppModel],
    uses: Mapping[str, VmUse],
    in_force: Sequence[StepInForce],
    findings: Mapping[str, HoldFinding],
) -> Iterator[StepCandidate]:
    """The next step on each knob for each application at risk. ``findings``: who was shown to slow which."""
    views = {view.application.name: view for view in snapshot.applications}
    present = {each.step.knob: each for each in in_force}
    acts = enforced(snapshot.vms)
    for app in applications:
        if not app.at_risk:
            continue
        vms = serving(snapshot, app.name)
        worst, wait = most_waiting(snapshot, uses, app.name)
        if worst is None or (acts and not enforced(vms)):
            continue
        case = _Case(app, views[app.name], vms, worst, wait, snapshot, present, findings.get(app.name))
        if case.by_wait:
            yield from _idle(case)
        if case.by_wait or case.finding:
            yield from _quota(case)
        if case.by_wait:
            yield from _placement(case)
            yield from _warp(case)
        yield from _memory(case)


def serving(snapshot: Snapshot, application: str) -> list[VmView]:
    """The critical VMs of an application."""
    return [vm for vm in snapshot.vms if vm.application == application and vm.critical]


def most_waiting(snapshot: Snapshot, uses: Mapping[str, VmUse], application: str) -> tuple[VmView | None, float]:
    """The VM of an application that waits most for pCPUs, and for what part of its runnable time."""
    known = [(vm, uses[vm.name]) for vm in serving(snapshot, application) if vm.name in uses]
    waits = [(wait_share(use.used_pcpus, use.waited_pcpus), vm.name, vm) for vm, use in known]
    wait, _, vm = max(waits, key=lambda each: each[:2], default=(0.0, "", None))
    return vm, wait


def waits_materially(snapshot: Snapshot, uses: Mapping[str, VmUse], application: str) -> bool:
    """Whether a VM of the application waits for pCPUs so long that pCPUs without batch VMs may help it."""
    return most_waiting(snapshot, uses, application)[1] >= MATERIAL


def _idle(case: _Case) -> Iterator[StepCandidate]:
    """The idle class for batch VMs that do not have it anyhow, by the host's registration or by their group."""
    may = [vm for vm in driven(case.snapshot) if vm.idle is False and not vm.batch_group and vm.spec.weight is None]
    if may and not case.snapshot.host.batch_idle and (StepKind.IDLE, "") not in case.in_force:
        gain = IDLE_PART * case.by_wait * _part(may, case)
        yield StepCandidate(case.step(StepKind.IDLE), gain, IDLE_COST, 0.0, f"{case.waits}, beside batch VMs")


def _quota(case: _Case) -> Iterator[StepCandidate]:
    """Less CPU time for the batch VM that was shown to slow it, else for the one that uses most of it."""
    may = [vm for vm in driven(case.snapshot) if vm.quota_period_us is not None]
    finding = case.finding if case.finding and case.finding.neighbour in {vm.name for vm in may} else None
    if finding:
        may = [vm for vm in may if vm.name == finding.neighbour]
    noisy = max(may, key=lambda vm: (vm.cpu_share, vm.name), default=None)
    if noisy is None:
        return
    part = _part([noisy], case)
    used_pcpus = noisy.cpu_share * len(case.snapshot.capabilities.online_cpus)
    in_force = case.in_force.get((StepKind.QUOTA, noisy.name))
    level = _next_level(in_force)
    if level is None or (in_force is None and part < NOISY and not finding):
        return
    of = in_force.candidate.of if in_force else used_pcpus
    of_batch = noisy.cpu_share / max(sum(vm.cpu_share for vm in batch_vms(case.snapshot)), 1e-9)
    if in_force:
        of_batch = in_force.candidate.batch_cost / (1 - in_force.step.level)
    before = in_force.step.level if in_force else 1.0
    gain = case.by_wait * part * (before - level) / before
    why = f"{case.waits}, and {noisy.name} uses {percent(part)} of the CPU time beside it"
    if finding:
        gain = finding.fall * (before - level) / (1 - HELD_TO)
        why = f"{noisy.name} is shown by experiment to slow it (confidence {percent(finding.confidence, 1)})"
    step = case.step(StepKind.QUOTA, noisy.name, max(level * of, LEAST_LIMIT_PCPUS), level)
    yield StepCandidate(step, gain, of_batch * (1 - level), 0.0, why, of)


def _placement(case: _Case) -> Iterator[StepCandidate]:
    """Critical VMs pinned where they float, or floating where they are pinned, where both are possible."""
    snapshot = case.snapshot
    other = StepKind.FLOAT if snapshot.host.pinning else StepKind.PIN
    vcpus = sum(vm.vcpus for vm in snapshot.vms if vm.critical and vm.mode is not Mode.RELEASED and vm.spec.pin is None)
    usable = len(usable_cpus(snapshot))
    free = any(vm.critical and vm.spec.pin is None for vm in case.vms)
    if not free or usable < 2 or vcpus > usable or (other, "") in case.in_force:
        return
    if other is StepKind.FLOAT and not any(wants_pins(vm, snapshot) for vm in case.vms):
        return
    where = "pinned" if other is StepKind.FLOAT else "floating"
    gain = PLACEMENT_PART * case.by_wait
    yield StepCandidate(case.step(other), gain, PLACEMENT_COST, OTHERS_COST, f"{case.waits}, {where} as it is")


def _warp(case: _Case) -> Iterator[StepCandidate]:
    """A warp by the SLA for VMs for which none is registered, where the host has a mechanism that was chosen."""
    application = case.view.application
    left = [vm for vm in case.vms if is_left_to_policy(vm.spec, application)]
    warp_us = min(auto_warp_us(case.app.sla.response_time_ms), case.snapshot.host.warp_max_us)
    if not (left and warp_us and can_warp(case.snapshot)) or (StepKind.WARP, case.app.name) in case.in_force:
        return
    others = any(vm.critical and vm.application != case.app.name for vm in case.snapshot.vms)
    step = case.step(StepKind.WARP, case.app.name, float(warp_us))
    yield StepCandidate(step, WARP_PART * case.by_wait, WARP_COST, OTHERS_COST if others else 0.0, case.waits)


def _memory(case: _Case) -> Iterator[StepCandidate]:
    """Ways for the application alone, and less memory bandwidth for the batch VM that moves most."""
    snapshot = case.snapshot
    if not snapshot.cache_ways and not snapshot.memory_limits:
        return
    known = {vm.name: vm.memory_bytes_per_s for vm in snapshot.vms if vm.memory_bytes_per_s is not None}
    total = sum(known.values())
    batch = {vm.name: known[vm.name] for vm in driven(snapshot) if vm.name in known}
    noisy = max(batch, key=lambda name: (batch[name], name), default=None)
    part = batch[noisy] / total if noisy and total else 0.0
    if noisy and snapshot.memory_limits:
        yield from _bandwidth(case, noisy, part)
    of_batch = sum(batch.values()) / total if total else None
    if snapshot.cache_ways and case.view.application.cache is None and (of_batch is None or of_batch >= NOISY):
        yield from _ways(case, 0.5 if of_batch is None else of_batch)


def _bandwidth(case: _Case, noisy: str, part: float) -> Iterator[StepCandidate]:
    in_force = case.in_force.get((StepKind.BANDWIDTH, noisy))
    level = _next_level(in_force)
    if level is None or (in_force is None and part < NOISY):
        return
    before = in_force.step.level if in_force else 1.0
    gain = BANDWIDTH_EFFECT * (1 - case.wait) * part * (before - level) / before
    of_batch = next((vm.cpu_share for vm in case.snapshot.vms if vm.name == noisy), 0.0) / max(
        sum(vm.cpu_share for vm in batch_vms(case.snapshot)), 1e-9
    )
    why = f"{noisy} moves {percent(part)} of the memory traffic"
    step = case.step(StepKind.BANDWIDTH, noisy, level, level)
    yield StepCandidate(step, gain, BANDWIDTH_COST * of_batch * (1 - level), 0.0, why)


def _ways(case: _Case, of_batch: float) -> Iterator[StepCandidate]:
    total = case.snapshot.cache_ways
    in_force = case.in_force.get((StepKind.WAYS, case.app.name))
    before = in_force.step.amount if in_force else 0.0
    ways = next((ways for level in WAYS_LEVELS if (ways := round(level * total)) > before), None)
    if not ways or ways >= total:
        return
    added = (ways - before) / total
    others = any(vm.critical and vm.application != case.app.name for vm in case.snapshot.vms)
    why = f"batch VMs move {percent(of_batch)} of the memory traffic" if of_batch != 0.5 else "the cache is shared"
    yield StepCandidate(
        case.step(StepKind.WAYS, case.app.name, float(ways), ways / total),
        WAYS_EFFECT * (1 - case.wait) * of_batch * math.sqrt(added),
        WAYS_COST * ways / total,
        OTHERS_COST * ways / total if others else 0.0,
        why,
    )


def _next_level(in_force: StepInForce | None) -> float | None:
    """What would be left to a noisy neighbour next."""
    if in_force is None:
        return LEVELS[0]
    return next((level for level in LEVELS if level < in_force.step.level), None)


def driven(snapshot: Snapshot) -> list[VmView]:
    """The batch VMs for which decisions are written."""
    return [vm for vm in batch_vms(snapshot) if vm.mode is Mode.ENFORCE] or list(batch_vms(snapshot))


def _part(vms: Sequence[VmView], case: _Case) -> float:
    """Of the CPU time that all use beside the application, the part of these."""
    own = {vm.name for vm in case.vms}
    beside = sum(vm.cpu_share for vm in case.snapshot.vms if vm.name not in own)
    return sum(vm.cpu_share for vm in vms) / beside if beside > 0 else 0.0
