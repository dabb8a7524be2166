"""Which agent serves a host, and which other one asked to.

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

_NAMES = "agent_instance", "agent_boot", "former_boot", "rival_instance", "rival_boot"


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("hosts", sa.Column(name, sa.String()))
    op.add_column("hosts", sa.Column("rival_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    for name in ("rival_at", *_NAMES):
        op.drop_column("hosts", name)
