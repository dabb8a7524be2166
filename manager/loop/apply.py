"""Carries out changes: journal first, then one write per knob, each for itself, each read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from manager.errors import HostError, JournalError, VmVanished
from manager.host.port import HostPort
from manager.loop.journal import Entry, Journal
from manager.model.decision import Action, Change, Owned
from manager.model.host import VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knob_text import knob_text
from manager.model.knobs import KnobKey
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.records import OutcomeKind

SILENT = frozenset({Action.FORGET, Action.KEEP})
"""Changes of our own memory only."""
LEFT_ALONE = "left alone; `equipoise adopt` takes it back"
_WRITTEN = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED, OutcomeKind.IGNORED})
_Result = tuple[Change, OutcomeKind, str]
"""A change as it came out, and ``detail`` of its outcome."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a change; ``detail`` is the reason of kernel or journal where it was not as wanted.

    ``group``: the resctrl group that was changed, or that the VM moved to; empty for other knobs.
    """

    key: KnobKey
    before: str
    after: str
    reason: str
    kind: OutcomeKind
    detail: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """All outcomes, the values written by domain UUID, and why the journal could not be written."""

    outcomes: tuple[Outcome, ...] = ()
    written: Mapping[str, Mapping[KnobKey, KnobValue]] = field(default_factory=dict)
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

    What ``limits`` forbid is not written, and fails; restoring is never forbidden. Everything that is about to be
    written is durable in the journal before the first write. When the journal cannot be written, nothing is. A failed
    write stops none of the others. ``forget`` and ``keep`` changes have no outcome.
    """
    forbidden: list[_Result] = [
        (change, OutcomeKind.FAILED, why)
        for change in changes
        if change.action is Action.WRITE and (why := limits.refusal(change.key, change.after))
    ]
    refused = {change for change, _, _ in forbidden}
    allowed = [change for change in changes if change not in refused]
    problems: list[Problem] = []
    try:
        _note_intents(allowed, targets, journal)
    except JournalError as error:
        problems.append(Problem(ProblemKind.JOURNAL, str(error)))
    unjournalled = problems[0].text if problems else ""
    results = [_carry_out(change, targets, host, unjournalled) for change in allowed if change.action not in SILENT]
    try:
        waiting = [change for change in allowed if change.action is Action.FORGET and change.awaits]
        _note_results(results, waiting, journal)
    except JournalError as error:  # the next tick finds the originals in place and drops the entries then
        problems.append(Problem(ProblemKind.JOURNAL, str(error)))
    written = values_after(change for change, kind, _ in results if kind in _WRITTEN)
    outcomes = tuple(
        Outcome(change.key, knob_text(change.before), knob_text(change.after), change.reason, kind, detail)
        for change, kind, detail in (*results, *forbidden)
    )
    return Applied(outcomes, written, tuple(problems))


def values_after(changes: Iterable[Change]) -> dict[str, dict[KnobKey, KnobValue]]:
    """The values that changes leave, by domain UUID."""
    values: dict[str, dict[KnobKey, KnobValue]] = {}
    for change in changes:
        values.setdefault(change.key.uuid, {})[change.key] = change.after
    return values


def _note_intents(changes: Sequence[Change], targets: Mapping[str, Target], journal: Journal) -> None:
    put: dict[KnobKey, Entry] = {}
    for change in changes:
        target = targets[change.key.uuid]
        entry = journal.entries.get(change.key)
        # Of the run before, whose process is still ending; or an external change, and that is the original now.
        if entry and (entry.instance != target.instance or (entry.owned.external and change.action is Action.KEEP)):
            entry = None
        if change.action in {Action.WRITE, Action.RESTORE, Action.KEEP}:
            new = change.before if change.original is None else change.original
            original = entry.owned.original if entry else new
            owned = Owned(original, previous=change.before, intended=change.after)
            put[change.key] = Entry(target.instance, target.vm, owned)
        elif change.action is Action.LEAVE and entry:
            put[change.key] = replace(entry, owned=replace(entry.owned, external=True, adoptions=target.adoptions))
    gone = [change.key for change in changes if change.action is Action.FORGET and change.awaits is None]
    journal.update(put, gone)


def _carry_out(change: Change, targets: Mapping[str, Target], host: HostPort, unjournalled: str) -> _Result:
    """``unjournalled``: why nothing may be written; empty: the journal has it all."""
    if change.action is Action.OBSERVE:
        return change, OutcomeKind.OBSERVED, ""
    if unjournalled:
        return change, OutcomeKind.FAILED, unjournalled
    if change.action is Action.LEAVE:
        return change, OutcomeKind.EXTERNAL, LEFT_ALONE
    try:
        held = host.write(targets[change.key.uuid].instance, change.key, change.after)
    except VmVanished as error:
        return change, OutcomeKind.VANISHED, str(error)
    except HostError as error:
        return change, OutcomeKind.FAILED, str(error)
    return _held(change, held, host)


def _held(change: Change, held: KnobValue, host: HostPort) -> _Result:
    """The result of a write after which the knob holds ``held``."""
    restores = change.action is Action.RESTORE
    if isinstance(held, frozenset) and isinstance(change.after, frozenset):
        if restores and held < change.after:
            # Another tool narrowed its cpuset (cpuset(7)) meanwhile, as `virsh vcpupin` does: no more can be restored.
            return replace(change, after=held), OutcomeKind.RESTORED, f"its cpuset leaves {knob_text(held)}"
        if held == change.after & host.capabilities.online_cpus:  # the kernel leaves out pCPUs that went offline
            held = change.after
    if held != change.after:
        return replace(change, after=held), OutcomeKind.IGNORED, f"the kernel keeps {knob_text(held)}"
    return change, OutcomeKind.RESTORED if restores else OutcomeKind.APPLIED, ""


def _note_results(results: Sequence[_Result], waiting: Sequence[Change], journal: Journal) -> None:
    """Settle what was written, and drop what was restored or is ``waiting`` to be forgotten.

    What awaits a knob that was not restored stays. A failed write stays unsettled: whether it took effect is seen at
    the next read. So does one of which the kernel made something else, until that is in the journal. Raises
    JournalError.
    """
    of_kind = {kind: [change for change, outcome, _ in results if outcome is kind] for kind in OutcomeKind}
    put: dict[KnobKey, Entry] = {}
    for change in of_kind[OutcomeKind.IGNORED]:
        if entry := journal.entries.get(change.key):
            put[change.key] = replace(entry, owned=replace(entry.owned, intended=change.after))
    restored = {change.key: change for change in of_kind[OutcomeKind.RESTORED]}
    done = [one.key for one in (*restored.values(), *waiting) if one.awaits is None or one.awaits in restored]
    stay = {key: journal.entries[key].owned for key in restored.keys() & journal.entries.keys() - set(done)}
    journal.settle(change.key for change in of_kind[OutcomeKind.APPLIED])
    journal.settle(key for key, owned in stay.items() if owned.intended == restored[key].after)
    journal.update(put, done)
    journal.settle(put)
