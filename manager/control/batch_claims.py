"""The policy's decision with the weights of batch VMs divided by what was agreed about their jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from manager.control.batch import critical_weight
from manager.control.batch_progress import NO_JOB, most_pcpus
from manager.control.deadline_weights import DividedThen, WorkClaim, grants, steady, total_weight
from manager.model.decision import Decision, Snapshot, VmView, WeightGoal
from manager.model.job import BatchVm, JobState

_OVER = frozenset({JobState.DONE, JobState.MISSED})
_LEAST_VMS = 2
"""One batch VM has nobody to divide with."""


def divide_by_claims(
    decision: Decision, snapshot: Snapshot, vms: Mapping[str, BatchVm], before: DividedThen
) -> tuple[Decision, DividedThen]:
    """The decision, and what is to be given next time. ``vms``: how batch VMs fare, by name.

    VMs with a registered weight, those that the policy gives none and those in the idle class take no part. Where no
    job is under way the decision stays as it is.
    """
    scale = snapshot.capabilities.weights
    if scale is None or not any(_has_claim(view) for view in snapshot.vms):  # mostly, and quick
        return decision, DividedThen()
    goals = {goal.vm: goal for goal in decision.weights}
    resting = {goal.vm for goal in decision.idle if goal.idle}
    views = [
        view
        for view in snapshot.vms
        if not view.critical and view.spec.weight is None and view.name in goals and view.name not in resting
    ]
    claims = [_claim(view, vms.get(view.name)) for view in views]
    if len(views) < _LEAST_VMS or not any(claim.needed_pcpus > 0 for claim in claims):
        return decision, DividedThen()
    critical = critical_weight(snapshot, goals)
    weights = [scale.clamp(goals[view.name].weight) for view in views]
    total = total_weight(weights, scale.minimum, critical, snapshot.host.law.batch_floor)
    budget_pcpus = math.fsum(vms[view.name].got_pcpus for view in views if view.name in vms)
    now = steady(before, claims, total, scale.minimum, budget_pcpus, snapshot.host.law.dead_band)
    granted = grants(claims, budget_pcpus)
    divided = {
        claim.vm: WeightGoal(claim.vm, now.weights[claim.vm], _reason(goals[claim.vm], claim, granted[claim.vm]))
        for claim in claims
    }
    return replace(decision, weights=tuple(divided.get(goal.vm, goal) for goal in decision.weights)), now


def _has_claim(view: VmView) -> bool:
    job = view.spec.job
    return job is not None and (job.deadline_s is not None or job.max_slowdown is not None)


def _claim(view: VmView, status: BatchVm | None) -> WorkClaim:
    job, most = view.spec.job or NO_JOB, most_pcpus(view)
    if status is None:
        return WorkClaim(view.name, most)
    needed, deadline_s = 0.0, math.inf
    if job.deadline_s is not None and status.state not in _OVER and status.needed_pcpus is not None:
        needed, deadline_s = status.needed_pcpus, job.deadline_s
    if job.max_slowdown is not None:
        needed = max(needed, status.would_pcpus / job.max_slowdown)
    return WorkClaim(view.name, most, min(needed, most), deadline_s)


def _reason(goal: WeightGoal, claim: WorkClaim, granted_pcpus: float) -> str:
    if not claim.needed_pcpus:
        return f"{goal.reason}; batch VMs with a job go first"
    return f"{goal.reason}; its job needs {claim.needed_pcpus:.2f} pCPUs and is granted {granted_pcpus:.2f}"
