"""The last minutes of all applications at once, for the page that shows every one of them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from manager.model.histogram import Histogram
from manager.model.window import Ready
from manager.store.models import HostRow, TierRow, TierVmRow, VmRow, VmStatusRow, WindowRow

Place = tuple[int, datetime]
"""Row number of an application, and the start of a slot."""

MOST_READ = 1000
"""Slots that are read for one answer, about: so the first answer takes no longer than others; the next ones go on."""

_FRESH = timedelta(seconds=30)
_KEPT = timedelta(hours=1)


class RecentSlot(NamedTuple):
    """A slot's percentile in milliseconds, None where another one alone is known, and of how many response times.

    ``samples`` is 0 where a source answered the percentile itself.
    """

    value_ms: float | None
    samples: int

    def has_samples(self, at_least: int) -> bool:
        """Whether the percentile is to be believed, as ``Window.has_samples``."""
        return self.value_ms is not None and (self.samples == 0 or self.samples >= at_least)


class _SlotState(NamedTuple):
    """What grows with a slot, or with the sum of several: what is known of it, and until when."""

    origins: int
    samples: int
    end: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """A slot's percentile in milliseconds, and what the slot was when it was made."""

    state: _SlotState
    percentile: float
    value_ms: float | None


_Line = dict[datetime, _Known]


class RecentPercentiles:
    """A percentile of each slot of the last minutes. Thread-safe.

    Histograms take long to read, so what was made of them is remembered for as long as the slot does not change. Slots
    that began just before the last question or later are compared one by one, all others as a sum: where that differs,
    so does one of them.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._asked: dict[int, datetime] = {}
        self._lock = threading.Lock()

    def of(
        self, session: Session, percentiles: Mapping[int, float], since: datetime, now: datetime
    ) -> dict[int, dict[datetime, RecentSlot]]:
        """By application (row number) and start of the slot, slots that begin from ``since`` to ``now``.

        ``percentiles`` says which percentile is wanted of which application, the most urgent first. Of slots older
        than half a minute some may be missing, see ``MOST_READ``.
        """
        with self._lock:
            lines = {
                number: {
                    slot: known
                    for slot, known in self._lines.get(number, {}).items()
                    if slot >= since and known.percentile == percentile
                }
                for number, percentile in percentiles.items()
            }
            asked = min((self._asked.get(number, now) for number in percentiles), default=now)
        read = _renew(session, lines, percentiles, max(since, asked - _FRESH), now)
        sums = _sums(session, percentiles, since, now)
        for number, line in lines.items():
            if read < MOST_READ and sums.get(number) != _sum(line.values()):
                read += _renew(session, {number: line}, percentiles, since, now)
        with self._lock:
            self._lines |= lines
            self._asked |= dict.fromkeys(lines, now)
            for number in [number for number, at in self._asked.items() if at < now - _KEPT]:
                del self._lines[number], self._asked[number]
        return {
            number: {slot: RecentSlot(known.value_ms, known.state.samples) for slot, known in line.items()}
            for number, line in lines.items()
        }


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


def _renew(
    session: Session, lines: Mapping[int, _Line], percentiles: Mapping[int, float], since: datetime, now: datetime
) -> int:
    """Bring lines up to date with the slots that begin from ``since`` to ``now``; tells how many slots were read."""
    states = _states(session, lines, since, now)
    changed: list[Place] = []
    for number, line in lines.items():
        for slot in [slot for slot in line if slot >= since and (number, slot) not in states]:
            del line[slot]
    for (number, slot), state in states.items():
        if slot not in lines[number] or lines[number][slot].state != state:
            changed.append((number, slot))
    changed.sort(key=lambda place: place[1], reverse=True)
    del changed[MOST_READ:]
    for (number, slot), value_ms in _percentiles_ms(session, percentiles, changed).items():
        lines[number][slot] = _Known(states[number, slot], percentiles[number], value_ms)
    return len(changed)


_STATE = (func.count(), func.sum(WindowRow.count), func.max(WindowRow.end_at))


def _states(session: Session, numbers: Iterable[int], since: datetime, now: datetime) -> dict[Place, _SlotState]:
    query = (
        select(WindowRow.application_id, WindowRow.slot, *_STATE)
        .where(WindowRow.application_id.in_(numbers), WindowRow.slot.between(since, now))
        .group_by(WindowRow.application_id, WindowRow.slot)
    )
    return {(row[0], row[1]): _SlotState(row[2], int(row[3]), row[4]) for row in session.execute(query)}


def _sums(session: Session, numbers: Iterable[int], since: datetime, now: datetime) -> dict[int, _SlotState]:
    query = (
        select(WindowRow.application_id, *_STATE)
        .where(WindowRow.application_id.in_(numbers), WindowRow.slot.between(since, now))
        .group_by(WindowRow.application_id)
    )
    return {row[0]: _SlotState(row[1], int(row[2]), row[3]) for row in session.execute(query)}


def _sum(line: Collection[_Known]) -> _SlotState | None:
    if not line:
        return None
    states = [slots.state for slots in line]
    return _SlotState(
        sum(slot.origins for slot in states), sum(slot.samples for slot in states), max(slot.end for slot in states)
    )


def _percentiles_ms(
    session: Session, percentiles: Mapping[int, float], places: Collection[Place]
) -> dict[Place, float | None]:
    """The percentile of each slot, over all that any origin knows of it; of ready ones the latest counts."""
    columns = (WindowRow.application_id, WindowRow.slot, WindowRow.buckets, WindowRow.ready)
    histograms: dict[Place, Histogram] = {}
    ready: dict[Place, Ready] = {}
    wanted = set(places)
    # Not as pairs of application and slot, for which SQLite uses no index. They are nearly all of these.
    query = select(*columns).where(
        WindowRow.application_id.in_({number for number, _ in wanted}), WindowRow.slot.in_({slot for _, slot in wanted})
    )
    for number, slot, buckets, answered in session.execute(query.order_by(WindowRow.end_at)):
        place = (number, slot)
        if place not in wanted:
            continue
        found = Histogram(dict(zip(map(int, buckets), buckets.values(), strict=True)))
        known = histograms.get(place)
        histograms[place] = known.merge(found) if known else found
        if answered:
            ready[place] = Ready(**answered)
    values: dict[Place, float | None] = {}
    for place, histogram in histograms.items():
        percentile = percentiles[place[0]]
        if place in ready:
            values[place] = ready[place].time_ms if ready[place].percentile == percentile else None
        else:
            time_us = histogram.percentile_us(percentile)
            values[place] = None if time_us is None else time_us / 1000
    return values
