"""Until when somebody looks at a host, whose agent reports all in each interval meanwhile.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("hosts", sa.Column("watched_until", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("hosts", "watched_until")
