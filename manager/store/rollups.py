"""Response times rolled up: each finished minute and hour of an application as one row, for charts of long ranges.

What is to be rolled up is noted with the windows, see ``manager.store.rollup_queue``. A minute is rolled up once its
slots are settled, by their date or because it has been noted for long enough; if something arrives later, it is noted
and rolled up again. Hours are made of minutes. Several managers may do the same at once: a row is replaced only by one
with as many response times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Delete,
    Row,
    Select,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.orm import Session

from manager.control.budget import Period, Violation, judge, total
from manager.model.window import LONGEST_DELAY_S, Ready, Window, merge
from manager.store.arrivals import WINDOWS
from manager.store.database import Database
from manager.store.day_partitions import MINUTES as MINUTE_DAYS
from manager.store.day_partitions import WINDOWS as WINDOW_DAYS
from manager.store.models import ApplicationRow, PastApplicationRow, RollupRow, UtcDateTime, WindowRow
from manager.store.pack_models import WindowMinuteRow, WindowPackRow
from manager.store.past_registrations import read_slas
from manager.store.progress_models import UnrolledWindowsRow
from manager.store.retention import Cleanup, Keep
from manager.store.rollup_queue import HOUR, MINUTE, floor, is_noted, note_windows, seconds
from manager.store.row_writes import among, has_arrays, upsert
from manager.store.serving_hosts import awaiting_history
from manager.store.window_minutes import windows_between
from manager.store.window_packs import (
    COLUMNS,
    MINUTES,
    SPAN,
    YOUNG,
    StoredWindow,
    at_places,
    joined_origins,
    packed,
    stored,
)
from manager.store.windows import columns_of

_SETTLED_S = 300.0 + 60  # how late response times usually may be, and time for a report that is being written
_STEP = timedelta(microseconds=1)
_DAY = timedelta(days=1)  # so far ahead a host's clock alone is believed
_RETURN = timedelta(seconds=LONGEST_DELAY_S, hours=1)
"""After it a host that was away has told all, and its minutes are rolled up."""
_AT_ONCE = 500  # notes whose rows are made together: neither many applications nor many minutes take much memory

PERIOD_COLUMNS = (
    RollupRow.start,
    RollupRow.length_s,
    RollupRow.histogram,
    RollupRow.requests,
    RollupRow.ready,
    RollupRow.slots,
    RollupRow.judged,
    RollupRow.violated,
    RollupRow.violations,
)
"""Read alone: making objects of rows takes longer than reading them."""

Place = tuple[int, datetime]
"""Row number of an application, and the start of a minute or hour."""


class RollUps:
    """Rolls up response times, and removes what is too old."""

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
        """Roll up all that is finished, also from while no manager ran; returns how many rows that made.

        ``stopped`` is asked before each transaction. Raises DatabaseUnavailable.
        """
        settled = floor(now - timedelta(seconds=_SETTLED_S), MINUTE)
        # What a host's clock dated ahead waits for its time: until then something else may take its place.
        ahead = UnrolledWindowsRow.start.between(now, now + _DAY)
        waited = (UnrolledWindowsRow.id <= self._long_noted()) & ~ahead
        made = self._roll(MINUTE, (UnrolledWindowsRow.start < settled) | waited, stopped)
        # How long an hour has been noted means nothing: it is noted with its first minute.
        return made + self._roll(HOUR, UnrolledWindowsRow.start < floor(settled, HOUR), stopped)

    def forget(self, cleanup: Cleanup) -> int:
        """Remove windows and rows that were kept for their time and are rolled up; returns how many.

        Windows of an application stay as long as its minutes while a host of it is away: a minute is made of the
        windows of all hosts.
        """
        keep, notes = self._keep, UnrolledWindowsRow
        minutes, hours = (RollupRow.length_s == seconds(length) for length in (MINUTE, HOUR))
        awaiting, oldest = awaiting_history(cleanup.now - _RETURN), cleanup.now - keep.minutes
        gone = 0
        for kept, (kind, moment) in zip((WINDOWS, MINUTES), YOUNG, strict=True):
            noted = is_noted(notes, notes.application_id == kind.application_id, MINUTE, moment)
            whole = kind.application_id.not_in(awaiting) | (moment < oldest)
            gone += cleanup.remove_old(kept, kind.id, moment, keep.raw, ~noted & whole)
        pack = WindowPackRow
        whole = pack.application_id.not_in(awaiting) | (pack.start < oldest)
        # Of all windows in it: as long as there is one of them to be rolled up, it stays, and so do those before it.
        of_pack = (notes.application_id == pack.application_id) & (notes.length_s == seconds(MINUTE))
        noted = exists().where(of_pack, notes.until > pack.start, notes.start < cleanup.now - keep.raw)
        gone += cleanup.remove_old("window-packs", pack.id, pack.start, keep.raw + SPAN, ~noted & whole, WINDOW_DAYS)
        noted = is_noted(notes, notes.application_id == RollupRow.application_id, HOUR, RollupRow.start)
        gone += cleanup.remove_old(
            "minutes", RollupRow.id, RollupRow.start, keep.minutes, minutes & ~noted, MINUTE_DAYS
        )
        gone += cleanup.remove_old("hours", RollupRow.id, RollupRow.start, keep.hours, hours)
        measured = (
            select(kind.id).where(kind.application_id == PastApplicationRow.id).exists()
            for kind in (WindowRow, WindowMinuteRow, WindowPackRow, RollupRow)
        )
        return gone + cleanup.remove(PastApplicationRow.id, ~or_(*measured))

    def _long_noted(self) -> int:
        """The number of the newest note that is old enough to be settled, whatever its date."""
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
                session.execute(_done(has_arrays(session)), {"notes": sorted(notes)})
        return made

    def _minute_rows(self, session: Session, places: Collection[Place]) -> list[dict[str, Any]]:
        slas = read_slas(session, {number for number, _ in places}, min(start for _, start in places))
        slot_s = self._slot_length.total_seconds()
        made: list[dict[str, Any]] = []
        for start, numbers in _by_start(places):
            slots = joined_origins(_windows(session, start, numbers))
            for number, of_minute in groupby(sorted(slots), lambda place: place[0]):
                periods = [
                    judge(
                        merge([row.window for row in slots[number, slot]]),
                        slot.timestamp(),
                        slot_s,
                        slas.at(number, slot),
                        self._min_samples,
                    )
                    for _, slot in of_minute
                ]
                made.append(_row(number, start, MINUTE, periods))
        return made


def period_of(application: str, row: RollupRow | Row[*tuple[Any, ...]]) -> Period:
    """A row as a period; ``PERIOD_COLUMNS`` of it suffice."""
    start_s = row.start.timestamp()
    ready = Ready(**row.ready) if row.ready else None
    window = Window(application, start_s, start_s + row.length_s, row.histogram, row.requests, ready)
    spans = (
        Violation(start_s + run["start_s"], start_s + run["end_s"], run["violated"]) for run in row.violations or ()
    )
    return Period(start_s, window, row.slots, row.judged, row.violated, tuple(spans))


def _take(session: Session, length: timedelta, due: ColumnElement[bool]) -> dict[int, Place]:
    """The oldest notes of a length that are due, by number; what comes from now on is noted anew."""
    note = UnrolledWindowsRow
    oldest = select(note.id).where(note.length_s == seconds(length), due).order_by(note.start, note.application_id)
    some = update(note).where(note.id.in_(oldest.limit(_AT_ONCE))).values(taken=True)
    taken = session.execute(some.returning(note.id, note.application_id, note.start))
    return {row.id: (row.application_id, row.start) for row in taken}


def _windows(session: Session, start: datetime, numbers: Sequence[int]) -> Iterator[StoredWindow]:
    """What all origins know of applications in a minute, what is packed before what is not."""
    at = at_places([(number, start) for number in numbers])
    yield from (window for window in packed(session, *at) if start <= window.slot < start + MINUTE)
    yield from windows_between(session, numbers, start, start + MINUTE - _STEP)
    given = {"numbers": numbers, "start": start, "until": start + MINUTE}
    yield from stored(session.execute(_of_minute(has_arrays(session)), given))


@cache
def _of_minute(arrays: bool) -> Select[*tuple[Any, ...]]:
    start, until = (bindparam(name, type_=UtcDateTime()) for name in ("start", "until"))
    query = select(*COLUMNS).where(WindowRow.slot >= start, WindowRow.slot < until)
    return query.where(among(WindowRow.application_id, "numbers", arrays))


def _hour_rows(session: Session, places: Collection[Place]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for start, numbers in _by_start(places):
        query = select(RollupRow.application_id, *PERIOD_COLUMNS)
        query = query.where(RollupRow.length_s == seconds(MINUTE), RollupRow.application_id.in_(numbers))
        query = query.where(RollupRow.start >= start, RollupRow.start < start + HOUR)
        ordered = query.order_by(RollupRow.application_id, RollupRow.start)
        with session.execute(ordered).yield_per(1000) as minutes:
            for number, rows in groupby(minutes, lambda row: row.application_id):
                made.append(_row(number, start, HOUR, [period_of("", row) for row in rows]))
    return made


def _by_start(places: Collection[Place]) -> Iterator[tuple[datetime, list[int]]]:
    for start, some in groupby(sorted(places, key=lambda place: place[1]), lambda place: place[1]):
        yield start, [number for number, _ in some]


def _row(number: int, start: datetime, length: timedelta, periods: Sequence[Period]) -> dict[str, Any]:
    start_s = start.timestamp()
    whole = total("", periods, start_s, start_s + length.total_seconds())
    columns = columns_of(whole.window)
    spans = [asdict(span) for span in whole.violations]
    for span in spans:
        span |= {name: round(span[name] - start_s, 6) for name in ("start_s", "end_s")}
    return {
        "application_id": number,
        "length_s": seconds(length),
        "start": start,
        **{name: columns[name] for name in ("count", "histogram", "requests", "ready")},
        "slots": whole.slots,
        "judged": whole.judged,
        "violated": whole.violated,
        "violations": spans or None,
    }


def _write(session: Session, rows: Sequence[dict[str, Any]]) -> int:
    """Insert or replace rows of known applications; returns how many."""
    given = {"numbers": sorted({row["application_id"] for row in rows})}
    there = {*session.scalars(_known(has_arrays(session)), given)}
    storable = [row for row in rows if row["application_id"] in there]
    # Slots only grow: a row with fewer response times was made when some of its slots were removed already.
    keys = ["application_id", "length_s", "start"]
    upsert(session, RollupRow, storable, keys, _is_as_full)
    return len(storable)


@cache
def _done(arrays: bool) -> Delete:
    return delete(UnrolledWindowsRow).where(UnrolledWindowsRow.taken, among(UnrolledWindowsRow.id, "notes", arrays))


@cache
def _known(arrays: bool) -> CompoundSelect[int]:
    """Those of applications (row numbers) that are there, or were."""
    return union(
        *(select(kind.id).where(among(kind.id, "numbers", arrays)) for kind in (ApplicationRow, PastApplicationRow))
    )


def _is_as_full(new: Any) -> ColumnElement[bool]:
    full: ColumnElement[bool] = RollupRow.count <= new["count"]
    return full
