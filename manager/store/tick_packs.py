"""Ticks of hosts: stored once however often they are reported, read newest first or oldest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from manager.model.packed_records import (
    PackedTick,
    TickColumns,
    microseconds,
    moment_of,
    pack_ticks,
    tick_times,
    ticks_within,
    unpack_ticks,
    within_minutes,
)
from manager.model.packed_ticks import TickPack
from manager.store.event_records import END, ranges
from manager.store.pack_models import TickPackRow
from manager.store.packs import (
    PackItem,
    PackTimes,
    between,
    bodies_around,
    columns_of,
    newest_first,
    number_of,
)
from manager.store.rollup_queue import MINUTE, note_ticks
from manager.store.row_writes import insert_new

_STEP = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StoredTick:
    """A tick. ``body`` is JSON text, ready to be answered; ``claimed_at``: by the host's clock, None: the same."""

    at: datetime
    claimed_at: datetime | None
    body: str


def store_ticks(
    session: Session,
    host: str,
    ticks: Mapping[datetime, str],
    claimed: Mapping[datetime, datetime] | None = None,
    packs: Sequence[TickPack] = (),
) -> int:
    """Store the ticks of a host, as JSON text in one line by their time, that are new; returns how many were.

    ``claimed``: when they were by the host's clock, where that is another time; by that they are recognised again.
    ``packs`` hold more of them, whose times are both; one of which all are new is stored as it is. The host's row is
    locked.
    """
    claims = claimed or {}
    reported = [_packed(at, claims.get(at), body) for at, body in sorted(ticks.items())]
    if not reported and not packs:
        return 0
    times = [*map(_times, reported), *(PackTimes(at_us, at_us) for pack in packs for at_us in pack.at_us)]
    known = {
        times_of(*time).claimed_us
        for body in bodies_around(session, TickPackRow, host, times)
        for time in tick_times(body)
    }
    rows: list[dict[str, object]] = []
    stored = 0
    for pack in packs:
        if known.isdisjoint(pack.at_us):
            rows.append({**columns_of(host, [PackTimes(at_us, at_us) for at_us in pack.at_us]), "body": pack.packed})
            stored += len(pack.at_us)
            known.update(pack.at_us)
        elif not known.issuperset(pack.at_us):
            reported += unpack_ticks(pack.packed)
    new: list[PackedTick] = []
    for tick in sorted(reported, key=lambda tick: tick.at_us):
        if (claimed_us := _times(tick).claimed_us) not in known:
            known.add(claimed_us)
            new.append(tick)
    note_ticks(session, MINUTE, ((host, moment_of(time.at_us)) for time in times))
    rows += (
        {**columns_of(host, [_times(tick) for tick in group]), "body": pack_ticks(group)}
        for group in within_minutes(new, lambda tick: tick.at_us)
    )
    insert_new(session, TickPackRow, rows)
    return stored + len(new)


def list_ticks(
    session: Session,
    host: str,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: datetime | None = None,
    latest: datetime = END,
) -> Sequence[StoredTick]:
    """At most ``limit`` ticks of a host, newest first, in ``ranges`` after a time."""
    ticks: list[StoredTick] = []
    for begin, end, is_after in ranges(since, until, latest, after):
        before = min(end, after) if after is not None and is_after else end
        if len(ticks) < limit:
            ticks += islice(_newest(session, host, begin, before), limit - len(ticks))
    return ticks


def ticks_between(session: Session, host: str, since: datetime, until: datetime) -> list[StoredTick]:
    """All ticks of a host from ``since`` until before ``until``, oldest first."""
    return [*_newest(session, host, since, until)][::-1]


def ticks_by_host(
    session: Session, hosts: Collection[str], since: datetime, until: datetime
) -> dict[str, list[TickColumns]]:
    """All ticks of hosts from ``since`` until before ``until``, oldest first; none of others."""
    row = TickPackRow
    query = select(row.host, row.id, row.body).where(row.host.in_(hosts), between(row, since, until))
    since_us, until_us = microseconds(since), microseconds(until)
    found: dict[str, list[tuple[int, int, TickColumns]]] = {}
    for host, number, packed in session.execute(query):
        if ticks := ticks_within(packed, since_us, until_us):
            of_host = found.setdefault(host, [])
            of_host += ((tick.at_us, number_of(number, tick.place), tick) for tick in ticks)
    return {host: [tick for _, _, tick in sorted(ticks, key=itemgetter(0, 1))] for host, ticks in found.items()}


def oldest_tick_at(session: Session, host: str, since: datetime) -> datetime | None:
    """The time of a host's oldest tick from ``since`` on; None: there is none."""
    query = select(func.min(TickPackRow.last_at)).where(TickPackRow.host == host, between(TickPackRow, since, END))
    last_at = session.scalar(query)
    if last_at is None:
        return None
    bodies = session.scalars(
        select(TickPackRow.body).where(TickPackRow.host == host, between(TickPackRow, since, last_at + _STEP))
    )
    since_us = microseconds(since)
    return moment_of(min(at_us for body in bodies for at_us, _ in tick_times(body) if at_us >= since_us))


def _newest(session: Session, host: str, begin: datetime, end: datetime) -> Iterator[StoredTick]:
    def items(row: Any) -> Iterator[PackItem]:
        for place, tick in enumerate(unpack_ticks(row.body)):
            at = moment_of(tick.at_us)
            if begin <= at < end:
                claimed_at = None if tick.claimed_us is None else moment_of(tick.claimed_us)
                yield PackItem(at, number_of(row.id, place), StoredTick(at, claimed_at, tick.body))

    columns = TickPackRow.id, TickPackRow.last_at, TickPackRow.body
    query = select(*columns).where(TickPackRow.host == host, between(TickPackRow, begin, end))
    return newest_first(session, query, TickPackRow, items)


def _packed(at: datetime, claimed_at: datetime | None, body: str) -> PackedTick:
    return PackedTick(microseconds(at), None if claimed_at is None else microseconds(claimed_at), body)


def _times(tick: PackedTick) -> PackTimes:
    return times_of(tick.at_us, tick.claimed_us)


def times_of(at_us: int, claimed_us: int | None) -> PackTimes:
    """When a tick was, and when by the host's clock; None: the same."""
    return PackTimes(at_us, at_us if claimed_us is None else claimed_us)
