"""Warps: of hosts whether and how large, of VMs and applications which.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("hosts", sa.Column("warp", sa.String(length=32), nullable=False, server_default="off"))
    op.add_column("hosts", sa.Column("warp_max_us", sa.Integer(), nullable=False, server_default="50000"))
    for table in ("vms", "applications"):
        op.add_column(table, sa.Column("warp_us", sa.JSON()))


def downgrade() -> None:
    # The version before does not know these settings.
    decisions = sa.table("decisions", sa.column("knob"))
    knobs = ("warp", "bvt_warp", "group_identity", "slice", "scheduler")
    op.execute(decisions.delete().where(decisions.c.knob.in_(knobs)))
    for table in ("applications", "vms"):
        op.drop_column(table, "warp_us")
    for column in ("warp_max_us", "warp"):
        op.drop_column("hosts", column)
