"""Shares of all VMs of a host in its row: so no row of a VM changes with each report.

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


def upgrade() -> None:
    op.add_column("hosts", sa.Column("shares", sa.String()))


def downgrade() -> None:
    op.drop_column("hosts", "shares")
