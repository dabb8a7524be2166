"""Older ticks of a host, a quarter of an hour in one row: fewer rows, and names of VMs and policies once in each.

A row keeps its number where others are joined with it, so that nothing seems new. Readers need not know of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from manager.model.packed_records import joined_ticks
from manager.store.event_records import END
from manager.store.pack_models import QUARTER, TickPackRow
from manager.store.packs import between, columns_of
from manager.store.retention import Cleanup
from manager.store.rollup_queue import floor
from manager.store.row_writes import insert_new, is_one_of
from manager.store.tick_packs import times_of
from manager.store.window_packs import KEPT_AS_ROWS

_LOOKED_BACK = 8
"""So many quarters of an hour are looked at: what is older was looked at, but for ticks that came hours late."""
_TOGETHER = 25
"""Hosts whose ticks are joined in one transaction."""


def join_ticks(cleanup: Cleanup) -> int:
    """Join the ticks of quarters of an hour that are over since ``KEPT_AS_ROWS``; returns how many rows went.

    Raises DatabaseUnavailable.
    """
    last = floor(cleanup.now - KEPT_AS_ROWS, QUARTER)
    return sum(_join(cleanup, last - number * QUARTER) for number in range(1, _LOOKED_BACK + 1))


def _join(cleanup: Cleanup, start: datetime) -> int:
    row = TickPackRow
    several = select(row.host).where(*_within(start)).group_by(row.host).having(func.count() > 1).order_by(row.host)
    with cleanup.database.reading() as session:
        hosts = session.scalars(several).all()
    gone = 0
    for some in _groups(hosts):
        if not cleanup.stopped():
            with cleanup.database.writing() as session:
                gone += _join_hosts(session, some, start)
    return gone


def _join_hosts(session: Session, hosts: Sequence[str], start: datetime) -> int:
    row = TickPackRow
    query = select(row.host, row.id, row.body).where(is_one_of(session, row.host, hosts), *_within(start))
    packs = session.execute(query.order_by(row.host, row.id).with_for_update())
    joined: list[dict[str, object]] = []
    gone: list[int] = []
    for host, of_host in groupby(packs, attrgetter("host")):
        of_all = [*of_host]
        if len(of_all) > 1:  # or another manager was faster
            times, body = joined_ticks([pack.body for pack in of_all])
            joined.append({"id": of_all[-1].id, **columns_of(host, [times_of(*time) for time in times]), "body": body})
            gone += (pack.id for pack in of_all)
    # Not an update: what has another time now may be in another partition.
    session.execute(delete(row).where(is_one_of(session, row.id, gone), *_within(start)))
    insert_new(session, row, joined)
    return len(gone) - len(joined)


def _within(start: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return between(TickPackRow, start, END), TickPackRow.last_at < start + QUARTER


def _groups(hosts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (hosts[first : first + _TOGETHER] for first in range(0, len(hosts), _TOGETHER))
