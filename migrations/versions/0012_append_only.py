"""Tokens that expire, tokens for one application's response times, and an audit that only grows.

The database itself refuses to change rows of ``audit``, and lets one be removed only by a transaction that has said in
``audit_retention`` up to when it forgets. A later migration that rebuilds ``audit`` (batch mode on SQLite) must make
the triggers anew.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_UPDATE, _DELETE, _TRUNCATE = "audit_refuses_update", "audit_refuses_delete", "audit_refuses_truncate"
_MESSAGE = "the audit is append-only: retention alone removes old rows"

_SQLITE = (
    f"CREATE TRIGGER {_UPDATE} BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END",
    f"CREATE TRIGGER {_DELETE} BEFORE DELETE ON audit"  # noqa: S608 - of constants
    ' WHEN NOT EXISTS (SELECT 1 FROM audit_retention WHERE OLD."at" < audit_retention.before)'
    f" BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END",
)
_POSTGRESQL = (
    f"""CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM audit_retention WHERE OLD."at" < audit_retention.before) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '{_MESSAGE}' USING ERRCODE = 'integrity_constraint_violation';
END $$""",  # noqa: S608 - of constants
    f"CREATE TRIGGER {_UPDATE} BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_guard()",
    f"CREATE TRIGGER {_DELETE} BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_guard()",
    f"CREATE TRIGGER {_TRUNCATE} BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_guard()",
)


def upgrade() -> None:
    op.add_column("tokens", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.add_column("tokens", sa.Column("application", sa.String()))
    op.create_table(
        "audit_retention",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("before", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_retention"),
    )
    for statement in _POSTGRESQL if _is_postgresql() else _SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Tokens that expire, or are for one application, are removed: the tables of before would have them do more."""
    if _is_postgresql():
        for name in (_UPDATE, _DELETE, _TRUNCATE):
            op.execute(f"DROP TRIGGER {name} ON audit")
        op.execute("DROP FUNCTION audit_guard()")
    else:
        for name in (_UPDATE, _DELETE):
            op.execute(f"DROP TRIGGER {name}")
    op.drop_table("audit_retention")
    # Migrations on SQLite do not enforce foreign keys, so what refers to a token is removed by name.
    narrowed = "SELECT id FROM tokens WHERE expires_at IS NOT NULL OR application IS NOT NULL"
    op.execute(f"DELETE FROM sessions WHERE token_id IN ({narrowed})")  # noqa: S608 - of constants
    op.execute("DELETE FROM tokens WHERE expires_at IS NOT NULL OR application IS NOT NULL")
    op.drop_column("tokens", "application")
    op.drop_column("tokens", "expires_at")


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
