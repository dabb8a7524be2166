"""Events: stored once however often they are reported; and the order in which they and decisions are listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import BigInteger, ColumnElement, Select, literal, select, tuple_
from sqlalchemy.orm import Session

from manager.model.fields import Moment
from manager.store.models import EventRow, UtcDateTime
from manager.store.row_writes import insert_new

BEGIN, END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records to list; None means any. ``since`` is inclusive, ``until`` is not."""

    host: str | None = None
    vm: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def events(self, begin: datetime, end: datetime) -> Select[EventRow]:
        """The events of a host and VM from ``begin`` until before ``end``, newest first."""
        query = select(EventRow).where(EventRow.at >= begin, EventRow.at < end)
        if self.host is not None:
            query = query.where(EventRow.host == self.host)
        if self.vm is not None:
            query = query.where(EventRow.vm == self.vm)
        return query.order_by(EventRow.at.desc(), EventRow.id.desc())


@dataclass(frozen=True, slots=True)
class Position:
    """A record's place in the order of lists."""

    at: Moment
    id: Annotated[int, Field(gt=0, lt=2**63)]


def store_events(session: Session, rows: Sequence[dict[str, Any]]) -> int:
    """Store the events (columns by name) whose ``record_id`` is new; returns how many were."""
    return insert_new(session, EventRow, rows, "record_id")


def ranges(
    since: datetime | None, until: datetime | None, latest: datetime, after: datetime | None
) -> list[tuple[datetime, datetime, bool]]:
    """The ranges of ``since`` until before ``until`` to be listed one after the other: begin, end, and ``is_after``.

    What is dated ``latest`` or later, by a clock that was ahead, comes after all else. ``is_after``: the place at
    ``after`` lies in this range, which is listed from there on; ranges before it are left out.
    """
    begin, end = since or BEGIN, until or END
    ahead = (max(begin, latest), end)
    parts = [(*ahead, True)]
    if after is None or after < latest:
        parts = [(begin, min(end, latest), after is not None), (*ahead, False)]
    return [part for part in parts if part[0] < part[1]]


def newest_events(
    session: Session,
    wanted: RecordFilter,
    after: Position | None,
    limit: int,
    *conditions: ColumnElement[bool],
    latest: datetime = END,
) -> Sequence[EventRow]:
    """At most ``limit`` events, newest first, in ``ranges`` after a position, that meet all ``conditions``."""
    events: list[EventRow] = []
    for begin, end, is_after in ranges(wanted.since, wanted.until, latest, after.at if after else None):
        query = wanted.events(begin, end).where(*conditions)
        if after is not None and is_after:
            place = literal(after.at, UtcDateTime()), literal(after.id, BigInteger())
            query = query.where(tuple_(EventRow.at, EventRow.id) < tuple_(*place))
        if len(events) < limit:
            events += session.scalars(query.limit(limit - len(events)))
    return events
