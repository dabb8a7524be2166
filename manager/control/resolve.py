"""From what a policy decided to what this host can be given: names become knobs, weights become legal ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter

from manager.control.batch_membership import Grouped
from manager.control.objections import objections
from manager.control.placer import Confined, Steered
from manager.model.cpus import CpuSet
from manager.model.decision import Decision, Goal, Placement, Plan, Snapshot, VmView
from manager.model.knobs import HOST_UUID, INSIDE, LEAST_QUOTA_US, Knob, KnobKey
from manager.model.registration import Mode
from manager.model.warp import LOADED, NO_WARPS, Mechanism, WarpPlan

WARP_KNOBS = {
    Mechanism.SCHED_EXT: Knob.WARP,
    Mechanism.BVT: Knob.BVT_WARP,
    Mechanism.GROUP_IDENTITY: Knob.GROUP_IDENTITY,
    Mechanism.SLICE: Knob.SLICE,
}
"""The knob of each mechanism."""


@cache
def effective_mode(host: Mode, *others: Mode | None) -> Mode:
    """The most cautious of the host's, the application's and the VM's mode; those without one follow the host."""
    caution = [Mode.ENFORCE, Mode.OBSERVE, Mode.RELEASED]
    return max((host, *(mode or host for mode in others)), key=caution.index)


def validate(decision: Decision, snapshot: Snapshot) -> str | None:
    """Why a policy's decision must not be carried out, or None where it may be.

    A decision that is of another type, names a VM or an application twice, names one that is not there, or gives a
    value that makes no sense, such as a weight below 1, changes nothing (design, section 5, rule 3).
    """
    return next(objections(decision, snapshot), None)


@dataclass(frozen=True, slots=True)
class Wishes:
    """All that is wanted of a host, by names of VMs. ``decided``: those that the policy confines."""

    decision: Decision = field(default_factory=Decision)
    placement: Placement = field(default_factory=Placement)
    confined: tuple[Confined, ...] = ()
    interrupts: tuple[Steered, ...] = ()
    warp: WarpPlan = NO_WARPS
    scheduling: tuple[Goal, ...] = ()
    grouped: Grouped | None = None
    decided: tuple[Confined, ...] = ()
    memory: tuple[Goal, ...] = ()
    disks: tuple[Goal, ...] = ()
    network: tuple[Goal, ...] = ()
    power: tuple[Goal, ...] = ()


def resolve(wishes: Wishes, snapshot: Snapshot, uuids: Mapping[str, str]) -> Plan:
    """Turn wishes, the decision among them valid, into goals this host can be given.

    Weights are clamped to the range of the host's cgroup version, and left out where the VM has none; pins become a
    goal for each thread, the emulator's and I/O threads beside the vCPUs. ``uuids`` maps VM names to domain UUIDs.
    """
    views = {vm.name: vm for vm in snapshot.vms}
    goals = [
        *_group_goals(wishes.decision, snapshot, views, uuids),
        *_quota_goals(wishes.decision, snapshot, uuids),
        *_warp_goals(wishes.warp, snapshot, views, uuids),
        *wishes.scheduling,
        *wishes.memory,
        *wishes.disks,
        *wishes.network,
        *wishes.power,
        *_membership_goals(wishes.grouped, views, uuids),
    ]
    for placed in wishes.placement.vms:
        pins = [
            (frozenset({vcpu.cpu}), f"critical vCPU {index}: {vcpu.why}") for index, vcpu in enumerate(placed.vcpus)
        ]
        cpus = frozenset(vcpu.cpu for vcpu in placed.vcpus)
        goals += _pin_goals(views[placed.vm], uuids[placed.vm], pins, cpus, "threads beside their vCPUs")
    for confined in (*wishes.confined, *wishes.decided):
        view = views[confined.vm]
        pins = [(confined.cpus, confined.reason)] * view.vcpus
        goals += _pin_goals(view, uuids[confined.vm], pins, confined.cpus, confined.reason)
    for queue in wishes.interrupts:
        key = KnobKey(HOST_UUID, Knob.IRQ_AFFINITY, queue.irq)
        goals.append(Goal(key, frozenset({queue.cpu}), queue.reason, snapshot.host.mode))
    return Plan(tuple(sorted(goals, key=itemgetter(0))))


def _group_goals(
    decision: Decision, snapshot: Snapshot, views: Mapping[str, VmView], uuids: Mapping[str, str]
) -> Iterator[Goal]:
    scale = snapshot.capabilities.weights
    for wanted in decision.idle:
        if views[wanted.vm].idle is not None:
            key = KnobKey(uuids[wanted.vm], Knob.IDLE)
            yield Goal(key, int(wanted.idle), wanted.reason, views[wanted.vm].mode)
    for goal in decision.weights:
        view = views[goal.vm]
        if scale is None or (view.weight is None and not view.idle):
            continue
        weight = scale.clamp(goal.weight)
        reason = goal.reason if weight == goal.weight else f"{goal.reason}; {goal.weight} clamped to {weight}"
        yield Goal(KnobKey(uuids[goal.vm], Knob.WEIGHT), weight, reason, view.mode)


def _membership_goals(grouped: Grouped | None, views: Mapping[str, VmView], uuids: Mapping[str, str]) -> Iterator[Goal]:
    if grouped is not None:
        yield from grouped.goals
        for vm in grouped.vms:
            yield Goal(KnobKey(uuids[vm], Knob.BATCH_GROUP), INSIDE, grouped.reason, views[vm].mode)


def _quota_goals(decision: Decision, snapshot: Snapshot, uuids: Mapping[str, str]) -> Iterator[Goal]:
    """The smaller of the registered limit and the policy's."""
    decided = {goal.vm: goal for goal in decision.quotas}
    for view in snapshot.vms:
        limit, period_us, goal = view.spec.max_pcpus, view.quota_period_us, decided.get(view.name)
        reason = f"registered limit: {limit:g} pCPUs" if limit is not None else ""
        if goal is not None and (limit is None or goal.pcpus < limit):
            limit, reason = goal.pcpus, goal.reason
        if limit is not None and period_us is not None:
            quota_us = max(round(limit * period_us), LEAST_QUOTA_US)
            yield Goal(KnobKey(uuids[view.name], Knob.QUOTA), quota_us, reason, view.mode)


def _warp_goals(
    plan: WarpPlan, snapshot: Snapshot, views: Mapping[str, VmView], uuids: Mapping[str, str]
) -> Iterator[Goal]:
    if plan.load:
        key = KnobKey(HOST_UUID, Knob.SCHEDULER)
        yield Goal(key, LOADED, "VMs have warps, and this host's are to be sched_ext's", snapshot.host.mode)
    for warp in plan.vms:
        view, knob = views[warp.vm], WARP_KNOBS[plan.mechanism]
        for index in range(view.vcpus if knob is Knob.SLICE else 1):
            yield Goal(KnobKey(uuids[warp.vm], knob, index), warp.value, warp.reason, view.mode)


def _pin_goals(
    view: VmView, uuid: str, pins: Sequence[tuple[CpuSet, str]], threads: CpuSet, reason: str
) -> Iterator[Goal]:
    for index, (cpus, why) in enumerate(pins):
        yield Goal(KnobKey(uuid, Knob.VCPU_PIN, index), cpus, why, view.mode)
    yield Goal(KnobKey(uuid, Knob.EMULATOR_PIN), threads, f"emulator {reason}", view.mode)
    for number in view.iothreads:
        yield Goal(KnobKey(uuid, Knob.IOTHREAD_PIN, number), threads, f"I/O {reason}", view.mode)
