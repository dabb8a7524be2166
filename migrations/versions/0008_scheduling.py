"""Scheduling of VMs: policy, priority or nice value, and limit of their vCPU threads.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vms", sa.Column("scheduling", sa.JSON()))


def downgrade() -> None:
    # The version before does not know these settings.
    decisions = sa.table("decisions", sa.column("knob"))
    op.execute(decisions.delete().where(decisions.c.knob.in_(("scheduling", "rt_runtime", "vcpu_rt_runtime"))))
    op.drop_column("vms", "scheduling")
