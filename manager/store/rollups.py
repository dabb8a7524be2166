"""Response times rolled up: each finished minute and hour of an application as one row, for charts of long ranges.

What is to be rolled up is noted with the windows themselves, see ``manager.store.rollup_queue``. A minute is rolled up
once its slots are settled, by their date or because it has been noted for long enough; should something come later
still, it is noted and rolled up again. Hours are made of their minutes. Several managers may do the same at once: a row
is replaced only by one with as many response times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, true, update
from sqlalchemy.orm import Session

from manager.control.budget import Period, Span, judge, total
from manager.model.histogram import Histogram
from manager.model.window import Ready, Window, merge
from manager.store.applications import as_it_was
from manager.store.arrivals import WINDOWS, Arrived
from manager.store.database import Database, insert_for
from manager.store.models import ApplicationRow, PastApplicationRow, RollupRow, WindowRow
from manager.store.past_registrations import read_past
from manager.store.progress_models import UnrolledWindowsRow
from manager.store.retention import Keep, remove
from manager.store.rollup_queue import HOUR, MINUTE, floor, note_windows, seconds, windows_noted
from manager.store.windows import columns_of, window_of

_SETTLED_S = 300.0 + 60  # how late response times usually may be, and time for a report that is being written
_CHUNKS = {MINUTE: timedelta(minutes=10), HOUR: HOUR}  # what of each length is made at once

Place = tuple[int, datetime]
"""Row number of an application, and the begin of a minute or hour."""


class RollUps:
    """Rolls up response times, and forgets what is too old."""

    def __init__(
        self,
        database: Database,
        slot_length: timedelta,
        min_samples: int,
        keep: Keep,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``steady`` answers seconds that only grow."""
        self._database = database
        self._slot_length = slot_length
        self._min_samples = min_samples
        self._keep = keep
        self._steady = steady
        self._noted: deque[tuple[float, int]] = deque()

    def roll_up(self, now: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
        """Roll up all that is finished and not yet done, and tell how many rows that made. Raises DatabaseUnavailable.

        Whatever was missed while no manager ran is made up for. ``stopped`` is asked before each transaction.
        """
        settled = floor(now - timedelta(seconds=_SETTLED_S), MINUTE)
        waited = UnrolledWindowsRow.id <= self._long_noted()
        made = self._roll(MINUTE, (UnrolledWindowsRow.start < settled) | waited, stopped)
        # How long an hour has been noted tells nothing: it is with its first minute.
        return made + self._roll(HOUR, UnrolledWindowsRow.start < floor(settled, HOUR), stopped)

    def forget(self, now: datetime, arrived: Arrived, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove windows and rows that were kept for their time, and tell how many; otherwise as ``prune``.

        What is not rolled up yet stays.
        """
        keep = self._keep
        old = (WindowRow.slot < now - keep.raw) & (WindowRow.id <= arrived(WINDOWS, WindowRow.id, keep.raw))
        noted = windows_noted(MINUTE, WindowRow.application_id, WindowRow.slot)
        gone = remove(self._database, WindowRow, old & ~noted, stopped)
        noted = windows_noted(HOUR, RollupRow.application_id, RollupRow.start)
        for kept, length, long, free in (
            ("minutes", MINUTE, keep.minutes, ~noted),
            ("hours", HOUR, keep.hours, true()),
        ):
            old = (RollupRow.length_s == seconds(length)) & (RollupRow.start < now - long)
            old &= RollupRow.id <= arrived(kept, RollupRow.id, long)
            gone += remove(self._database, RollupRow, old & free, stopped)
        measured = (
            select(kind.id).where(kind.application_id == PastApplicationRow.id).exists()
            for kind in (WindowRow, RollupRow)
        )
        return gone + remove(self._database, PastApplicationRow, ~or_(*measured), stopped)

    def _long_noted(self) -> int:
        """The number of the newest note that has been there for as long as it takes to settle, whatever the date."""
        now_s = self._steady()
        with self._database.reading() as session:
            self._noted.append((now_s, session.scalar(select(func.max(UnrolledWindowsRow.id))) or 0))
        while len(self._noted) > 1 and now_s - self._noted[1][0] >= _SETTLED_S:
            self._noted.popleft()
        at_s, number = self._noted[0]
        return number if now_s - at_s >= _SETTLED_S else 0

    def _roll(self, length: timedelta, due: ColumnElement[bool], stopped: Callable[[], bool]) -> int:
        """Roll up what is noted of a length and due, oldest first."""
        made = 0
        while not stopped():
            with self._database.writing() as session:
                notes = _take(session, length, due)
            if not notes:
                break
            places = frozenset(notes.values())
            with self._database.reading() as session:  # it takes long, and writers on SQLite are alone
                rows = self._minute_rows(session, places) if length == MINUTE else _hour_rows(session, places)
            with self._database.writing() as session:
                made += _write(session, rows)
                if length == MINUTE:
                    note_windows(session, HOUR, ((number, start, "") for number, start in places))
                done = delete(UnrolledWindowsRow).where(UnrolledWindowsRow.taken)
                session.execute(done.where(UnrolledWindowsRow.id.in_(notes)))
        return made

    def _minute_rows(self, session: Session, places: Collection[Place]) -> list[dict[str, Any]]:
        removed = map(as_it_was, session.scalars(select(PastApplicationRow)))
        applications = {row.id: row for row in (*session.scalars(select(ApplicationRow)), *removed)}
        past = read_past(session, min(start for _, start in places))
        slot_s = self._slot_length.total_seconds()
        made: list[dict[str, Any]] = []
        for start, numbers in _by_start(places):
            query = select(WindowRow).where(WindowRow.slot >= start, WindowRow.slot < start + MINUTE)
            query = query.where(WindowRow.application_id.in_(numbers))
            ordered = session.scalars(query.order_by(WindowRow.application_id, WindowRow.slot)).yield_per(1000)
            for number, rows in groupby(ordered, lambda row: row.application_id):
                periods = [
                    judge(
                        merge(window_of("", row) for row in origins),
                        slot.timestamp(),
                        slot_s,
                        past.sla(applications[number], slot) if number in applications else None,
                        self._min_samples,
                    )
                    for slot, origins in groupby(rows, lambda row: row.slot)
                ]
                made.append(_row(number, start, MINUTE, periods))
        return made


def period_of(application: str, row: RollupRow) -> Period:
    """A row as a period."""
    start_s = row.start.timestamp()
    histogram = Histogram({int(bucket): count for bucket, count in row.buckets.items()})
    ready = Ready(**row.ready) if row.ready else None
    window = Window(application, start_s, start_s + row.length_s, histogram, row.requests, ready)
    spans = (
        Span(start_s + violation["start_s"], start_s + violation["end_s"], violation["missed"])
        for violation in row.violations or ()
    )
    return Period(start_s, window, row.slots, row.judged, row.missed, tuple(spans))


def _take(session: Session, length: timedelta, due: ColumnElement[bool]) -> dict[int, Place]:
    """The oldest notes of a length that are due, by number; what comes from now on is noted anew."""
    wanted = (UnrolledWindowsRow.length_s == seconds(length)) & due
    first = session.scalar(select(func.min(UnrolledWindowsRow.start)).where(wanted))
    if first is None:
        return {}
    some = wanted & (UnrolledWindowsRow.start < first + _CHUNKS[length])
    columns = UnrolledWindowsRow.id, UnrolledWindowsRow.application_id, UnrolledWindowsRow.start
    taken = session.execute(update(UnrolledWindowsRow).where(some).values(taken=True).returning(*columns))
    return {row.id: (row.application_id, row.start) for row in taken}


def _hour_rows(session: Session, places: Collection[Place]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for start, numbers in _by_start(places):
        query = select(RollupRow).where(RollupRow.length_s == seconds(MINUTE), RollupRow.application_id.in_(numbers))
        query = query.where(RollupRow.start >= start, RollupRow.start < start + HOUR)
        ordered = session.scalars(query.order_by(RollupRow.application_id, RollupRow.start)).yield_per(1000)
        for number, rows in groupby(ordered, lambda row: row.application_id):
            made.append(_row(number, start, HOUR, [period_of("", row) for row in rows]))
    return made


def _by_start(places: Collection[Place]) -> Iterator[tuple[datetime, list[int]]]:
    for start, some in groupby(sorted(places, key=lambda place: place[1]), lambda place: place[1]):
        yield start, [number for number, _ in some]


def _row(number: int, start: datetime, length: timedelta, periods: Sequence[Period]) -> dict[str, Any]:
    start_s = start.timestamp()
    whole = total("", periods, start_s, start_s + length.total_seconds())
    columns = columns_of(whole.window)
    spans = [
        {
            "start_s": round(violation.start_s - start_s, 6),
            "end_s": round(violation.end_s - start_s, 6),
            "missed": violation.missed,
        }
        for violation in whole.violations
    ]
    return {
        "application_id": number,
        "length_s": seconds(length),
        "start": start,
        **{name: columns[name] for name in ("count", "buckets", "requests", "ready")},
        "slots": whole.slots,
        "judged": whole.judged,
        "missed": whole.missed,
        "violations": spans or None,
    }


def _write(session: Session, rows: Sequence[dict[str, Any]]) -> int:
    """Insert or replace rows, and tell how many. Those of applications that nobody knows are left out."""
    there = {number for kind in (ApplicationRow, PastApplicationRow) for number in session.scalars(select(kind.id))}
    kept = [row for row in rows if row["application_id"] in there]
    if kept:
        insert = insert_for(session, RollupRow)
        unique = ["application_id", "length_s", "start"]
        changed = {name: insert.excluded[name] for name in kept[0] if name not in unique}
        # Slots only grow: a row with fewer response times was made when some of its slots were forgotten already.
        more = RollupRow.count <= insert.excluded["count"]
        session.execute(insert.on_conflict_do_update(index_elements=unique, set_=changed, where=more), kept)
    return len(kept)
