"""Response times rolled up: each finished minute and hour of an application as one row, for charts of long ranges.

A minute is rolled up once its slots are settled: what is posted or reported may be 300 s late. Hours are made of their
minutes. An agent that could not reach the manager may report still later: its minutes are noted by ``note_late`` and
rolled up again. All rows of a time are written in one transaction, in the order of time, so the newest row says how far
all is done. Several managers may do the same at once: a row is replaced only by one with as many response times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from manager.control.budget import HOUR_S, MINUTE_S, Period, Span, judge, total
from manager.model.histogram import Histogram
from manager.model.window import Ready, Window, merge
from manager.store.applications import as_it_was
from manager.store.database import Database, insert_for
from manager.store.models import ApplicationRow, LateMinuteRow, PastApplicationRow, RollupRow, WindowRow
from manager.store.past import read_past
from manager.store.retention import Keep, remove
from manager.store.windows import columns_of, slot_start, window_of

LATE_S = 300.0
"""How late response times usually may be."""

_SETTLED_S = LATE_S + 60  # time for a report that is being written, and for clocks that differ
_CHUNK = timedelta(minutes=10)
_LATE_BATCH = 200  # late minutes of one transaction
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE, _HOUR = timedelta(seconds=MINUTE_S), timedelta(seconds=HOUR_S)


def note_late(
    session: Session,
    applications: Mapping[str, int],
    windows: Iterable[Window],
    slot_length: timedelta,
    now: datetime,
) -> None:
    """Have the minutes of late windows rolled up again. ``applications`` are row numbers; others are passed over."""
    latest_s = now.timestamp() - LATE_S
    late = {
        (applications[window.application], _floor(slot_start(_time(window.end_s), slot_length), _MINUTE))
        for window in windows
        if window.end_s < latest_s and window.application in applications
    }
    if late:
        insert = insert_for(session, LateMinuteRow)
        noted = {name: insert.excluded[name] for name in ("noted_at", "pending")}
        statement = insert.on_conflict_do_update(index_elements=["application_id", "start"], set_=noted)
        note = {"noted_at": now, "pending": True}
        session.execute(
            statement, [{"application_id": number, "start": start} | note for number, start in sorted(late)]
        )


class RollUps:
    """Rolls up response times, and forgets what is too old."""

    def __init__(self, database: Database, slot_length: timedelta, min_samples: int, keep: Keep) -> None:
        self._database = database
        self._slot_length = slot_length
        self._min_samples = min_samples
        self._keep = keep

    def roll_up(self, now: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
        """Roll up all that is finished and not yet done, and tell how many rows that made. Raises DatabaseUnavailable.

        Whatever was missed while no manager ran is made up for. ``stopped`` is asked before each transaction.
        """
        settled = _floor(now - timedelta(seconds=_SETTLED_S), _MINUTE)
        made = self._minutes(settled, stopped)
        made += self._hours(_floor(settled, _HOUR), stopped)
        return made + self._late(settled, stopped)

    def forget(self, now: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove windows and rows that are older than they are kept, and tell how many; otherwise as ``roll_up``.

        Windows that are not rolled up yet stay; and those from late minutes on as long again as usual, counted from
        when these were reported: of the same minute another host may tell still later.
        """
        of_late = LateMinuteRow.application_id == WindowRow.application_id, LateMinuteRow.start <= WindowRow.slot
        with self._database.writing() as session:
            over = LateMinuteRow.noted_at < now - self._keep.raw
            session.execute(delete(LateMinuteRow).where(over, LateMinuteRow.pending.is_(False)))
            before = min(now - self._keep.raw, _done(session, _MINUTE))
        gone = remove(self._database, WindowRow, (WindowRow.slot < before) & ~exists().where(*of_late), stopped)
        for length, keep in ((_MINUTE, self._keep.minutes), (_HOUR, self._keep.hours)):
            of_length = RollupRow.length_s == _seconds(length)
            gone += remove(self._database, RollupRow, of_length & (RollupRow.start < now - keep), stopped)
        measured = (exists().where(kind.application_id == PastApplicationRow.id) for kind in (WindowRow, RollupRow))
        return gone + remove(self._database, PastApplicationRow, ~or_(*measured), stopped)

    def _minutes(self, until: datetime, stopped: Callable[[], bool]) -> int:
        """Roll up the minutes before ``until`` that come after the newest one."""
        made = 0
        with self._database.reading() as session:
            begin = _done(session, _MINUTE)
        while not stopped():
            with self._database.reading() as session:
                # Times without any response times are skipped.
                first = session.scalar(select(func.min(WindowRow.slot)).where(WindowRow.slot >= begin))
                if first is None or first >= until:
                    break
                first = _floor(first, _MINUTE)
                begin = min(first + _CHUNK, until)
                rows = self._minute_rows(session, first, begin)
            with self._database.writing() as session:
                made += _write(session, rows)
        return made

    def _hours(self, until: datetime, stopped: Callable[[], bool]) -> int:
        """Roll up the hours before ``until`` that come after the newest one, from minutes."""
        made = 0
        with self._database.reading() as session:
            begin = _done(session, _HOUR)
        newer = select(func.min(RollupRow.start)).where(RollupRow.length_s == _seconds(_MINUTE))
        while not stopped():
            with self._database.reading() as session:
                first = session.scalar(newer.where(RollupRow.start >= begin))
                if first is None or first >= until:
                    break
                first = _floor(first, _HOUR)
                begin = first + _HOUR
                rows = _hour_rows(session, first)
            with self._database.writing() as session:
                made += _write(session, rows)
        return made

    def _late(self, until: datetime, stopped: Callable[[], bool]) -> int:
        """Roll up late minutes from before ``until`` again, and the hours that hold them."""
        made = 0
        while not stopped():
            with self._database.writing() as session:
                some = select(LateMinuteRow.application_id, LateMinuteRow.start).where(LateMinuteRow.pending)
                some = some.where(LateMinuteRow.start < until)
                late = session.execute(some.order_by(LateMinuteRow.start).limit(_LATE_BATCH)).all()
                # Done before windows are read: whoever reports meanwhile notes it anew, and it is done once more.
                for number, start in late:
                    place = (LateMinuteRow.application_id == number, LateMinuteRow.start == start)
                    session.execute(update(LateMinuteRow).where(*place).values(pending=False))
                hours_done = _done(session, _HOUR)
                for number, start in late:
                    made += _write(session, self._minute_rows(session, start, start + _MINUTE, number))
                hours = {(_floor(start, _HOUR), number) for number, start in late if start < hours_done}
                for start, number in sorted(hours):
                    made += _write(session, _hour_rows(session, start, number))
            if len(late) < _LATE_BATCH:
                break
        return made

    def _minute_rows(
        self, session: Session, since: datetime, until: datetime, application: int | None = None
    ) -> list[dict[str, Any]]:
        """The minutes of all applications, or of one, from ``since`` until before ``until``."""
        query = select(WindowRow).where(WindowRow.slot >= since, WindowRow.slot < until)
        if application is not None:
            query = query.where(WindowRow.application_id == application)
        ordered = session.scalars(query.order_by(WindowRow.application_id, WindowRow.slot)).yield_per(1000)
        removed = map(as_it_was, session.scalars(select(PastApplicationRow)))
        applications = {row.id: row for row in (*session.scalars(select(ApplicationRow)), *removed)}
        past = read_past(session, since)
        slot_s = self._slot_length.total_seconds()
        made: list[dict[str, Any]] = []
        for (number, start), rows in groupby(ordered, lambda row: (row.application_id, _floor(row.slot, _MINUTE))):
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
            made.append(_row(number, start, _MINUTE, periods))
        return made


def period_of(application: str, row: RollupRow) -> Period:
    """A row as a period."""
    start_s = row.start.timestamp()
    histogram = Histogram({int(bucket): count for bucket, count in row.buckets.items()})
    ready = Ready(**row.ready) if row.ready else None
    window = Window(application, start_s, start_s + row.length_s, histogram, row.requests, ready)
    spans = (Span(start_s + one["start_s"], start_s + one["end_s"], one["missed"]) for one in row.violations or ())
    return Period(start_s, window, row.slots, row.judged, row.missed, tuple(spans))


def _hour_rows(session: Session, start: datetime, application: int | None = None) -> list[dict[str, Any]]:
    """The hour of all applications, or of one, that begins at ``start``."""
    query = select(RollupRow).where(
        RollupRow.length_s == _seconds(_MINUTE), RollupRow.start >= start, RollupRow.start < start + _HOUR
    )
    if application is not None:
        query = query.where(RollupRow.application_id == application)
    ordered = session.scalars(query.order_by(RollupRow.application_id, RollupRow.start)).yield_per(1000)
    return [
        _row(number, start, _HOUR, [period_of("", row) for row in rows])
        for number, rows in groupby(ordered, lambda row: row.application_id)
    ]


def _row(number: int, start: datetime, length: timedelta, periods: Sequence[Period]) -> dict[str, Any]:
    start_s = start.timestamp()
    whole = total("", periods, start_s, start_s + length.total_seconds())
    columns = columns_of(whole.window)
    spans = [
        {"start_s": round(one.start_s - start_s, 6), "end_s": round(one.end_s - start_s, 6), "missed": one.missed}
        for one in whole.violations
    ]
    return {
        "application_id": number,
        "length_s": _seconds(length),
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


def _done(session: Session, length: timedelta) -> datetime:
    """The end of the newest row of a length."""
    query = select(func.max(RollupRow.start)).where(RollupRow.length_s == _seconds(length))
    newest = session.scalar(query)
    return _EPOCH if newest is None else newest + length


def _floor(moment: datetime, length: timedelta) -> datetime:
    return _EPOCH + (moment - _EPOCH) // length * length


def _seconds(length: timedelta) -> int:
    return round(length.total_seconds())


def _time(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, UTC)
