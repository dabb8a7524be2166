"""Decisions of hosts: stored once however often they are reported, read newest first.

The text ``about`` of a row has a line for each VM, knob and outcome in it, so that rows without what is looked for are
not unpacked. Which hosts decided about a VM, and on which days, is noted besides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session

from manager.model.knobs import Knob
from manager.model.packed_records import (
    PackedDecision,
    microseconds,
    moment_of,
    pack_decisions,
    unpack_decisions,
    within_minutes,
)
from manager.model.records import DecisionRecord, OutcomeKind
from manager.model.registration import Mode
from manager.store.event_records import BEGIN, END, Position, RecordFilter, ranges
from manager.store.pack_models import DecidedVmRow, DecisionPackRow
from manager.store.packs import (
    PackItem,
    PackTimes,
    between,
    bodies_around,
    columns_of,
    newest_first,
    number_of,
)
from manager.store.past_registrations import Era
from manager.store.rollup_queue import floor
from manager.store.row_writes import insert_new

DAY = timedelta(days=1)
_STEP = timedelta(microseconds=1)
_PARTS = 2 * DAY, 8 * DAY
"""How long the newest parts are that are read one after the other, before all else."""


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision as it was reported, with its number; ``claimed_at``: by the host's clock, None: ``at``."""

    id: int
    at: datetime
    claimed_at: datetime | None
    host: str
    record_id: str
    vm: str | None
    knob: Knob
    index: int
    before: str
    after: str
    reason: str
    policy: str
    mode: Mode
    outcome: OutcomeKind
    detail: str

    def record(self) -> DecisionRecord:
        """What the agent reported, with the time that counts."""
        return DecisionRecord(
            self.record_id,
            self.at.timestamp(),
            self.host,
            self.vm,
            self.knob,
            self.index,
            self.before,
            self.after,
            self.reason,
            self.policy,
            self.mode,
            self.outcome,
            self.detail,
        )


@dataclass(frozen=True, slots=True)
class DecisionFilter(RecordFilter):
    """Which decisions to list; None means any. ``eras``: those about the VMs of each era, oldest first."""

    knob: Knob | None = None
    outcome: OutcomeKind | None = None
    eras: Sequence[Era] | None = None

    def vms(self) -> frozenset[str] | None:
        """The VMs that matter; None: any, and the host itself."""
        if self.vm is not None:
            return frozenset({self.vm})
        return None if self.eras is None else frozenset().union(*(era.vms for era in self.eras))

    def accepts(self, decision: PackedDecision, at: datetime) -> bool:
        """Whether a decision of a host that fits is to be listed."""
        if self.vm is not None and decision.vm != self.vm:
            return False
        if self.knob is not None and decision.knob != self.knob:
            return False
        if self.outcome is not None and decision.outcome != self.outcome:
            return False
        if self.eras is None:
            return True
        era = next((era for era in self.eras if era.until is None or at < era.until), None)
        return era is not None and decision.vm in era.vms


def store_decisions(session: Session, host: str, decisions: Sequence[Mapping[str, Any]]) -> int:
    """Store the decisions of a host whose ``record_id`` is new; returns how many were. The host's row is locked.

    They are the fields of ``StoredDecision`` by name, without ``id``.
    """
    reported = {decision["record_id"]: _packed(decision) for decision in decisions}
    if not reported:
        return 0
    bodies = bodies_around(session, DecisionPackRow, host, [_times(decision) for decision in reported.values()])
    known = {decision.record_id for body in bodies for decision in unpack_decisions(body)}
    new = [decision for record_id, decision in reported.items() if record_id not in known]
    new.sort(key=lambda decision: decision.at_us)
    rows = []
    for group in within_minutes(new, lambda decision: decision.at_us):
        columns = columns_of(host, [_times(decision) for decision in group])
        rows.append({**columns, "about": about(group), "body": pack_decisions(group)})
    insert_new(session, DecisionPackRow, rows)
    days = {(decision.vm, floor(moment_of(decision.at_us), DAY)) for decision in new if decision.vm is not None}
    decided = [{"vm": vm, "host": host, "day": day} for vm, day in sorted(days)]
    insert_new(session, DecidedVmRow, decided, "vm", "host", "day")
    return len(new)


def about(decisions: Iterable[PackedDecision]) -> str:
    """The VMs, knobs and outcomes of decisions, each as a line."""
    lines = {
        line
        for decision in decisions
        for line in (_vm_line(decision.vm or ""), _knob_line(decision.knob), _outcome_line(decision.outcome))
    }
    return "\n" + "\n".join(sorted(lines)) + "\n"


def newest_decisions(
    session: Session, wanted: DecisionFilter, after: Position | None, limit: int, latest: datetime = END
) -> list[StoredDecision]:
    """At most ``limit`` decisions, newest first, in ``ranges`` after a position."""
    decisions: list[StoredDecision] = []
    for begin, end, is_after in ranges(wanted.since, wanted.until, latest, after.at if after else None):
        place = after if is_after else None
        if len(decisions) < limit:
            before = end if place is None else min(end, place.at + _STEP)
            found = read_decisions(session, wanted, begin, before)
            rest = (row for row in found if place is None or (row.at, row.id) < (place.at, place.id))
            decisions += islice(rest, limit - len(decisions))
    return decisions


def read_decisions(
    session: Session, wanted: DecisionFilter, begin: datetime, end: datetime
) -> Iterator[StoredDecision]:
    """The decisions that are wanted, from ``begin`` until before ``end``, newest first. Rows are read as needed."""
    place = _Place(None if wanted.host is None else (wanted.host,), begin, end)
    vms = wanted.vms()
    if vms is not None:
        decided = _decided(session, vms, wanted.host, begin, end)
        if decided is None:
            return
        place = decided

    table = DecisionPackRow
    query = select(table.id, table.host, table.last_at, table.body).where(*_may_hold(wanted, vms))
    if place.hosts is not None:
        query = query.where(_among(place.hosts))
    for first, last in _newest_part_first(place.begin, place.end):
        yield from _read_part(session, wanted, query.where(between(table, first, last)), first, last)


def _newest_part_first(begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Parts of a time: who asks for the newest decisions need not look into the partition of each day."""
    for length in _PARTS if end != END else ():
        if end - begin > length:
            yield end - length, end
            end -= length
    yield begin, end


def _read_part(
    session: Session, wanted: DecisionFilter, query: Select[*tuple[Any, ...]], begin: datetime, end: datetime
) -> Iterator[StoredDecision]:
    def items(row: Any) -> Iterator[PackItem]:
        for number, decision in enumerate(unpack_decisions(row.body)):
            at = moment_of(decision.at_us)
            if begin <= at < end and wanted.accepts(decision, at):
                stored = _stored(number_of(row.id, number), at, row.host, decision)
                yield PackItem(at, stored.id, stored)

    yield from newest_first(session, query, DecisionPackRow, items)


def deciding_hosts(session: Session, vms: Collection[str], since: datetime) -> set[tuple[str, str]]:
    """Each of these VMs with each host that decided about it on the day of ``since`` (UTC) or later."""
    decided = DecidedVmRow.vm.in_(vms), DecidedVmRow.day >= floor(since, DAY)
    rows = session.execute(select(DecidedVmRow.vm, DecidedVmRow.host).where(*decided).distinct())
    return {(vm, host) for vm, host in rows}


class _Place(NamedTuple):
    """Where decisions may be; ``hosts`` None: on any."""

    hosts: Sequence[str] | None
    begin: datetime
    end: datetime


def _decided(session: Session, vms: Collection[str], host: str | None, begin: datetime, end: datetime) -> _Place | None:
    """Where decisions about VMs may be; None: nowhere."""
    query = select(DecidedVmRow.host, func.min(DecidedVmRow.day), func.max(DecidedVmRow.day))
    query = query.where(DecidedVmRow.vm.in_(vms), DecidedVmRow.day < end)
    if begin > BEGIN:
        query = query.where(DecidedVmRow.day > begin - DAY)
    if host is not None:
        query = query.where(DecidedVmRow.host == host)
    decided = session.execute(query.group_by(DecidedVmRow.host)).all()
    if not decided:
        return None
    hosts, firsts, lasts = zip(*decided, strict=True)
    return _Place(sorted(hosts), max(begin, min(firsts)), min(end, max(lasts) + DAY))


def _may_hold(wanted: DecisionFilter, vms: Collection[str] | None) -> Iterator[ColumnElement[bool]]:
    lines = DecisionPackRow.about
    if vms is not None:
        yield or_(*(lines.contains(f"\n{_vm_line(vm)}\n", autoescape=True) for vm in sorted(vms)))
    if wanted.knob is not None:
        yield lines.contains(f"\n{_knob_line(wanted.knob)}\n", autoescape=True)
    if wanted.outcome is not None:
        yield lines.contains(f"\n{_outcome_line(wanted.outcome)}\n", autoescape=True)


def _among(hosts: Sequence[str]) -> ColumnElement[bool]:
    return DecisionPackRow.host == hosts[0] if len(hosts) == 1 else DecisionPackRow.host.in_(hosts)


def _vm_line(vm: str) -> str:
    return f"vm={vm}"


def _knob_line(knob: str) -> str:
    return f"knob={knob}"


def _outcome_line(outcome: str) -> str:
    return f"outcome={outcome}"


def _packed(decision: Mapping[str, Any]) -> PackedDecision:
    claimed_at = decision.get("claimed_at")
    texts = {name: decision[name] for name in _TEXTS}
    claimed_us = None if claimed_at is None else microseconds(claimed_at)
    return PackedDecision(microseconds(decision["at"]), claimed_us, **texts)


def _stored(number: int, at: datetime, host: str, decision: PackedDecision) -> StoredDecision:
    claimed_at = None if decision.claimed_us is None else moment_of(decision.claimed_us)
    texts = {name: getattr(decision, name) for name in _TEXTS}
    kinds = {"knob": Knob(decision.knob), "mode": Mode(decision.mode), "outcome": OutcomeKind(decision.outcome)}
    return StoredDecision(number, at, claimed_at, host, **texts | kinds)


def _times(decision: PackedDecision) -> PackTimes:
    return PackTimes(decision.at_us, decision.at_us if decision.claimed_us is None else decision.claimed_us)


_TEXTS = tuple(name for name in PackedDecision.__dataclass_fields__ if name not in {"at_us", "claimed_us"})
