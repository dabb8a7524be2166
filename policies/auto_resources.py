"""Steps of `auto` on memory, disks and uplinks: for whom, against whom, and what each is predicted to bring.

An application at risk gets protection where its VMs show pressure: its memory is protected, disks are weighted, uplinks
are divided. Protection costs batch VMs least and so is tried first. Where it does not suffice, or a host has none, the
batch VM that does most of it is held back by a ceiling, step by step. All of it needs the host's ``steps``, signals
that show the pressure now, and a batch VM that may cause it; what is not measured supports no step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from manager.control.ceiling_plan import LEAST_CEILING_PER_S
from manager.control.memory_plan import is_short
from manager.control.resource_blame import (
    DROPS_PER_S,
    IO_PRESSURE,
    LEAST_BYTES_PER_S,
    MEMORY_PRESSURE,
    SATURATED,
    SLOW_MS,
    part_of_disk,
)
from manager.control.resource_decision import is_allowed
from manager.model.decision import ResourceControl, ResourceGoal, Snapshot
from manager.model.knobs import DISK_WEIGHTS, Knob
from manager.model.numbers import digits
from manager.model.resource_use import ALL_DISKS, DeviceUse, LinkUse, VmResources
from manager.model.rules import BatchPlacement
from manager.model.units import percent
from policies.auto_candidates import LEVELS, NOISY, driven, serving
from policies.auto_model import AppModel
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind, StepsMemory
from policies.cores import batch_vms, enforced, managed

CONTROLS = {
    StepKind.MEMORY_PROTECTION: ResourceControl.MEMORY_PROTECTION,
    StepKind.MEMORY_CEILING: ResourceControl.MEMORY_CEILING,
    StepKind.DISK_WEIGHTS: ResourceControl.DISK_WEIGHTS,
    StepKind.DISK_CEILING: ResourceControl.DISK_CEILING,
    StepKind.UPLINK_SHARES: ResourceControl.UPLINK_SHARES,
}
"""What each of these steps switches on."""
FAULT_S = 1e-3
"""A page that is read again is taken to hold its VM up for so long, where the kernel does not measure the wait."""
MOST_PART = 0.95
"""No more of its time than this part is taken to be lost to a resource."""
PROTECTED_PART = 0.8
"""Of the effect of a resource, what protection is taken to save."""
PROTECTION_COST, SHARES_COST = 0.02, 0.05
MEMORY_CEILING_COST, DISK_CEILING_COST = 0.15, 0.3
"""What batch VMs lose, as a part of their progress; of the last, times what it takes from them of the disk."""


@dataclass(frozen=True, slots=True)
class _Pressed:
    """An application at risk: its VMs as measured, and the batch VMs that may be held back."""

    application: str
    own: Sequence[VmResources]
    batch: Mapping[str, VmResources]
    snapshot: Snapshot
    in_force: Mapping[tuple[StepKind, str], StepInForce]

    def candidate(self, step: LadderStep, gain: float, batch_cost: float, why: str, of: float = 1.0) -> StepCandidate:
        return StepCandidate(step, gain, batch_cost, 0.0, why, of)

    def step(
        self, kind: StepKind, target: str = "", amount: float = 1.0, level: float = 1.0, disk: int = 0
    ) -> LadderStep:
        return LadderStep(kind, target, amount, self.application, level, disk)

    def has(self, vm: str, *knobs: Knob) -> bool:
        """Whether a VM has one of these."""
        return not self.snapshot.resource_knobs.get(vm, frozenset()).isdisjoint(knobs)

    def is_free(self, kind: StepKind, target: str = "") -> bool:
        """Whether such a step is not in force yet."""
        return (kind, target) not in self.in_force


def resource_candidates(
    snapshot: Snapshot, applications: Sequence[AppModel], in_force: Sequence[StepInForce]
) -> Iterator[StepCandidate]:
    """The next step on memory, disks and uplinks for each application at risk, as of the last round of readings."""
    host, uses = snapshot.host, {use.vm: use for use in snapshot.resources.vms}
    if not uses or not (host.memory.steps or host.disk.steps or host.network.steps):
        return
    present = {each.step.knob: each for each in in_force}
    batch = {vm.name: uses[vm.name] for vm in driven(snapshot) if vm.name in uses}
    acts = enforced(snapshot.vms)
    for app in applications:
        vms = serving(snapshot, app.name)
        own = [uses[vm.name] for vm in vms if vm.name in uses]
        if not app.at_risk or not own or not batch or (acts and not enforced(vms)):
            continue
        case = _Pressed(app.name, own, batch, snapshot, present)
        if host.memory.steps:
            yield from _memory(case)
        if host.disk.steps:
            yield from _disk(case)
        if host.network.steps:
            yield from _network(case)


def _memory(case: _Pressed) -> Iterator[StepCandidate]:
    """Not where the whole host is known to have memory: then the VM's own limit is too low."""
    rules, resources = case.snapshot.host.memory, case.snapshot.resources
    short = [use for use in case.own if is_short(use)]
    if not short or (resources.memory_pressure is not None and resources.memory_pressure < MEMORY_PRESSURE):
        return
    worst = max(short, key=lambda use: (_memory_part(use), use.vm))
    slowed = _slowed(_memory_part(worst))
    why = f"{worst.vm} is short of memory for {percent(_memory_part(worst))} of its time"
    if not rules.protect:
        yield from _protection(case, short)
    growths = {name: use.growth_bytes_per_s or 0.0 for name, use in case.batch.items()}
    own = {use.vm for use in case.own}
    grown = math.fsum(use.growth_bytes_per_s or 0.0 for use in resources.vms if use.vm not in own)
    noisy = max(growths, key=lambda name: (growths[name], name))
    part = growths[noisy] / grown if grown else 0.0
    kind = StepKind.MEMORY_CEILING
    if rules.ceilings or growths[noisy] < LEAST_BYTES_PER_S or part < NOISY:
        return
    if case.has(noisy, Knob.MEMORY_CEILING) and case.is_free(kind, noisy):
        why = f"{why}, and {noisy} grows by {digits(growths[noisy] / 1e6)} MB/s"
        yield case.candidate(case.step(kind, noisy), slowed * part, MEMORY_CEILING_COST, why)


def _protection(case: _Pressed, short: Sequence[VmResources]) -> Iterator[StepCandidate]:
    """Of the VM that is shortest of those without."""
    kind = StepKind.MEMORY_PROTECTION
    knobs = Knob.MEMORY_PROTECTION, Knob.SWAPPINESS
    open_ = [use for use in short if case.has(use.vm, *knobs) and case.is_free(kind, use.vm)]
    worst = max(open_, key=lambda use: (_memory_part(use), use.vm), default=None)
    if worst is not None:
        part = _memory_part(worst)
        why = f"{worst.vm} is short of memory for {percent(part)} of its time"
        yield case.candidate(case.step(kind, worst.vm), PROTECTED_PART * _slowed(part), PROTECTION_COST, why)


def _memory_part(use: VmResources) -> float:
    """The part of its time that a VM waits for memory: by PSI, else by what it reads again."""
    if use.memory_pressure is not None:
        return min(use.memory_pressure, MOST_PART)
    return min(((use.major_faults_per_s or 0.0) + (use.refaults_per_s or 0.0)) * FAULT_S, MOST_PART)


def _disk(case: _Pressed) -> Iterator[StepCandidate]:
    """On the disk of theirs that is slow, or that they wait for, and of which batch VMs have most."""
    found = [(_batch_part(case, disk) * disk.busy, disk.device, disk) for disk in _slow_disks(case)]
    lost, _, disk = max(found, key=lambda each: each[:2], default=(0.0, "", None))
    if disk is None:
        return
    slowed, of_batch = _slowed(lost), _batch_part(case, disk)
    latency = (
        f"a request of disk {disk.device} takes {digits(disk.latency_ms)} ms" if disk.latency_ms else "disks are busy"
    )
    why = f"{latency}, and batch VMs do {percent(of_batch)} of what disk {disk.device} does"
    rules, kind = case.snapshot.host.disk, StepKind.DISK_WEIGHTS
    weighed = disk.weighing is not None and any(case.has(use.vm, DISK_WEIGHTS[disk.weighing]) for use in case.own)
    if weighed and not rules.weights and case.is_free(kind):
        yield case.candidate(case.step(kind), PROTECTED_PART * slowed, PROTECTION_COST, why)
    if not rules.ceilings and disk.number is not None:
        yield from _disk_ceiling(case, disk, slowed, of_batch)


def _slow_disks(case: _Pressed) -> Iterator[DeviceUse]:
    for disk in case.snapshot.resources.disks:
        for use in case.own:
            used = {each.device for each in use.disks} & {disk.device, ALL_DISKS}
            if used and ((disk.latency_ms or 0.0) >= SLOW_MS or (use.io_pressure or 0.0) >= IO_PRESSURE):
                yield disk
                break


def _batch_part(case: _Pressed, disk: DeviceUse) -> float:
    return min(math.fsum(part_of_disk(use, disk) for use in case.batch.values()), 1.0)


def _disk_ceiling(case: _Pressed, disk: DeviceUse, slowed: float, of_batch: float) -> Iterator[StepCandidate]:
    """For the batch VM that makes most requests of the disk; for all that use it, each the same, where none does."""
    rates = {
        name: math.fsum(each.requests_per_s or 0.0 for each in use.disks if each.device == disk.device)
        for name, use in case.batch.items()
        if case.has(name, Knob.DISK_CEILING)
    }
    users = {name: rate for name, rate in rates.items() if rate > 0}
    if not users or disk.number is None:
        return
    noisy = max(users, key=lambda name: (users[name], name))
    part = part_of_disk(case.batch[noisy], disk)
    target = noisy if part >= NOISY else ""
    in_force = case.in_force.get((StepKind.DISK_CEILING, target))
    before = in_force.step.level if in_force else 1.0
    level = next((level for level in LEVELS if level < before), None)
    if level is None or of_batch < NOISY or (in_force and in_force.step.disk != disk.number):
        return
    of = in_force.candidate.of if in_force else (users[noisy] if target else math.fsum(users.values()) / len(users))
    held = min(part / of_batch, 1.0) if target else 1.0
    who = f"{noisy} does {percent(part)}" if target else f"{len(users)} batch VMs do {percent(of_batch)}"
    step = case.step(StepKind.DISK_CEILING, target, max(level * of, LEAST_CEILING_PER_S), level, disk.number)
    cost = DISK_CEILING_COST * held * (1 - level)
    yield case.candidate(step, slowed * held * (before - level) / before, cost, f"{who} of what {disk.device} does", of)


def _network(case: _Pressed) -> Iterator[StepCandidate]:
    """Where batch VMs fill an uplink that is divided by no setting, and that can be."""
    if case.snapshot.host.network.shares or not case.is_free(StepKind.UPLINK_SHARES):
        return
    sent = math.fsum(link.sent_bytes_per_s for use in case.batch.values() for link in use.interfaces)
    sends = any(link.sent_bytes_per_s > 0 for use in case.own for link in use.interfaces)
    full = {
        link.interface: used
        for link in case.snapshot.resources.uplinks
        if link.interface in case.snapshot.divisible_uplinks and (used := _used(case, link)) is not None
    }
    if not full or not sends or sent < LEAST_BYTES_PER_S:
        return
    uplink = max(full, key=lambda name: (full[name], name))
    carried = next(link.sent_bytes_per_s for link in case.snapshot.resources.uplinks if link.interface == uplink)
    of_batch = min(sent / max(carried, sent), 1.0)
    if of_batch >= NOISY:
        why = f"uplink {uplink} is saturated, and batch VMs send {percent(of_batch)} of it"
        gain = PROTECTED_PART * _slowed(of_batch * full[uplink])
        yield case.candidate(case.step(StepKind.UPLINK_SHARES), gain, SHARES_COST, why)


def _used(case: _Pressed, link: LinkUse) -> float | None:
    """Which part of its rate a saturated uplink sends; None: it is not saturated, or its rate is not known."""
    set_mbit = next((u.rate_mbit for u in case.snapshot.host.network.uplinks if u.interface == link.interface), None)
    rates = [rate for rate in (link.speed_bytes_per_s, set_mbit and set_mbit * 125_000) if rate]
    used = min(link.sent_bytes_per_s / min(rates), 1.0) if rates else None
    if used is not None and (used >= SATURATED or link.dropped_packets_per_s >= DROPS_PER_S):
        return used
    return None


def _slowed(part: float) -> float:
    """ln of how many times as long work takes while this part of the time is lost."""
    return -math.log(1 - min(part, MOST_PART))


def resource_goals(ladder: StepsMemory, snapshot: Snapshot) -> Iterator[ResourceGoal]:
    """What the steps in force and on trial switch on. Of two ceilings of a VM on a disk the lower counts."""
    trial = ladder.trial.step if ladder.trial and not ladder.trial.off else None
    critical = {vm.name for vm in managed(snapshot) if vm.critical}
    batch = [vm.name for vm in batch_vms(snapshot)]
    ceilings: dict[tuple[str, int], ResourceGoal] = {}
    for step in sorted(ladder.steps, key=lambda step: (step.kind, step.target)):
        control = CONTROLS.get(step.kind)
        reason = f"auto: for the SLA of {step.application} ({'on trial' if step == trial else 'kept'})"
        if control is ResourceControl.DISK_CEILING:
            for vm in batch:
                known = ceilings.get((vm, step.disk))
                if step.target in {vm, ""} and (known is None or known.requests_per_s > step.amount):
                    ceilings[vm, step.disk] = ResourceGoal(control, vm, reason, step.amount, step.disk)
        elif control is not None and step.target in {"", *(critical if _protects(control) else batch)}:
            yield ResourceGoal(control, step.target, reason)
    yield from ceilings.values()


def _protects(control: ResourceControl) -> bool:
    return control is ResourceControl.MEMORY_PROTECTION


def allowed_steps(ladder: StepsMemory, snapshot: Snapshot) -> StepsMemory:
    """Without steps that the host's settings do not allow any more, or in whose place something is registered now."""
    own_cache = {view.application.name for view in snapshot.applications if view.application.cache is not None}

    def stays(step: LadderStep) -> bool:
        if step.kind is StepKind.WAYS and step.target in own_cache:
            return False
        if step.kind is StepKind.SIBLINGS and snapshot.host.placement.batch is not BatchPlacement.FLOAT:
            return False
        if step.kind is (StepKind.PIN if snapshot.host.pinning else StepKind.FLOAT):  # so it is without that
            return False
        control = CONTROLS.get(step.kind)
        return control is None or is_allowed(control, snapshot.host)

    in_force = tuple(each for each in ladder.in_force if stays(each.step))
    trial = ladder.trial if ladder.trial is None or stays(ladder.trial.step) else None
    if len(in_force) == len(ladder.in_force) and trial is ladder.trial:
        return ladder
    return replace(
        ladder, in_force=in_force, trial=trial, samples={}, rates_rps={}, changed_s=snapshot.steady_s, calm_s=None
    )
