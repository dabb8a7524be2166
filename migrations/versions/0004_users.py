"""People: users, their sessions, failed sign-ins, and the audit of what was changed by whom.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=False),
        sa.Column("signed_in_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sessions",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer()),
        sa.Column("token_id", sa.Integer()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_seen_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("secret_hash", name="uq_sessions_secret_hash"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_sessions_user_id_users", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_sessions_token_id_tokens", ondelete="CASCADE"),
    )
    for column in ("user_id", "token_id", "expires_at"):
        op.create_index(f"ix_sessions_{column}", "sessions", [column])
    op.create_table(
        "sign_in_failures",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("name_hash", sa.String(), nullable=False),
        sa.Column("network", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sign_in_failures"),
    )
    op.create_index("ix_sign_in_failures_at", "sign_in_failures", ["at"])
    op.create_table(
        "audit",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("who_kind", sa.String(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("object_kind", sa.String(), nullable=False),
        sa.Column("object", sa.String(), nullable=False),
        sa.Column("before", sa.JSON()),
        sa.Column("after", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at_id", "audit", ["at", "id"])
    op.create_index("ix_audit_who_at_id", "audit", ["who", "at", "id"])
    op.create_index("ix_audit_object_at_id", "audit", ["object", "at", "id"])


def downgrade() -> None:
    """Users and the audit are lost: the tables of before know tokens only."""
    for table in ("audit", "sign_in_failures", "sessions", "users"):
        op.drop_table(table)
