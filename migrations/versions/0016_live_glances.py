"""What lists show of the newest windows of a host's applications, beside these windows.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("hosts", sa.Column("glances", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("hosts", "glances")
