"""How uplinks are divided between critical and batch VMs of each host.

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
    op.add_column("hosts", sa.Column("network", sa.JSON()))


def downgrade() -> None:
    op.drop_column("hosts", "network")
