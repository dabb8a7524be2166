"""The history of ticks, for charts and replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.store.database import insert_for
from manager.store.models import TickRow
from manager.store.rollup_queue import MINUTE, note_ticks

_BEGIN, _END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_NONE: Mapping[datetime, datetime] = {}


def store_ticks(
    session: Session, host: str, ticks: Mapping[datetime, str], claimed: Mapping[datetime, datetime] = _NONE
) -> int:
    """Store the ticks of a host, as JSON text by their time, that are new, and tell how many were.

    ``claimed``: when they were by the host's clock, where that is another time; by that they are known again.
    """
    if not ticks:
        return 0
    insert = insert_for(session, TickRow).on_conflict_do_nothing()
    rows = [{"host": host, "at": at, "body": body, "claimed_at": claimed.get(at)} for at, body in sorted(ticks.items())]
    note_ticks(session, MINUTE, host, ticks)
    return len(session.scalars(insert.returning(TickRow.id), rows).all())


def list_ticks(
    session: Session,
    host: str,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: datetime | None = None,
    latest: datetime = _END,
) -> Sequence[TickRow]:
    """At most ``limit`` ticks of a host, newest first, of ``since`` or later, earlier than ``until``, after a place.

    What is dated ``latest`` or later, by a clock that was ahead, comes after all else.
    """
    begin, end = since or _BEGIN, until or _END
    rows: list[TickRow] = []
    if after is None or after < latest:
        rows += _newest_first(session, host, begin, min(end, latest, after or _END), limit)
        after = None
    if len(rows) < limit and latest < end:
        rows += _newest_first(session, host, max(begin, latest), min(end, after or _END), limit - len(rows))
    return rows


def _newest_first(session: Session, host: str, since: datetime, until: datetime, limit: int) -> Sequence[TickRow]:
    query = select(TickRow).where(TickRow.host == host, TickRow.at >= since, TickRow.at < until)
    return session.scalars(query.order_by(TickRow.at.desc()).limit(limit)).all()
