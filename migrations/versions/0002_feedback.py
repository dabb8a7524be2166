"""Response times from several origins, their sources, the feedback law of a host, and the history of its ticks.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_WORD = sa.String(length=32)
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # Plain ADD COLUMN for what operators register: rebuilding a table on SQLite would forget which ids were used.
    op.add_column("hosts", sa.Column("law", sa.JSON()))
    op.add_column("applications", sa.Column("sharing", _WORD))
    op.add_column("applications", sa.Column("sources", sa.JSON()))
    op.drop_column("applications", "latest_from")
    op.add_column("windows", sa.Column("origin", sa.String(), nullable=False, server_default=""))
    op.add_column("windows", sa.Column("requests", sa.Double()))
    op.add_column("windows", sa.Column("ready", sa.JSON()))
    windows = sa.table("windows", sa.column("requests"), sa.column("count"))
    op.execute(windows.update().values(requests=windows.c.count))
    with op.batch_alter_table("windows") as batch:
        batch.alter_column("origin", server_default=None)
        batch.drop_constraint("uq_windows_application_id_slot", type_="unique")
        batch.create_unique_constraint("uq_windows_application_id_slot_origin", ["application_id", "slot", "origin"])
    op.create_table(
        "source_status",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("application_id", "source", "host_id", name="pk_source_status"),
        sa.ForeignKeyConstraint(
            ["application_id"],
            ["applications.id"],
            name="fk_source_status_application_id_applications",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_source_status_host_id_hosts", ondelete="CASCADE"),
    )
    op.create_index("ix_source_status_host_id", "source_status", ["host_id"])
    op.create_table(
        "ticks",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ticks"),
        sa.UniqueConstraint("host", "at", name="uq_ticks_host_at"),
    )
    op.create_index("ix_ticks_at", "ticks", ["at"])


def downgrade() -> None:
    """Windows that came from agents are lost: the tables of before have one origin."""
    op.drop_table("ticks")
    op.drop_table("source_status")
    windows = sa.table("windows", sa.column("origin"), sa.column("application_id"), sa.column("slot"))
    op.execute(windows.delete().where(windows.c.origin != ""))
    with op.batch_alter_table("windows") as batch:
        batch.drop_constraint("uq_windows_application_id_slot_origin", type_="unique")
        batch.create_unique_constraint("uq_windows_application_id_slot", ["application_id", "slot"])
        batch.drop_column("ready")
        batch.drop_column("requests")
        batch.drop_column("origin")
    op.add_column("applications", sa.Column("latest_from", _TIME))
    applications = sa.table("applications", sa.column("id"), sa.column("latest_from"))
    newest = sa.select(sa.func.max(windows.c.slot)).where(windows.c.application_id == applications.c.id)
    op.execute(applications.update().values(latest_from=newest.scalar_subquery()))
    op.drop_column("applications", "sources")
    op.drop_column("applications", "sharing")
    op.drop_column("hosts", "law")
