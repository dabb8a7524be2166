"""How memory, disks and uplinks are divided between critical and batch VMs of each host.

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


def upgrade() -> None:
    op.add_column("hosts", sa.Column("memory", sa.JSON()))
    op.add_column("hosts", sa.Column("disk", sa.JSON()))
    op.add_column("hosts", sa.Column("network", sa.JSON()))


def downgrade() -> None:
    op.drop_column("hosts", "network")
    op.drop_column("hosts", "disk")
    op.drop_column("hosts", "memory")
