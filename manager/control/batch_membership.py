"""All batch VMs below one control group: who is in it, and its weight and theirs.

On kernels where a queue with several groups of batch VMs wakes critical vCPUs late (docs/internals/tail.md), one group
above them leaves each queue with one. Shares stay what the policy decided: the group has the sum of what its VMs would
have, and they divide that among themselves as they would have without it. Where each would have the smallest weight
there is, the group is in the idle class, which was measured to keep critical VMs waiting less than that weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from manager.model.decision import Decision, Goal, IdleGoal, Snapshot, VmView, WeightGoal
from manager.model.host import Capabilities, WeightScale
from manager.model.knobs import HOST_UUID, INSIDE, OUTSIDE, Knob, KnobKey
from manager.model.registration import HostSpec, Mode
from manager.model.rules import BatchGroupUse

_ENOUGH = 2
"""One batch VM alone is one group already."""
_NAMED = 3
"""So many VMs are named."""
_WHY = "batch VMs below one group: critical vCPUs wake up on time beside several of them"
_LONE = "the only batch VM: in the idle class, as a group of several would be"


@dataclass(frozen=True, slots=True)
class Grouped:
    """The decision with the weights that VMs have inside, the VMs that belong there and why, and the group's own goals.

    ``problem`` says what is in its way, ``note`` what an operator can do, empty for nothing.
    """

    decision: Decision
    vms: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    reason: str = _WHY
    problem: str = ""
    note: str = ""


def is_wanted(host: HostSpec, capabilities: Capabilities) -> bool:
    """Whether there is to be a batch group on a host."""
    use = host.placement.batch_group
    needed = use is BatchGroupUse.ON or (use is BatchGroupUse.AUTO and capabilities.needs_batch_group is True)
    return needed and host.mode is not Mode.RELEASED


def plan_batch_group(decision: Decision, snapshot: Snapshot, *, last: bool = False) -> Grouped:
    """Who belongs into the batch group, and what it and they get there.

    VMs with a registered weight stay outside: they are to have that beside the critical ones. Nobody is moved where
    there is no critical VM, or only one batch VM, to begin with. ``last``: batch VMs are to yield to all others, see
    ``manager.control.batch.comes_last``.
    """
    scale = snapshot.capabilities.weights
    if scale is None or not is_wanted(snapshot.host, snapshot.capabilities):
        return Grouped(decision)
    members = [view for view in snapshot.vms if _belongs(view)]
    note = _outside(snapshot)
    inside = [view for view in members if view.batch_group != OUTSIDE]
    if not inside and (len(members) < _ENOUGH or not any(view.critical for view in snapshot.vms)):
        return Grouped(_with_lone(decision, snapshot) if last else decision, note=note)
    names = tuple(view.name for view in members)
    others = [view.name for view in snapshot.vms if view.batch_group == INSIDE and not _belongs(view)]
    if others or snapshot.batch_group.strangers:
        who = others[0] if others else "a VM that is not managed here"
        return Grouped(decision, names, problem=f"{who} is in the batch group: its weight is left alone", note=note)
    if not inside or not snapshot.batch_group.exists:
        return Grouped(decision, names, note=note)  # its own goals follow when it is there
    return replace(_with_weights(decision, snapshot, scale, names, {view.name for view in inside}, last), note=note)


def _with_lone(decision: Decision, snapshot: Snapshot) -> Decision:
    """The decision with the idle class for the only batch VM there is beside critical ones."""
    lone = [view for view in snapshot.vms if not view.critical and view.mode is not Mode.RELEASED]
    critical, decided = any(view.critical for view in snapshot.vms), {goal.vm for goal in decision.idle}
    stays = any(view.idle is None or view.spec.weight is not None or view.name in decided for view in lone)
    if not critical or len(lone) >= _ENOUGH or stays:
        return decision
    return replace(decision, idle=(*decision.idle, *(IdleGoal(view.name, True, _LONE) for view in lone)))


def _outside(snapshot: Snapshot) -> str:
    """What to do about batch VMs that cannot be moved while they run, where there are enough for a group."""
    batch = [view for view in snapshot.vms if not view.critical and view.mode is not Mode.RELEASED]
    outside = [view.name for view in batch if view.batch_group is None and view.spec.weight is None]
    if not outside or len(batch) < _ENOUGH:
        return ""
    few = ", ".join(outside[:_NAMED]) + (f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else "")
    return f"batch VMs outside the batch group: {few}; `equipoise partition` lets them start in it"


def _belongs(view: VmView) -> bool:
    movable = view.batch_group is not None and view.mode is not Mode.RELEASED
    return movable and not view.critical and view.spec.weight is None


def _with_weights(
    decision: Decision, snapshot: Snapshot, scale: WeightScale, names: tuple[str, ...], inside: set[str], last: bool
) -> Grouped:
    outside = {goal.vm: goal for goal in decision.weights}
    had = {name: outside[name].weight if name in outside else scale.batch for name in sorted(inside)}
    least = min(had.values())
    weights = [goal for goal in decision.weights if goal.vm not in inside]
    for name, weight in had.items():
        within = scale.clamp(scale.default * weight // least)
        weights.append(WeightGoal(name, within, f"its share of the batch group; {_reason(outside.get(name))}"))
    idle = last or all(_is_idle(decision.idle, name) for name in inside)
    own = [(Knob.BATCH_WEIGHT, scale.clamp(sum(had.values())))]
    if snapshot.capabilities.idle_class:
        own.insert(0, (Knob.BATCH_IDLE, int(idle)))
    modes = {view.mode for view in snapshot.vms if view.name in inside}
    mode = Mode.ENFORCE if modes == {Mode.ENFORCE} else Mode.OBSERVE
    why = f"as {len(inside)} batch VMs together; {_reason(outside.get(min(inside)))}"
    return Grouped(
        replace(
            decision,
            weights=tuple(sorted(weights, key=lambda goal: goal.vm)),
            idle=tuple(replace(goal, idle=False) if idle and goal.vm in inside else goal for goal in decision.idle),
        ),
        names,
        tuple(Goal(KnobKey(HOST_UUID, knob), value, why, mode) for knob, value in own),
    )


def _reason(goal: WeightGoal | None) -> str:
    return goal.reason if goal else "as batch VMs have"


def _is_idle(goals: tuple[IdleGoal, ...], name: str) -> bool:
    return any(goal.vm == name and goal.idle for goal in goals)
