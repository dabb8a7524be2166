"""Ticks rolled up: their mean over each finished minute and hour of a host, for charts of long ranges.

The ticks of one host come in their order, however late: its agent sends what waits oldest first. So a minute is
finished once the host has a tick of a later one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Row, Subquery, exists, func, literal, select
from sqlalchemy.orm import Session

from manager.control.budget import HOUR_S, MINUTE_S
from manager.control.ticks import mean_tick
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.store.database import Database, insert_for
from manager.store.host_models import TickRollupRow
from manager.store.models import HostRow, TickRow
from manager.store.retention import Keep, remove

_LENGTHS = timedelta(seconds=MINUTE_S), timedelta(seconds=HOUR_S)
_CHUNKS = timedelta(minutes=30), timedelta(days=1)  # what of each length is made at once
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH = 500


class TickRollUps:
    """Rolls up the ticks of a database, and forgets what is too old."""

    def __init__(self, database: Database, keep: Keep) -> None:
        self._database = database
        self._keep = keep

    def roll_up(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Roll up all that is finished and not yet done, and tell how many rows that made. Raises DatabaseUnavailable.

        ``stopped`` is asked before each transaction.
        """
        minute, _ = _LENGTHS
        newest = select(func.max(TickRow.at)).where(TickRow.host == HostRow.name).correlate(HostRow).scalar_subquery()
        with self._database.reading() as session:
            hosts = session.execute(select(HostRow.name, newest).order_by(HostRow.name)).all()
        return sum(self._of(host, _floor(at, minute), stopped) for host, at in hosts if at is not None)

    def forget(self, now: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove ticks and their means that are older than they are kept, and tell how many; otherwise as ``prune``.

        A tick that is not rolled up yet stays, unless its host is gone.
        """
        later = exists().where(TickRollupRow.host == TickRow.host, TickRollupRow.start > TickRow.at)
        orphaned = TickRow.host.not_in(select(HostRow.name))
        old = TickRow.at < now - self._keep.raw
        gone = remove(self._database, TickRow, old & (later | orphaned), stopped)
        for length, keep in zip(_LENGTHS, (self._keep.minutes, self._keep.hours), strict=True):
            of_length = TickRollupRow.length_s == _seconds(length)
            gone += remove(self._database, TickRollupRow, of_length & (TickRollupRow.start < now - keep), stopped)
        return gone

    def _of(self, host: str, until: datetime, stopped: Callable[[], bool]) -> int:
        """Roll up what a host has from before ``until``, the begin of a minute."""
        made = 0
        for length, chunk in zip(_LENGTHS, _CHUNKS, strict=True):
            until = _floor(until, length)
            with self._database.reading() as session:
                begin = _done(session, host, length)
            while not stopped():
                with self._database.writing() as session:
                    parts = _parts(host, length)
                    first = session.scalar(select(func.min(parts.c.at)).where(parts.c.at >= begin))
                    if first is None or first >= until:
                        break
                    end = min(_floor(first, length) + chunk, until)
                    query = select(parts).where(parts.c.at >= begin, parts.c.at < end).order_by(parts.c.at)
                    made += _write(session, host, length, session.execute(query).all())
                begin = end
        return made


def read_ticks(session: Session, host: str, since: datetime, until: datetime, most: int) -> Iterator[TickRecord]:
    """The ticks of a host from ``since`` until before ``until``, oldest first.

    Where that is long, means over minutes or hours take their place; and where ticks are not kept any more. Of more
    than ``most`` rows every second, or third and so on is read.
    """
    rows = _places(session, host, since, until, 2 * (until - since).total_seconds() / most)
    chosen = rows[:: -(-len(rows) // most) or 1]
    for table, places in groupby(chosen, lambda place: place[0]):
        numbers = [number for _, number in places]
        for first in range(0, len(numbers), _BATCH):
            some = select(table.body).where(table.id.in_(numbers[first : first + _BATCH])).order_by(table.at)
            yield from map(tick_of, session.scalars(some))


def tick_of(body: str) -> TickRecord:
    """A tick, from its JSON text."""
    # By hand, because it is by far quicker than by the shapes of the interface, which checked it when it came in.
    fields = json.loads(body)
    vms = (
        VmTick(
            vm["vm"],
            vm["cpu_share"],
            vm["run_delay_share"],
            vm["weight"],
            vm["mode"],
            VcpuTick(**vm["vcpu"]) if vm.get("vcpu") else None,
        )
        for vm in fields["vms"]
    )
    at_s = datetime.fromisoformat(fields["at"]).timestamp()
    return TickRecord(at_s, fields["policy"], fields["mode"], fields["host_cpu_share"], tuple(vms))


def _places(
    session: Session, host: str, since: datetime, until: datetime, coarse_s: float
) -> Sequence[tuple[type[TickRow] | type[TickRollupRow], int]]:
    """Table and row number of what tells of a range, oldest first.

    The longest that is at most ``coarse_s`` long tells; of what comes after it the shorter ones do, and before it,
    where it is not kept any more, the longer ones.
    """
    found: list[tuple[type[TickRow] | type[TickRollupRow], int]] = []
    for length in reversed(_LENGTHS):
        end = until if length.total_seconds() <= coarse_s else min(_oldest(session, host, since, length), until)
        query = select(TickRollupRow.id, TickRollupRow.start).where(
            TickRollupRow.host == host,
            TickRollupRow.length_s == _seconds(length),
            TickRollupRow.start > since - length,
            TickRollupRow.start <= end - length,
            TickRollupRow.at >= since,
        )
        rows = session.execute(query.order_by(TickRollupRow.start)).all()
        found += [(TickRollupRow, number) for number, _ in rows]
        since = rows[-1].start + length if rows else since
    ticks = select(TickRow.id).where(TickRow.host == host, TickRow.at >= since, TickRow.at < until)
    return [*found, *((TickRow, number) for number in session.scalars(ticks.order_by(TickRow.at)))]


def _oldest(session: Session, host: str, since: datetime, length: timedelta) -> datetime:
    """The time of the oldest that is shorter than ``length``, from ``since`` on; the end of time without any."""
    minutes = select(func.min(TickRollupRow.start)).where(
        TickRollupRow.host == host, TickRollupRow.length_s < _seconds(length), TickRollupRow.start >= since
    )
    ticks = select(func.min(TickRow.at)).where(TickRow.host == host, TickRow.at >= since)
    found = [first for first in map(session.scalar, (minutes, ticks)) if first is not None]
    return min(found, default=datetime.max.replace(tzinfo=UTC))


def _parts(host: str, length: timedelta) -> Subquery:
    """What a length is made of: times, of how many ticks each tells, and their means."""
    if length == _LENGTHS[0]:
        return select(TickRow.at, literal(1).label("ticks"), TickRow.body).where(TickRow.host == host).subquery()
    shorter = TickRollupRow.host == host, TickRollupRow.length_s == int(MINUTE_S)
    return select(TickRollupRow.start.label("at"), TickRollupRow.ticks, TickRollupRow.body).where(*shorter).subquery()


def _done(session: Session, host: str, length: timedelta) -> datetime:
    """The end of a host's newest row of a length."""
    of_length = TickRollupRow.host == host, TickRollupRow.length_s == _seconds(length)
    newest = session.scalar(select(func.max(TickRollupRow.start)).where(*of_length))
    return _EPOCH if newest is None else newest + length


def _write(session: Session, host: str, length: timedelta, parts: Sequence[Row[Any]]) -> int:
    """Insert the means of parts, oldest first, over each ``length``."""
    rows = []
    for start, group in groupby(parts, lambda part: _floor(part.at, length)):
        found = list(group)
        tick = mean_tick([(tick_of(part.body), part.ticks) for part in found])
        at = datetime.fromtimestamp(tick.time_s, UTC)
        fields = {name: value for name, value in asdict(tick).items() if name != "time_s"}
        fields["vms"] = [{name: value for name, value in vm.items() if name != "vcpu" or value} for vm in fields["vms"]]
        body = json.dumps({"at": at.isoformat(), **fields}, separators=(",", ":"))
        count = sum(part.ticks for part in found)
        of = {"host": host, "length_s": _seconds(length), "start": start}
        rows.append({**of, "at": at, "ticks": count, "body": body})
    insert = insert_for(session, TickRollupRow).on_conflict_do_nothing(index_elements=["host", "length_s", "start"])
    session.execute(insert, rows)
    return len(rows)


def _floor(moment: datetime, length: timedelta) -> datetime:
    return _EPOCH + (moment - _EPOCH) // length * length


def _seconds(length: timedelta) -> int:
    return round(length.total_seconds())
