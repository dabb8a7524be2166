"""The last minutes of all applications at once, for the page that shows every one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from manager.model.histogram import Histogram
from manager.model.window import Ready
from manager.store.models import HostRow, TierRow, TierVmRow, VmRow, VmStatusRow, WindowRow

Place = tuple[int, datetime]
"""Row number of an application, and the start of a slot."""
State = tuple[int, datetime]
"""How many response times a slot holds, and until when: what changes with the slot."""

MOST_READ = 1000
"""Histograms that are read for one answer. So the first answer takes no longer than others; the next ones go on."""

_FRESH = timedelta(seconds=30)
_LOOK_BACK = timedelta(seconds=60)  # so often it is asked whether older slots have changed, too: they seldom do
_BATCH = 400  # slots looked up by one statement


@dataclass(frozen=True, slots=True)
class _Known:
    """A slot's percentile in milliseconds, and what the slot was when it was made."""

    state: State
    percentile: float
    value_ms: float | None


class RecentPercentiles:
    """A percentile of each slot of the last minutes. Thread-safe.

    Histograms take long to read, so what was made of them is remembered for as long as the slot does not change.
    """

    def __init__(self) -> None:
        self._known: dict[int, dict[datetime, _Known]] = {}
        self._looked_back: dict[int, datetime] = {}
        self._lock = threading.Lock()

    def of(
        self, session: Session, percentiles: Mapping[int, float], since: datetime, now: datetime
    ) -> dict[int, dict[datetime, float | None]]:
        """Milliseconds by application (row number) and start of the slot, of slots that begin at ``since`` or later.

        ``percentiles`` says which percentile is wanted of which application. None: another one alone is known. Slots
        older than half a minute may be missing (see ``MOST_READ``), or be as they were a minute ago.
        """
        with self._lock:
            known = {
                number: {slot: one for slot, one in self._known.get(number, {}).items() if one.percentile == percentile}
                for number, percentile in percentiles.items()
            }
            never = now - 2 * _LOOK_BACK
            due = {number for number in known if now - self._looked_back.get(number, never) >= _LOOK_BACK}
        states = _states(session, due, since) | _states(session, known.keys() - due, max(since, now - _FRESH))
        changed = [
            (number, slot)
            for (number, slot), state in states.items()
            if (one := known[number].get(slot)) is None or one.state != state
        ]
        changed.sort(key=lambda place: place[1], reverse=True)
        for (number, slot), value_ms in _percentiles_ms(session, percentiles, changed[:MOST_READ]).items():
            known[number][slot] = _Known(states[number, slot], percentiles[number], value_ms)
        known = {number: {slot: one for slot, one in slots.items() if slot >= since} for number, slots in known.items()}
        with self._lock:
            self._known |= known
            self._looked_back |= dict.fromkeys(due - {number for number, _ in changed[MOST_READ:]}, now)
        return {number: {slot: one.value_ms for slot, one in slots.items()} for number, slots in known.items()}


def serving_hosts(session: Session) -> dict[int, list[str]]:
    """Names of the hosts on which VMs of each application (row number) run, in order."""
    query = (
        select(TierRow.application_id, HostRow.name)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .join(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .join(HostRow, HostRow.id == VmStatusRow.host_id)
        .distinct()
        .order_by(HostRow.name)
    )
    hosts: dict[int, list[str]] = {}
    for number, host in session.execute(query):
        hosts.setdefault(number, []).append(host)
    return hosts


def _states(session: Session, numbers: Iterable[int], since: datetime) -> dict[Place, State]:
    query = (
        select(WindowRow.application_id, WindowRow.slot, func.sum(WindowRow.count), func.max(WindowRow.end_at))
        .where(WindowRow.application_id.in_(numbers), WindowRow.slot >= since)
        .group_by(WindowRow.application_id, WindowRow.slot)
    )
    return {(number, slot): (int(count), end) for number, slot, count, end in session.execute(query)}


def _percentiles_ms(
    session: Session, percentiles: Mapping[int, float], places: list[Place]
) -> dict[Place, float | None]:
    """The percentile of each slot, over all that any origin knows of it; of ready ones the latest counts."""
    columns = (WindowRow.application_id, WindowRow.slot, WindowRow.buckets, WindowRow.ready)
    histograms: dict[Place, Histogram] = {}
    ready: dict[Place, Ready] = {}
    for first in range(0, len(places), _BATCH):
        wanted = tuple_(WindowRow.application_id, WindowRow.slot).in_(places[first : first + _BATCH])
        rows = session.execute(select(*columns).where(wanted).order_by(WindowRow.end_at))
        for number, slot, buckets, answered in rows:
            found = Histogram({int(bucket): count for bucket, count in buckets.items()})
            known = histograms.get((number, slot))
            histograms[number, slot] = known.merge(found) if known else found
            if answered:
                ready[number, slot] = Ready(**answered)
    values: dict[Place, float | None] = {}
    for place, histogram in histograms.items():
        percentile = percentiles[place[0]]
        if place in ready:
            values[place] = ready[place].time_ms if ready[place].percentile == percentile else None
        else:
            time_us = histogram.percentile_us(percentile)
            values[place] = None if time_us is None else time_us / 1000
    return values
