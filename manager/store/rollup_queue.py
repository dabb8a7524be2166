"""What is still to be rolled up: noted with what is new in it, in the same transaction, whatever its date.

So nothing depends on how far roll-ups of another application or host have come, nor on any clock: what comes late, or
by a clock that was set back, is noted as all else is, and what is noted is not forgotten before it was rolled up.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, exists
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.control.budget import HOUR_S, MINUTE_S
from manager.store.database import insert_for
from manager.store.progress_models import UnrolledTicksRow, UnrolledWindowsRow

MINUTE, HOUR = timedelta(seconds=MINUTE_S), timedelta(seconds=HOUR_S)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def note_windows(session: Session, length: timedelta, places: Iterable[tuple[int, datetime, str]]) -> None:
    """Note the minutes or hours that hold moments: row number of the application, moment, and origin."""
    found = sorted({(number, floor(moment, length), origin) for number, moment, origin in places})
    rows = [{"application_id": number, "origin": origin} | _span(start, length) for number, start, origin in found]
    if rows:
        insert = insert_for(session, UnrolledWindowsRow)
        unique = ["application_id", "length_s", "start", "origin"]
        # Where it is noted already, its row is locked all the same: who rolls it up sees what this transaction wrote,
        # or leaves the note.
        again = insert.on_conflict_do_update(
            index_elements=unique, set_={"taken": False}, where=UnrolledWindowsRow.taken.is_(True)
        )
        session.execute(again, rows)


def note_ticks(session: Session, length: timedelta, host: str, moments: Iterable[datetime]) -> None:
    """Note the minutes or hours of a host that hold moments, in the order of time. Its row is locked: see ``ticks``."""
    rows = [{"host": host} | _span(start, length) for start in sorted({floor(moment, length) for moment in moments})]
    if rows:
        insert = insert_for(session, UnrolledTicksRow)
        unique = ["host", "length_s", "start"]
        # As for windows: it changes nothing, and locks the row.
        again = insert.on_conflict_do_update(
            index_elements=unique,
            set_={"until": insert.excluded.until},
            where=UnrolledTicksRow.until != insert.excluded.until,
        )
        session.execute(again, rows)


def windows_noted(
    length: timedelta, application: InstrumentedAttribute[int], moment: InstrumentedAttribute[datetime]
) -> ColumnElement[bool]:
    """Whether the minute or hour that holds a row's moment is still to be rolled up."""
    row = UnrolledWindowsRow
    of = row.application_id == application, row.length_s == seconds(length)
    return exists().where(*of, row.start <= moment, row.until > moment)


def ticks_noted(
    length: timedelta, host: InstrumentedAttribute[str], moment: InstrumentedAttribute[datetime]
) -> ColumnElement[bool]:
    """The same of a host's ticks."""
    row = UnrolledTicksRow
    return exists().where(row.host == host, row.length_s == seconds(length), row.start <= moment, row.until > moment)


def floor(moment: datetime, length: timedelta) -> datetime:
    """The begin of the minute or hour that holds a moment."""
    return _EPOCH + (moment - _EPOCH) // length * length


def seconds(length: timedelta) -> int:
    """Its length in whole seconds."""
    return round(length.total_seconds())


def _span(start: datetime, length: timedelta) -> dict[str, object]:
    return {"length_s": seconds(length), "start": start, "until": start + length}
