"""Hosts that stop or resume reporting, and hosts whose clocks differ from the manager's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.model.numbers import digits
from manager.model.records import Severity
from manager.store.database import Database
from manager.store.event_records import store_events
from manager.store.models import HostRow

SILENT, BACK = "host-silent", "host-back"
_STEADY = timedelta(minutes=1)  # so that a host with short outages is not relied on
CLOCK_OFF, CLOCK_WELL = "clock-off", "clock-well"


@dataclass(frozen=True, slots=True)
class _LastReport:
    """The date of a host's last report in the database, and since when it is unchanged by a steady clock."""

    at: datetime
    steady_s: float


class SilenceWatch:
    """Finds silent hosts, by the monotonic time since their last report.

    The date of a last report only shows whether a host reported between two runs, so setting a clock neither makes a
    host silent nor hides silence. At its first run a manager uses the dates, as far as they are plausible.
    """

    def __init__(self, after: timedelta, steady: Callable[[], float] = time.monotonic) -> None:
        """``after``: silence until a host counts as silent. ``steady``: a monotonic clock, in seconds."""
        self._after = after
        self._steady = steady
        self._last_reports: dict[str, _LastReport] = {}
        self._looked_s = float("-inf")

    def look(self, database: Database, now: datetime, since: datetime) -> int:
        """Store an event for each host that became silent or reports again, once each; returns how many.

        ``since``: silence before then does not count, because no manager ran. Raises DatabaseUnavailable.
        """
        steady_s, after_s = self._steady(), self._after.total_seconds()
        if steady_s - self._looked_s > after_s:
            self._last_reports = {}  # another manager, or none, watched meanwhile
        with database.writing() as session:
            query = select(HostRow.name, HostRow.last_seen_at, HostRow.silent).where(HostRow.last_seen_at.is_not(None))
            hosts = {name: (at, silent) for name, at, silent in session.execute(query) if at is not None}
            reports = {name: self._last_report(name, at, now, since, steady_s) for name, (at, _) in hosts.items()}
            again = {
                name for name, before in self._last_reports.items() if name in reports and reports[name].at != before.at
            }
            fell = {
                name
                for name, (_, silent) in hosts.items()
                if not silent and steady_s - reports[name].steady_s > after_s
            }
            back = {name for name in again if hosts[name][1]}
            events = []
            if fell or back:
                rows = select(HostRow).where(HostRow.name.in_(fell | back)).with_for_update(skip_locked=True)
                events = [self._note(host, now) for host in session.scalars(rows) if host.silent is (host.name in back)]
            count = store_events(session, events)
        self._last_reports, self._looked_s = reports, steady_s
        return count

    def _last_report(self, name: str, at: datetime, now: datetime, since: datetime, steady_s: float) -> _LastReport:
        before = self._last_reports.get(name)
        if before is None:
            listened = min(now - at, now - since).total_seconds()
            return _LastReport(at, steady_s - max(listened, 0.0))
        return before if before.at == at else _LastReport(at, steady_s)

    def _note(self, host: HostRow, now: datetime) -> dict[str, object]:
        """Toggle a host's silence; returns the event."""
        host.silent = not host.silent
        if host.silent:
            length = f"{self._after.total_seconds():g} s"
            text = f"{host.name} has not reported for {length}: its agent or its network is down"
            return host_event(host.name, now, Severity.WARNING, SILENT, text)
        host.back_at = now
        return host_event(host.name, now, Severity.INFO, BACK, f"{host.name} reports again")


def ranks_of(session: Session, hosts: Collection[str], now: datetime) -> dict[str, int]:
    """Ranks of hosts: 0 reliable, 1 silent until less than a minute ago, 2 silent or unknown."""
    query = select(HostRow.name, HostRow.silent, HostRow.back_at).where(HostRow.name.in_(hosts))
    reporting = session.execute(query.where(HostRow.last_seen_at.is_not(None)))
    ranks = {
        name: 2 if silent else int(back is not None and timedelta() <= now - back < _STEADY)
        for name, silent, back in reporting
    }
    return {name: ranks.get(name, 2) for name in hosts}


def note_clock(host: HostRow, ahead_s: float | None, bound_s: float, now: datetime) -> list[dict[str, object]]:
    """Record whether a host's clock is off by its offset, None: unknown. Returns events, as ``host_event`` does.

    One when the offset exceeds ``bound_s``, and one when it falls below half of that.
    """
    if ahead_s is None:
        return []
    off = abs(ahead_s) > (bound_s / 2 if host.clock_off else bound_s)
    if off == host.clock_off:
        return []
    host.clock_off = off
    words = (
        f"the clock of {host.name} is {digits(abs(ahead_s))} s {'ahead of' if ahead_s > 0 else 'behind'} the manager's"
    )
    if off:
        text = f"{words}, more than {bound_s:g} s: its response times go into the wrong windows; check NTP on both"
        return [host_event(host.name, now, Severity.WARNING, CLOCK_OFF, text)]
    return [host_event(host.name, now, Severity.INFO, CLOCK_WELL, f"{words}, back within tolerance")]


def host_event(host: str, at: datetime, severity: Severity, kind: str, message: str) -> dict[str, object]:
    """The columns of an event about a host that the manager itself observed."""
    columns = {"record_id": str(uuid.uuid4()), "at": at, "host": host, "vm": None}
    return columns | {"severity": severity, "kind": kind, "message": message}
