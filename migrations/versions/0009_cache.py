"""The cache: of hosts whether it is divided, of applications which part they get.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("hosts", sa.Column("cache", sa.String(length=32), nullable=False, server_default="off"))
    op.add_column("hosts", sa.Column("cache_mount", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("applications", sa.Column("cache", sa.String()))


def downgrade() -> None:
    # The version before does not know these settings.
    decisions = sa.table("decisions", sa.column("knob"))
    op.execute(decisions.delete().where(decisions.c.knob.in_(("cache_ways", "cache_group"))))
    op.drop_column("applications", "cache")
    for column in ("cache_mount", "cache"):
        op.drop_column("hosts", column)
