"""What is wrong with a policy's decision: types, names and values that nothing can be done with."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from manager.model.cpus import CpuSet, format_cpus
from manager.model.decision import (
    BandwidthGoal,
    CpusGoal,
    Decision,
    Explanation,
    IdleGoal,
    Note,
    QuotaGoal,
    ResourceControl,
    ResourceGoal,
    Snapshot,
    WaysGoal,
    WeightGoal,
)
from manager.model.registration import LEAST_LIMIT_PCPUS, MOST_LIMIT_PCPUS


def objections(decision: Decision, snapshot: Snapshot) -> Iterator[str]:
    """Each is the end of a sentence about the policy. Only the first is sure to make sense."""
    if not isinstance(decision, Decision) or not isinstance(decision.weights, tuple) or not _are_notes(decision.notes):
        yield f"returned {decision!r} instead of a decision"
    if decision.pinning is not None and not isinstance(decision.pinning, bool):
        yield f"says {decision.pinning!r} about pinning; use True, False or None"
    if not isinstance(decision.on_trial, bool):
        yield f"says {decision.on_trial!r} about a trial; use True or False"
    vms = {vm.name for vm in snapshot.vms}
    online = snapshot.capabilities.online_cpus
    yield from _of_goals(decision.weights, _WEIGHTS, vms, online)
    yield from _of_goals(decision.idle, _IDLE, vms, online)
    yield from _of_goals(decision.cpus, _CPUS, vms, online)
    yield from _of_goals(decision.quotas, _QUOTAS, vms, online)
    if decision.bandwidths is not None:
        batch = {vm.name for vm in snapshot.vms if not vm.critical}
        yield from _of_goals(decision.bandwidths, _BANDWIDTHS, batch, online)
    if decision.resources != ():
        yield from _of_resources(decision.resources, snapshot)
    if decision.ways != () or decision.explanations != ():
        applications = {view.application.name for view in snapshot.applications}
        yield from _of_goals(decision.ways, _WAYS, applications, online)
        yield from _of_explanations(decision.explanations, applications)


def _are_notes(notes: object) -> bool:
    return isinstance(notes, tuple) and all(isinstance(note, Note) for note in notes)


def _of_explanations(explanations: object, known: Collection[str]) -> Iterator[str]:
    if not isinstance(explanations, tuple):
        yield f"holds {explanations!r} instead of explanations"
        return
    named: set[str] = set()
    for each in explanations:
        if not (isinstance(each, Explanation) and isinstance(each.application, str) and isinstance(each.text, str)):
            yield f"holds {each!r} instead of an explanation"
            return
        if each.application not in known:
            yield f"explains application {each.application!r}, which is not a managed application of this host"
        if each.application in named:
            yield f"explains application {each.application!r} twice"
        named.add(each.application)


_OF_HOST = frozenset({ResourceControl.DISK_WEIGHTS, ResourceControl.UPLINK_SHARES})


def _of_resources(goals: object, snapshot: Snapshot) -> Iterator[str]:
    if not isinstance(goals, tuple):
        yield f"holds {goals!r} instead of goals for memory, disks and uplinks"
        return
    critical = {vm.name: vm.critical for vm in snapshot.vms}
    named: set[tuple[ResourceControl, str, int]] = set()
    for goal in goals:
        if not (
            isinstance(goal, ResourceGoal)
            and isinstance(goal.control, ResourceControl)
            and isinstance(goal.vm, str)
            and isinstance(goal.reason, str)
            and _is_whole(goal.disk, 0)
        ):
            yield f"holds {goal!r} instead of a goal for memory, disks or uplinks"
            return
        if goal.control in _OF_HOST:
            if goal.vm:
                yield f"gives VM {goal.vm!r} {goal.control}, which are of the whole host; name no VM"
        else:
            kind = "critical" if goal.control is ResourceControl.MEMORY_PROTECTION else "batch"
            if critical.get(goal.vm) is not (kind == "critical"):
                yield f"names {kind} VM {goal.vm!r}, which is not a managed {kind} VM of this host"
        rate, number = goal.requests_per_s, isinstance(goal.requests_per_s, int | float)
        if goal.control is ResourceControl.DISK_CEILING and not (number and math.isfinite(rate) and rate >= 1):
            yield f"gives VM {goal.vm!r} a ceiling of {rate!r} requests/s; use a number of at least 1"
        if (goal.control, goal.vm, goal.disk) in named:
            yield f"gives {f'VM {goal.vm!r}' if goal.vm else 'the host'} {goal.control} twice"
        named.add((goal.control, goal.vm, goal.disk))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of goals: what one and several are called, whom it is for, and what is wrong with its value."""

    type: type
    a_goal: str
    goals: str
    whom: str
    twice: str
    value: Callable[[Any, CpuSet], str]
    whom_field: str = "vm"


def _of_goals(goals: object, kind: _Kind, known: Collection[str], online: CpuSet) -> Iterator[str]:
    if not isinstance(goals, tuple):
        yield f"holds {goals!r} instead of {kind.goals}"
        return
    named: set[str] = set()
    for goal in goals:
        name = getattr(goal, kind.whom_field, None)
        if not (isinstance(goal, kind.type) and isinstance(name, str) and isinstance(goal.reason, str)):  # type: ignore[attr-defined]
            yield f"holds {goal!r} instead of {kind.a_goal}"
            return
        if name not in known:
            yield f"names {kind.whom} {name!r}, which is not a managed {kind.whom} of this host"
        if name in named:
            yield kind.twice.format(f"{kind.whom} {name!r}")
        wrong = kind.value(goal, online)
        if wrong:
            yield wrong
        named.add(name)


def _weight(goal: WeightGoal, _online: CpuSet) -> str:
    if _is_whole(goal.weight):
        return ""
    return f"gives VM {goal.vm!r} the weight {goal.weight!r}; use a whole number of at least 1"


def _idle(goal: IdleGoal, _online: CpuSet) -> str:
    return "" if isinstance(goal.idle, bool) else f"holds {goal!r} instead of an idle goal"


def _cpus(goal: CpusGoal, online: CpuSet) -> str:
    numbers = isinstance(goal.cpus, frozenset) and all(_is_whole(cpu, 0) for cpu in goal.cpus)
    if not numbers or not goal.cpus:
        return f"gives VM {goal.vm!r} the pCPUs {goal.cpus!r}; use a frozenset with at least one pCPU number"
    if goal.cpus.isdisjoint(online):
        return f"gives VM {goal.vm!r} the pCPUs {format_cpus(goal.cpus)}, of which none is online"
    return ""


def _quota(goal: QuotaGoal, _online: CpuSet) -> str:
    pcpus, number = goal.pcpus, isinstance(goal.pcpus, int | float) and not isinstance(goal.pcpus, bool)
    if number and math.isfinite(pcpus) and LEAST_LIMIT_PCPUS <= pcpus <= MOST_LIMIT_PCPUS:
        return ""
    return f"gives VM {goal.vm!r} the quota {pcpus!r}; use pCPUs from {LEAST_LIMIT_PCPUS:g} to {MOST_LIMIT_PCPUS:g}"


def _bandwidth(goal: BandwidthGoal, _online: CpuSet) -> str:
    share, number = goal.share, isinstance(goal.share, int | float) and not isinstance(goal.share, bool)
    if number and 0 < share <= 1:
        return ""
    return f"gives VM {goal.vm!r} the part {share!r} of the memory bandwidth; use one above 0, up to 1"


def _ways(goal: WaysGoal, _online: CpuSet) -> str:
    if _is_whole(goal.ways):
        return ""
    return f"gives application {goal.application!r} {goal.ways!r} ways; use a whole number of at least 1"


def _is_whole(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_WEIGHTS = _Kind(WeightGoal, "a weight goal", "weight goals", "VM", "gives {} two weights", _weight)
_IDLE = _Kind(IdleGoal, "an idle goal", "idle goals", "VM", "says twice whether {} is to be idle", _idle)
_CPUS = _Kind(CpusGoal, "a goal for pCPUs", "goals for pCPUs", "VM", "gives {} two sets of pCPUs", _cpus)
_QUOTAS = _Kind(QuotaGoal, "a quota goal", "quota goals", "VM", "gives {} two quotas", _quota)
_BANDWIDTHS = _Kind(
    BandwidthGoal, "a bandwidth goal", "bandwidth goals", "batch VM", "limits the bandwidth of {} twice", _bandwidth
)
_WAYS = _Kind(
    WaysGoal, "a goal for ways", "goals for ways", "application", "gives {} two numbers of ways", _ways, "application"
)
