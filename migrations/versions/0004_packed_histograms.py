"""Histograms of windows and roll-ups as packed bytes in place of JSON: see ``manager.model.packed_histogram``.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from manager.model.histogram import Histogram
from manager.model.packed_histogram import pack, unpack

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = ("windows", "rollups")
_BATCH = 5000
_JSON, _PACKED = ("buckets", sa.JSON()), ("histogram", sa.LargeBinary())
_Column = tuple[str, sa.types.TypeEngine[Any]]


def upgrade() -> None:
    for table in _TABLES:
        _replace(table, _JSON, _PACKED, _packed)


def downgrade() -> None:
    for table in _TABLES:
        _replace(table, _PACKED, _JSON, _unpacked)


def _packed(buckets: Mapping[str, int]) -> bytes:
    return pack(Histogram({int(bucket): count for bucket, count in buckets.items()}))


def _unpacked(packed: bytes) -> dict[str, int]:
    return {str(bucket): count for bucket, count in unpack(packed).buckets.items()}


def _replace(name: str, old: _Column, new: _Column, convert: Callable[[Any], object]) -> None:
    """Put a column in another one's place, with each value converted."""
    op.add_column(name, sa.Column(*new))
    table = sa.table(name, sa.column("id", sa.BigInteger()), sa.column(*old), sa.column(*new))
    connection = op.get_bind()
    change = sa.update(table).where(table.c.id == sa.bindparam("number")).values({new[0]: sa.bindparam("value")})
    last = 0
    while True:
        some = sa.select(table.c.id, table.c[old[0]]).where(table.c.id > last).order_by(table.c.id).limit(_BATCH)
        rows = connection.execute(some).all()
        if not rows:
            break
        connection.execute(change, [{"number": number, "value": convert(value)} for number, value in rows])
        last = rows[-1][0]
    with op.batch_alter_table(name) as batch:  # SQLite makes the table anew
        batch.alter_column(new[0], existing_type=new[1], nullable=False)
        batch.drop_column(old[0])
