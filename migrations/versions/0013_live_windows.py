"""The newest windows of a host's applications, as its last live report said.

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


def upgrade() -> None:
    op.add_column("hosts", sa.Column("live", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("hosts", "live")
