"""Minutes and hours still to be rolled up: noted in the transaction that stores something new in them.

So nothing depends on how far roll-ups of another application or host have come, nor on any clock: what comes late, or
by a clock that was set back, is noted like all else, and is not removed before it was rolled up.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, exists
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.control.budget import HOUR_S, MINUTE_S
from manager.store.progress_models import UnrolledTicksRow, UnrolledWindowsRow
from manager.store.row_writes import upsert

MINUTE, HOUR = timedelta(seconds=MINUTE_S), timedelta(seconds=HOUR_S)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def note_windows(session: Session, length: timedelta, places: Iterable[tuple[int, datetime, str]]) -> None:
    """Note the minutes or hours that hold moments: row number of the application, moment, and origin."""
    spans = sorted({(number, floor(moment, length), origin) for number, moment, origin in places})
    rows = [
        {"application_id": number, "origin": origin, "taken": False} | _span(start, length)
        for number, start, origin in spans
    ]
    # A note that is there already is locked all the same: the roll-up sees what this transaction wrote, or leaves the
    # note.
    keys = ["application_id", "length_s", "start", "origin"]
    upsert(session, UnrolledWindowsRow, rows, keys, _is_taken)


def note_ticks(session: Session, length: timedelta, places: Iterable[tuple[str, datetime]]) -> None:
    """Note the minutes or hours that hold moments of hosts, each in the order of time, and lock them as for windows."""
    spans = sorted({(host, floor(moment, length)) for host, moment in places})
    rows = [{"host": host} | _span(start, length) for host, start in spans]
    keys = ["host", "length_s", "start"]
    upsert(session, UnrolledTicksRow, rows, keys, _ends_elsewhere)


def is_noted(
    notes: type[UnrolledWindowsRow | UnrolledTicksRow],
    is_same: ColumnElement[bool],
    length: timedelta,
    moment: InstrumentedAttribute[datetime],
) -> ColumnElement[bool]:
    """Whether the minute or hour that holds a row's moment is still to be rolled up for its application or host."""
    return exists().where(is_same, notes.length_s == seconds(length), notes.start <= moment, notes.until > moment)


def floor(moment: datetime, length: timedelta) -> datetime:
    """The start of the minute or hour that holds a moment."""
    return _EPOCH + (moment - _EPOCH) // length * length


def seconds(length: timedelta) -> int:
    """A length in whole seconds."""
    return round(length.total_seconds())


def _is_taken(_new: Any) -> ColumnElement[bool]:
    return UnrolledWindowsRow.taken.is_(True)


def _ends_elsewhere(new: Any) -> ColumnElement[bool]:
    another: ColumnElement[bool] = UnrolledTicksRow.until != new["until"]
    return another


def _span(start: datetime, length: timedelta) -> dict[str, object]:
    return {"length_s": seconds(length), "start": start, "until": start + length}
