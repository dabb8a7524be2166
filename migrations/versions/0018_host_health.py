"""What tells a host's health, beside its last tick, which lists of all hosts need not parse for it.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_COLUMNS: tuple[tuple[str, str, type[sa.types.TypeEngine[object]]], ...] = (
    ("tick_errors", "errors", sa.BigInteger),
    ("tick_ms", "duration_ms", sa.Double),
    ("libvirt_connected", "libvirt_connected", sa.Boolean),
    ("busy_share", "host_cpu_share", sa.Double),
)


def upgrade() -> None:
    for column, _, kind in _COLUMNS:
        op.add_column("hosts", sa.Column(column, kind(), nullable=True))
    hosts = sa.table("hosts", sa.column("tick", sa.JSON()), *(sa.column(name, kind()) for name, _, kind in _COLUMNS))
    if op.get_bind().dialect.name == "postgresql":
        known = {column: sa.cast(hosts.c.tick.op("->>")(field), kind()) for column, field, kind in _COLUMNS}
    else:
        known = {column: sa.func.json_extract(hosts.c.tick, f"$.{field}") for column, field, _ in _COLUMNS}
    op.execute(hosts.update().where(hosts.c.tick.is_not(None)).values(known))


def downgrade() -> None:
    for column, _, _ in _COLUMNS:
        op.drop_column("hosts", column)
