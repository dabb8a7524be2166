"""Interference tables of applications, and how far they were read from history.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _application() -> sa.Column[int]:
    return sa.Column("application_id", sa.Integer(), nullable=False)


def _of_application(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_application_id_applications"
    return sa.ForeignKeyConstraint(["application_id"], ["applications.id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "interference_looks",
        _application(),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("percentile", sa.Double(), nullable=False),
        sa.Column("sla_ms", sa.Double(), nullable=False),
        sa.Column("size", sa.String(), nullable=False),
        sa.Column("size_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("why", sa.String(), nullable=False),
        _of_application("interference_looks"),
        sa.PrimaryKeyConstraint("application_id", name="pk_interference_looks"),
    )
    op.create_table(
        "interference_tables",
        sa.Column("id", _NUMBER, nullable=False),
        _application(),
        sa.Column("host_type", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("minutes", sa.Integer(), nullable=False),
        sa.Column("peak_rps", sa.Double(), nullable=False),
        sa.Column("loads", sa.String(), nullable=False),
        sa.Column("measured", sa.String(), nullable=False),
        _of_application("interference_tables"),
        sa.PrimaryKeyConstraint("id", name="pk_interference_tables"),
        sa.UniqueConstraint("application_id", "host_type", name="uq_interference_tables_application_id_host_type"),
    )


def downgrade() -> None:
    op.drop_table("interference_tables")
    op.drop_table("interference_looks")
