"""From the steps of the ladder in force to goals of a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from manager.control.warp_plan import can_warp
from manager.model.decision import BandwidthGoal, IdleGoal, QuotaGoal, Snapshot, WarpGoal, WaysGoal
from policies.auto_steps import LadderStep, StepKind, StepsMemory
from policies.cores import batch_vms, managed


@dataclass(frozen=True, slots=True)
class StepGoals:
    """What the steps set, see ``Decision``. ``pinning`` and ``warps`` None: as without a step."""

    idle: tuple[IdleGoal, ...] = ()
    quotas: tuple[QuotaGoal, ...] = ()
    ways: tuple[WaysGoal, ...] = ()
    bandwidths: tuple[BandwidthGoal, ...] = ()
    pinning: bool | None = None
    warps: tuple[WarpGoal, ...] | None = None


def step_goals(ladder: StepsMemory, snapshot: Snapshot) -> StepGoals:
    """One goal at most for each knob, as no two steps set the same."""
    by_kind: dict[StepKind, list[LadderStep]] = {}
    for step in ladder.steps:
        by_kind.setdefault(step.kind, []).append(step)
    trial = ladder.trial.step if ladder.trial and not ladder.trial.off else None

    def why(step: LadderStep) -> str:
        return f"auto: for the SLA of {step.application} ({'on trial' if step == trial else 'kept'})"

    idle = by_kind.get(StepKind.IDLE, ())
    placed = [step.kind for kind in (StepKind.PIN, StepKind.FLOAT) for step in by_kind.get(kind, ())]
    return StepGoals(
        tuple(
            IdleGoal(vm.name, True, why(step))
            for step in idle
            for vm in batch_vms(snapshot)
            if vm.idle is not None and vm.spec.weight is None
        ),
        tuple(QuotaGoal(step.target, step.amount, why(step)) for step in _sorted(by_kind.get(StepKind.QUOTA, ()))),
        tuple(WaysGoal(step.target, int(step.amount), why(step)) for step in _sorted(by_kind.get(StepKind.WAYS, ()))),
        tuple(
            BandwidthGoal(step.target, step.amount, why(step)) for step in _sorted(by_kind.get(StepKind.BANDWIDTH, ()))
        ),
        placed[0] is StepKind.PIN if placed else None,
        _warps(by_kind.get(StepKind.WARP, ()), snapshot, why) if can_warp(snapshot) else None,
    )


def _warps(steps: Iterable[LadderStep], snapshot: Snapshot, why: Callable[[LadderStep], str]) -> tuple[WarpGoal, ...]:
    """For all critical VMs of the applications; what is registered for one counts before it."""
    return tuple(
        WarpGoal(vm.name, int(step.amount), why(step))
        for step in _sorted(steps)
        for vm in managed(snapshot)
        if vm.critical and vm.application == step.target
    )


def _sorted(steps: Iterable[LadderStep]) -> list[LadderStep]:
    return sorted(steps, key=lambda step: step.target)
