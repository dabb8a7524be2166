"""Younger windows of a minute that a host's history brought together: one row, as it came.

What comes late, is reported again or was reported live is in another row, or in ``windows``. So reads look at all of
these, and take of each origin of a slot the fuller one, see ``joined_origins``. A row that came before is not stored
again. Once they are rolled up and old they are packed with all others, see ``manager.store.window_packs``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from sqlalchemy import ColumnElement, func, or_, select, true
from sqlalchemy.orm import Session

from manager.model.packed_records import microseconds, moment_of
from manager.model.packed_windows import PackedWindow, pack_as_given, unpack_windows
from manager.model.window import Window
from manager.store.pack_models import WindowMinuteRow
from manager.store.rollup_queue import MINUTE, floor
from manager.store.row_pages import newest_rows
from manager.store.row_writes import insert_new, is_one_of
from manager.store.window_packs import Place, StoredWindow, as_packed, unpacked

_AT_ONCE = 40  # rows that are read before the first is looked at
_GROUPS = 100  # of applications, looked up by one statement


def store_minutes(session: Session, origin: str, windows: Mapping[Place, Window]) -> None:
    """Store windows of an origin, none of which is of the future."""
    rows = []
    for (number, _), places in groupby(sorted(windows), lambda place: (place[0], floor(place[1], MINUTE))):
        of_minute = [*places]
        body = pack_as_given([as_packed(slot, origin, windows[number, slot]) for _, slot in of_minute])
        digest = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big", signed=True)
        newest = of_minute[-1][1]
        rows.append({"application_id": number, "newest": newest, "origin": origin, "digest": digest, "body": body})
    insert_new(session, WindowMinuteRow, rows)


def newest_of_minutes(session: Session, *conditions: ColumnElement[bool]) -> Iterator[StoredWindow]:
    """The windows of the rows that meet all conditions, the newest minute first. Rows are read as needed."""
    place = WindowMinuteRow.newest, WindowMinuteRow.id
    query = select(*place, WindowMinuteRow.application_id, WindowMinuteRow.body).where(*conditions)
    rows = newest_rows(session, query, place, _AT_ONCE)
    for _, of_minute in groupby(rows, lambda row: floor(row.newest, MINUTE)):
        for row in sorted(of_minute, key=attrgetter("id")):
            yield from (unpacked(row.application_id, window) for window in unpack_windows(row.body))


def windows_between(
    session: Session, numbers: Collection[int], first: datetime, last: datetime
) -> Iterator[StoredWindow]:
    """Windows of applications, by row number, whose slots began from ``first`` to ``last``. Later rows come last."""
    row = WindowMinuteRow
    between = row.newest.between(first, floor(last, MINUTE) + MINUTE)
    first_us, last_us = microseconds(first), microseconds(last)
    for number, window in _rows(session, between, is_one_of(session, row.application_id, numbers)):
        if first_us <= window.slot_us <= last_us:
            yield unpacked(number, window)


def windows_of(session: Session, rows: Collection[int]) -> list[StoredWindow]:
    """The windows of these rows. Later rows come last."""
    of_rows = _rows(session, is_one_of(session, WindowMinuteRow.id, rows))
    return [unpacked(number, window) for number, window in of_rows]


def windows_since(session: Session, begins: Mapping[int, datetime], until: datetime | None) -> list[StoredWindow]:
    """Windows of applications, by row number, from a moment of each on; ``until``: of slots that began by then."""
    alike: dict[datetime, list[int]] = {}
    for number, begin in begins.items():
        alike.setdefault(begin, []).append(number)
    row = WindowMinuteRow
    groups = [
        is_one_of(session, row.application_id, numbers) & (row.newest >= begin) for begin, numbers in alike.items()
    ]
    bound = true() if until is None else row.newest < floor(until, MINUTE) + MINUTE
    begins_us = {number: microseconds(begin) for number, begin in begins.items()}
    until_us = None if until is None else microseconds(until)
    return [
        unpacked(number, window)
        for first in range(0, len(groups), _GROUPS)
        for number, window in _rows(session, or_(*groups[first : first + _GROUPS]), bound)
        if window.slot_us >= begins_us[number] and (until_us is None or window.slot_us <= until_us)
    ]


def oldest_of_minutes(session: Session, application: int) -> datetime | None:
    """The oldest slot of an application in such a row; None: there is none."""
    row = WindowMinuteRow
    of_application = row.application_id == application
    first = session.scalar(select(func.min(row.newest)).where(of_application))
    if first is None:
        return None
    oldest = _rows(session, of_application, row.newest < floor(first, MINUTE) + MINUTE)
    return moment_of(min(window.slot_us for _, window in oldest))


def _rows(session: Session, *conditions: ColumnElement[bool]) -> Iterator[tuple[int, PackedWindow]]:
    """The windows of the rows that meet all conditions, in the order in which the rows came."""
    row = WindowMinuteRow
    query = select(row.application_id, row.body).where(*conditions).order_by(row.id)
    for number, body in session.execute(query):
        yield from ((number, window) for window in unpack_windows(body))
