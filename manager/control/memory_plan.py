"""How much memory of critical VMs is protected, and what ceilings growing batch VMs get while a critical one is short.

Protection follows the measured resident memory with some headroom: up at once, down only after a quiet minute, so that
pages that were taken from a VM do not lower what it is to have. A ceiling is a VM's resident memory with the same
headroom, so never less than what it works with; it is raised as soon as pages of it are read again, and goes once
nobody was short for a minute. Groups above critical VMs get the sum of these: the kernel protects no group further than
those above it. On cgroup v1 a VM is protected as a whole or not, by its swappiness, and no group above it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from manager.control.resource_blame import FAULTS_PER_S, LEAST_BYTES_PER_S, MEMORY_PRESSURE
from manager.control.resource_decision import NOTHING_DECIDED, ResourceDecision
from manager.model.decision import Goal, Snapshot, VmView
from manager.model.knobs import HOST_UUID, KEPT_IN_MEMORY, UNLIMITED, Knob, KnobKey
from manager.model.numbers import digits
from manager.model.registration import Mode
from manager.model.resource_use import ResourceUse, VmResources
from manager.model.rules import MemoryRules
from manager.model.units import MEBIBYTE, mebibytes, percent

QUIET_ROUNDS = 12
"""After so many rounds of readings, a minute, protection may shrink, and ceilings go."""
STALLED = 0.25
"""A VM at its ceiling that waits for memory for this part of the time, for as many rounds, gets a higher one."""


@dataclass(frozen=True, slots=True)
class Protected:
    """What is to be protected of a VM, and for how many rounds less would have done, or it was not there."""

    amount_bytes: int
    reason: str
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a batch VM may use, and for how many rounds it has waited for memory."""

    amount_bytes: int
    reason: str
    stalled: int = 0


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What is remembered between ticks, by name of the VM.

    ``seen`` is the last round of readings, ``calm`` counts those without a critical VM that is short, and
    ``memory_bytes`` is all that the host has; None: not known yet, and nothing new is protected.
    """

    seen: ResourceUse | None = None
    protected: Mapping[str, Protected] = field(default_factory=dict)
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)
    calm: int = 0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryGroups:
    """The knobs of VMs as read, by UUID, those of the groups above them included; what these hold without us; and what
    groups above VMs keep meanwhile because some of these could not be read.
    """

    keys: Mapping[str, tuple[KnobKey, ...]] = field(default_factory=dict)
    originals: Mapping[KnobKey, int] = field(default_factory=dict)
    kept: Mapping[KnobKey, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether VMs are protected as a whole or not at all."""
        return any(key.knob is Knob.SWAPPINESS for keys in self.keys.values() for key in keys)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The goals, what an operator should know, and what the next call is to be given."""

    goals: tuple[Goal, ...] = ()
    problems: tuple[str, ...] = ()
    state: MemoryState = MemoryState()


def plan_memory(
    snapshot: Snapshot,
    uuids: Mapping[str, str],
    groups: MemoryGroups,
    state: MemoryState,
    before: Mapping[KnobKey, int] = MappingProxyType({}),
    decided: ResourceDecision = NOTHING_DECIDED,
) -> MemoryPlan:
    """The goals of a tick. ``before``: what an agent set in its former life, kept until it has measured in this one.

    ``decided`` by the policy: whose memory is protected, and who has a ceiling, beside what the settings say.

    In rounds of readings, not in ticks: between two of them the goals are the same.
    """
    rules = snapshot.host.memory
    if not (rules.protect or rules.ceilings or decided.protected or decided.memory_ceilings):
        return MemoryPlan()
    views = [view for view in snapshot.vms if view.mode is not Mode.RELEASED]
    state = _resumed(state, views, uuids, before)
    if snapshot.resources is not state.seen:
        state = _advance(state, views, snapshot.resources, rules, decided)
    fitted, problems = (
        _fitted(_in_force(state, rules, decided), rules, groups.whole)
        if rules.protect or decided.protected
        else ({}, ())
    )
    goals = (
        *_protections(views, uuids, groups, fitted),
        *_above(views, uuids, groups, fitted),
        *_ceilings(
            [view for view in views if rules.ceilings or view.name in decided.memory_ceilings], uuids, groups, state
        ),
    )
    return MemoryPlan(goals, problems, state)


def _in_force(state: MemoryState, rules: MemoryRules, decided: ResourceDecision) -> MemoryState:
    """What is protected by the settings, or by the policy with its reason."""
    if rules.protect:
        return state
    protected = {
        name: replace(each, reason=f"{decided.protected[name]}: {each.reason}")
        for name, each in state.protected.items()
        if name in decided.protected
    }
    return replace(state, protected=protected)


def _resumed(
    state: MemoryState, views: list[VmView], uuids: Mapping[str, str], before: Mapping[KnobKey, int]
) -> MemoryState:
    if not before:
        return state
    protected, ceilings = dict(state.protected), dict(state.ceilings)
    for view in views:
        uuid, why = uuids[view.name], "as set before the agent began anew; not measured yet"
        held = before.get(KnobKey(uuid, Knob.MEMORY_PROTECTION), 0)
        whole = KnobKey(uuid, Knob.SWAPPINESS) in before
        if view.critical and (held > 0 or whole) and view.name not in protected:
            protected[view.name] = Protected(held, why)
        held = before.get(KnobKey(uuid, Knob.MEMORY_CEILING), UNLIMITED)
        if not view.critical and held > 0 and view.name not in ceilings:
            ceilings[view.name] = Ceiling(held, why)
    return replace(state, protected=protected, ceilings=ceilings)


def _advance(
    state: MemoryState, views: list[VmView], use: ResourceUse, rules: MemoryRules, decided: ResourceDecision
) -> MemoryState:
    """One round on. A VM that was not measured, and one that is not there keep what they have, for a while."""
    by_name = {each.vm: each for each in use.vms}
    memory_bytes = use.memory_bytes or state.memory_bytes
    critical = {view.name for view in views if view.critical}
    protected: dict[str, Protected] = {}
    for name in sorted(critical | state.protected.keys()):
        now = state.protected.get(name)
        if name not in critical and now is not None:
            now = replace(now, quiet=now.quiet + 1) if now.quiet + 1 < QUIET_ROUNDS else None
        elif memory_bytes is not None:
            now = _next_protected(now, by_name.get(name), rules)
        if now is not None:
            protected[name] = now
    short = _shortest(views, by_name)
    calm = 0 if short else state.calm + 1
    ceilings: dict[str, Ceiling] = {}
    batch = {view.name for view in views if not view.critical}
    by_settings = batch | state.ceilings.keys() if rules.ceilings and calm < QUIET_ROUNDS else set()
    for name in sorted((by_settings | (decided.memory_ceilings.keys() & batch)) - critical):
        ceiling, measured = state.ceilings.get(name), by_name.get(name)
        if name in batch and measured is not None:
            ceiling = _next_ceiling(ceiling, measured, short, rules, decided.memory_ceilings.get(name, ""))
        if ceiling is not None and ceiling.amount_bytes < (memory_bytes or ceiling.amount_bytes + 1):
            ceilings[name] = ceiling
    return MemoryState(use, protected, ceilings, calm, memory_bytes)


def _next_protected(now: Protected | None, use: VmResources | None, rules: MemoryRules) -> Protected | None:
    if use is None or not use.resident_bytes:
        return now
    wanted = _with_headroom(use.resident_bytes, rules)
    fresh = Protected(wanted, f"{mebibytes(use.resident_bytes)} resident, and {percent(rules.headroom)} of that")
    if now is None or use.resident_bytes * (1 + rules.headroom / 2) > now.amount_bytes:
        return fresh if now is None or wanted != now.amount_bytes else now
    smaller = use.resident_bytes * (1 + 2 * rules.headroom) < now.amount_bytes
    if not smaller or is_short(use):
        return replace(now, quiet=0) if now.quiet else now
    return fresh if now.quiet + 1 >= QUIET_ROUNDS else replace(now, quiet=now.quiet + 1)


def _next_ceiling(
    now: Ceiling | None, use: VmResources, short: str, rules: MemoryRules, decided: str
) -> Ceiling | None:
    resident = use.resident_bytes
    if not resident:
        return now
    if now is None and decided:
        why = f"{decided}: {mebibytes(resident)} resident, and {percent(rules.headroom)} of that"
        return Ceiling(_with_headroom(resident, rules), why)
    if now is None:
        if not short or (use.growth_bytes_per_s or 0.0) < LEAST_BYTES_PER_S:
            return None
        return Ceiling(
            _with_headroom(resident, rules),
            f"{short}, and this VM grows: its {mebibytes(resident)} resident, and {percent(rules.headroom)} of that",
        )
    stalled = now.stalled + 1 if (use.memory_pressure or 0.0) >= STALLED else 0
    if _faults(use) < FAULTS_PER_S and stalled < QUIET_ROUNDS:
        return replace(now, stalled=stalled) if stalled != now.stalled else now
    why = f"{digits(_faults(use))} faults and refaults/s" if stalled < QUIET_ROUNDS else "it waits for memory"
    higher = _with_headroom(max(resident, now.amount_bytes), rules)
    return Ceiling(higher, f"raised from {mebibytes(now.amount_bytes)}, which is too low for it: {why}")


def is_short(use: VmResources) -> bool:
    """Whether a VM waits for memory, or reads pages again that were taken from it."""
    return (use.memory_pressure or 0.0) >= MEMORY_PRESSURE or _faults(use) >= FAULTS_PER_S


def _faults(use: VmResources) -> float:
    return (use.major_faults_per_s or 0.0) + (use.refaults_per_s or 0.0)


def _shortest(views: list[VmView], by_name: Mapping[str, VmResources]) -> str:
    """Which critical VM is short of memory, in words; empty: none."""
    uses = [use for view in views if view.critical and (use := by_name.get(view.name)) is not None and is_short(use)]
    if not uses:
        return ""
    worst = max(uses, key=lambda use: (use.memory_pressure or 0.0, _faults(use)))
    waits = f"waits for memory {percent(worst.memory_pressure)} of the time and " if worst.memory_pressure else ""
    return f"{worst.vm} {waits}has {digits(_faults(worst))} faults and refaults/s"


def _with_headroom(resident_bytes: int, rules: MemoryRules) -> int:
    """In whole MiB, so whole pages on any machine, and not below the next one."""
    return -(-round(resident_bytes * (1 + rules.headroom)) // MEBIBYTE) * MEBIBYTE


def _fitted(state: MemoryState, rules: MemoryRules, whole: bool) -> tuple[Mapping[str, Protected], tuple[str, ...]]:
    """Protections as far as the host's share goes: all that are wanted, or the same part of each; if a VM can only be
    protected as a ``whole``, none.
    """
    if state.memory_bytes is None and state.seen is not None and state.seen.vms:
        return state.protected, ("how much memory the host has is not known: nothing more is protected",)
    total = sum(protected.amount_bytes for protected in state.protected.values())
    most = total if state.memory_bytes is None else int(state.memory_bytes * rules.most_protected)
    if total <= most:
        return state.protected, ()
    needed = f"they need {mebibytes(total)}, and most_protected allows {mebibytes(most)}"
    if whole:
        return {}, (f"memory of critical VMs is not protected, and cgroup v1 does not protect a part of it: {needed}",)
    part = most / total
    fitted: dict[str, Protected] = {}
    for name, wanted in state.protected.items():
        amount = int(wanted.amount_bytes * part) // MEBIBYTE * MEBIBYTE
        why = f"{wanted.reason}; {percent(part)} of it, as no more than {mebibytes(most)} are protected in all"
        fitted[name] = replace(wanted, amount_bytes=amount, reason=why)
    return fitted, (f"memory of critical VMs is protected to {percent(part)}: {needed}",)


def _protections(
    views: list[VmView], uuids: Mapping[str, str], groups: MemoryGroups, fitted: Mapping[str, Protected]
) -> Iterator[Goal]:
    for view in views:
        protected = fitted.get(view.name)
        if protected is None or not view.critical:
            continue
        for key in groups.keys.get(uuids[view.name], ()):
            if key.knob is Knob.MEMORY_PROTECTION and key.uuid != HOST_UUID:
                amount = _at_least(protected.amount_bytes, groups.originals.get(key, 0))
                if amount is not None:
                    yield Goal(key, amount, protected.reason, view.mode)
            elif key.knob is Knob.SWAPPINESS:
                yield Goal(key, KEPT_IN_MEMORY, protected.reason, view.mode)


def _above(
    views: list[VmView], uuids: Mapping[str, str], groups: MemoryGroups, fitted: Mapping[str, Protected]
) -> Iterator[Goal]:
    """What groups above VMs need, by what is enforced, or if nothing is by what is observed."""
    protected = [view for view in views if view.critical and view.name in fitted]
    enforced = [view for view in protected if view.mode is Mode.ENFORCE]
    needed = dict.fromkeys(groups.kept, 0)
    for view in enforced or protected:
        for key in groups.keys.get(uuids[view.name], ()):
            if key.uuid == HOST_UUID:
                needed[key] = needed.get(key, 0) + fitted[view.name].amount_bytes
    mode = Mode.ENFORCE if enforced or groups.kept else Mode.OBSERVE
    for key, total in needed.items():
        amount = _at_least(max(total, groups.kept.get(key, 0)), groups.originals.get(key, 0))
        if amount is not None:
            yield Goal(key, amount, "what is protected of the critical VMs below it", mode)


def _ceilings(
    views: list[VmView], uuids: Mapping[str, str], groups: MemoryGroups, state: MemoryState
) -> Iterator[Goal]:
    for view in views:
        ceiling, key = state.ceilings.get(view.name), KnobKey(uuids[view.name], Knob.MEMORY_CEILING)
        if ceiling is None or view.critical or key not in groups.keys.get(uuids[view.name], ()):
            continue
        original = groups.originals.get(key, UNLIMITED)
        if original == UNLIMITED or original > ceiling.amount_bytes:  # the operator's own stays where it is lower
            yield Goal(key, ceiling.amount_bytes, ceiling.reason, view.mode)


def _at_least(amount: int, original: int) -> int | None:
    """What is wanted, but no less than without us; None: all is protected already."""
    return None if original == UNLIMITED else max(amount, original)
