"""Carries out changes: journal first, then one write a knob, each for itself, each read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from manager.errors import HostError, JournalError, VmVanished
from manager.host.port import HostPort
from manager.loop.journal import Entry, Journal
from manager.model.decision import Action, Change, Owned
from manager.model.host import VmInstance
from manager.model.knobs import KnobKey, KnobValue, knob_text
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.records import OutcomeKind

SILENT = frozenset({Action.FORGET, Action.KEEP})
"""Changes of our own memory only."""
_WRITTEN = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED, OutcomeKind.IGNORED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a change; ``detail`` is the kernel's or the journal's reason when it was not as wanted."""

    change: Change
    kind: OutcomeKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of all changes, and why the journal could not be written."""

    outcomes: tuple[Outcome, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The run of a domain that a change is for, the VM's registered name, and how often it has been adopted."""

    instance: VmInstance
    vm: str
    adoptions: int = 0


def apply(
    changes: Sequence[Change],
    targets: Mapping[str, Target],
    host: HostPort,
    journal: Journal,
    limits: AgentLimits = DEFAULT_LIMITS,
) -> Applied:
    """Carry out ``changes`` in order; ``targets`` is by domain UUID and has one for each of them.

    What ``limits`` forbid is not written, and fails; what is put back is never forbidden. Everything that is about to
    be written is durable in the journal before the first write. When the journal cannot be written, nothing is. A
    failed write stops none of the others. ``forget`` and ``keep`` changes have no outcome.
    """
    forbidden = {
        change: Outcome(change, OutcomeKind.FAILED, why)
        for change in changes
        if change.action is Action.WRITE and (why := limits.refusal(change.key, change.after))
    }
    changes = [change for change in changes if change not in forbidden]
    try:
        _note_intents(changes, targets, journal)
    except JournalError as error:
        unwritten = (_unwritten(change, str(error)) for change in changes if change.action not in SILENT)
        return Applied(tuple(unwritten), (Problem(ProblemKind.JOURNAL, str(error)),))
    outcomes = tuple(_carry_out(change, targets, host) for change in changes if change.action not in SILENT)
    told = (*outcomes, *forbidden.values())
    try:
        _note_results(outcomes, journal)
    except JournalError as error:  # the next tick finds the originals in place and drops the entries then
        return Applied(told, (Problem(ProblemKind.JOURNAL, str(error)),))
    return Applied(told)


def written_values(outcomes: Iterable[Outcome]) -> dict[str, dict[KnobKey, KnobValue]]:
    """What was written, by domain UUID."""
    written: dict[str, dict[KnobKey, KnobValue]] = {}
    for outcome in outcomes:
        if outcome.kind in _WRITTEN:
            written.setdefault(outcome.change.key.uuid, {})[outcome.change.key] = outcome.change.after
    return written


def _note_intents(changes: Sequence[Change], targets: Mapping[str, Target], journal: Journal) -> None:
    put: dict[KnobKey, Entry] = {}
    for change in changes:
        target = targets[change.key.uuid]
        known = journal.entries.get(change.key)
        # Of the run before, whose process is still ending; or an external change, and that is the original now.
        if known and (known.instance != target.instance or (known.owned.external and change.action is Action.KEEP)):
            known = None
        if change.action in {Action.WRITE, Action.RESTORE, Action.KEEP}:
            new = change.before if change.original is None else change.original
            original = known.owned.original if known else new
            owned = Owned(original, previous=change.before, intended=change.after)
            put[change.key] = Entry(target.instance, target.vm, owned)
        elif change.action is Action.LEAVE and known:
            put[change.key] = replace(known, owned=replace(known.owned, external=True, adoptions=target.adoptions))
    journal.update(put, [change.key for change in changes if change.action is Action.FORGET])


def _carry_out(change: Change, targets: Mapping[str, Target], host: HostPort) -> Outcome:
    if change.action is Action.OBSERVE:
        return Outcome(change, OutcomeKind.OBSERVED)
    if change.action is Action.LEAVE:
        return Outcome(change, OutcomeKind.EXTERNAL, "left alone; `equipoise adopt` takes it back")
    try:
        held = host.write(targets[change.key.uuid].instance, change.key, change.after)
    except VmVanished as error:
        return Outcome(change, OutcomeKind.VANISHED, str(error))
    except HostError as error:
        return Outcome(change, OutcomeKind.FAILED, str(error))
    return _held(change, held, host)


def _held(change: Change, held: KnobValue, host: HostPort) -> Outcome:
    """What came of a write after which the knob holds ``held``."""
    if change.action is Action.RESTORE and _is_part(held, change.after):
        # Somebody narrowed its cpuset (cpuset(7)) meanwhile, as `virsh vcpupin` does: no more can be given back.
        return Outcome(replace(change, after=held), OutcomeKind.RESTORED, f"its cpuset leaves {knob_text(held)}")
    if held != change.after and not _all_that_is_online(held, change.after, host):
        return Outcome(replace(change, after=held), OutcomeKind.IGNORED, f"the kernel keeps {knob_text(held)}")
    return Outcome(change, OutcomeKind.RESTORED if change.action is Action.RESTORE else OutcomeKind.APPLIED)


def _note_results(outcomes: Sequence[Outcome], journal: Journal) -> None:
    """Settle what was written and drop what was restored.

    A failed write stays unsettled: whether it took effect is seen at the next read. So does one of which the kernel
    made something else, until that is in the journal. Raises JournalError.
    """
    put: dict[KnobKey, Entry] = {}
    for outcome in outcomes:
        known = journal.entries.get(outcome.change.key)
        if outcome.kind is OutcomeKind.IGNORED and known:
            put[outcome.change.key] = replace(known, owned=replace(known.owned, intended=outcome.change.after))
    journal.settle(one.change.key for one in outcomes if one.kind is OutcomeKind.APPLIED)
    journal.update(put, [one.change.key for one in outcomes if one.kind is OutcomeKind.RESTORED])
    journal.settle(put)


def _unwritten(change: Change, reason: str) -> Outcome:
    if change.action is Action.OBSERVE:
        return Outcome(change, OutcomeKind.OBSERVED)
    return Outcome(change, OutcomeKind.FAILED, reason)


def _is_part(held: KnobValue, wanted: KnobValue) -> bool:
    return isinstance(held, frozenset) and isinstance(wanted, frozenset) and held < wanted


def _all_that_is_online(held: KnobValue, wanted: KnobValue, host: HostPort) -> bool:
    """Whether the kernel left out only pCPUs that went offline, as it always does."""
    if isinstance(held, int) or isinstance(wanted, int):
        return False
    return held == wanted & host.capabilities.online_cpus
