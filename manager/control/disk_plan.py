"""Weights of VMs on the disks they share, by their class, where something makes weights act.

A VM is weighted on the disks that it was seen to use, once a critical VM of the host uses any of these: batch VMs
alone keep equal shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from manager.control.resource_decision import NOTHING_DECIDED, ResourceDecision
from manager.model.decision import Goal, Snapshot, VmView
from manager.model.knobs import DISK_WEIGHTS, Knob, KnobKey
from manager.model.registration import Mode
from manager.model.resource_use import ResourceUse

QUIET_ROUNDS = 12
"""For so many rounds of readings, a minute, after the last use by a critical VM that was seen, weights stay."""
CRITICAL_WEIGHT = 1000
"""The largest that BFQ takes."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """What is remembered between ticks, as of the last round of readings.

    ``acting`` are the knobs that act for each VM, by name; ``contested`` those that act for a critical one, each with
    how many rounds ago that was: one that cannot be read for a moment changes nothing for the others.
    """

    seen: ResourceUse | None = None
    acting: Mapping[str, frozenset[Knob]] = field(default_factory=dict)
    contested: Mapping[Knob, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """The goals, and what the next call is to be given."""

    goals: tuple[Goal, ...] = ()
    state: DiskState = DiskState()


def plan_disks(
    snapshot: Snapshot,
    uuids: Mapping[str, str],
    keys: Mapping[str, tuple[KnobKey, ...]],
    state: DiskState,
    before: Mapping[KnobKey, int] = MappingProxyType({}),
    decided: ResourceDecision = NOTHING_DECIDED,
) -> DiskPlan:
    """The goals of a tick. ``keys`` are the weights that each domain has, by UUID, as read.

    ``before``: what an agent set in its former life, kept until it has measured in this one. ``decided``: the policy
    wants them, where the settings do not.
    """
    rules = snapshot.host.disk
    if not (rules.weights or decided.disk_weights):
        return DiskPlan()
    views = [view for view in snapshot.vms if view.mode is not Mode.RELEASED]
    if before:
        earlier = {view.name: _set_before(uuids[view.name], before) for view in views}
        acting = {name: state.acting.get(name, frozenset()) | knobs for name, knobs in earlier.items()}
        contested = dict.fromkeys(frozenset[Knob]().union(*earlier.values()), 0)
        state = replace(state, acting=acting, contested=contested)
    if snapshot.resources is not state.seen:
        state = _advance(state, views, snapshot.resources)
    why = "" if rules.weights else f"{decided.disk_weights}; "
    goals = tuple(_goals(views, uuids, keys, state, rules.batch_weight, why))
    return DiskPlan(goals, state)


def _set_before(uuid: str, before: Mapping[KnobKey, int]) -> frozenset[Knob]:
    return frozenset(knob for knob in DISK_WEIGHTS.values() if KnobKey(uuid, knob) in before)


def _advance(state: DiskState, views: list[VmView], use: ResourceUse) -> DiskState:
    """A VM that does nothing for a while keeps its weights, as long as anything makes such weights act."""
    knobs = {disk.device: DISK_WEIGHTS[disk.weighing] for disk in use.disks if disk.weighing is not None}
    known = frozenset(knobs.values()) if use.disks else frozenset(DISK_WEIGHTS.values())
    uses = {each.vm: {knobs[disk.device] for disk in each.disks if disk.device in knobs} for each in use.vms}
    acting = {name: held & known for name, held in state.acting.items()}
    acting |= {view.name: acting.get(view.name, frozenset()) | uses.get(view.name, set()) for view in views}
    now = {knob for view in views if view.critical for knob in acting[view.name]}
    ages = {knob: 0 if knob in now else state.contested.get(knob, QUIET_ROUNDS) + 1 for knob in known}
    contested = {knob: age for knob, age in ages.items() if age < QUIET_ROUNDS}
    return DiskState(use, acting if contested else {view.name: acting[view.name] for view in views}, contested)


def _goals(
    views: list[VmView],
    uuids: Mapping[str, str],
    keys: Mapping[str, tuple[KnobKey, ...]],
    state: DiskState,
    batch_weight: int,
    decided: str,
) -> Iterator[Goal]:
    for view in views:
        weight = CRITICAL_WEIGHT if view.critical else batch_weight
        for key in keys.get(uuids[view.name], ()):
            if key.knob in state.contested and key.knob in state.acting.get(view.name, ()):
                why = f"{decided}{view.spec.vm_class}: it uses a disk that critical VMs use, on which weights act"
                yield Goal(key, weight, why, view.mode)
