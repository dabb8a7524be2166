"""Memory bandwidth: above which share of it an operator is warned.

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


def upgrade() -> None:
    op.add_column("hosts", sa.Column("bandwidth_warning", sa.Double(), nullable=False, server_default="0.9"))


def downgrade() -> None:
    op.drop_column("hosts", "bandwidth_warning")
