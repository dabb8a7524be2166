"""Proposals to migrate VMs, and how migrations away from a host begin.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("hosts", sa.Column("migrate", sa.String(length=32), nullable=False, server_default="propose"))
    op.create_table(
        "proposals",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("vm", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("destination", sa.String(), nullable=False),
        sa.Column("application", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("predictions", sa.JSON(), nullable=False),
        sa.Column("unpredicted", sa.String(), nullable=False),
        sa.Column("decided_by", sa.String(), nullable=True),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("copied", sa.Double(), nullable=True),
        sa.Column("detail", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_proposals"),
    )
    op.create_index("ix_proposals_at", "proposals", ["at"])
    op.create_index("ix_proposals_source_state", "proposals", ["source", "state"])


def downgrade() -> None:
    op.drop_table("proposals")
    op.drop_column("hosts", "migrate")
