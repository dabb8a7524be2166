"""What is left of a policy's decision within the agent's own limits, as of what is registered (limit_assignment)."""

from __future__ import annotations

from dataclasses import replace

from manager.model.decision import Decision, QuotaGoal
from manager.model.knob_spec import Control
from manager.model.limits import AgentLimits


def limit_decision(decision: Decision, limits: AgentLimits) -> tuple[Decision, tuple[str, ...]]:
    """The decision without what the agent's settings do not allow, and what was taken from it. Pure.

    But for weights and the idle class, see ``limit_groups``.
    """
    reasons: list[str] = []
    pins = decision.cpus or decision.pinning
    if pins and Control.PIN not in limits.allowed:
        reasons.append(f"pins of the policy: {limits.how_to_allow(Control.PIN)}")
        decision = replace(decision, cpus=(), pinning=None)
    if decision.quotas and Control.QUOTA not in limits.allowed:
        reasons.append(f"limits of the policy: {limits.how_to_allow(Control.QUOTA)}")
        decision = replace(decision, quotas=())
    if any(goal.pcpus < limits.min_pcpus for goal in decision.quotas):
        decision = replace(decision, quotas=tuple(_at_least(goal, limits.min_pcpus) for goal in decision.quotas))
    return decision, tuple(reasons)


def limit_groups(decision: Decision, limits: AgentLimits) -> tuple[Decision, tuple[str, ...]]:
    """The same of weights and the idle class, once all is known that VMs are to have of them, by whomever. Pure."""
    reasons: list[str] = []
    if decision.weights and Control.WEIGHT not in limits.allowed:
        reasons.append(f"weights: {limits.how_to_allow(Control.WEIGHT)}")
        decision = replace(decision, weights=())
    if decision.idle and Control.IDLE not in limits.allowed:
        if any(goal.idle for goal in decision.idle):
            reasons.append(f"the idle class: {limits.how_to_allow(Control.IDLE)}")
        decision = replace(decision, idle=())
    return decision, tuple(reasons)


def _at_least(goal: QuotaGoal, min_pcpus: float) -> QuotaGoal:
    if goal.pcpus >= min_pcpus:
        return goal
    return replace(goal, pcpus=min_pcpus, reason=f"{goal.reason}; {goal.pcpus:g} pCPUs: min_pcpus = {min_pcpus:g}")
