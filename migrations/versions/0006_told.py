"""Running domains and findings of hosts, and the number of what is registered.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "domains",
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("libvirt_uuid", sa.String(), nullable=False),
        sa.Column("libvirt_name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("host_id", "libvirt_uuid", name="pk_domains"),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_domains_host_id_hosts", ondelete="CASCADE"),
    )
    op.create_table(
        "findings",
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("host_id", name="pk_findings"),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_findings_host_id_hosts", ondelete="CASCADE"),
    )
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_orders"),
    )


def downgrade() -> None:
    for table in ("orders", "findings", "domains"):
        op.drop_table(table)
