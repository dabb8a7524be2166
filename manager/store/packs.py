"""What the tables of packed rows have in common: finding what a repeated report brought before, and reading in order.

A row holds what happened within a short time, so rows in the order of their newest items are nearly in the order of
all items. Rows of a host are written with the host's row locked, see ``reporting_host``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, String, bindparam, select
from sqlalchemy.orm import Session

from manager.model.packed_records import moment_of
from manager.store.by_driver import rows_of
from manager.store.event_records import END
from manager.store.models import UtcDateTime
from manager.store.pack_models import PackRow
from manager.store.row_pages import newest_rows

_AT_ONCE = 50  # rows that are read before the first is looked at
_PLACE_BITS = 16  # a row has the items of one report at most, which are fewer than 2^16


class PackTimes(NamedTuple):
    """When something happened, and when by the host's clock, in microseconds since the epoch."""

    at_us: int
    claimed_us: int


class PackItem(NamedTuple):
    """The place of an item in the order of lists, and the item."""

    at: datetime
    number: int
    item: Any


def number_of(row: int, place: int) -> int:
    """The number of an item in a row: in the order in which items were stored."""
    return row << _PLACE_BITS | place


def bodies_around(session: Session, table: type[PackRow], host: str, times: Sequence[PackTimes]) -> Sequence[bytes]:
    """The bodies of a host's rows that may hold what is reported now."""
    first, last = (moment_of(end(time.claimed_us for time in times)) for end in (min, max))
    rows = rows_of(session, _around(table), {"host": host, "first": first, "last": last})
    return [body for (body,) in rows]


@cache
def _around(table: type[PackRow]) -> Select[bytes]:
    first, last = bindparam("first", type_=UtcDateTime()), bindparam("last", type_=UtcDateTime())
    within = table.claimed_until >= first, table.claimed_from <= last
    return select(table.body).where(table.host == bindparam("host", type_=String()), *within)


def columns_of(host: str, times: Sequence[PackTimes]) -> dict[str, object]:
    """The columns of a row but its body."""
    claimed = [time.claimed_us for time in times]
    return {
        "host": host,
        "last_at": moment_of(max(time.at_us for time in times)),
        "claimed_from": moment_of(min(claimed)),
        "claimed_until": moment_of(max(claimed)),
    }


def between(table: type[PackRow], begin: datetime, end: datetime) -> ColumnElement[bool]:
    """Whether a row may hold something from ``begin`` until before ``end``."""
    # Nothing is dated later than its host claimed, and by that days have their partitions.
    late = (table.last_at >= begin) & (table.claimed_until >= begin)
    return late if END - end <= table.longest else late & (table.last_at < end + table.longest)


def newest_first(
    session: Session,
    query: Select[*tuple[Any, ...]],
    table: type[PackRow],
    items_of: Callable[[Any], Iterable[PackItem]],
) -> Iterator[Any]:
    """The items of the rows of a query, which has the columns ``last_at`` and ``id``, the newest and last stored first.

    Rows are read as far as they are needed.
    """
    waiting: list[tuple[float, int, Any]] = []
    for row in newest_rows(session, query, (table.last_at, table.id), _AT_ONCE):
        while waiting and -waiting[0][0] > row.last_at.timestamp():
            yield heappop(waiting)[2]
        for at, number, item in items_of(row):
            heappush(waiting, (-at.timestamp(), -number, item))
    while waiting:
        yield heappop(waiting)[2]
