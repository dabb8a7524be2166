"""A step of `auto`: batch VMs leave the siblings of an application's cores idle, while its SLA is at risk.

Two threads of a core share its units: beside a busy sibling work takes 1.67 times as long, whatever the weights are
(``placement_cost.SMT_SLOWDOWN``), and no vCPU wait shows it. A fence around whole cores (``placement.batch``) does the
same for good; as a step it is done for one application and only while that is shown to help.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from manager.control.placement_cost import SMT_SLOWDOWN
from manager.control.placer import usable_cpus
from manager.model.cpus import CpuSet, format_cpus
from manager.model.decision import CpusGoal, Snapshot
from manager.model.rules import BatchPlacement
from manager.model.units import percent
from policies.auto_candidates import NOISY, serving
from policies.auto_model import AppModel
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind, StepsMemory
from policies.cores import batch_vms, cpus_goal, enforced

LEAST_LEFT = 0.5
"""Batch VMs keep at least this part of the usable pCPUs."""


def siblings_of(snapshot: Snapshot, application: str) -> CpuSet:
    """Usable siblings of the pCPUs that the application's vCPUs are pinned to, without those of any critical vCPU."""
    own = frozenset[int]().union(*(vm.pinned for vm in serving(snapshot, application)))
    if not own:
        return own
    critical = frozenset[int]().union(*(vm.pinned for vm in snapshot.vms if vm.critical))
    return (snapshot.capabilities.topology.whole_cores(own) - critical) & usable_cpus(snapshot)


def sibling_candidates(
    snapshot: Snapshot, applications: Sequence[AppModel], in_force: Sequence[StepInForce]
) -> Iterator[StepCandidate]:
    """For each application at risk that is pinned beside free siblings, where batch VMs float over these."""
    usable = usable_cpus(snapshot)
    present = {each.step.knob for each in in_force}
    if snapshot.host.placement.batch is not BatchPlacement.FLOAT or not batch_vms(snapshot):
        return
    acts = enforced(snapshot.vms)
    left = _left(snapshot, [name for kind, name in present if kind is StepKind.SIBLINGS])
    for app in applications:
        if not app.at_risk:
            continue
        siblings = siblings_of(snapshot, app.name) - left
        kind, vms = StepKind.SIBLINGS, serving(snapshot, app.name)
        if not siblings or (kind, app.name) in present or (acts and not enforced(vms)):
            continue
        busy = _busy(snapshot)
        if busy < NOISY or len(usable - left - siblings) < LEAST_LEFT * len(usable):
            continue
        step = LadderStep(kind, app.name, float(len(siblings)), app.name)
        gain = math.log(1 + SMT_SLOWDOWN) * busy
        why = f"batch VMs keep its siblings {percent(busy)} busy"
        yield StepCandidate(step, gain, len(siblings) / len(usable - left), 0.0, why)


def _busy(snapshot: Snapshot) -> float:
    """How busy batch VMs keep a pCPU that no critical vCPU is pinned to, as if they used no others."""
    pinned = frozenset[int]().union(*(vm.pinned for vm in snapshot.vms if vm.critical))
    pcpus = len(snapshot.capabilities.online_cpus)
    used_pcpus = math.fsum(vm.cpu_share for vm in batch_vms(snapshot)) * pcpus
    return min(used_pcpus / max(len(usable_cpus(snapshot) - pinned), 1), 1.0)


def _left(snapshot: Snapshot, applications: Sequence[str]) -> CpuSet:
    return frozenset[int]().union(*(siblings_of(snapshot, name) for name in applications))


def with_siblings(ladder: StepsMemory, snapshot: Snapshot, cpus: tuple[CpusGoal, ...]) -> tuple[CpusGoal, ...]:
    """Batch VMs off the siblings that steps leave idle, besides what ``cpus`` says. One that could then run nowhere
    stays as it was.
    """
    left = _left(snapshot, [step.target for step in ladder.steps if step.kind is StepKind.SIBLINGS])
    if not left:
        return cpus
    goals = {goal.vm: goal for goal in cpus}
    for vm in batch_vms(snapshot):
        known = goals.get(vm.name)
        others = (known.cpus if known else usable_cpus(snapshot)) - left
        why = f"auto: an SLA is at risk, so batch VMs leave the siblings {format_cpus(left)} of its cores idle"
        goal = cpus_goal(vm, others, why)
        if goal is not None:
            goals[vm.name] = replace(goal, reason=f"{known.reason}; {why}") if known else goal
    return tuple(goals.values())
