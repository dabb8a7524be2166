"""History is cut by day in PostgreSQL: what is there stays together, before the first day; and back: whole tables.

Days have their partitions made and dropped by the manager, see ``manager.store.day_partitions``.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_MINUTE_S = 60


class _Cut(NamedTuple):
    """A table, the column that it is cut by, and the constraints and indexes that it has besides its key."""

    table: str
    moment: str
    unique: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...]


_PLAIN = (
    _Cut("tick_packs", "claimed_until", (), (("last_at",), ("host", "last_at"), ("host", "claimed_until"))),
    _Cut("decision_packs", "claimed_until", (), (("last_at",), ("host", "last_at"), ("host", "claimed_until"))),
    _Cut("window_packs", "start", ("application_id", "start"), (("start",),)),
)
_BY_LENGTH = (
    _Cut("rollups", "start", ("application_id", "length_s", "start"), (("length_s", "start"),)),
    _Cut("tick_rollups", "start", ("host", "length_s", "start"), (("start",),)),
)
"""Of minutes and hours: only minutes are cut by day."""


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    [tomorrow] = op.get_bind().execute(sa.text("SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + '1 day'")).one()
    for cut in _PLAIN:
        _put_aside(cut)
        _make_like(cut, f"RANGE ({cut.moment})", cut.moment)
        _take_over(cut, cut.table, f"{tomorrow}+00")
    for cut in _BY_LENGTH:
        minutes = f"{cut.table}_minutes"
        _put_aside(cut)
        _make_like(cut, "LIST (length_s)", "length_s", cut.moment)
        _do(f"CREATE TABLE {cut.table}_hours PARTITION OF {cut.table} DEFAULT")
        _do(
            f"CREATE TABLE {minutes} PARTITION OF {cut.table} FOR VALUES IN ({_MINUTE_S})"
            f" PARTITION BY RANGE ({cut.moment})"
        )
        _move(f"{cut.table}_before", cut.table, f"length_s <> {_MINUTE_S}")
        _do(f"ALTER TABLE {cut.table}_before RENAME TO {minutes}_before")
        _take_over(cut, minutes, f"{tomorrow}+00")


def downgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    for cut in (*_PLAIN, *_BY_LENGTH):
        table = cut.table
        _do(f"ALTER TABLE {table} RENAME TO {table}_cut")
        for name in _names(cut):
            _do(f"ALTER INDEX {name} RENAME TO {name}_cut")
        _make_like(cut, None, origin=f"{table}_cut")
        _do(f"INSERT INTO {table} SELECT * FROM {table}_cut")  # noqa: S608 - names of our own
        _do(f"DROP TABLE {table}_cut")


def _put_aside(cut: _Cut) -> None:
    """Rename a table, and all that another of its name has, too. It keeps no key, as its new one has more columns."""
    _do(f"ALTER TABLE {cut.table} RENAME TO {cut.table}_before")
    for name in _names(cut):
        _do(f"ALTER INDEX {name} RENAME TO {name}_before")
    _do(f"ALTER TABLE {cut.table}_before DROP CONSTRAINT pk_{cut.table}_before")


def _make_like(cut: _Cut, partition: str | None, *key: str, origin: str = "") -> None:
    """Make a table anew, empty, with the numbers of ``origin``, which is what was put aside."""
    table, origin = cut.table, origin or f"{cut.table}_before"
    _do(
        f"CREATE TABLE {table} (LIKE {origin} INCLUDING DEFAULTS)" + (f" PARTITION BY {partition}" if partition else "")
    )
    _do(f"ALTER SEQUENCE {table}_id_seq OWNED BY {table}.id")
    pk, *others = _names(cut)
    _do(f"ALTER TABLE {table} ADD CONSTRAINT {pk} PRIMARY KEY ({', '.join(('id', *key))})")
    if cut.unique:
        _do(f"ALTER TABLE {table} ADD CONSTRAINT {others.pop(0)} UNIQUE ({', '.join(cut.unique)})")
    for name, columns in zip(others, cut.indexes, strict=True):
        _do(f"CREATE INDEX {name} ON {table} ({', '.join(columns)})")


def _take_over(cut: _Cut, parent: str, end: str) -> None:
    """Have what was put aside be the part of ``parent`` before ``end``, and make the one for all that has no day."""
    before = f"{parent}_before"
    _do(f"CREATE TABLE {parent}_rest PARTITION OF {parent} DEFAULT")
    _move(before, parent, f"{cut.moment} >= '{end}'")
    _do(f"ALTER TABLE {parent} ATTACH PARTITION {before} FOR VALUES FROM (MINVALUE) TO ('{end}')")


def _move(source: str, target: str, rows: str) -> None:
    moved = f"DELETE FROM {source} WHERE {rows} RETURNING *"  # noqa: S608 - names of our own, as below
    _do(f"WITH moved AS ({moved}) INSERT INTO {target} SELECT * FROM moved")  # noqa: S608


def _names(cut: _Cut) -> list[str]:
    """Of the key, the constraint and the indexes."""
    unique = [f"uq_{cut.table}_{'_'.join(cut.unique)}"] if cut.unique else []
    return [f"pk_{cut.table}", *unique, *(f"ix_{cut.table}_{'_'.join(columns)}" for columns in cut.indexes)]


def _do(statement: str) -> None:
    op.execute(sa.text(statement.replace(":", r"\:")))
