"""Histograms of older windows are packed in pairs, which is written from now on; and back: as before.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from manager.model.packed_windows import unpack_windows
from migrations.older_formats import windows_together

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_PAIRED = b"\x03"
_BATCH = 500
_PACKS = sa.table("window_packs", sa.column("id", sa.BigInteger()), sa.column("body", sa.LargeBinary()))
_HOSTS = sa.table("hosts", sa.column("live", sa.LargeBinary()))


def upgrade() -> None:
    """Rows in formats before are read as they are."""


def downgrade() -> None:
    """The newest windows of hosts come again with the next reports."""
    connection = op.get_bind()
    connection.execute(sa.update(_HOSTS).values(live=None))
    last = 0
    while rows := connection.execute(
        sa.select(_PACKS).where(_PACKS.c.id > last).order_by(_PACKS.c.id).limit(_BATCH)
    ).all():
        last = rows[-1].id
        for number, body in rows:
            if body[:1] == _PAIRED:
                older = windows_together(unpack_windows(body))
                connection.execute(sa.update(_PACKS).where(_PACKS.c.id == number).values(body=older))
