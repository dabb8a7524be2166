"""The last minutes of all applications at once, for the fleet page."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.store.models import WindowRow
from manager.store.windows import windows_at

MOST_READ = 1000
"""About how many slots are read for one answer: so the first one takes no longer than others; the next ones go on."""

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
    """What grows with a slot, or with the sum of several: origins, samples, and when they end."""

    origins: int
    samples: int
    end: datetime


@dataclass(frozen=True, slots=True)
class _Cached:
    """A slot's percentile in milliseconds, and what the slot was when it was made."""

    state: _SlotState
    percentile: float
    value_ms: float | None


_Line = dict[datetime, _Cached]


class RecentPercentiles:
    """A percentile of each slot of the last minutes. Thread-safe.

    Histograms take long to read, so a percentile is cached for as long as its slot does not change. Slots that began
    just before the last call or later are compared one by one, all others as a sum: where that differs, so does one of
    them.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._called: dict[int, datetime] = {}
        self._lock = threading.Lock()

    def of(
        self, session: Session, percentiles: Mapping[int, float], since: datetime, now: datetime
    ) -> dict[int, dict[datetime, RecentSlot]]:
        """By application (row number) and start of the slot, slots that begin from ``since`` to ``now``.

        ``percentiles`` are those wanted by application, the most urgent first. Of slots older than half a minute some
        may be missing, see ``MOST_READ``.
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
            called = min((self._called.get(number, now) for number in percentiles), default=now)
        read = _renew(session, lines, percentiles, max(since, called - _FRESH), now)
        sums = _states(session, percentiles, since, now, WindowRow.application_id)
        for number, line in lines.items():
            if read < MOST_READ and sums.get((number,)) != _sum(line.values()):
                read += _renew(session, {number: line}, percentiles, since, now)
        with self._lock:
            self._lines |= lines
            self._called |= dict.fromkeys(lines, now)
            for number in [number for number, at in self._called.items() if at < now - _KEPT]:
                del self._lines[number], self._called[number]
        return {
            number: {slot: RecentSlot(cached.value_ms, cached.state.samples) for slot, cached in line.items()}
            for number, line in lines.items()
        }


def _renew(
    session: Session, lines: Mapping[int, _Line], percentiles: Mapping[int, float], since: datetime, now: datetime
) -> int:
    """Bring lines up to date with the slots that begin from ``since`` to ``now``; returns how many slots were read."""
    states = _states(session, lines, since, now, WindowRow.application_id, WindowRow.slot)
    for number, line in lines.items():
        for slot in [slot for slot in line if slot >= since and (number, slot) not in states]:
            del line[slot]
    changed = [
        (number, slot)
        for (number, slot), state in states.items()
        if slot not in lines[number] or lines[number][slot].state != state
    ]
    changed = sorted(changed, key=lambda place: place[1], reverse=True)[:MOST_READ]
    windows = windows_at(session, changed, {})
    for number, slot in changed:
        window, percentile = windows.get((number, slot)), percentiles[number]
        value_ms = window.percentile_ms(percentile) if window else None
        lines[number][slot] = _Cached(states[number, slot], percentile, value_ms)
    return len(changed)


def _states(
    session: Session, numbers: Iterable[int], since: datetime, now: datetime, *by: InstrumentedAttribute[Any]
) -> dict[tuple[Any, ...], _SlotState]:
    """The states of the slots that begin from ``since`` to ``now``, or their sums, by some columns."""
    state = func.count(), func.sum(WindowRow.count), func.max(WindowRow.end_at)
    within = WindowRow.application_id.in_(numbers), WindowRow.slot.between(since, now)
    rows = session.execute(select(*by, *state).where(*within).group_by(*by))
    return {tuple(key): _SlotState(origins, int(samples), end) for *key, origins, samples, end in rows}


def _sum(line: Collection[_Cached]) -> _SlotState | None:
    if not line:
        return None
    origins, samples, ends = zip(*(slot.state for slot in line), strict=True)
    return _SlotState(sum(origins), sum(samples), max(ends))
