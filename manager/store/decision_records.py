"""Decisions, events and ticks: stored once however often they are reported, read newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field
from sqlalchemy import BigInteger, ColumnElement, Select, literal, select, tuple_
from sqlalchemy.orm import Session

from manager.model.fields import Moment
from manager.model.records import DecisionRecord, Event
from manager.store.models import DecisionRow, EventRow, TickRow, UtcDateTime
from manager.store.rollup_queue import MINUTE, note_ticks
from manager.store.row_writes import insert_new

RecordRow = TypeVar("RecordRow", DecisionRow, EventRow)
Record = TypeVar("Record", DecisionRecord, Event)

_BEGIN, END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records to list; None means any. ``since`` is inclusive, ``until`` is not."""

    host: str | None = None
    vm: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def query(self, kind: type[RecordRow], begin: datetime, end: datetime) -> Select[RecordRow]:
        """Those of a host and VM from ``begin`` until before ``end``, newest first."""
        query = select(kind).where(kind.at >= begin, kind.at < end)
        if self.host is not None:
            query = query.where(kind.host == self.host)
        if self.vm is not None:
            query = query.where(kind.vm == self.vm)
        return query.order_by(kind.at.desc(), kind.id.desc())


@dataclass(frozen=True, slots=True)
class Position:
    """A record's place in the order of lists."""

    at: Moment
    id: Annotated[int, Field(gt=0, lt=2**63)]


def store_new(session: Session, kind: type[RecordRow], rows: Sequence[dict[str, Any]]) -> int:
    """Store the rows (columns by name) whose ``record_id`` is new; returns how many were."""
    return insert_new(session, kind, rows, "record_id")


def store_ticks(
    session: Session, host: str, ticks: Mapping[datetime, str], claimed: Mapping[datetime, datetime] | None = None
) -> int:
    """Store the ticks of a host, as JSON text by their time, that are new; returns how many were.

    ``claimed``: when they were by the host's clock, where that is another time; by that they are recognised again.
    """
    if not ticks:
        return 0
    claims = claimed or {}
    rows = [{"host": host, "at": at, "body": body, "claimed_at": claims.get(at)} for at, body in sorted(ticks.items())]
    note_ticks(session, MINUTE, host, ticks)
    return insert_new(session, TickRow, rows)


def ranges(
    since: datetime | None, until: datetime | None, latest: datetime, after: datetime | None
) -> list[tuple[datetime, datetime, bool]]:
    """The ranges of ``since`` until before ``until`` to be listed one after the other: begin, end, and ``is_after``.

    What is dated ``latest`` or later, by a clock that was ahead, comes after all else. ``is_after``: the place at
    ``after`` lies in this range, which is listed from there on; ranges before it are left out.
    """
    begin, end = since or _BEGIN, until or END
    ahead = (max(begin, latest), end)
    parts = [(*ahead, True)]
    if after is None or after < latest:
        parts = [(begin, min(end, latest), after is not None), (*ahead, False)]
    return [part for part in parts if part[0] < part[1]]


def list_ticks(
    session: Session,
    host: str,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: datetime | None = None,
    latest: datetime = END,
) -> Sequence[TickRow]:
    """At most ``limit`` ticks of a host, newest first, in ``ranges`` after a time."""
    rows: list[TickRow] = []
    for begin, end, is_after in ranges(since, until, latest, after):
        query = select(TickRow).where(TickRow.host == host, TickRow.at >= begin, TickRow.at < end)
        if after is not None and is_after:
            query = query.where(TickRow.at < after)
        if len(rows) < limit:
            rows += session.scalars(query.order_by(TickRow.at.desc()).limit(limit - len(rows)))
    return rows


def record_of(kind: type[Record], row: DecisionRow | EventRow) -> Record:
    """What an agent reported."""
    columns = {field.name: getattr(row, field.name) for field in fields(kind) if field.name != "time_s"}
    return kind(time_s=row.at.timestamp(), **columns)


def list_records(
    session: Session,
    kind: type[RecordRow],
    wanted: RecordFilter,
    after: Position | None,
    limit: int,
    *conditions: ColumnElement[bool],
    latest: datetime = END,
) -> Sequence[RecordRow]:
    """At most ``limit`` records, newest first, in ``ranges`` after a position, that meet all ``conditions``."""
    records: list[RecordRow] = []
    for begin, end, is_after in ranges(wanted.since, wanted.until, latest, after.at if after else None):
        query = wanted.query(kind, begin, end).where(*conditions)
        if after is not None and is_after:
            place = literal(after.at, UtcDateTime()), literal(after.id, BigInteger())
            query = query.where(tuple_(kind.at, kind.id) < tuple_(*place))
        if len(records) < limit:
            records += session.scalars(query.limit(limit - len(records)))
    return records
