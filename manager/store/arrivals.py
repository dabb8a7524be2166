"""Which rows arrived so long ago that they may be removed, whatever their dates; see ``manager.control.uptime``."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.control.uptime import Boot, Mark, Noted, ahead_s, arrived, marked, uptime_s
from manager.model.fields import MANAGER
from manager.model.records import Severity
from manager.store.database import Database
from manager.store.event_records import store_events
from manager.store.models import EventRow
from manager.store.progress_models import ArrivalRow, UptimeRow
from manager.store.row_writes import upsert
from manager.store.silent_hosts import host_event

WINDOWS = "windows"
HELD, RESUMED = "retention-held", "retention-resumed"
_HELD = timedelta(hours=1)  # what a clock may be ahead of uptime without a word: machines start anew now and then
_STALE_S = 86_400.0  # boots that were noted so long ago are over, or have long been counted by others

log = logging.getLogger(__name__)


Arrived = Callable[[str, InstrumentedAttribute[int], timedelta], int]
"""By what is kept, its column of numbers and a time: the number of the newest row that arrived so long ago; 0: none."""


class Arrivals:
    """Notes arrivals at each call. ``clock`` returns seconds since the epoch."""

    def __init__(self, database: Database, clock: Callable[[], float], boot: Callable[[], Boot]) -> None:
        self._database = database
        self._clock = clock
        self._boot = boot
        self._held: set[str] = set()

    def __call__(self, kept: str, number: InstrumentedAttribute[int], keep: timedelta) -> int:
        """See ``Arrived``. Raises DatabaseUnavailable."""
        keep_s, wall_s = keep.total_seconds(), self._clock()
        with self._database.writing() as session:
            total_s = _advance(session, self._boot(), wall_s)
            before = _marks(session, kept)
            newest_id = session.scalar(select(func.max(number))) or 0
            marks = marked(before, Mark(total_s, wall_s, newest_id), keep_s)
            _replace(session, kept, before, marks)
            ahead = timedelta(seconds=ahead_s(marks, total_s, wall_s))
            if kept == WINDOWS:
                _note_held(session, ahead, wall_s)
        if ahead <= _HELD:
            self._held.discard(kept)
        elif kept not in self._held:
            self._held.add(kept)
            text = "the time of day is %s ahead of what it was by uptime: the clock was set, or no manager was up; %s"
            log.warning(text + " stay for %s of uptime, whatever their dates", ahead, kept, keep)
        return arrived(marks, total_s, keep_s)


def _note_held(session: Session, ahead: timedelta, wall_s: float) -> None:
    """An event when the clock is so far ahead that only uptime counts, and one when that is over: once each."""
    held_events = select(EventRow.kind).where(EventRow.host == MANAGER, EventRow.kind.in_((HELD, RESUMED)))
    was_held = session.scalars(held_events.order_by(EventRow.id.desc()).limit(1)).first() == HELD
    if was_held == (ahead > _HELD):
        return
    at = datetime.fromtimestamp(wall_s, UTC)
    if was_held:
        text = "the manager's time of day agrees with uptime again"
        event = host_event(MANAGER, at, Severity.INFO, RESUMED, text)
    else:
        text = f"the manager's time of day is {ahead} ahead of uptime: what is old by its date alone is not removed"
        event = host_event(MANAGER, at, Severity.WARNING, HELD, text)
    store_events(session, [event])


def clock_ahead_s(session: Session, boot: Boot, wall_s: float) -> float:
    """By how much the manager's clock is ahead of uptime, compared with most of the last time (``raw_days``).

    Below 0: it was set back; 0: nothing is known.
    """
    return ahead_s(_marks(session, WINDOWS), uptime_s(_noted(session), boot), wall_s)


def boot_clock(name: str = "") -> Callable[[], Boot]:
    """Returns the start of this machine, by its name, and how long ago it was; without one that of this process."""
    if name:
        return lambda: Boot(name, time.clock_gettime(time.CLOCK_BOOTTIME))
    process = str(uuid.uuid4())
    return lambda: Boot(process, time.monotonic())


def _advance(session: Session, boot: Boot, wall_s: float) -> float:
    """Note for how many seconds managers have been up, and return it."""
    total_s = uptime_s(_noted(session), boot)
    at = datetime.fromtimestamp(wall_s, UTC)
    row = {"boot": boot.name, "boot_s": boot.age_s, "total_s": total_s, "at": at}
    upsert(session, UptimeRow, [row], ["boot"])
    session.execute(delete(UptimeRow).where(UptimeRow.total_s < total_s - _STALE_S))
    return total_s


def _noted(session: Session) -> dict[str, Noted]:
    rows = session.execute(select(UptimeRow.boot, UptimeRow.boot_s, UptimeRow.total_s))
    return {boot: Noted(boot_s, total_s) for boot, boot_s, total_s in rows}


def _marks(session: Session, kept: str) -> tuple[Mark, ...]:
    columns = ArrivalRow.total_s, ArrivalRow.at, ArrivalRow.newest_id
    rows = session.execute(select(*columns).where(ArrivalRow.kept == kept).order_by(ArrivalRow.total_s))
    return tuple(Mark(total_s, at.timestamp(), newest_id) for total_s, at, newest_id in rows)


def _replace(session: Session, kept: str, before: tuple[Mark, ...], after: tuple[Mark, ...]) -> None:
    gone = {mark.total_s for mark in before} - {mark.total_s for mark in after}
    if gone:
        session.execute(delete(ArrivalRow).where(ArrivalRow.kept == kept, ArrivalRow.total_s.in_(gone)))
    rows = [
        {
            "kept": kept,
            "total_s": mark.total_s,
            "at": datetime.fromtimestamp(mark.wall_s, UTC),
            "newest_id": mark.newest_id,
        }
        for mark in after
        if mark not in before
    ]
    upsert(session, ArrivalRow, rows, ["kept", "total_s"])
