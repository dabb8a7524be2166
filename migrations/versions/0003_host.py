"""Placement, the idle class, limits of VMs, settings taken back, and decisions about a host itself.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_WORD = sa.String(length=32)


def upgrade() -> None:
    # Plain ADD COLUMN for what operators register: rebuilding a table on SQLite would forget which ids were used.
    op.add_column("hosts", sa.Column("batch_idle", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("hosts", sa.Column("placement", sa.JSON()))
    op.add_column("hosts", sa.Column("adoptions", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("vms", sa.Column("cpus", sa.String()))
    op.add_column("vms", sa.Column("max_pcpus", sa.Double()))
    op.add_column("vms", sa.Column("mode", _WORD))
    op.add_column("vms", sa.Column("adoptions", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("decisions") as batch:
        batch.alter_column("vm", existing_type=sa.String(), nullable=True)


def downgrade() -> None:
    """Decisions about a host itself are lost: the table of before names a VM in each."""
    decisions = sa.table("decisions", sa.column("vm"))
    op.execute(decisions.delete().where(decisions.c.vm.is_(None)))
    with op.batch_alter_table("decisions") as batch:
        batch.alter_column("vm", existing_type=sa.String(), nullable=False)
    for column in ("adoptions", "mode", "max_pcpus", "cpus"):
        op.drop_column("vms", column)
    for column in ("adoptions", "placement", "batch_idle"):
        op.drop_column("hosts", column)
