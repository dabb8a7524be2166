"""Older windows, packed: those of an application and a quarter of an hour are one row, once its minutes are rolled up.

Rows of revisions before 0014 have a minute each, and stay so until they are removed, or something is added to them.
What comes late is a row of ``windows`` as before, until it is packed, too. So reads look at both, and
take of each origin of a slot the fuller one; of response times that were posted to the manager, whose windows are
parts, the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Delete, LargeBinary, Row, ScalarSelect, delete, func, select, type_coerce
from sqlalchemy.orm import Session, aliased

from manager.model.histogram import Histogram
from manager.model.packed_histogram import UnreadHistogram, pack
from manager.model.packed_records import microseconds, moment_of
from manager.model.packed_windows import PackedWindow, pack_windows, unpack_windows
from manager.model.window import Ready, Window, merge
from manager.store.arrivals import WINDOWS
from manager.store.models import Json, WindowRow
from manager.store.pack_models import QUARTER, WindowPackRow
from manager.store.progress_models import UnrolledWindowsRow
from manager.store.retention import Cleanup
from manager.store.rollup_queue import MINUTE, floor, is_noted
from manager.store.row_pages import newest_rows
from manager.store.row_writes import among, has_arrays, upsert

PUSHED = ""
"""Origin of response times that were posted to the manager."""
KEPT_AS_ROWS = timedelta(minutes=75)
"""Younger windows are rows: what reads the present, and up to an hour back, looks at these alone."""
SPAN = QUARTER
"""What is one row."""

_AS_STORED = type_coerce(WindowRow.histogram, LargeBinary()).label("histogram"), WindowRow.requests, WindowRow.ready
_BATCH = 5000
_TOGETHER = 25  # applications that are packed in one transaction
_AT_ONCE = 12  # rows that are read before the first is looked at: of three hours

Place = tuple[int, datetime]
"""Row number of an application, and the start of a minute, or of what is one row."""


class StoredWindow(NamedTuple):
    """What an origin knows of a slot, as in ``windows``."""

    application_id: int
    slot: datetime
    origin: str
    start_at: datetime
    end_at: datetime
    histogram: Histogram
    requests: float | None
    ready: Json | None

    @property
    def window(self) -> Window:
        """The window, without the name of its application."""
        ready = Ready(**self.ready) if self.ready else None
        return Window("", self.start_at.timestamp(), self.end_at.timestamp(), self.histogram, self.requests, ready)


COLUMNS = tuple(getattr(WindowRow, name) for name in StoredWindow._fields)
"""Read alone: making objects of rows takes longer than reading them."""


def stored(rows: Iterable[Row[*tuple[Any, ...]]]) -> Iterator[StoredWindow]:
    """Rows of ``COLUMNS``."""
    return (StoredWindow(*row) for row in rows)


def packed(session: Session, *conditions: ColumnElement[bool]) -> Iterator[StoredWindow]:
    """The windows of packed rows that meet all conditions, the newest row first. Rows are read as needed."""
    place = WindowPackRow.start, WindowPackRow.application_id
    query = select(*place, WindowPackRow.body).where(*conditions)
    for _, number, body in newest_rows(session, query, place, _AT_ONCE):
        yield from (unpacked(number, window) for window in unpack_windows(body))


def joined_origins(windows: Iterable[StoredWindow]) -> dict[tuple[int, datetime], list[StoredWindow]]:
    """Windows by row number of the application and slot, one for each origin, whatever was stored twice."""
    slots: dict[tuple[int, datetime], dict[str, StoredWindow]] = {}
    for window in windows:
        origins = slots.setdefault((window.application_id, window.slot), {})
        other = origins.get(window.origin)
        origins[window.origin] = window if other is None else _joined(other, window)
    return {place: [*origins.values()] for place, origins in slots.items()}


def oldest_packed(session: Session, application: int) -> datetime | None:
    """The oldest slot of an application that is packed; None: there is none."""
    of_application = WindowPackRow.application_id == application
    first = session.scalar(select(func.min(WindowPackRow.start)).where(of_application))
    if first is None:
        return None
    bodies = session.scalars(select(WindowPackRow.body).where(of_application, WindowPackRow.start < first + SPAN))
    return moment_of(min(window.slot_us for body in bodies for window in unpack_windows(body)))


def pack_old(cleanup: Cleanup) -> int:
    """Pack windows of rolled-up minutes, of spans that are over since ``KEPT_AS_ROWS``; returns how many rows went.

    The newest slot of each application stays: it says since when nothing was measured. Raises DatabaseUnavailable.
    """
    notes = UnrolledWindowsRow
    noted = is_noted(notes, notes.application_id == WindowRow.application_id, MINUTE, WindowRow.slot)
    arrived = WindowRow.id <= cleanup.arrived(f"{WINDOWS}-packed", WindowRow.id, KEPT_AS_ROWS)
    before = floor(cleanup.now - KEPT_AS_ROWS, SPAN)
    old = (WindowRow.slot < before) & arrived & ~WindowRow.ahead
    with cleanup.database.reading() as session:
        newest = _newest_of_old(session, old)
    # Of most applications all that is old is older than their newest slot, which so need not be looked up for each row.
    measured = sorted(number for number, slot in newest.items() if slot >= before)
    idle = sorted(newest.keys() - set(measured))
    packs = sum(_pack(cleanup, old & ~noted, group) for group in _groups(measured))
    return packs + sum(_pack(cleanup, old & ~noted & _is_older(), group) for group in _groups(idle))


def _newest_of_old(session: Session, old: ColumnElement[bool]) -> dict[int, datetime]:
    """The newest slots of applications that have an old one before, by row number."""
    newest = _newest_slot()
    query = select(WindowRow.application_id, newest).where(old).group_by(WindowRow.application_id)
    return {row[0]: row[1] for row in session.execute(query.having(func.min(WindowRow.slot) < newest))}


def _newest_slot() -> ScalarSelect[datetime]:
    """Of the application of a row."""
    newer = aliased(WindowRow)
    newest = select(func.max(newer.slot)).where(newer.application_id == WindowRow.application_id)
    return newest.correlate(WindowRow).scalar_subquery()


def _is_older() -> ColumnElement[bool]:
    return WindowRow.slot < _newest_slot()


def _groups(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[first : first + _TOGETHER] for first in range(0, len(numbers), _TOGETHER))


def _pack(cleanup: Cleanup, old: ColumnElement[bool], numbers: Sequence[int]) -> int:
    """Pack what is old, a few applications at once, so that each row is written once; returns how many rows went."""
    some = select(WindowRow.id, *COLUMNS[:-3], *_AS_STORED).where(old, WindowRow.application_id.in_(numbers))
    some = some.order_by(WindowRow.application_id, WindowRow.slot).limit(_BATCH).with_for_update()
    packs = 0
    while not cleanup.stopped():
        with cleanup.database.writing() as session:
            rows = session.execute(some).all()
            _add(session, [(row.application_id, to_pack(StoredWindow(*row[1:]), row.histogram)) for row in rows])
            session.execute(_removal(has_arrays(session)), {"packed": [row.id for row in rows]})
        packs += len(rows)
        if len(rows) < _BATCH:
            break
    return packs


@cache
def _removal(arrays: bool) -> Delete:
    return delete(WindowRow).where(among(WindowRow.id, "packed", arrays))


def _add(session: Session, windows: Sequence[tuple[int, PackedWindow]]) -> None:
    """Add windows of applications, by row number, to the packed rows of their spans."""
    if not windows:
        return
    spans: dict[Place, dict[tuple[int, str], PackedWindow]] = {}
    for number, window in windows:
        slots = spans.setdefault((number, floor(moment_of(window.slot_us), SPAN)), {})
        slots[window.slot_us, window.origin] = window
    columns = WindowPackRow.application_id, WindowPackRow.start, WindowPackRow.body
    for number, start, body in session.execute(select(*columns).where(*_at(spans))):
        for window in unpack_windows(body) if (number, start) in spans else ():
            slots = spans[number, start]
            late = slots.setdefault((window.slot_us, window.origin), window)
            if late is not window:
                joined = _joined(unpacked(number, window), unpacked(number, late))
                slots[window.slot_us, window.origin] = to_pack(joined, pack(joined.histogram))
    rows = [
        {"application_id": number, "start": start, "body": pack_windows([slots[place] for place in sorted(slots)])}
        for (number, start), slots in sorted(spans.items())
    ]
    upsert(session, WindowPackRow, rows, ["application_id", "start"])


def at_places(places: Collection[Place]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Conditions that the packed rows with windows of some minutes meet, and few others."""
    return _at({*places, *((number, floor(start, SPAN)) for number, start in places)})


def _at(places: Collection[Place]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Conditions that the rows of some places meet, and few others."""
    # Not as pairs, for which SQLite uses no index.
    numbers, starts = {number for number, _ in places}, {start for _, start in places}
    return WindowPackRow.application_id.in_(numbers), WindowPackRow.start.in_(starts)


def _joined(one: StoredWindow, other: StoredWindow) -> StoredWindow:
    if one.origin != PUSHED:
        return max(one, other, key=lambda window: (window.histogram.count, window.end_at))
    both = merge([one.window, other.window])
    return one._replace(
        start_at=min(one.start_at, other.start_at),
        end_at=max(one.end_at, other.end_at),
        histogram=both.histogram,
        requests=both.requests,
        ready=asdict(both.ready) if both.ready else None,
    )


def unpacked(number: int, window: PackedWindow) -> StoredWindow:
    """A packed window of an application, by its row number."""
    slot, start_at, end_at = map(moment_of, (window.slot_us, window.start_us, window.end_us))
    histogram = UnreadHistogram(window.histogram)
    return StoredWindow(number, slot, window.origin, start_at, end_at, histogram, window.requests, window.ready)


def to_pack(window: StoredWindow, histogram: bytes) -> PackedWindow:
    """A window as it is packed, its histogram already is."""
    slot_us, start_us, end_us = map(microseconds, (window.slot, window.start_at, window.end_at))
    return PackedWindow(slot_us, window.origin, start_us, end_us, window.requests, window.ready, histogram)
