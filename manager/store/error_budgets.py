"""Intervals judged and violated of many applications at once, from roll-ups: for error budgets."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from manager.control.budget import HOUR_S, MINUTE_S
from manager.control.error_budget import PERIOD_S, WINDOWS_S, Judged
from manager.store.models import RollupRow

Windows = Mapping[float, Judged]
"""Judged intervals by length of the window, in seconds, that ends now."""

_REMEMBERED = timedelta(minutes=1)
_MINUTES = timedelta(seconds=max(length for length in WINDOWS_S if length < PERIOD_S))


class Rolled(NamedTuple):
    """What is rolled up of an application, and until when; None: nothing is."""

    windows: Windows
    until: datetime | None


class ErrorBudgets:
    """Sums of rolled-up hours and minutes, remembered for a minute: none is finished more often. Thread-safe."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[datetime, Rolled]] = {}
        self._lock = threading.Lock()

    def of(self, session: Session, applications: Collection[int], now: datetime) -> dict[int, Rolled]:
        """Each application, by row number, in all of ``WINDOWS_S``."""
        with self._lock:
            fresh = {number: entry for number, entry in self._cached.items() if abs(now - entry[0]) < _REMEMBERED}
        read = _rolled(session, [number for number in applications if number not in fresh], now)
        fresh |= {number: (now, rolled) for number, rolled in read.items()}
        with self._lock:
            self._cached = fresh
        return {number: fresh[number][1] for number in applications}


def _rolled(session: Session, applications: Collection[int], now: datetime) -> dict[int, Rolled]:
    hours = _sums(session, applications, HOUR_S, now - timedelta(seconds=PERIOD_S), now, (PERIOD_S,))
    shorter = tuple(length for length in WINDOWS_S if length < PERIOD_S)
    minutes = _sums(session, applications, MINUTE_S, now - _MINUTES, now, shorter)
    by_end: defaultdict[datetime, list[int]] = defaultdict(list)  # hours of most applications end at the same time
    for number in applications:
        by_end[hours[number].until or now - _MINUTES if number in hours else now - _MINUTES].append(number)
    rest: dict[int, Rolled] = {}
    for end, numbers in by_end.items():
        rest |= _sums(session, numbers, MINUTE_S, end, now, (PERIOD_S,))
    totals: dict[int, Rolled] = {}
    for number in applications:
        parts = [counts[number] for counts in (hours, minutes, rest) if number in counts]
        windows = {
            length: sum((part.windows.get(length, Judged()) for part in parts), Judged()) for length in WINDOWS_S
        }
        totals[number] = Rolled(windows, max((part.until for part in parts if part.until), default=None))
    return totals


def _sums(
    session: Session,
    applications: Collection[int],
    length_s: float,
    since: datetime,
    now: datetime,
    windows_s: Collection[float],
) -> dict[int, Rolled]:
    """Rows of a length that began from ``since`` on, added up in each window; nothing of those without rows."""
    columns = []
    for window_s in windows_s:
        begin = max(since, now - timedelta(seconds=window_s))
        columns += [
            func.sum(case((RollupRow.start >= begin, column), else_=0))
            for column in (RollupRow.judged, RollupRow.violated)
        ]
    length = timedelta(seconds=length_s)
    query = (
        select(RollupRow.application_id, func.max(RollupRow.start), *columns)
        .where(
            RollupRow.application_id.in_(applications),
            RollupRow.length_s == int(length_s),
            RollupRow.start.between(since, now - length),
        )
        .group_by(RollupRow.application_id)
    )
    return {
        number: Rolled(
            {
                window_s: Judged(int(counts[2 * place]), int(counts[2 * place + 1]))
                for place, window_s in enumerate(windows_s)
            },
            newest + length,
        )
        for number, newest, *counts in session.execute(query)
    }
