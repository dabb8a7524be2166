"""All tables, and an audit that only grows.

The database itself refuses to change rows of ``audit``, and lets one be removed only by a transaction that has said in
``audit_retention`` up to when it forgets. A later migration that rebuilds ``audit`` (batch mode on SQLite) must make
the triggers anew. Names of constraints follow the convention in ``manager.store.models.Base``.

Revision ID: 0001
Revises: none
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_WORD = sa.String(length=32)
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_CLAIMED = sa.text("claimed_at IS NOT NULL")

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
_TABLES = (
    "hosts", "vms", "vm_status", "applications", "tiers", "tier_vms", "past_applications", "windows",
    "rollups", "source_status", "ticks", "decisions", "events", "tokens", "users", "sessions",
    "sign_in_failures", "audit", "audit_retention", "domains", "vm_claims", "findings", "revision", "jobs",
    "tick_rollups", "join_tokens", "unrolled_windows", "unrolled_ticks", "uptimes", "arrivals",
)  # fmt: skip


def upgrade() -> None:
    _registered(
        "hosts",
        sa.Column("mode", _WORD, nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("pinning", sa.Boolean(), nullable=False),
        sa.Column("batch_idle", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("warp", _WORD, nullable=False, server_default="off"),
        sa.Column("warp_max_us", sa.Integer(), nullable=False, server_default="50000"),
        sa.Column("cache", _WORD, nullable=False, server_default="off"),
        sa.Column("cache_mount", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("bandwidth_warning", sa.Double(), nullable=False, server_default="0.9"),
        sa.Column("law", sa.JSON()),
        sa.Column("placement", sa.JSON()),
        sa.Column("adoptions", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("last_seen_at", _TIME),
        sa.Column("silent", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("back_at", _TIME),
        sa.Column("clock_ahead_s", sa.Double()),
        sa.Column("clock_off", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("agent_version", sa.String()),
        sa.Column("agent_instance", sa.String()),
        sa.Column("agent_boot", sa.String()),
        sa.Column("former_boot", sa.String()),
        sa.Column("rival_instance", sa.String()),
        sa.Column("rival_boot", sa.String()),
        sa.Column("rival_at", _TIME),
        sa.Column("tick", sa.JSON()),
        sa.Column("capabilities", sa.JSON()),
    )
    _registered(
        "vms",
        sa.Column("vm_class", _WORD, nullable=False),
        sa.Column("libvirt_name", sa.String(), index=True),
        sa.Column("libvirt_uuid", sa.String(), unique=True),
        sa.Column("host", sa.String(), index=True),
        sa.Column("weight", sa.Integer()),
        sa.Column("pin", sa.Boolean()),
        sa.Column("cpus", sa.String()),
        sa.Column("max_pcpus", sa.Double()),
        sa.Column("warp_us", sa.JSON()),
        sa.Column("scheduling", sa.JSON()),
        sa.Column("mode", _WORD),
        sa.Column("adoptions", sa.Integer(), nullable=False, server_default="0"),
    )
    op.create_table(
        "vm_status",
        sa.Column("vm", sa.String(), primary_key=True),
        _belongs("host_id", "hosts", nullable=False, index=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("cpu_share", sa.Double(), nullable=False, server_default="0"),
        sa.Column("run_delay_share", sa.Double(), nullable=False, server_default="0"),
        sa.Column("body", sa.String(), nullable=False),
    )
    _registered(
        "applications",
        sa.Column("mode", _WORD),
        sa.Column("sla_response_time_ms", sa.Double()),
        sa.Column("sla_percentile", sa.Double()),
        sa.Column("sla_max_rate_rps", sa.Double()),
        sa.Column("sharing", _WORD),
        sa.Column("warp_us", sa.JSON()),
        sa.Column("cache", sa.String()),
        sa.Column("sources", sa.JSON()),
    )
    op.create_table(
        "tiers",
        sa.Column("id", sa.Integer(), primary_key=True),
        _belongs("application_id", "applications", nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.UniqueConstraint("application_id", "name"),
    )
    op.create_table(
        "tier_vms",
        sa.Column("vm_id", sa.Integer(), sa.ForeignKey("vms.id", ondelete="RESTRICT"), primary_key=True),
        _belongs("tier_id", "tiers", nullable=False, index=True),
        sa.Column("position", sa.Integer(), nullable=False),
    )
    op.create_table(
        "past_applications",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(), nullable=False, unique=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("removed_at", _TIME, nullable=False),
        sa.Column("sla", sa.JSON()),
    )
    _numbered(
        "windows",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("slot", _TIME, nullable=False, index=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("start_at", _TIME, nullable=False),
        sa.Column("end_at", _TIME, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("buckets", sa.JSON(), nullable=False),
        sa.Column("requests", sa.Double()),
        sa.Column("ready", sa.JSON()),
        sa.Column("ahead", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("application_id", "slot", "origin"),
    )
    _numbered(
        "rollups",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("buckets", sa.JSON(), nullable=False),
        sa.Column("requests", sa.Double()),
        sa.Column("ready", sa.JSON()),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("judged", sa.Integer(), nullable=False),
        sa.Column("violated", sa.Integer(), nullable=False),
        sa.Column("violations", sa.JSON()),
        sa.UniqueConstraint("application_id", "length_s", "start"),
        sa.Index(None, "length_s", "start"),
    )
    op.create_table(
        "source_status",
        _belongs("application_id", "applications", primary_key=True),
        sa.Column("source", sa.String(), primary_key=True),
        _belongs("host_id", "hosts", primary_key=True, index=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
    )
    _numbered(
        "ticks",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False, index=True),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("claimed_at", _TIME),
        sa.UniqueConstraint("host", "at"),
        sa.Index(None, "host", "claimed_at", unique=True, sqlite_where=_CLAIMED, postgresql_where=_CLAIMED),
    )
    _records(
        "decisions",
        sa.Column("knob", _WORD, nullable=False),
        sa.Column("knob_index", sa.Integer(), nullable=False),
        sa.Column("before", sa.String(), nullable=False),
        sa.Column("after", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("mode", _WORD, nullable=False),
        sa.Column("outcome", _WORD, nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
    )
    _records(
        "events",
        sa.Column("severity", _WORD, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
    )
    _registered(
        "tokens",
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("secret_hash", sa.String(), nullable=False, unique=True),
        sa.Column("last_used_at", _TIME),
        sa.Column("expires_at", _TIME),
        sa.Column("application", sa.String()),
    )
    _registered(
        "users",
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=False),
        sa.Column("signed_in_at", _TIME),
    )
    _numbered(
        "sessions",
        sa.Column("secret_hash", sa.String(), nullable=False, unique=True),
        _belongs("user_id", "users", index=True),
        _belongs("token_id", "tokens", index=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_seen_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False, index=True),
        sa.Column("address", sa.String(), nullable=False),
    )
    _numbered(
        "sign_in_failures",
        sa.Column("at", _TIME, nullable=False, index=True),
        sa.Column("name_hash", sa.String(), nullable=False),
        sa.Column("network", sa.String(), nullable=False),
    )
    _numbered(
        "audit",
        sa.Column("at", _TIME, nullable=False),
        sa.Column("actor_kind", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("object_kind", sa.String(), nullable=False),
        sa.Column("object", sa.String(), nullable=False),
        sa.Column("before", sa.JSON()),
        sa.Column("after", sa.JSON()),
        sa.Index(None, "at", "id"),
        sa.Index(None, "object", "at", "id"),
        sa.Index(None, "object", "id"),
        sa.Index(None, "actor", "at", "id"),
        sa.Index(None, "actor", "id"),
    )
    _numbered(
        "audit_retention",
        sa.Column("before", _TIME, nullable=False),
    )
    op.create_table(
        "domains",
        _belongs("host_id", "hosts", primary_key=True),
        sa.Column("libvirt_uuid", sa.String(), primary_key=True),
        sa.Column("libvirt_name", sa.String(), nullable=False),
    )
    op.create_table(
        "vm_claims",
        sa.Column("vm", sa.String(), primary_key=True),
        _belongs("host_id", "hosts", primary_key=True, index=True),
        sa.Column("refused_at", _TIME),
        sa.Column("told_at", _TIME),
        sa.Column("left_at", _TIME),
    )
    op.create_table(
        "findings",
        _belongs("host_id", "hosts", primary_key=True),
        sa.Column("body", sa.String(), nullable=False),
    )
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("began_at", _TIME, nullable=False),
        sa.Column("since", _TIME, nullable=False),
    )
    _numbered(
        "tick_rollups",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False, index=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("ticks", sa.Integer(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.UniqueConstraint("host", "length_s", "start"),
    )
    _registered(
        "join_tokens",
        sa.Column("host", sa.String()),
        sa.Column("replace", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("secret_hash", sa.String(), nullable=False, unique=True),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("used_at", _TIME),
        sa.Column("used_by", sa.String()),
    )
    _numbered(
        "unrolled_windows",
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("taken", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("application_id", "length_s", "start", "origin"),
    )
    _numbered(
        "unrolled_ticks",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("length_s", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.UniqueConstraint("host", "length_s", "start"),
    )
    op.create_table(
        "uptimes",
        sa.Column("boot", sa.String(), primary_key=True),
        sa.Column("boot_s", sa.Double(), nullable=False),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
    )
    _numbered(
        "arrivals",
        sa.Column("kept", sa.String(), nullable=False),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("newest_id", _SERIAL, nullable=False),
        sa.UniqueConstraint("kept", "total_s"),
    )
    for statement in _POSTGRESQL if _is_postgresql() else _SQLITE:
        op.execute(statement)


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
    if _is_postgresql():
        op.execute("DROP FUNCTION audit_guard()")


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _registered(kind: str, *columns: sa.schema.SchemaItem) -> None:
    op.create_table(
        kind,
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False, unique=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        *columns,
        sqlite_autoincrement=True,
    )


def _belongs(column: str, table: str, **options: bool) -> sa.Column[int]:
    """A column of the row of another table with which a row is removed."""
    return sa.Column(column, sa.Integer(), sa.ForeignKey(f"{table}.id", ondelete="CASCADE"), **options)


def _numbered(kind: str, *columns: sa.schema.SchemaItem) -> None:
    """Rows that only their number tells apart, and of which there may be any number."""
    op.create_table(kind, sa.Column("id", _SERIAL, primary_key=True), *columns)


def _records(kind: str, *columns: sa.schema.SchemaItem) -> None:
    _numbered(
        kind,
        sa.Column("record_id", sa.String(), nullable=False, unique=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("vm", sa.String()),
        *columns,
        sa.Column("claimed_at", _TIME),
        sa.Index(None, "at", "id"),
        sa.Index(None, "host", "at", "id"),
        sa.Index(None, "vm", "at", "id"),
    )
