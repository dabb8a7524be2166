"""What is still to be rolled up is noted by application and host; when rows arrived is known without a clock that can
be set; and what an agent dated in the future keeps that date beside the one that counts.

What was never rolled up because something else was dated later is noted, and rolled up with the first run of the jobs.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTHS = timedelta(minutes=1), timedelta(hours=1)
_BATCH = 5000
_CLAIMED = "ticks", "decisions", "events"


def upgrade() -> None:
    _create()
    _note_windows()
    _note_ticks()
    op.drop_table("late_minutes")


def downgrade() -> None:
    """What was still to be rolled up and comes before what is rolled up already stays as it is in the roll-ups."""
    op.create_table(
        "late_minutes",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("noted_at", _TIME, nullable=False),
        sa.Column("pending", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("application_id", "start", name="pk_late_minutes"),
        sa.ForeignKeyConstraint(
            ["application_id"],
            ["applications.id"],
            name="fk_late_minutes_application_id_applications",
            ondelete="CASCADE",
        ),
    )
    for name in ("arrivals", "uptimes", "unrolled_ticks", "unrolled_windows"):
        op.drop_table(name)
    for table in _AUDITED:
        op.drop_index(f"ix_audit_{table}_id", "audit")
    op.drop_index("ix_ticks_host_claimed_at", "ticks")
    for table in _CLAIMED:
        op.drop_column(table, "claimed_at")


_AUDITED = "who", "object"


def _create() -> None:
    for table in _CLAIMED:
        op.add_column(table, sa.Column("claimed_at", _TIME))
    claimed = sa.text("claimed_at IS NOT NULL")
    columns = ["host", "claimed_at"]
    op.create_index(
        "ix_ticks_host_claimed_at", "ticks", columns, unique=True, sqlite_where=claimed, postgresql_where=claimed
    )
    for column in _AUDITED:
        op.create_index(f"ix_audit_{column}_id", "audit", [column, "id"])
    op.create_table(
        "unrolled_windows",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("taken", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("id", name="pk_unrolled_windows"),
        sa.UniqueConstraint(
            "application_id",
            "length_s",
            "start",
            "origin",
            name="uq_unrolled_windows_application_id_length_s_start_origin",
        ),
    )
    op.create_table(
        "unrolled_ticks",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_unrolled_ticks"),
        sa.UniqueConstraint("host", "length_s", "start", name="uq_unrolled_ticks_host_length_s_start"),
    )
    op.create_table(
        "uptimes",
        sa.Column("boot", sa.String(), nullable=False),
        sa.Column("boot_s", sa.Double(), nullable=False),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("boot", name="pk_uptimes"),
    )
    op.create_table(
        "arrivals",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("kept", sa.String(), nullable=False),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("newest_id", _SERIAL, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_arrivals"),
        sa.UniqueConstraint("kept", "total_s", name="uq_arrivals_kept_total_s"),
    )


def _note_windows() -> None:
    """Minutes with windows and without a roll-up, those that were late, and hours with minutes and without one."""
    minute, hour = _LENGTHS
    times = {"application_id": sa.Integer(), "length_s": sa.Integer(), "start": _TIME}
    rollups = _table("rollups", **times)
    late = _table("late_minutes", application_id=sa.Integer(), start=_TIME, pending=sa.Boolean())
    windows = _table("windows", application_id=sa.Integer(), slot=_TIME, origin=sa.String())
    notes = _table("unrolled_windows", **times, until=_TIME, origin=sa.String())
    rolled = {length: set(_rolled(rollups, rollups.c.application_id, length)) for length in _LENGTHS}
    pending = set(_rows(sa.select(late.c.application_id, late.c.start).where(late.c.pending)))

    def minutes() -> Iterator[tuple[Any, ...]]:
        seen = set()
        for number, slot, origin in _rows(sa.select(windows.c.application_id, windows.c.slot, windows.c.origin)):
            start = _floor(slot, minute)
            is_new = (number, start) not in rolled[minute] or (number, start) in pending
            if is_new and (number, start, origin) not in seen:
                seen.add((number, start, origin))
                yield number, start, origin

    hours = {(number, _floor(start, hour)) for number, start in rolled[minute]} - rolled[hour]
    _insert(
        notes,
        ({"application_id": number, "origin": origin} | _span(start, minute) for number, start, origin in minutes()),
    )
    _insert(notes, ({"application_id": number, "origin": ""} | _span(start, hour) for number, start in sorted(hours)))


def _note_ticks() -> None:
    """Minutes with ticks and without a roll-up, and hours with minutes and without one."""
    minute, hour = _LENGTHS
    rollups = _table("tick_rollups", host=sa.String(), length_s=sa.Integer(), start=_TIME)
    ticks = _table("ticks", host=sa.String(), at=_TIME)
    notes = _table("unrolled_ticks", host=sa.String(), length_s=sa.Integer(), start=_TIME, until=_TIME)
    rolled = {length: set(_rolled(rollups, rollups.c.host, length)) for length in _LENGTHS}
    there = {(host, _floor(at, minute)) for host, at in _rows(sa.select(ticks.c.host, ticks.c.at))}
    hours = {(host, _floor(start, hour)) for host, start in rolled[minute]} - rolled[hour]
    for length, places in ((minute, there - rolled[minute]), (hour, hours)):
        # In their order: the last one noted of a host is the one that may not be over yet.
        _insert(notes, ({"host": host} | _span(start, length) for host, start in sorted(places)))


def _table(table: str, **columns: Any) -> sa.TableClause:
    return sa.table(table, *(sa.column(name, kind) for name, kind in columns.items()))


def _rolled(rollups: sa.TableClause, of: Any, length: timedelta) -> Iterator[tuple[Any, ...]]:
    return _rows(sa.select(of, rollups.c.start).where(rollups.c.length_s == round(length.total_seconds())))


def _rows(query: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of a query; SQLite's times have no zone, and are UTC."""
    found = op.get_bind().execute(query, execution_options={"yield_per": _BATCH})
    for row in found:
        yield tuple(one.replace(tzinfo=UTC) if isinstance(one, datetime) else one for one in row)


def _insert(notes: sa.TableClause, rows: Iterable[dict[str, Any]]) -> None:
    rows = iter(rows)
    while some := list(islice(rows, _BATCH)):
        op.get_bind().execute(sa.insert(notes), some)


def _span(start: datetime, length: timedelta) -> dict[str, Any]:
    # SQLite's type keeps what it is given, and times there are without a zone.
    zone = UTC if op.get_bind().dialect.name == "postgresql" else None
    times = {"start": start.replace(tzinfo=zone), "until": (start + length).replace(tzinfo=zone)}
    return {"length_s": round(length.total_seconds()), **times}


def _floor(moment: datetime, length: timedelta) -> datetime:
    return _EPOCH + (moment.astimezone(UTC) - _EPOCH) // length * length
