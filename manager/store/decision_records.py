"""Decisions and events: stored once however often they are reported, read newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Select, literal, select, tuple_
from sqlalchemy.orm import Session

from manager.store.database import insert_for
from manager.store.models import DecisionRow, EventRow, UtcDateTime

RecordRow = TypeVar("RecordRow", DecisionRow, EventRow)
TimedRow = TypeVar("TimedRow", DecisionRow, EventRow)


_END = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records to list; None means any. ``since`` is inclusive, ``until`` is not."""

    host: str | None = None
    vm: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A record's place in the order of lists."""

    at: datetime
    id: int


def store_new(session: Session, kind: type[RecordRow], rows: Sequence[dict[str, Any]]) -> int:
    """Store the rows (columns by name) whose ``record_id`` is new, and tell how many were."""
    if not rows:
        return 0
    insert = insert_for(session, kind).on_conflict_do_nothing(index_elements=["record_id"])
    return len(session.scalars(insert.returning(kind.id), rows).all())


def list_records(
    session: Session,
    kind: type[RecordRow],
    wanted: RecordFilter,
    after: Position | None,
    limit: int,
    *conditions: ColumnElement[bool],
    latest: datetime = _END,
) -> Sequence[RecordRow]:
    """At most ``limit`` records, newest first, that come after a position and meet all ``conditions``.

    What is dated ``latest`` or later, by a clock that was ahead, comes after all else.
    """
    query = select(kind).where(*conditions)
    if wanted.host is not None:
        query = query.where(kind.host == wanted.host)
    if wanted.vm is not None:
        query = query.where(kind.vm == wanted.vm)
    records: list[RecordRow] = []
    if after is None or after.at < latest:
        until = latest if wanted.until is None else min(wanted.until, latest)
        records += session.scalars(newest_first(query, kind, wanted.since, until, after).limit(limit))
        after = None
    if len(records) < limit and latest < _END:
        since = latest if wanted.since is None else max(wanted.since, latest)
        ahead = newest_first(query, kind, since, wanted.until, after)
        records += session.scalars(ahead.limit(limit - len(records)))
    return records


def newest_first(
    query: Select[TimedRow],
    kind: type[TimedRow],
    since: datetime | None,
    until: datetime | None,
    after: Position | None,
) -> Select[TimedRow]:
    """``query`` in the order of lists: what is of ``since`` or later, earlier than ``until``, and after a position."""
    if since is not None:
        query = query.where(kind.at >= since)
    if until is not None:
        query = query.where(kind.at < until)
    if after is not None:
        query = query.where(
            tuple_(kind.at, kind.id) < tuple_(literal(after.at, UtcDateTime()), literal(after.id, BigInteger()))
        )
    return query.order_by(kind.at.desc(), kind.id.desc())
