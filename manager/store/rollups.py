"""Response times rolled up: each finished minute and hour of an application as one row, for charts of long ranges.

A minute is rolled up once its slots are settled: what is posted or reported may be 300 s late. Hours are made of their
minutes. An agent that could not reach the manager may report still later: its minutes are noted by ``note_late`` and
rolled up again. All rows of a time are written in one transaction, in the order of time, so the newest row says how far
all is done. Several managers may do the same at once: a row is replaced only by one with as many response times.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from manager.control.budget import HOUR_S, MINUTE_S, Period, Span, judge, total
from manager.errors import DatabaseUnavailable
from manager.model.histogram import Histogram
from manager.model.window import Ready, Window, merge
from manager.store.database import Database, insert_for
from manager.store.models import ApplicationRow, LateMinuteRow, RollupRow, WindowRow
from manager.store.past import read_past
from manager.store.retention import remove
from manager.store.windows import columns_of, slot_start, window_of

LATE_S = 300.0
"""How late response times usually may be."""

_SETTLED_S = LATE_S + 60  # time for a report that is being written, and for clocks that differ
_CHUNK = timedelta(minutes=10)
_LATE_BATCH = 200  # late minutes of one transaction
_PERIOD_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE, _HOUR = timedelta(seconds=MINUTE_S), timedelta(seconds=HOUR_S)

log = logging.getLogger(__name__)


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
        insert = insert_for(session, LateMinuteRow).on_conflict_do_nothing(index_elements=["application_id", "start"])
        session.execute(insert, [{"application_id": number, "start": start} for number, start in sorted(late)])


class RollUps:
    """Rolls up in the background, at once and then every minute, and forgets what is too old."""

    def __init__(
        self,
        database: Database,
        slot_length: timedelta,
        min_samples: int,
        keep_minutes: timedelta,
        keep_hours: timedelta,
        clock: Callable[[], float],
    ) -> None:
        """``keep_minutes`` and ``keep_hours``: how long rows of either length are kept."""
        self._database = database
        self._slot_length = slot_length
        self._min_samples = min_samples
        self._keep = {_MINUTE: keep_minutes, _HOUR: keep_hours}
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollups", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, after the transaction at hand."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def roll_up(self) -> int:
        """Roll up all that is finished and not yet done, and tell how many rows that made. Raises DatabaseUnavailable.

        Whatever was missed while no manager ran is made up for.
        """
        settled = _floor(_time(self._clock() - _SETTLED_S), _MINUTE)
        made = self._minutes(settled)
        made += self._hours(_floor(settled, _HOUR))
        return made + self._late(settled)

    def forget(self) -> int:
        """Remove rows that are older than they are kept, and tell how many. Raises DatabaseUnavailable."""
        now = _time(self._clock())
        return sum(
            remove(
                self._database,
                RollupRow,
                (RollupRow.length_s == _seconds(length)) & (RollupRow.start < now - keep),
                self._stop.is_set,
            )
            for length, keep in self._keep.items()
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                made, gone = self.roll_up(), self.forget()
                log.debug("roll-ups: %d rows made, %d removed", made, gone)
            except DatabaseUnavailable as error:
                log.warning("roll-ups are put off: %s", error)
            self._stop.wait(_PERIOD_S)

    def _minutes(self, until: datetime) -> int:
        """Roll up the minutes before ``until`` that come after the newest one."""
        made = 0
        with self._database.reading() as session:
            begin = _done(session, _MINUTE)
        while not self._stop.is_set():
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

    def _hours(self, until: datetime) -> int:
        """Roll up the hours before ``until`` that come after the newest one, from minutes."""
        made = 0
        with self._database.reading() as session:
            begin = _done(session, _HOUR)
        newer = select(func.min(RollupRow.start)).where(RollupRow.length_s == _seconds(_MINUTE))
        while not self._stop.is_set():
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

    def _late(self, until: datetime) -> int:
        """Roll up late minutes from before ``until`` again, and the hours that hold them."""
        made = 0
        while not self._stop.is_set():
            with self._database.writing() as session:
                some = select(LateMinuteRow.application_id, LateMinuteRow.start).where(LateMinuteRow.start < until)
                late = session.execute(some.order_by(LateMinuteRow.start).limit(_LATE_BATCH)).all()
                # Removed before windows are read: whoever reports meanwhile notes it anew, and it is done once more.
                for number, start in late:
                    place = (LateMinuteRow.application_id == number, LateMinuteRow.start == start)
                    session.execute(delete(LateMinuteRow).where(*place))
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
        applications = {row.id: row for row in session.scalars(select(ApplicationRow))}
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
    """Insert or replace rows, and tell how many. Those of applications that are gone by now are left out."""
    numbers = {row["application_id"] for row in rows}
    locked = select(ApplicationRow.id).order_by(ApplicationRow.id).with_for_update(read=True, key_share=True)
    there = numbers & set(session.scalars(locked))
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
