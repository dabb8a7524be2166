"""The changes that lead from the host as it is to the plan, and back to the originals where nothing is planned."""

from __future__ import annotations

from collections.abc import Mapping

from manager.model.decision import Action, Change, Goal, Owned, Plan
from manager.model.host import KnobKey, KnobValue, knob_text
from manager.model.registration import Mode

_OBSERVE_REASON = "not enforced any more: back to the original"


def diff(plan: Plan, actual: Mapping[KnobKey, KnobValue], ledger: Mapping[KnobKey, Owned]) -> tuple[Change, ...]:
    """Compare the plan with ``actual``, the knobs as just read from the host.

    A knob in the ``ledger`` (those changed before) that is not planned, or only for a released VM, goes back to its
    original, so an empty plan undoes everything. A knob that holds neither what we wrote nor, before the write is
    known to have happened, what was there before, was changed by somebody else: it is given up. Knobs that could not
    be read are left alone. Changes that widen a CPU set come first (design, section 5, rule 4), then the order is that
    of the knobs.
    """
    goals = {goal.key: goal for goal in plan.goals if goal.mode is not Mode.RELEASED}
    undo_reason = f"{plan.undo_reason}: back to the original"
    changes: list[Change] = []
    for key in sorted(goals.keys() | ledger.keys()):
        value = actual.get(key)
        if value is not None:
            changes.extend(_changes(key, value, goals.get(key), ledger.get(key), undo_reason))
    return tuple(sorted(changes, key=lambda change: 0 if _widens(change) else 1))


def _changes(key: KnobKey, value: KnobValue, goal: Goal | None, owned: Owned | None, undo_reason: str) -> list[Change]:
    if owned is not None:
        if owned.foreign:  # somebody else's now: only our memory of it ends, and only when it is not wanted any more
            return [] if goal else [Change(Action.FORGET, key, value, value, undo_reason)]
        if not owned.accepts(value):
            reason = f"changed by somebody else: we left {knob_text(owned.intended)}, found {knob_text(value)}"
            given_up = Change(Action.GIVE_UP, key, owned.intended, value, reason)
            return [given_up] if goal else [given_up, Change(Action.FORGET, key, value, value, undo_reason)]
    if goal is not None and goal.mode is Mode.ENFORCE:
        # The second case corrects an intention that a crash kept from being written.
        if value != goal.value or (owned is not None and value != owned.intended):
            return [Change(Action.WRITE, key, value, goal.value, goal.reason)]
        if owned is not None and value == owned.original:
            return [Change(Action.FORGET, key, value, value, goal.reason)]
        return []
    changes: list[Change] = []
    if owned is not None:
        reason = undo_reason if goal is None else _OBSERVE_REASON
        action = Action.FORGET if value == owned.original else Action.RESTORE
        changes.append(Change(action, key, value, owned.original, reason))
        value = owned.original
    if goal is not None and goal.mode is Mode.OBSERVE and value != goal.value:
        changes.append(Change(Action.OBSERVE, key, value, goal.value, goal.reason))
    return changes


def _widens(change: Change) -> bool:
    before, after = change.before, change.after
    return isinstance(before, frozenset) and isinstance(after, frozenset) and before < after
