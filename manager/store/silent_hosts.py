"""Hosts that do not report any more, and those that do again; and hosts whose clocks differ from the manager's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.model.records import Severity
from manager.store.database import Database
from manager.store.decision_records import store_new
from manager.store.models import EventRow, HostRow

SILENT, BACK = "host-silent", "host-back"
_STEADY = timedelta(minutes=1)  # so that what a host does for others does not come and go with it
CLOCK_OFF, CLOCK_WELL = "clock-off", "clock-well"


@dataclass(frozen=True, slots=True)
class _Heard:
    """When a host reported last by the date in the database, and since when that stands by a steady clock."""

    at: datetime
    steady_s: float


class SilenceWatch:
    """Which hosts do not report, by how long nothing new came of them: by monotonic time, whatever the clocks say.

    The date of a host's last report tells only whether it reported between two looks. So a clock that is set makes no
    host silent and hides none that is; a manager that begins to look goes by the dates, where they can be true.
    """

    def __init__(self, after: timedelta, steady: Callable[[], float] = time.monotonic) -> None:
        """``after`` so long a host counts as silent. ``steady`` answers seconds that only grow."""
        self._after = after
        self._steady = steady
        self._heard: dict[str, _Heard] = {}
        self._looked_s = float("-inf")

    def look(self, database: Database, now: datetime, since: datetime) -> int:
        """An event for each host that has fallen silent, and one when it reports again; once each. Tells how many.

        ``since``: what was not heard before then counts for nothing, because nobody listened. Raises
        DatabaseUnavailable.
        """
        steady_s, after_s = self._steady(), self._after.total_seconds()
        if steady_s - self._looked_s > after_s:
            self._heard = {}  # another manager looked meanwhile, or nobody
        with database.writing() as session:
            query = select(HostRow.name, HostRow.last_seen_at, HostRow.silent).where(HostRow.last_seen_at.is_not(None))
            hosts = {name: (at, silent) for name, at, silent in session.execute(query) if at is not None}
            heard = {name: self._now_heard(name, at, now, since, steady_s) for name, (at, _) in hosts.items()}
            again = {name for name, before in self._heard.items() if name in heard and heard[name].at != before.at}
            fell = {
                name for name, (_, silent) in hosts.items() if not silent and steady_s - heard[name].steady_s > after_s
            }
            back = {name for name in again if hosts[name][1]}
            events = []
            if fell or back:
                rows = select(HostRow).where(HostRow.name.in_(fell | back)).with_for_update(skip_locked=True)
                events = [self._note(host, now) for host in session.scalars(rows) if host.silent is (host.name in back)]
            count = store_new(session, EventRow, events)
        self._heard, self._looked_s = heard, steady_s
        return count

    def _now_heard(self, name: str, at: datetime, now: datetime, since: datetime, steady_s: float) -> _Heard:
        before = self._heard.get(name)
        if before is None:
            listened = min(now - at, now - since).total_seconds()
            return _Heard(at, steady_s - max(listened, 0.0))
        return before if before.at == at else _Heard(at, steady_s)

    def _note(self, host: HostRow, now: datetime) -> dict[str, object]:
        """Turn a host's state, and tell of it."""
        host.silent = not host.silent
        if host.silent:
            length = f"{self._after.total_seconds():g} s"
            text = f"{host.name} has not reported for {length}: its agent or its network is down"
            return host_event(host.name, now, Severity.WARNING, SILENT, text)
        host.back_at = now
        return host_event(host.name, now, Severity.INFO, BACK, f"{host.name} reports again")


def ranks_of(session: Session, hosts: Collection[str], now: datetime) -> dict[str, int]:
    """How much hosts can be relied on: 0; 1 those that were silent until a minute ago; 2 those that do not report."""
    query = select(HostRow.name, HostRow.silent, HostRow.back_at).where(HostRow.name.in_(hosts))
    seen = session.execute(query.where(HostRow.last_seen_at.is_not(None)))
    found = {
        name: 2 if silent else int(back is not None and timedelta() <= now - back < _STEADY)
        for name, silent, back in seen
    }
    return {name: found.get(name, 2) for name in hosts}


def note_clock(host: HostRow, ahead_s: float | None, bound_s: float, now: datetime) -> list[dict[str, object]]:
    """Take by how much a host found its clock ahead, None: it does not tell. Answers events, as ``host_event`` does.

    One when it is off by more than ``bound_s``, and one when it is off by less than half of that again.
    """
    if ahead_s is None:
        return []
    host.clock_ahead_s = ahead_s
    off = abs(ahead_s) > (bound_s / 2 if host.clock_off else bound_s)
    if off == host.clock_off:
        return []
    host.clock_off = off
    words = f"the clock of {host.name} is {abs(ahead_s):.3g} s {'ahead of' if ahead_s > 0 else 'behind'} the manager's"
    if off:
        text = f"{words}, more than {bound_s:g} s: its response times go into the wrong windows; check NTP on both"
        return [host_event(host.name, now, Severity.WARNING, CLOCK_OFF, text)]
    return [host_event(host.name, now, Severity.INFO, CLOCK_WELL, f"{words}, which will do")]


def host_event(host: str, at: datetime, severity: Severity, kind: str, message: str) -> dict[str, object]:
    """The columns of an event about a host that the manager itself noted."""
    told = {"record_id": str(uuid.uuid4()), "at": at, "host": host, "vm": None}
    return told | {"severity": severity, "kind": kind, "message": message}
