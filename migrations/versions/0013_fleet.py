"""Jobs that run once in the fleet, silent hosts and their clocks, ticks rolled up, late minutes kept for a while,
response times that outlive their application, and tokens to join with.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_TIMES = "windows", "rollups"
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in ("silent", "clock_off"):
        op.add_column("hosts", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("hosts", sa.Column("clock_ahead_s", sa.Double()))
    op.add_column("hosts", sa.Column("back_at", _TIME))
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("began_at", _TIME, nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_jobs"),
    )
    op.create_table(
        "tick_rollups",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("ticks", sa.Integer(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tick_rollups"),
        sa.UniqueConstraint("host", "length_s", "start", name="uq_tick_rollups_host_length_s_start"),
    )
    op.create_index("ix_tick_rollups_start", "tick_rollups", ["start"])
    op.create_table(
        "past_applications",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("removed_at", _TIME, nullable=False),
        sa.Column("sla", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_past_applications"),
        sa.UniqueConstraint("name", name="uq_past_applications_name"),
    )
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("used_at", _TIME),
        sa.Column("used_by", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_join_tokens"),
        sa.UniqueConstraint("name", name="uq_join_tokens_name"),
        sa.UniqueConstraint("secret_hash", name="uq_join_tokens_secret_hash"),
        sqlite_autoincrement=True,
    )
    for table in _TIMES:
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"fk_{table}_application_id_applications", type_="foreignkey")
    _late_minutes(sa.Column("noted_at", _TIME, nullable=False), sa.Column("pending", sa.Boolean(), nullable=False))


def downgrade() -> None:
    """Response times of applications that are not registered any more are lost.

    Late minutes that were not rolled up again yet stay as they are in the roll-ups.
    """
    for table in _TIMES:
        rows = sa.table(table, sa.column("application_id"))
        applications = sa.table("applications", sa.column("id"))
        op.execute(sa.delete(rows).where(rows.c.application_id.not_in(sa.select(applications.c.id))))
        with op.batch_alter_table(table) as batch:
            name = f"fk_{table}_application_id_applications"
            batch.create_foreign_key(name, "applications", ["application_id"], ["id"], ondelete="CASCADE")
    op.drop_table("join_tokens")
    op.drop_table("past_applications")
    _late_minutes()
    op.drop_table("tick_rollups")
    op.drop_table("jobs")
    for name in ("back_at", "clock_ahead_s", "clock_off", "silent"):
        op.drop_column("hosts", name)


def _late_minutes(*more: sa.Column[object]) -> None:
    """Make the table anew: it holds what is done within a minute."""
    op.drop_table("late_minutes")
    op.create_table(
        "late_minutes",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        *more,
        sa.PrimaryKeyConstraint("application_id", "start", name="pk_late_minutes"),
        sa.ForeignKeyConstraint(
            ["application_id"],
            ["applications.id"],
            name="fk_late_minutes_application_id_applications",
            ondelete="CASCADE",
        ),
    )
