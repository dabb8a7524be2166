"""Older windows and ticks are packed by the quarter of an hour, which is written from now on; and back: by the minute.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

from manager.model.packed_records import moment_of, pack_ticks, unpack_ticks
from manager.model.packed_windows import unpack_windows
from migrations.older_formats import windows_together

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_MINUTE_US = 60_000_000
_BATCH = 500
_PACKS = sa.table(
    "window_packs",
    sa.column("id", sa.BigInteger()),
    sa.column("application_id", sa.Integer()),
    sa.column("start", _TIME),
    sa.column("body", sa.LargeBinary()),
)
_TICKS = sa.table(
    "tick_packs",
    sa.column("id", sa.BigInteger()),
    sa.column("host", sa.String()),
    *(sa.column(name, _TIME) for name in ("last_at", "claimed_from", "claimed_until")),
    sa.column("body", sa.LargeBinary()),
)


def upgrade() -> None:
    """Rows of a minute are read as they are. Ticks of the last hours are joined, all else goes in its time."""


def downgrade() -> None:
    connection = op.get_bind()
    for row in _rows(connection, _PACKS):
        _split_windows(connection, row.id, row.application_id, row.body)
    for row in _rows(connection, _TICKS):
        _split_ticks(connection, row.id, row.host, row.body)


def _rows(connection: sa.Connection, table: sa.TableClause) -> Iterator[sa.Row[Any]]:
    """The rows that are there now, though others come and go."""
    number, last = table.c.id, 0
    newest = connection.scalar(sa.select(sa.func.max(number))) or 0
    some = sa.select(table).where(number <= newest).order_by(number).limit(_BATCH)
    while rows := connection.execute(some.where(number > last)).all():
        last = rows[-1].id
        yield from rows


def _split_ticks(connection: sa.Connection, number: int, host: str, body: bytes) -> None:
    """Make a row for each minute of a row with several."""
    ticks = sorted(unpack_ticks(body), key=lambda tick: tick.at_us)
    minutes = [[*some] for _, some in groupby(ticks, lambda tick: tick.at_us // _MINUTE_US)]
    if len(minutes) <= 1 or ticks[-1].at_us - ticks[0].at_us < _MINUTE_US:
        return
    connection.execute(sa.delete(_TICKS).where(_TICKS.c.id == number))
    for some in minutes:
        claimed_us = [tick.at_us if tick.claimed_us is None else tick.claimed_us for tick in some]
        times = {"last_at": some[-1].at_us, "claimed_from": min(claimed_us), "claimed_until": max(claimed_us)}
        columns = {name: _stored(connection, time_us) for name, time_us in times.items()}
        connection.execute(sa.insert(_TICKS).values(host=host, body=pack_ticks(some), **columns))


def _split_windows(connection: sa.Connection, number: int, application: int, body: bytes) -> None:
    """Make a row for each minute of a row with several. What such a row has already stays beside what is added."""
    windows = sorted(unpack_windows(body), key=lambda window: (window.slot_us, window.origin))
    minutes = [(start_us, [*some]) for start_us, some in groupby(windows, lambda one: one.slot_us // _MINUTE_US)]
    if len(minutes) <= 1:
        return
    connection.execute(sa.delete(_PACKS).where(_PACKS.c.id == number))
    for minute, some in minutes:
        start = _stored(connection, minute * _MINUTE_US)
        there = (_PACKS.c.application_id == application) & (_PACKS.c.start == start)
        before = connection.scalar(sa.select(_PACKS.c.body).where(there))
        if before is None:
            row = {"application_id": application, "start": start, "body": windows_together(some)}
            connection.execute(sa.insert(_PACKS).values(row))
        else:
            both = windows_together([*unpack_windows(before), *some])
            connection.execute(sa.update(_PACKS).where(there).values(body=both))


def _stored(connection: sa.Connection, time_us: int) -> datetime:
    """A time, in microseconds since the epoch, as the database stores it: SQLite without a time zone."""
    moment = moment_of(time_us)
    return moment.replace(tzinfo=None) if connection.dialect.name == "sqlite" else moment
