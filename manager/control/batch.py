"""What batch VMs get whatever the policy: their floor in any case, and the idle class while they have it.

The floor is a share of the host's CPU (design, section 4). In the idle class (cpu.idle) a batch VM yields to any other
at once, so it can be starved altogether; one that gets less than the floor leaves that class, with a weight that makes
it reach the floor, until it has caught up. Quotas that a policy gives batch VMs leave them their floor together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from manager.control.feedback_law import average, floor_weight
from manager.model.decision import Decision, IdleGoal, QuotaGoal, Snapshot, VmView, WeightGoal
from manager.model.registration import Mode
from manager.model.units import percent

FLOOR_MARGIN = 1.5
"""Batch VMs below their floor get weights for this much more than it, so that they reach it again."""
LARGEST_SHARE = 0.9
"""No weight gives batch VMs more of the host than this."""
WAITING_SHARE = 0.05
"""Batch VMs whose vCPUs wait less than this of the time get all they want, be it below the floor."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """``share`` of the host's CPU that batch VMs got, averaged; ``raised``: they got less than their floor.

    ``share`` begins with a guess; ``measured_share`` is only what was seen in the last ``measured_s`` seconds.
    """

    share: float | None = None
    raised: bool = False
    measured_share: float | None = None
    measured_s: float = 0.0


def guard_batch(decision: Decision, snapshot: Snapshot, memory: BatchMemory) -> tuple[Decision, BatchMemory]:
    """A policy's decision with the floor of the batch VMs kept, and the memory for the next interval.

    Batch VMs with a registered weight keep that and are not put into the idle class. Deterministic and pure.
    """
    law, scale = snapshot.host.law, snapshot.capabilities.weights
    batch = [vm for vm in snapshot.vms if not vm.critical]
    if decision.quotas:
        decision = replace(decision, quotas=_floor_within(decision.quotas, snapshot, batch))
    if scale is None or not batch:
        return decision, BatchMemory()
    smoothing = min(1.0, snapshot.interval_s / law.floor_window_s)
    now = sum(vm.cpu_share for vm in batch)
    # At first they are taken to have had plenty: what a single interval shows is no average.
    share = average(max(now, 2 * law.batch_floor) if memory.share is None else memory.share, now, smoothing)
    measured_s = min(memory.measured_s + snapshot.interval_s, max(law.floor_window_s, snapshot.interval_s))
    measured = average(memory.measured_share, now, snapshot.interval_s / measured_s)
    waiting = any(vm.run_delay_share > WAITING_SHARE for vm in batch)
    # Raised until the floor is exceeded by half the margin: else it would be left and raised again at once.
    limit = law.batch_floor * ((1 + FLOOR_MARGIN) / 2 if memory.raised else 1)
    raised = waiting and share < limit
    driven = [vm for vm in batch if vm.spec.weight is None]
    name = snapshot.host.policy
    below = (
        f"{name}: batch VMs got {percent(share, 1)} of the host, less than their floor of {percent(law.batch_floor, 1)}"
    )
    if raised:
        weights = _raised(decision.weights, snapshot, driven, batch, below)
        decision = replace(decision, weights=weights, idle=_awake(decision.idle, driven, below))
    if snapshot.host.batch_idle:
        decided = {goal.vm for goal in decision.idle}
        why = below if raised else f"{name}: batch VM in the idle class"
        idle = tuple(
            IdleGoal(vm.name, not raised, why) for vm in driven if vm.idle is not None and vm.name not in decided
        )
        decision = replace(decision, idle=decision.idle + idle)
    return decision, BatchMemory(share, raised, measured, measured_s)


def critical_weight(snapshot: Snapshot, goals: Mapping[str, WeightGoal]) -> int:
    """What critical VMs have together, once the goals (by VM) are written: by their mode some of them are not.

    Where nothing of the host is written, the goals are what counts for what would be done.
    """
    written = snapshot.host.mode

    def weight_of(vm: VmView) -> int:
        return goals[vm.name].weight if vm.name in goals and vm.mode is written else vm.weight or 0

    return sum(weight_of(vm) for vm in snapshot.vms if vm.critical)


def comes_last(decision: Decision, snapshot: Snapshot) -> bool:
    """Whether batch VMs are to yield to all others: each without a registered weight gets the smallest there is."""
    scale = snapshot.capabilities.weights
    if scale is None:
        return False
    weights = {goal.vm: goal.weight for goal in decision.weights}
    driven = [vm.name for vm in snapshot.vms if not vm.critical and vm.spec.weight is None]
    return bool(driven) and all(weights.get(name, scale.maximum) <= scale.batch for name in driven)


def _awake(goals: tuple[IdleGoal, ...], driven: Sequence[VmView], why: str) -> tuple[IdleGoal, ...]:
    """The goals with these batch VMs out of the idle class, in which nothing gives them their floor."""
    names = {vm.name for vm in driven}
    return tuple(replace(goal, idle=False, reason=why) if goal.vm in names and goal.idle else goal for goal in goals)


def _floor_within(goals: tuple[QuotaGoal, ...], snapshot: Snapshot, batch: Sequence[VmView]) -> tuple[QuotaGoal, ...]:
    """The quotas, those of batch VMs as high as it takes for these to reach their floor together, with its margin.

    The least are raised first, to one level, but none above what its VM can use or is registered for.
    """
    quotas = {goal.vm: goal.pcpus for goal in goals}
    needed = snapshot.host.law.batch_floor * FLOOR_MARGIN * len(snapshot.capabilities.online_cpus)
    most = {vm.name: min(vm.vcpus, vm.spec.max_pcpus or vm.vcpus) for vm in batch}
    limited = [vm.name for vm in batch if vm.name in quotas and vm.mode is not Mode.RELEASED]
    needed -= sum(pcpus for name, pcpus in most.items() if name not in limited)
    level = _level([(quotas[name], most[name]) for name in limited], needed)
    why = f"batch VMs keep their floor of {percent(snapshot.host.law.batch_floor, 1)}"
    return tuple(
        replace(goal, pcpus=raised, reason=f"{goal.reason}; {goal.pcpus:g} raised to {raised:g} pCPUs: {why}")
        if goal.vm in limited and (raised := min(level, most[goal.vm])) > goal.pcpus
        else goal
        for goal in goals
    )


def _level(ranges: Sequence[tuple[float, float]], needed: float) -> float:
    """The least value to which all must be raised, each within its (least, most), for their sum to be ``needed``.

    The largest of ``most`` where they cannot; 0 where they are as much as they are.
    """
    reached_at, reached = 0.0, sum(min(least, most) for least, most in ranges)
    if reached >= needed * (1 - _ROUNDING):
        return 0.0
    for level in sorted({value for pair in ranges for value in pair}):
        total = sum(min(max(least, level), most) for least, most in ranges)
        if total >= needed:
            return reached_at + (level - reached_at) * (needed - reached) / (total - reached)
        reached_at, reached = level, total
    return reached_at


def _raised(
    goals: Sequence[WeightGoal], snapshot: Snapshot, driven: Sequence[VmView], batch: Sequence[VmView], why: str
) -> tuple[WeightGoal, ...]:
    """The goals with weights for the batch VMs that give them their floor beside those of the critical VMs.

    What those with a registered weight are short of, the ``driven`` ones have besides.
    """
    scale = snapshot.capabilities.weights
    if scale is None:
        return tuple(goals)
    wanted = {goal.vm: goal for goal in goals}
    others = critical_weight(snapshot, wanted)
    share = min(snapshot.host.law.batch_floor * FLOOR_MARGIN, LARGEST_SHARE)
    each = floor_weight(others, share, len(batch))
    short = sum(max(each - scale.clamp(vm.spec.weight), 0) for vm in batch if vm.spec.weight is not None)
    weight = scale.clamp(each + math.ceil(short / max(len(driven), 1)))
    for vm in driven:
        from_policy = wanted.get(vm.name)
        if from_policy is None or from_policy.weight < weight:
            wanted[vm.name] = WeightGoal(vm.name, weight, why)
    return tuple(sorted(wanted.values(), key=lambda goal: goal.vm))
