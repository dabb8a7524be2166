"""The last minutes of all applications at once, for the fleet page."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.store.models import WindowRow
from manager.store.pack_models import WindowMinuteRow
from manager.store.rollup_queue import MINUTE, floor
from manager.store.row_writes import is_one_of
from manager.store.window_minutes import windows_of
from manager.store.window_packs import StoredWindow
from manager.store.windows import windows_at

MOST_READ = 1000
"""About how many slots are read for one answer; the next ones go on."""
MOST_AT_FIRST = 480
"""And for one about applications most of which are new here: somebody waits for a page, which soon asks again."""

_SLOTS_OF_MINUTE = 12  # at the default interval
_FRESH = timedelta(seconds=30)
_KEPT = timedelta(hours=1)


class RecentSlot(NamedTuple):
    """A slot's percentile in milliseconds, None where only another one is known, and its number of response times.

    ``samples`` is 0 where a source measured the percentile itself.
    """

    value_ms: float | None
    samples: int

    def has_samples(self, at_least: int) -> bool:
        """Whether the percentile is to be believed, as ``Window.has_samples``."""
        return self.value_ms is not None and (self.samples == 0 or self.samples >= at_least)


class _SlotState(NamedTuple):
    """What grows with the rows of a slot, or with the sum of several: origins, samples, and when they end."""

    origins: int
    samples: int
    end: datetime


@dataclass(frozen=True, slots=True)
class _Cached:
    """A slot's percentile in milliseconds, and what the slot's rows were when it was made, None: it had none."""

    state: _SlotState | None
    percentile: float
    value_ms: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class _ReadMinute:
    """A row of ``window_minutes`` of which the slots from ``since`` on were read; ``newest``: the newest of all."""

    newest: datetime
    since: datetime


_Line = dict[datetime, _Cached]
_Minutes = dict[int, _ReadMinute]
"""By number of the row."""


class RecentPercentiles:
    """A percentile of each slot of the last minutes. Thread-safe.

    Histograms take long to read, so a percentile is cached for as long as its slot does not change. Rows of
    ``window_minutes`` never change. Of other rows, slots that began just before the last call or later are compared one
    by one, all others as a sum: where that differs, so does one of them.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._minutes: dict[int, _Minutes] = {}
        self._called: dict[int, datetime] = {}
        self._lock = threading.Lock()

    def of(
        self, session: Session, percentiles: Mapping[int, float], since: datetime, now: datetime
    ) -> dict[int, dict[datetime, RecentSlot]]:
        """By application (row number) and start of the slot, slots that begin from ``since`` to ``now``.

        ``percentiles`` are those wanted by application, the most urgent first. Of slots older than half a minute some
        may be missing, see ``MOST_READ`` and ``MOST_AT_FIRST``.
        """
        with self._lock:
            lines = {
                number: {
                    slot: cached
                    for slot, cached in self._lines.get(number, {}).items()
                    if slot >= since and cached.percentile == percentile
                }
                for number, percentile in percentiles.items()
            }
            minutes = {number: self._minutes.get(number, {}) if lines[number] else {} for number in percentiles}
            called = min((self._called.get(number, now) for number in percentiles), default=now)
        most = MOST_READ if 2 * sum(map(bool, lines.values())) >= len(lines) else MOST_AT_FIRST
        new, minutes = _new_minutes(session, lines, minutes, since, now, most)
        read = _renew(session, lines, percentiles, max(since, called - _FRESH), now, most, new)
        sums = _states(session, percentiles, since, now, WindowRow.application_id)
        for number, line in lines.items():
            if read < most and sums.get((number,)) != _sum(line.values()):
                read += _renew(session, {number: line}, percentiles, since, now, most)
        with self._lock:
            self._lines |= lines
            self._minutes |= minutes
            self._called |= dict.fromkeys(lines, now)
            for number in [number for number, at in self._called.items() if at < now - _KEPT]:
                del self._lines[number], self._minutes[number], self._called[number]
        return {
            number: {slot: RecentSlot(cached.value_ms, cached.samples) for slot, cached in line.items()}
            for number, line in lines.items()
        }


def _new_minutes(
    session: Session,
    lines: Mapping[int, _Line],
    minutes: Mapping[int, _Minutes],
    since: datetime,
    now: datetime,
    most: int,
) -> tuple[list[StoredWindow], dict[int, _Minutes]]:
    """The windows from ``since`` to ``now`` of rows of minutes that were not read, and all rows that are read now.

    Rows of the same minute as one that was not read are read again with it, so that these windows are all that rows of
    minutes have of their slots. The lines of applications that had one which is there no more are emptied, and read
    anew.
    """
    row = WindowMinuteRow
    within = row.newest.between(since, floor(now, MINUTE) + MINUTE)
    query = select(row.application_id, row.id, row.newest).where(is_one_of(session, row.application_id, lines), within)
    there: dict[int, dict[int, datetime]] = {number: {} for number in lines}
    for number, minute, newest in session.execute(query):
        there[number][minute] = newest
    known: dict[int, _Minutes] = {}
    for number, present in there.items():
        known[number] = {minute: read for minute, read in minutes[number].items() if read.newest >= since}
        if not known[number].keys() <= present.keys():
            known[number] = {}
            lines[number].clear()
    unread = [
        (newest, number)
        for number, present in there.items()
        for minute, newest in present.items()
        if minute not in known[number] or known[number][minute].since > max(since, floor(newest, MINUTE))
    ]
    wanted = {
        (number, floor(newest, MINUTE)) for newest, number in sorted(unread, reverse=True)[: most // _SLOTS_OF_MINUTE]
    }
    rows = {
        minute: (number, newest)
        for number, present in there.items()
        for minute, newest in present.items()
        if (number, floor(newest, MINUTE)) in wanted
    }
    for minute, (number, newest) in rows.items():
        known[number][minute] = _ReadMinute(newest, since)
    read = windows_of(session, rows) if rows else []
    return [window for window in read if since <= window.slot <= now], known


def _renew(
    session: Session,
    lines: Mapping[int, MutableMapping[datetime, _Cached]],
    percentiles: Mapping[int, float],
    since: datetime,
    now: datetime,
    most: int,
    new: Sequence[StoredWindow] = (),
) -> int:
    """Bring lines up to date with the slots that begin from ``since`` to ``now``, and with those of ``new`` windows.

    Returns how many slots were read.
    """
    states = _states(session, lines, since, now, WindowRow.application_id, WindowRow.slot)
    gone = [
        (number, slot)
        for number, line in lines.items()
        for slot, cached in line.items()
        if slot >= since and cached.state is not None and (number, slot) not in states
    ]
    other = [
        (number, slot)
        for (number, slot), state in states.items()
        if slot not in lines[number] or lines[number][slot].state != state
    ]
    changed = sorted({*gone, *other}, key=lambda place: place[1], reverse=True)[:most]
    places = {(window.application_id, window.slot) for window in new}
    windows = windows_at(session, {*changed} - places, {}) | windows_at(session, places, {}, new)
    for number, slot in places.union(changed):
        window, percentile, line = windows.get((number, slot)), percentiles[number], lines[number]
        state = states.get((number, slot))
        if state is None and slot < since and slot in line:
            state = line[slot].state
        if window is None:
            line.pop(slot, None)
        else:
            line[slot] = _Cached(state, percentile, window.percentile_ms(percentile), window.histogram.count)
    return len(places.union(changed))


def _states(
    session: Session, numbers: Iterable[int], since: datetime, now: datetime, *by: InstrumentedAttribute[Any]
) -> dict[tuple[Any, ...], _SlotState]:
    """The states of the slots that begin from ``since`` to ``now``, or their sums, by some columns."""
    state = func.count(), func.sum(WindowRow.count), func.max(WindowRow.end_at)
    within = WindowRow.application_id.in_(numbers), WindowRow.slot.between(since, now)
    rows = session.execute(select(*by, *state).where(*within).group_by(*by))
    return {tuple(key): _SlotState(origins, int(samples), end) for *key, origins, samples, end in rows}


def _sum(line: Collection[_Cached]) -> _SlotState | None:
    states = [cached.state for cached in line if cached.state is not None]
    if not states:
        return None
    origins, samples, ends = zip(*states, strict=True)
    return _SlotState(sum(origins), sum(samples), max(ends))
