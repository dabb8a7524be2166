"""What hosts said of VMs that are not theirs, and until when hosts had VMs that are registered for none.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "vm_claims",
        sa.Column("vm", sa.String(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("refused_at", _TIME),
        sa.Column("told_at", _TIME),
        sa.Column("left_at", _TIME),
        sa.PrimaryKeyConstraint("vm", "host_id", name="pk_vm_claims"),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_vm_claims_host_id_hosts", ondelete="CASCADE"),
    )
    op.create_index("ix_vm_claims_host_id", "vm_claims", ["host_id"])


def downgrade() -> None:
    op.drop_table("vm_claims")
