"""The revision of each host's assignment, so that a registration concerns the hosts alone that it is about.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_COLUMNS = (("hosts", "assigned_revision"), ("revision", "assigned"))


def upgrade() -> None:
    for table, column in _COLUMNS:
        op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table, column in _COLUMNS:
        op.drop_column(table, column)
