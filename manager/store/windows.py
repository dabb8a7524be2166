"""Response times of applications in windows of aligned slots, each as one origin knows it.

A slot of length L covers ``(k L, (k + 1) L]`` since the epoch. Response times belong to the slot in which they ended.
The origin of those posted to the manager is empty, and they are added up; an agent reports the whole content of its
slots under its host's name, which replaces what it reported before. Reads merge all origins.

The *latest window* of an application is its latest slot merged with the one just before it, if that has samples: so
it holds at least one slot's worth while samples keep coming, and a state drawn from it does not flap when a new slot
begins. It covers only the time of its samples, so its rate is not diluted by the rest of the slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Row, ScalarSelect, String, bindparam, func, or_, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.errors import InvalidRequest
from manager.model.window import MAX_COUNT, Ready, Window, merge
from manager.store.by_driver import rows_of
from manager.store.live_plane import live_windows
from manager.store.models import ApplicationRow, UtcDateTime, WindowRow
from manager.store.pack_models import WindowMinuteRow, WindowPackRow
from manager.store.registrations import not_found
from manager.store.rollup_queue import MINUTE, floor, note_windows
from manager.store.row_writes import among, has_arrays, is_one_of, upsert
from manager.store.window_minutes import newest_of_minutes, store_minutes, windows_between, windows_since
from manager.store.window_packs import (
    COLUMNS,
    PUSHED,
    SPAN,
    YOUNG,
    Place,
    StoredWindow,
    at_places,
    joined_origins,
    packed,
    stored,
)

POSTED_LATELY = timedelta(minutes=10)
"""An application that somebody has posted response times to for no longer than that ago needs no source."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_BATCH = 100  # groups of applications looked up by one statement
_MOST_SLOTS = 1000  # slots looked up by one statement


def add_samples(session: Session, application: str, windows: Collection[Window], slot_length: timedelta) -> None:
    """Add posted response times, each window to the slot in which it ended. Call it in ``Database.writing``.

    Raises NotFound for an unknown application, and InvalidRequest for more samples or requests than a window takes.
    """
    # Locking the application makes adding to one of its windows one at a time; KEY SHARE lets others refer to it.
    query = select(ApplicationRow).where(ApplicationRow.name == application).with_for_update(key_share=True)
    row = session.scalars(query).one_or_none()
    if row is None:
        raise not_found(ApplicationRow, application)
    for window in windows:
        slot = slot_start(_time(window.end_s), slot_length)
        place = (WindowRow.application_id == row.id, WindowRow.slot == slot, WindowRow.origin == PUSHED)
        # Locked, or an old one might be packed meanwhile.
        present = session.scalars(select(WindowRow).where(*place).with_for_update()).one_or_none()
        merged = merge([window_of(application, present), window]) if present else window
        if merged.histogram.count > MAX_COUNT:
            text = f"{window.histogram.count} more samples in this window; allowed: {MAX_COUNT} in all"
            raise InvalidRequest("buckets", text)
        if (merged.requests or 0) > MAX_COUNT:
            text = f"{window.requests:g} more requests in this window; allowed: {MAX_COUNT} in all"
            raise InvalidRequest("requests", text)
        if present is None:
            present = WindowRow(application_id=row.id, slot=slot, origin=PUSHED)
            session.add(present)
        for column, value in columns_of(merged).items():
            setattr(present, column, value)
    slots = {slot_start(_time(window.end_s), slot_length) for window in windows}
    note_windows(session, MINUTE, ((row.id, slot, PUSHED) for slot in slots))


def replace_windows(
    session: Session,
    origin: str,
    applications: Mapping[str, int],
    windows: Iterable[Window],
    slot_length: timedelta,
    latest: datetime = _END,
    *,
    together: bool = False,
) -> int:
    """Take the whole contents of slots as a host's agent knows them; returns how many windows that were.

    ``applications`` are row numbers by name; windows of others are left out. Of several contents of a slot the one with
    the most samples stays: slots only grow, and a restarted agent counts from 0. One that ended after ``latest`` when
    it arrived, by whichever clock was wrong, makes room for one that arrives when its time has come.

    ``together``: many of a minute, which will hardly come again, so that those of a minute are stored as one row.
    """
    fullest: dict[Place, Window] = {}
    taken = 0
    for window in windows:
        number = applications.get(window.application)
        if number is None:
            continue
        taken += 1
        place = number, slot_start(_time(window.end_s), slot_length)
        other = fullest.setdefault(place, window)
        if (other.histogram.count, other.end_s) <= (window.histogram.count, window.end_s):
            fullest[place] = window
    if fullest:
        note_windows(session, MINUTE, ((number, slot, origin) for number, slot in fullest))
    ahead = {place: window for place, window in fullest.items() if place[1] > latest - slot_length}
    if together:
        store_minutes(session, origin, {place: fullest[place] for place in fullest.keys() - ahead.keys()})
    single = ahead if together else fullest
    rows = [
        {"application_id": number, "slot": slot, "origin": origin, **columns_of(single[number, slot])}
        | {"ahead": (number, slot) in ahead}
        for number, slot in sorted(single)
    ]
    upsert(session, WindowRow, rows, ["application_id", "slot", "origin"], _is_fuller)
    return taken


def _is_fuller(new: Any) -> ColumnElement[bool]:
    """Of as many response times it replaces the present one only where it says anything else."""
    other = (
        (WindowRow.end_at != new["end_at"])
        | WindowRow.requests.is_distinct_from(new["requests"])
        | (WindowRow.histogram != new["histogram"])
        | new["ready"].is_not(None)
    )
    same = WindowRow.count == new["count"]
    fuller: ColumnElement[bool] = (WindowRow.count < new["count"]) | (same & other) | (WindowRow.ahead & ~new["ahead"])
    return fuller


def slot_start(end: datetime, slot_length: timedelta) -> datetime:
    """Start of the slot that a moment belongs to."""
    length = slot_length // _TICK
    return _EPOCH + ((end - _EPOCH) // _TICK - 1) // length * length * _TICK


def latest_windows(
    session: Session,
    applications: Iterable[ApplicationRow],
    slot_length: timedelta,
    until: datetime | None = None,
) -> dict[str, Window]:
    """The latest window of each application that has one, by name; ``until`` as for ``recent_windows``."""
    names = {application.id: application.name for application in applications}
    recent = recent_windows(session, names, slot_length, 2, until=until)
    return {name: merge(slots) for name, slots in recent.items()}


def posted_to(session: Session, numbers: Collection[int], since: datetime) -> frozenset[int]:
    """To which of these applications (row numbers) somebody has posted response times that ended after ``since``."""
    if not numbers:
        return frozenset()
    posted = WindowRow.application_id.in_(numbers) & (WindowRow.slot >= since) & (WindowRow.origin == PUSHED)
    return frozenset(session.scalars(select(WindowRow.application_id).where(posted).distinct()))


def measured_by_others(
    session: Session, numbers: Collection[int], host: str, since: datetime
) -> dict[int, frozenset[str]]:
    """The origins but ``host`` of windows that began from ``since`` on, of those of these applications that have any.

    Applications by row number.
    """
    if not numbers:
        return {}
    found: dict[int, set[str]] = {}
    query = _others(has_arrays(session))
    for number, origin in rows_of(session, query, {"numbers": sorted(numbers), "host": host, "since": since}):
        found.setdefault(number, set()).add(origin)
    return {number: frozenset(origins) for number, origins in found.items()}


@cache
def _others(arrays: bool) -> CompoundSelect[int, str]:
    host, since = bindparam("host", type_=String()), bindparam("since", type_=UtcDateTime())
    selects = []
    for kind, moment in YOUNG:
        late = select(kind.application_id, kind.origin)
        late = late.where(among(kind.application_id, "numbers", arrays), moment >= since)
        # Not as !=, for which rows would be read in place of the index alone.
        selects += [late.where(kind.origin < host), late.where(kind.origin > host)]
    return union(*selects)


def recent_windows(
    session: Session,
    names: Mapping[int, str],
    slot_length: timedelta,
    slots: int,
    without: str | None = None,
    until: datetime | None = None,
) -> dict[str, tuple[Window, ...]]:
    """The windows of the latest slot of each application and of the ``slots - 1`` before, by name, oldest first.

    Those of live reports are among them. Each is merged over all origins but ``without``; applications and slots
    without any are left out. So are slots that begin after ``until``. ``names`` are those of applications by the
    numbers of their rows.
    """
    live = [window for window in live_windows(session, names) if until is None or window.slot <= until]
    back = slot_length * (slots - 1)
    rows, young = _newest_slots(session, names, back, until)
    newest = dict(rows)
    for window in (*live, *young):
        newest[window.application_id] = max(window.slot, newest.get(window.application_id, window.slot))
    alike: dict[datetime, list[int]] = {}
    for number, slot in newest.items():
        if number in rows and rows[number] >= slot - back:
            alike.setdefault(slot, []).append(number)
    # Not as pairs of application and slot: for those SQLite uses no index, and reads the whole table.
    groups = [
        is_one_of(session, WindowRow.application_id, numbers)
        & WindowRow.slot.in_([slot - slot_length * one for one in range(slots)])
        for slot, numbers in alike.items()
    ]
    windows = [
        window
        for window in (*live, *young)
        if window.origin != without and window.slot >= newest[window.application_id] - back
    ]
    for first in range(0, len(groups), _BATCH):
        query = select(*COLUMNS).where(or_(*groups[first : first + _BATCH]))
        if without is not None:
            query = query.where(WindowRow.origin != without)
        windows += stored(session.execute(query))
    merged: dict[str, tuple[Window, ...]] = {}
    for (number, _), origins in sorted(joined_origins(windows).items()):
        name = names[number]
        merged[name] = (*merged.get(name, ()), merge(window_of(name, window) for window in origins))
    return merged


def _newest_slots(
    session: Session, numbers: Collection[int], back: timedelta, until: datetime | None
) -> tuple[dict[int, datetime], list[StoredWindow]]:
    """The newest slots of applications that are rows; and the windows of minutes of the newest slot and ``back``.

    Applications by row number; ``until`` as for ``recent_windows``.
    """
    slots, begun = (_newest(kind, moment, until) for kind, moment in YOUNG)
    query = select(ApplicationRow.id, slots, begun).where(is_one_of(session, ApplicationRow.id, numbers))
    rows: dict[int, datetime] = {}
    begins: dict[int, datetime] = {}
    for number, slot, minute in session.execute(query):
        if slot is not None:
            rows[number] = slot
        # A row whose newest slot began after ``until`` may have others that began before.
        begin = minute if minute is not None or until is None else floor(until, MINUTE)
        if begin is not None:
            begins[number] = begin - back
    return rows, windows_since(session, begins, until)


def _newest(
    kind: type[WindowRow | WindowMinuteRow], moment: InstrumentedAttribute[datetime], until: datetime | None
) -> ScalarSelect[datetime]:
    of_application = kind.application_id == ApplicationRow.id
    begun = of_application if until is None else of_application & (moment <= until)
    return select(func.max(moment)).where(begun).scalar_subquery()


def list_windows(
    session: Session, application: ApplicationRow, since: datetime | None, before: datetime | None, limit: int
) -> Sequence[tuple[datetime, Window]]:
    """At most ``limit`` windows, newest first, whose slots begin at ``since`` or later and earlier than ``before``.

    Each comes with the start of its slot, and is merged over all origins.
    """
    of_application = WindowRow.application_id == application.id
    slots = select(WindowRow.slot).where(of_application)
    minutes = [WindowMinuteRow.application_id == application.id]
    packs = [WindowPackRow.application_id == application.id]
    if since is not None:
        slots = slots.where(WindowRow.slot >= since)
        minutes.append(WindowMinuteRow.newest >= since)
        packs.append(WindowPackRow.start >= floor(since, SPAN))
    if before is not None:
        slots = slots.where(WindowRow.slot < before)
        minutes.append(WindowMinuteRow.newest < floor(before, MINUTE) + MINUTE)
        packs.append(WindowPackRow.start < before)
    rows = session.scalars(slots.distinct().order_by(WindowRow.slot.desc()).limit(limit)).all()
    older = _first_slots(newest_of_minutes(session, *minutes), MINUTE, since, before, limit)
    younger = sorted({*rows, *(window.slot for window in older)}, reverse=True)
    if len(younger) >= limit:
        packs.append(WindowPackRow.start >= floor(younger[limit - 1], SPAN))
    older = [*_first_slots(packed(session, *packs), SPAN, since, before, limit), *older]
    wanted = sorted({*rows, *(window.slot for window in older)}, reverse=True)[:limit]
    if not wanted:
        return []
    between = WindowRow.slot.between(wanted[-1], wanted[0])
    newer = stored(session.execute(select(*COLUMNS).where(of_application, between)))
    slots_with_origins = joined_origins([*older, *newer])
    return [
        (slot, merge(window_of(application.name, row) for row in slots_with_origins[application.id, slot]))
        for slot in wanted
    ]


def _first_slots(
    packed_windows: Iterable[StoredWindow],
    length: timedelta,
    since: datetime | None,
    before: datetime | None,
    limit: int,
) -> list[StoredWindow]:
    """The newest of windows from ``since`` until before ``before``, of ``limit`` slots or somewhat more.

    They come packed by spans of a ``length``, the newest span first.
    """
    windows: list[StoredWindow] = []
    slots: set[datetime] = set()
    for _, of_span in groupby(packed_windows, lambda window: floor(window.slot, length)):
        for window in of_span:
            if (since is None or window.slot >= since) and (before is None or window.slot < before):
                windows.append(window)
                slots.add(window.slot)
        if len(slots) >= limit:
            break
    return windows


def windows_of_each(
    session: Session, begins: Mapping[int, datetime], before: datetime, names: Mapping[int, str]
) -> dict[int, list[tuple[datetime, Window]]]:
    """The windows of applications, by row number, whose slots began from a moment of each on, earlier than ``before``.

    Each comes with the start of its slot, the oldest first, and is merged over all origins. All are read together.
    """
    windows: dict[int, list[tuple[datetime, Window]]] = {number: [] for number in begins}
    if not begins:
        return windows
    first, numbers = min(begins.values()), sorted(begins)
    of_packs = is_one_of(session, WindowPackRow.application_id, numbers)
    older = packed(session, of_packs, WindowPackRow.start >= floor(first, SPAN), WindowPackRow.start < before)
    minutes = windows_between(session, numbers, first, before - _TICK)
    of_rows = is_one_of(session, WindowRow.application_id, numbers)
    query = select(*COLUMNS).where(of_rows, WindowRow.slot >= first, WindowRow.slot < before)
    read = (*older, *minutes, *stored(session.execute(query)))
    origins = joined_origins(row for row in read if begins[row.application_id] <= row.slot < before)
    for (number, slot), rows in sorted(origins.items()):
        windows[number].append((slot, merge(window_of(names[number], row) for row in rows)))
    return windows


def windows_at(
    session: Session,
    places: Collection[tuple[int, datetime]],
    names: Mapping[int, str],
    minutes: Sequence[StoredWindow] | None = None,
) -> dict[tuple[int, datetime], Window]:
    """The windows of slots, given by row number of the application and start, merged over all origins.

    ``minutes``: all that rows of minutes have of these slots, where these were read already.
    """
    wanted = sorted(set(places))
    windows: dict[tuple[int, datetime], Window] = {}
    for first in range(0, len(wanted), _MOST_SLOTS):
        some = wanted[first : first + _MOST_SLOTS]
        # Not as pairs of application and slot, for which SQLite uses no index. They are nearly all of these.
        numbers, slots = {number for number, _ in some}, {slot for _, slot in some}
        query = select(*COLUMNS).where(WindowRow.application_id.in_(numbers), WindowRow.slot.in_(slots))
        older = packed(session, *at_places({(number, floor(slot, MINUTE)) for number, slot in some}))
        of_minutes = windows_between(session, numbers, min(slots), max(slots)) if minutes is None else minutes
        origins = joined_origins([*older, *of_minutes, *stored(session.execute(query))])
        for place in origins.keys() & set(some):
            windows[place] = merge(window_of(names.get(place[0], ""), row) for row in origins[place])
    return windows


def window_of(application: str, row: WindowRow | StoredWindow | Row[*tuple[Any, ...]]) -> Window:
    """What one origin knows of a slot, from its row or the columns of it."""
    start_s, end_s = row.start_at.timestamp(), row.end_at.timestamp()
    ready = Ready(**row.ready) if row.ready else None
    return Window(application, start_s, end_s, row.histogram, row.requests, ready)


def columns_of(window: Window) -> dict[str, Any]:
    """The inverse of ``window_of``: the columns that hold a window."""
    return {
        "start_at": _time(window.start_s),
        "end_at": _time(window.end_s),
        "count": window.histogram.count,
        "histogram": window.histogram,
        "requests": window.requests,
        "ready": asdict(window.ready) if window.ready else None,
    }


def _time(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, UTC)
