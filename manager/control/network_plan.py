"""Shares of the host's uplinks: whose part each VM's packets are sent from, and how much all batch VMs may send.

Critical VMs are guaranteed most of the rate, may have all of it, and go first. The ceiling of batch VMs is what
Heracles leaves them (Lo et al., ISCA 2015): the rate, less what critical VMs send, less a reserve for what these may
send next. It follows in rounds, and only by steps worth a write. VMs of one kind share alike or, where any of them has
a registered weight, by their weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from manager.control.resource_decision import NOTHING_DECIDED, ResourceDecision
from manager.control.tap_plan import plan_taps
from manager.model.decision import Goal, Snapshot, VmView
from manager.model.host import WeightScale
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import MOST_KBIT, MOST_TURN, USUAL_TURN, EgressGroup, UplinkPort
from manager.model.numbers import digits
from manager.model.registration import Mode
from manager.model.rules import NetworkRules

ROUND_S = 5.0
"""Ceilings are computed every so many seconds."""
RESERVED_PART, RESERVED_OF_USE = 0.05, 0.10
"""Of the rate, or of what critical VMs send, whichever is more: what they may send beyond that at once."""
QUIET_S = 60.0
"""An uplink stays divided for so long after the last critical VM was seen: it may only be unreadable, or restarted."""
STEP_PART = 0.05
"""A ceiling changes by no less than this part of the rate."""
PART_OF_SPEED = 0.95
"""Where no rate is set: so that packets wait in our queues and not in the hardware's; frames have a preamble, too."""
_BITS = 8


@dataclass(frozen=True, slots=True)
class BatchCeiling:
    """What batch VMs may send on an uplink, and why."""

    kbit: int
    reason: str


@dataclass(frozen=True, slots=True)
class NetworkState:
    """What is remembered between ticks, by index of the uplink: as of the round that began at ``round_s``.

    ``sent`` is how many bytes critical VMs had sent then, ``critical_s`` when one of these was last seen. None: there
    was none yet.
    """

    critical_s: float | None = None
    round_s: float | None = None
    sent: Mapping[int, int] = field(default_factory=dict)
    ceilings: Mapping[int, BatchCeiling] = field(default_factory=dict)
    rates: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UplinksSeen:
    """What was read of uplinks at ``monotonic_s``: the interfaces that may be some, by index, and all knobs there.

    Without any interface they could not be read. ``limits``: what the taps of VMs are limited to; ``turns``: those that
    VMs take.
    """

    monotonic_s: float
    uplinks: Mapping[int, UplinkPort] = field(default_factory=dict)
    keys: Collection[KnobKey] = ()
    limits: Mapping[KnobKey, int] = field(default_factory=dict)
    turns: Mapping[KnobKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The goals, what an operator should know, and what the next call is to be given."""

    goals: tuple[Goal, ...] = ()
    problems: tuple[str, ...] = ()
    state: NetworkState = NetworkState()


def plan_network(
    snapshot: Snapshot,
    uuids: Mapping[str, str],
    seen: UplinksSeen,
    state: NetworkState,
    journalled: Mapping[KnobKey, int] = MappingProxyType({}),
    decided: ResourceDecision = NOTHING_DECIDED,
) -> NetworkPlan:
    """The goals of a tick. ``journalled``: what these knobs were last given, by this agent or one before it.

    ``decided``: the policy wants uplinks divided, where the settings do not.

    Without a critical VM nothing is divided: batch VMs alone keep equal shares. What cannot be read stays as it is.
    """
    rules = snapshot.host.network
    views = [view for view in snapshot.vms if view.mode is not Mode.RELEASED]
    shared = rules.shares or bool(decided.uplink_shares)
    if not (shared or rules.batch_tap_mbit is not None):
        return NetworkPlan()
    divided = {key.index: kbit for key, kbit in journalled.items() if key.knob is Knob.UPLINK_RATE and kbit > 0}
    if any(view.critical for view in views) or (state.critical_s is None and journalled):
        state = replace(state, critical_s=seen.monotonic_s)
    if state.critical_s is None or not 0 <= seen.monotonic_s - state.critical_s < QUIET_S:
        return NetworkPlan()
    taps = plan_taps(views, uuids, rules.batch_tap_mbit, seen.limits, journalled)
    if not shared:
        return NetworkPlan(taps.goals, taps.problems, NetworkState(state.critical_s))
    before = {**divided, **state.rates}
    rates, problems = _rates(rules, seen, before, journalled) if seen.uplinks else (before, [])
    state = _advance(state, rules, seen, rates, journalled)
    why = "" if rules.shares else f"{decided.uplink_shares}; "
    turns = _turns(views, snapshot.capabilities.weights)
    goals = (
        *_uplink_goals(snapshot, seen, rates, state, why),
        *_vm_goals(views, uuids, seen, rates),
        *_turn_goals(views, uuids, seen.turns, rates, turns),
    )
    return NetworkPlan((*goals, *taps.goals), (*problems, *taps.problems), state)


def _rates(
    rules: NetworkRules, seen: UplinksSeen, before: Mapping[int, int], journalled: Mapping[KnobKey, int]
) -> tuple[dict[int, int], list[str]]:
    """The rate to divide of each uplink, in kbit/s, and why some have none.

    An uplink that says no speed at the moment, as when its link is down, keeps the rate it had.
    """
    wanted = {uplink.interface: uplink.rate_mbit for uplink in rules.uplinks}
    rates: dict[int, int] = {}
    missing = wanted.keys() - {uplink.name for uplink in seen.uplinks.values()}
    problems = [
        f"uplink {name}: no interface of that name is hardware or a port of a bridge" for name in sorted(missing)
    ]
    for index, uplink in sorted(seen.uplinks.items()):
        if uplink.name not in wanted and (wanted or not (uplink.physical and uplink.bridged)):
            continue
        set_mbit = wanted.get(uplink.name)
        if set_mbit is not None:
            rate = set_mbit * 1000
        elif uplink.speed_kbit is not None:
            rate = min(int(uplink.speed_kbit * PART_OF_SPEED), MOST_KBIT)
        else:
            rate = before.get(index, 0)
        if uplink.other_qdisc:
            problems.append(
                f"uplink {uplink.name} is not divided: another tool gave it the qdisc {uplink.other_qdisc}, which stays"
            )
            if KnobKey(HOST_UUID, Knob.UPLINK_RATE, index) not in journalled:
                continue  # otherwise it was changed externally: it can be adopted
        if rate > 0:
            rates[index] = rate
        else:
            problems.append(f"uplink {uplink.name} is not divided: its speed is not known; set its rate_mbit")
    return rates, problems


def _advance(
    state: NetworkState,
    rules: NetworkRules,
    seen: UplinksSeen,
    rates: Mapping[int, int],
    journalled: Mapping[KnobKey, int],
) -> NetworkState:
    """One round on, once it is time; between rounds ceilings stay, within what the settings allow."""
    sent = {index: uplink.critical_bytes for index, uplink in seen.uplinks.items() if uplink.critical_bytes is not None}
    elapsed_s = None if state.round_s is None else seen.monotonic_s - state.round_s
    is_round = bool(seen.uplinks) and (elapsed_s is None or not 0 <= elapsed_s < ROUND_S)
    ceilings: dict[int, BatchCeiling] = {}
    for index, rate in rates.items():
        now = state.ceilings.get(index)
        if now is None and (held := journalled.get(KnobKey(HOST_UUID, Knob.BATCH_EGRESS, index))):
            now = BatchCeiling(held, "as set before the agent began anew; not measured yet")
        floor = floor_kbit(rate, rules.batch_floor)
        past = state.sent.get(index)
        if now is None:
            now = _ceiling(rate, 0, floor)
        elif is_round and elapsed_s and elapsed_s > 0 and past is not None and sent.get(index, -1) >= past:
            use = round((sent[index] - past) * _BITS / elapsed_s / 1000)
            wanted = _ceiling(rate, use, floor)
            if abs(wanted.kbit - now.kbit) >= STEP_PART * rate:
                now = wanted
        if not floor <= now.kbit <= rate:
            now = BatchCeiling(min(max(now.kbit, floor), rate), "as far as rate and batch_floor allow")
        ceilings[index] = now
    if not is_round:
        return replace(state, ceilings=ceilings, rates=rates)
    return NetworkState(state.critical_s, seen.monotonic_s, sent, ceilings, rates)


def divisible(rules: NetworkRules, uplinks: Mapping[int, UplinkPort]) -> frozenset[str]:
    """The names of the interfaces that can be divided by these settings: those with a rate, and no other qdisc."""
    rates, _ = _rates(rules, UplinksSeen(0.0, uplinks), {}, {})
    return frozenset(uplinks[index].name for index in rates if not uplinks[index].other_qdisc)


def floor_kbit(rate_kbit: int, batch_floor: float) -> int:
    """Below which the ceiling of batch VMs never goes."""
    return min(max(round(rate_kbit * batch_floor), 1), rate_kbit)


def batch_ceiling_kbit(rate_kbit: int, critical_kbit: int, floor: int) -> int:
    """What batch VMs may send together while critical ones send so much: Heracles' formula, not below their floor."""
    reserve = max(RESERVED_PART * rate_kbit, RESERVED_OF_USE * critical_kbit)
    return min(max(int(rate_kbit - critical_kbit - reserve), floor), rate_kbit)


def _ceiling(rate_kbit: int, critical_kbit: int, floor: int) -> BatchCeiling:
    kbit = batch_ceiling_kbit(rate_kbit, critical_kbit, floor)
    why = f"of {digits(rate_kbit / 1000)} Mbit/s critical VMs send {digits(critical_kbit / 1000)} and get a reserve"
    return BatchCeiling(kbit, f"{why}; batch VMs keep their floor" if kbit == floor else why)


def _uplink_goals(
    snapshot: Snapshot, seen: UplinksSeen, rates: Mapping[int, int], state: NetworkState, decided: str
) -> Iterator[Goal]:
    mode = snapshot.host.mode
    for index, rate in rates.items():
        yield Goal(
            KnobKey(HOST_UUID, Knob.UPLINK_RATE, index),
            rate,
            f"{decided}critical VMs first, batch VMs what is left",
            mode,
        )
        key, ceiling = KnobKey(HOST_UUID, Knob.BATCH_EGRESS, index), state.ceilings.get(index)
        if key in seen.keys and ceiling is not None:
            yield Goal(key, ceiling.kbit, ceiling.reason, mode)


def _vm_goals(
    views: Sequence[VmView], uuids: Mapping[str, str], seen: UplinksSeen, rates: Mapping[int, int]
) -> Iterator[Goal]:
    for view in views:
        group = EgressGroup.CRITICAL if view.critical else EgressGroup.BATCH
        for index in rates:
            key = KnobKey(uuids[view.name], Knob.EGRESS_GROUP, index)
            if key in seen.keys:
                yield Goal(key, int(group), f"{view.spec.vm_class} VM", view.mode)


def turn_frames(weight: int, least: int, most: int) -> int:
    """How long a turn is of a VM with this weight, where its kind has weights from ``least`` to ``most``.

    Turns are as the weights, from the usual one, which holds the longest packet, to the longest.
    """
    longest = min(USUAL_TURN * most / least, MOST_TURN)
    return max(round(longest * weight / most), USUAL_TURN)


def _turns(views: Sequence[VmView], scale: WeightScale | None) -> dict[str, int]:
    """By VM, of the kinds of which any VM has a registered weight; others count with what `priority` gives them."""
    turns: dict[str, int] = {}
    for critical in (True, False):
        own = [view for view in views if view.critical is critical]
        if scale is None or all(view.spec.weight is None for view in own):
            continue
        usual = scale.critical if critical else scale.batch
        weights = {view.name: view.spec.weight or usual for view in own}
        least, most = min(weights.values()), max(weights.values())
        turns |= {vm: turn_frames(weight, least, most) for vm, weight in weights.items()}
    return turns


def _turn_goals(
    views: Sequence[VmView],
    uuids: Mapping[str, str],
    held: Mapping[KnobKey, int],
    rates: Mapping[int, int],
    turns: Mapping[str, int],
) -> Iterator[Goal]:
    """Of VMs that have a class; where their kind has no weights any more, the usual turn again."""
    for view in views:
        for index in rates if held else ():
            key = KnobKey(uuids[view.name], Knob.EGRESS_TURN, index)
            wanted = turns.get(view.name)
            if key in held and (wanted is not None or held[key] != USUAL_TURN):
                why = "VMs of its kind share alike" if wanted is None else "by its weight among VMs of its kind"
                yield Goal(key, USUAL_TURN if wanted is None else wanted, why, view.mode)
