"""How batch VMs are held back at once: the settings for that, the mildest way first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from manager.control.batch import FLOOR_MARGIN
from manager.model.decision import Goal, Plan, Snapshot, VmView
from manager.model.knob_spec import KnobValue
from manager.model.knobs import LEAST_QUOTA_US, UNLIMITED, Knob, KnobKey
from manager.model.limits import AgentLimits
from manager.model.registration import Mode

HOLD_KNOBS = frozenset({Knob.IDLE, Knob.QUOTA})
_WHY = "guard: critical vCPUs wait"


def hold_ways(
    snapshot: Snapshot, uuids: Mapping[str, str], otherwise: Mapping[KnobKey, KnobValue], limits: AgentLimits
) -> tuple[tuple[Goal, ...], ...]:
    """Each way is the goals that take the place of those planned while batch VMs are held; none: there is no way.

    First the idle class, in which a batch VM yields at once and still has what nobody else wants, for those that are
    not in it anyway; then a quota that leaves them their floor. VMs with a registered weight stay out of the idle
    class, as in ``manager.control.batch``, and so do those in the batch group, where it would act among batch VMs only.
    ``uuids`` maps VM names to domain UUIDs, ``otherwise`` are the values of ``HOLD_KNOBS`` that the VMs would have.
    """
    batch = [view for view in snapshot.vms if not view.critical and view.mode is not Mode.RELEASED]
    floor = FLOOR_MARGIN * snapshot.host.law.batch_floor * len(snapshot.capabilities.online_cpus) / max(len(batch), 1)
    ways = (_idle(batch, uuids, otherwise), _quota(batch, uuids, otherwise, max(floor, limits.min_pcpus)))
    allowed = (
        tuple(goal for goal in way if goal.key.knob.spec.control_for(goal.value) in limits.allowed) for way in ways
    )
    return tuple(way for way in allowed if way)


def _idle(batch: Sequence[VmView], uuids: Mapping[str, str], otherwise: Mapping[KnobKey, KnobValue]) -> Iterator[Goal]:
    for view in batch:
        key = KnobKey(uuids[view.name], Knob.IDLE)
        if view.spec.weight is None and not view.batch_group and otherwise.get(key) == 0:
            yield Goal(key, 1, _WHY, view.mode)


def _quota(
    batch: Sequence[VmView], uuids: Mapping[str, str], otherwise: Mapping[KnobKey, KnobValue], pcpus: float
) -> Iterator[Goal]:
    for view in batch:
        key = KnobKey(uuids[view.name], Knob.QUOTA)
        quota_us = max(round(pcpus * (view.quota_period_us or 0)), LEAST_QUOTA_US)
        without_us = otherwise.get(key)
        if not view.quota_period_us or not isinstance(without_us, int):
            continue
        if without_us == UNLIMITED or without_us > quota_us:
            yield Goal(key, quota_us, _WHY, view.mode)


def held(plan: Plan, goals: Sequence[Goal]) -> Plan:
    """The plan with these goals in the place of its own for the same knobs."""
    if not goals:
        return plan
    wanted = {goal.key: goal for goal in (*plan.goals, *goals)}
    return replace(plan, goals=tuple(sorted(wanted.values(), key=itemgetter(0))))
