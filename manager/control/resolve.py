"""From what a policy decided to what this host can be given: names become knobs, weights become legal ones."""

from __future__ import annotations

from collections.abc import Mapping

from manager.model.decision import Decision, Goal, Note, Placement, Plan, Snapshot, WeightGoal
from manager.model.host import KnobKey
from manager.model.records import Knob
from manager.model.registration import Mode


def effective_mode(host: Mode, application: Mode | None) -> Mode:
    """The more cautious of the host's and the application's mode; an application without one follows its host."""
    caution = [Mode.ENFORCE, Mode.OBSERVE, Mode.RELEASED]
    return max(host, application or host, key=caution.index)


def validate(decision: Decision, snapshot: Snapshot) -> str | None:
    """Why a policy's decision must not be carried out, or None where it may be.

    A decision that is of another type, names a VM twice, names one that is not there, or gives a weight below 1
    changes nothing (design, section 5, rule 3).
    """
    if not isinstance(decision, Decision) or not isinstance(decision.weights, tuple) or not _are_notes(decision.notes):
        return f"returned {decision!r} instead of a decision"
    known = {vm.name for vm in snapshot.vms}
    seen: set[str] = set()
    for goal in decision.weights:
        if not isinstance(goal, WeightGoal) or not isinstance(goal.vm, str) or not isinstance(goal.reason, str):
            return f"holds {goal!r} instead of a weight goal"
        if goal.vm not in known:
            return f"names VM {goal.vm!r}, which is not a managed VM of this host"
        if goal.vm in seen:
            return f"gives VM {goal.vm!r} two weights"
        if isinstance(goal.weight, bool) or not isinstance(goal.weight, int) or goal.weight < 1:
            return f"gives VM {goal.vm!r} the weight {goal.weight!r}; use a whole number of at least 1"
        seen.add(goal.vm)
    return None


def _are_notes(notes: object) -> bool:
    return isinstance(notes, tuple) and all(isinstance(note, Note) for note in notes)


def resolve(decision: Decision, placement: Placement, snapshot: Snapshot, uuids: Mapping[str, str]) -> Plan:
    """Turn a valid decision and a placement into goals this host can be given.

    Weights are clamped to the range of the host's cgroup version, and left out where the VM has none; pins become a
    goal for each vCPU and one for the emulator threads, which go beside their vCPUs. ``uuids`` maps VM names to
    domain UUIDs.
    """
    views = {vm.name: vm for vm in snapshot.vms}
    scale = snapshot.capabilities.weights
    goals: list[Goal] = []
    for wanted in decision.weights:
        view = views[wanted.vm]
        if scale is None or view.weight is None:
            continue
        weight = scale.clamp(wanted.weight)
        reason = wanted.reason if weight == wanted.weight else f"{wanted.reason}; {wanted.weight} clamped to {weight}"
        goals.append(Goal(KnobKey(uuids[wanted.vm], Knob.WEIGHT), wanted.vm, weight, reason, view.mode))
    for name, cpus in placement.cpus:
        mode = views[name].mode
        for index, cpu in enumerate(cpus):
            key = KnobKey(uuids[name], Knob.VCPU_PIN, index)
            goals.append(Goal(key, name, frozenset({cpu}), f"critical vCPU {index}: pCPU {cpu} of its own", mode))
        key = KnobKey(uuids[name], Knob.EMULATOR_PIN)
        goals.append(Goal(key, name, frozenset(cpus), "emulator threads beside their vCPUs", mode))
    return Plan(tuple(sorted(goals, key=lambda goal: goal.key)))
