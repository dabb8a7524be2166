"""Older windows, packed: those of an application and a quarter of an hour are one row, once its minutes are rolled up.

Rows of revisions before 0014 have a minute each, and stay so until they are removed, or something is added to them.
What comes late is a row of ``windows`` or ``window_minutes`` as before, until it is packed, too. So reads look at all
three, and take of each origin of a slot the fuller one; of response times that were posted to the manager, whose
windows are parts, the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Delete,
    LargeBinary,
    Row,
    ScalarSelect,
    delete,
    func,
    select,
    true,
    type_coerce,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from manager.model.histogram import Histogram
from manager.model.packed_histogram import UnreadHistogram, pack
from manager.model.packed_records import microseconds, moment_of
from manager.model.packed_windows import PackedWindow, pack_windows, unpack_windows
from manager.model.window import Ready, Window, merge
from manager.store.arrivals import WINDOWS
from manager.store.models import Json, WindowRow
from manager.store.pack_models import QUARTER, WindowMinuteRow, WindowPackRow
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

MINUTES = "window-minutes"
"""By this name the arrival of rows of ``window_minutes`` is noted."""

YOUNG: tuple[tuple[type[WindowRow | WindowMinuteRow], InstrumentedAttribute[datetime]], ...] = (
    (WindowRow, WindowRow.slot),
    (WindowMinuteRow, WindowMinuteRow.newest),
)
"""The tables of younger windows, and when the newest of a row began."""

_AS_STORED = type_coerce(WindowRow.histogram, LargeBinary()).label("histogram"), WindowRow.requests, WindowRow.ready
_BATCH = 5000
_SLOTS_OF_MINUTE = 12  # at the default interval
_TOGETHER = 25  # applications that are packed in one transaction
_AT_ONCE = 12  # rows that are read before the first is looked at: of three hours

Place = tuple[int, datetime]
"""Row number of an application, and the start of a slot, of a minute, or of what is one row."""


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
    ahead: bool = False

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


@dataclass(frozen=True, slots=True)
class _Young:
    """A table of younger windows: when those of a row began, what may be packed, and what is read for that."""

    kept: str
    kind: type[WindowRow | WindowMinuteRow]
    moment: InstrumentedAttribute[datetime]
    may: ColumnElement[bool]
    columns: Sequence[Any]
    windows_of: Callable[[Row[*tuple[Any, ...]]], Sequence[PackedWindow]]
    batch: int


def pack_old(cleanup: Cleanup) -> int:
    """Pack windows of rolled-up minutes, of spans that are over since ``KEPT_AS_ROWS``; returns how many rows went.

    The newest row of each application stays: it says since when nothing was measured. Raises DatabaseUnavailable.
    """
    return sum(_pack_young(cleanup, young) for young in _young())


def _young() -> tuple[_Young, _Young]:
    row, minute = WindowRow, WindowMinuteRow
    columns = *COLUMNS[:-4], *_AS_STORED
    single = _Young(WINDOWS, row, row.slot, ~row.ahead, columns, _only_window, _BATCH)
    several = minute.application_id, minute.body
    return single, _Young(
        MINUTES, minute, minute.newest, true(), several, _windows_of_body, max(_BATCH // _SLOTS_OF_MINUTE, 1)
    )


def _only_window(row: Row[*tuple[Any, ...]]) -> Sequence[PackedWindow]:
    return (to_pack(StoredWindow(*row[1:]), row.histogram),)


def _windows_of_body(row: Row[*tuple[Any, ...]]) -> Sequence[PackedWindow]:
    return unpack_windows(row.body)


def _pack_young(cleanup: Cleanup, young: _Young) -> int:
    notes, kind = UnrolledWindowsRow, young.kind
    noted = is_noted(notes, notes.application_id == kind.application_id, MINUTE, young.moment)
    arrived = kind.id <= cleanup.arrived(f"{young.kept}-packed", kind.id, KEPT_AS_ROWS)
    before = floor(cleanup.now - KEPT_AS_ROWS, SPAN)
    old = (young.moment < before) & arrived & young.may
    with cleanup.database.reading() as session:
        newest = _newest_of_old(session, young, old)
    # Of most applications all that is old is older than their newest row, which so need not be looked up for each row.
    measured = sorted(number for number, moment in newest.items() if moment >= before)
    idle = sorted(newest.keys() - set(measured))
    packs = sum(_pack(cleanup, young, old & ~noted, group) for group in _groups(measured))
    older = old & ~noted & (young.moment < _newest(young))
    return packs + sum(_pack(cleanup, young, older, group) for group in _groups(idle))


def _newest_of_old(session: Session, young: _Young, old: ColumnElement[bool]) -> dict[int, datetime]:
    """The newest rows of applications that have an old one before, by row number."""
    number, newest = young.kind.application_id, _newest(young)
    query = select(number, newest).where(old).group_by(number)
    return {row[0]: row[1] for row in session.execute(query.having(func.min(young.moment) < newest))}


def _newest(young: _Young) -> ScalarSelect[datetime]:
    """Of the application of a row."""
    newer = aliased(young.kind)
    moment: InstrumentedAttribute[datetime] = getattr(newer, young.moment.key)
    newest = select(func.max(moment)).where(newer.application_id == young.kind.application_id)
    return newest.correlate(young.kind).scalar_subquery()


def _groups(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[first : first + _TOGETHER] for first in range(0, len(numbers), _TOGETHER))


def _pack(cleanup: Cleanup, young: _Young, old: ColumnElement[bool], numbers: Sequence[int]) -> int:
    """Pack what is old, a few applications at once, so that each row is written once; returns how many rows went."""
    kind = young.kind
    some = select(kind.id, *young.columns).where(old, kind.application_id.in_(numbers))
    some = some.order_by(kind.application_id, young.moment, kind.id).limit(young.batch).with_for_update()
    packs = 0
    while not cleanup.stopped():
        with cleanup.database.writing() as session:
            rows = session.execute(some).all()
            _add(session, [(row.application_id, window) for row in rows for window in young.windows_of(row)])
            session.execute(_removal(kind, has_arrays(session)), {"packed": [row.id for row in rows]})
        packs += len(rows)
        if len(rows) < young.batch:
            break
    return packs


@cache
def _removal(kind: type[WindowRow | WindowMinuteRow], arrays: bool) -> Delete:
    return delete(kind).where(among(kind.id, "packed", arrays))


def _add(session: Session, windows: Sequence[tuple[int, PackedWindow]]) -> None:
    """Add windows of applications, by row number, to the packed rows of their spans. Later ones come last."""
    if not windows:
        return
    added: dict[Place, list[PackedWindow]] = {}
    for number, window in windows:
        added.setdefault((number, floor(moment_of(window.slot_us), SPAN)), []).append(window)
    columns = WindowPackRow.application_id, WindowPackRow.start, WindowPackRow.body
    for number, start, body in session.execute(select(*columns).where(*_at(added))):
        if (number, start) in added:
            added[number, start][:0] = unpack_windows(body)
    rows = [
        {"application_id": number, "start": start, "body": pack_windows(_joined_slots(number, of_span))}
        for (number, start), of_span in sorted(added.items())
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


def _joined_slots(number: int, windows: Iterable[PackedWindow]) -> list[PackedWindow]:
    """Windows of an application, one of each slot and origin, in this order."""
    slots: dict[tuple[int, str], PackedWindow] = {}
    for window in windows:
        other = slots.get((window.slot_us, window.origin))
        slots[window.slot_us, window.origin] = window if other is None else _joined_packs(number, other, window)
    return [slots[place] for place in sorted(slots)]


def _joined_packs(number: int, one: PackedWindow, other: PackedWindow) -> PackedWindow:
    if one == other:
        return one
    joined = _joined(unpacked(number, one), unpacked(number, other))
    return to_pack(joined, pack(joined.histogram))


def _joined(one: StoredWindow, other: StoredWindow) -> StoredWindow:
    """What an origin knows of a slot, from two rows: the fuller one, or the ``other``, which came later."""
    if one.origin != PUSHED:
        return max(other, one, key=lambda window: (not window.ahead, window.histogram.count, window.end_at))
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


def as_packed(slot: datetime, origin: str, window: Window) -> PackedWindow:
    """A window of a slot as it is packed."""
    start_us, end_us = round(window.start_s * 1e6), round(window.end_s * 1e6)
    ready = None
    if window.ready is not None:
        ready = {"percentile": window.ready.percentile, "percentile_ms": window.ready.percentile_ms}
    return PackedWindow(microseconds(slot), origin, start_us, end_us, window.requests, ready, pack(window.histogram))
