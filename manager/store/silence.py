"""Hosts that do not report any more, and those that do again; and hosts whose clocks differ from the manager's."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.model.records import Severity
from manager.store.database import Database
from manager.store.models import EventRow, HostRow
from manager.store.records import store_new

SILENT, BACK = "host-silent", "host-back"
_STEADY = timedelta(minutes=1)  # so that what a host does for others does not come and go with it
CLOCK_OFF, CLOCK_WELL = "clock-off", "clock-well"


def note_silence(database: Database, now: datetime, since: datetime, after: timedelta) -> int:
    """An event for each host that has not reported for the time ``after``, and one when it does again; once each.

    Tells how many. ``since``: what was not heard before then counts for nothing, because nobody listened. Raises
    DatabaseUnavailable.
    """
    with database.writing() as session:
        latest = now - after
        fell_silent = HostRow.silent.is_(False) & (HostRow.last_seen_at < latest)
        found = []
        if since <= latest:
            for host in session.scalars(select(HostRow).where(fell_silent).with_for_update(skip_locked=True)):
                host.silent = True
                text = f"{host.name} has not reported for {after.total_seconds():g} s: its agent or its network is down"
                found.append(host_event(host.name, now, Severity.WARNING, SILENT, text))
        returned = HostRow.silent & (HostRow.last_seen_at >= latest)
        for host in session.scalars(select(HostRow).where(returned).with_for_update(skip_locked=True)):
            host.silent, host.back_at = False, now
            found.append(host_event(host.name, now, Severity.INFO, BACK, f"{host.name} reports again"))
        return store_new(session, EventRow, found)


def ranks_of(session: Session, hosts: Collection[str], now: datetime) -> dict[str, int]:
    """How much hosts can be relied on: 0; 1 those that were silent until a minute ago; 2 those that do not report."""
    query = select(HostRow.name, HostRow.silent, HostRow.back_at).where(HostRow.name.in_(hosts))
    seen = session.execute(query.where(HostRow.last_seen_at.is_not(None)))
    found = {name: 2 if silent else int(back is not None and now - back < _STEADY) for name, silent, back in seen}
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
