"""Response times rolled up by minute and hour.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "rollups",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("buckets", sa.JSON(), nullable=False),
        sa.Column("requests", sa.Double()),
        sa.Column("ready", sa.JSON()),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("judged", sa.Integer(), nullable=False),
        sa.Column("missed", sa.Integer(), nullable=False),
        sa.Column("violations", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_rollups"),
        sa.UniqueConstraint("application_id", "length_s", "start", name="uq_rollups_application_id_length_s_start"),
        sa.ForeignKeyConstraint(
            ["application_id"], ["applications.id"], name="fk_rollups_application_id_applications", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_rollups_length_s_start", "rollups", ["length_s", "start"])
    op.create_table(
        "late_minutes",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("application_id", "start", name="pk_late_minutes"),
        sa.ForeignKeyConstraint(
            ["application_id"],
            ["applications.id"],
            name="fk_late_minutes_application_id_applications",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("late_minutes")
    op.drop_table("rollups")
