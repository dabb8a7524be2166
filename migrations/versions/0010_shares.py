"""Statuses of VMs: their shares of CPU time, which change all the time, get columns of their own.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SHARES = ("cpu_share", "run_delay_share")
_STATUS = sa.table("vm_status", sa.column("vm"), sa.column("body"), *(sa.column(name, sa.Double()) for name in _SHARES))


def upgrade() -> None:
    for name in _SHARES:
        op.add_column("vm_status", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    connection = op.get_bind()
    for vm, body in connection.execute(sa.select(_STATUS.c.vm, _STATUS.c.body)).all():
        fields = json.loads(body)
        shares = {name: fields.pop(name, 0.0) for name in _SHARES}
        connection.execute(_STATUS.update().where(_STATUS.c.vm == vm).values(body=json.dumps(fields), **shares))


def downgrade() -> None:
    connection = op.get_bind()
    for vm, body, *shares in connection.execute(sa.select(_STATUS.c.vm, _STATUS.c.body, *_STATUS.c[_SHARES])).all():
        fields = json.loads(body) | dict(zip(_SHARES, shares, strict=True))
        connection.execute(_STATUS.update().where(_STATUS.c.vm == vm).values(body=json.dumps(fields)))
    for name in _SHARES:
        op.drop_column("vm_status", name)
