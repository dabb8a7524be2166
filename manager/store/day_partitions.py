"""History that PostgreSQL keeps a day in a partition: made before the day comes, and dropped when all of it is old.

Dropping a table takes next to no time, and leaves nothing to be vacuumed. What is dated before the
first of these days, or by a clock that was ahead after the last, is in a partition of its own kind (``_before`` and
``_rest``, see revision 0020) and removed row by row, as all is on SQLite.
See https://www.postgresql.org/docs/current/ddl-partitioning.html.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, text, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.errors import DatabaseUnavailable
from manager.store.database import Database
from manager.store.host_models import TickRollupRow
from manager.store.models import RollupRow
from manager.store.pack_models import DecisionPackRow, TickPackRow, WindowPackRow
from manager.store.rollup_queue import MINUTE, floor, seconds

DAY = timedelta(days=1)
AHEAD = 1
"""Days to come that have a partition. Each is looked into by a report, and one more would be needed only where the job
does not run for a day."""
_WAIT_MS = 500
"""For a lock that nobody can read or write beside: who comes later waits as long. A dump holds it up till its end."""
_PARTITIONS = text(
    "SELECT child.relname, pg_get_expr(child.relpartbound, child.oid) FROM pg_inherits"
    " JOIN pg_class AS child ON child.oid = inhrelid WHERE inhparent = to_regclass(:cut) ORDER BY child.relname"
)
_BOUND = re.compile(r"FOR VALUES FROM \((?:'(?P<begin>[^']+)'|MINVALUE)\) TO \('(?P<end>[^']+)'\)")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CutByDay:
    """A table of PostgreSQL's with a partition for each day, and the column that tells the day of a row (UTC).

    ``rows``: which rows of the whole table are in it, where it is a part of one itself.
    """

    table: str
    moment: InstrumentedAttribute[datetime]
    rows: ColumnElement[bool] = field(default_factory=true)


# A repeated report looks for what it brought before by the host's clock, so by that ticks and decisions are cut: it
# finds them in one partition or two.
TICKS = CutByDay("tick_packs", TickPackRow.claimed_until)
DECISIONS = CutByDay("decision_packs", DecisionPackRow.claimed_until)
WINDOWS = CutByDay("window_packs", WindowPackRow.start)
MINUTES = CutByDay("rollups_minutes", RollupRow.start, RollupRow.length_s == seconds(MINUTE))
TICK_MINUTES = CutByDay("tick_rollups_minutes", TickRollupRow.start, TickRollupRow.length_s == seconds(MINUTE))
CUT_TABLES = (TICKS, DECISIONS, WINDOWS, MINUTES, TICK_MINUTES)


@dataclass(frozen=True, slots=True)
class Partition:
    """What is from ``begin`` until before ``end``; ``begin`` None: all before, ``end`` None: all that has no other."""

    name: str
    begin: datetime | None
    end: datetime | None


@dataclass(frozen=True, slots=True)
class OldRows:
    """What may be removed of a table: rows that meet ``condition``, which implies all that follows.

    They are dated before ``before``, and have numbers up to ``arrived``. A day that ended before ``overdue`` and could
    not be dropped is removed row by row.
    """

    number: InstrumentedAttribute[int]
    condition: ColumnElement[bool]
    before: datetime
    arrived: int
    overdue: datetime


def partition_names(connection: Connection) -> set[str]:
    """The names of all partitions: of tables that are parts of others, which no model describes."""
    if connection.dialect.name != "postgresql":
        return set()
    return {*connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition AND relkind IN ('r', 'p')"))}


def partitions(session: Session, table: str) -> list[Partition]:
    """The partitions of a table, by name; none where it has none."""
    return [_partition(name, bound) for name, bound in session.execute(_PARTITIONS, {"cut": table})]


def _partition(name: str, bound: str) -> Partition:
    found = _BOUND.fullmatch(bound)
    if found is None:
        return Partition(name, None, None)
    begin = found["begin"]
    return Partition(name, datetime.fromisoformat(begin) if begin else None, datetime.fromisoformat(found["end"]))


def make_days(database: Database, now: datetime) -> int:
    """Make the partitions of today and of the days ahead that are not there; returns how many. SQLite has none.

    Where that fails, with a word in the log, rows of that day are removed one by one. Raises DatabaseUnavailable.
    """
    made = 0
    for cut in CUT_TABLES if database.file is None else ():
        with database.reading() as session:
            there = partitions(session, cut.table)
        for day in (floor(now, DAY) + number * DAY for number in range(AHEAD + 1)):
            if there and not any(_holds(partition, day) for partition in there):
                made += _make(database, cut, day)
    return made


def _holds(partition: Partition, day: datetime) -> bool:
    if partition.end is None:
        return False
    return (partition.begin is None or partition.begin <= day) and day < partition.end


def _make(database: Database, cut: CutByDay, day: datetime) -> bool:
    """Make the partition of a day, with the rows of it that came before it was there."""
    table, name, rest = cut.table, f"{cut.table}_{day:%Y%m%d}", f"{cut.table}_rest"
    moment = cut.moment.key
    begin, end = (f"'{bound.isoformat()}'" for bound in (day, day + DAY))
    moved = f"DELETE FROM {rest} WHERE {moment} >= {begin} AND {moment} < {end} RETURNING *"  # noqa: S608 - names of our own, as below
    statements = (
        f"SET LOCAL lock_timeout = {_WAIT_MS}",
        f"LOCK TABLE {rest} IN ACCESS EXCLUSIVE MODE",
        f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS)",
        f"WITH moved AS ({moved}) INSERT INTO {name} SELECT * FROM moved",  # noqa: S608
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end})",
    )
    try:
        with database.writing() as session:
            for statement in statements:
                session.execute(text(statement))
    except DatabaseUnavailable as error:
        log.warning("there is no partition %s yet, and rows of that day are removed one by one: %s", name, error)
        return False
    return True


def drop_days(database: Database, cut: CutByDay, old: OldRows) -> tuple[int, ColumnElement[bool]]:
    """Drop the days of which all rows are old; returns how many rows went, and which others may be removed one by one.

    Those are not of a day that is, or is soon, dropped whole. Raises DatabaseUnavailable.
    """
    gone = 0
    kept: list[Partition] = []
    with database.reading() as session:
        there = partitions(session, cut.table)
    for partition in there:
        end = partition.end
        if end is not None and end <= old.before:
            rows, waits = _drop_if_old(database, cut, partition, old)
            gone += rows
            if waits and end > old.overdue:
                kept.append(partition)
        elif end is not None:
            kept.append(partition)
    return gone, and_(true(), *_outside(cut, kept))


def _drop_if_old(database: Database, cut: CutByDay, partition: Partition, old: OldRows) -> tuple[int, bool]:
    """Drop a partition if all of it is old; returns how many rows went, and whether it is to be tried again."""
    within = and_(cut.rows, *_within(cut, partition))
    with database.reading() as session:
        newest = session.scalar(select(func.max(old.number)).where(within)) or 0
        if newest > old.arrived:
            return 0, True
        counts = select(func.count(), func.count().filter(~old.condition)).where(within)
        rows, staying = session.execute(counts).one()
    if staying:
        return 0, False
    try:
        with database.writing() as session:
            session.execute(text(f"SET LOCAL lock_timeout = {_WAIT_MS}"))
            session.execute(text(f"LOCK TABLE {cut.table} IN ACCESS EXCLUSIVE MODE"))
            if session.scalar(select(func.max(old.number)).where(within)) not in {newest, None}:
                return 0, True  # something came late
            session.execute(text(f"DROP TABLE {partition.name}"))
    except DatabaseUnavailable as error:
        log.info("%s is to be dropped, and cannot be yet: %s", partition.name, error)
        return 0, True
    return rows, False


def _within(cut: CutByDay, partition: Partition) -> Iterator[ColumnElement[bool]]:
    if partition.begin is not None:
        yield cut.moment >= partition.begin
    if partition.end is not None:
        yield cut.moment < partition.end


def _outside(cut: CutByDay, kept: Iterable[Partition]) -> Iterator[ColumnElement[bool]]:
    """Outside of the days of partitions; what is before all of them is not of a day."""
    days = sorted((partition.begin, partition.end) for partition in kept if partition.begin and partition.end)
    spans: list[tuple[datetime, datetime]] = []
    for begin, end in days:
        joins = bool(spans) and spans[-1][1] == begin
        spans.append((spans.pop()[0] if joins else begin, end))
    return (or_(cut.moment < begin, cut.moment >= end) for begin, end in spans)
