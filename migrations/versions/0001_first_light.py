"""The first tables: hosts, VMs, applications, response times, decisions, events and tokens.

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


def _registered(kind: str, *columns: sa.schema.SchemaItem) -> None:
    op.create_table(
        kind,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("id", name=f"pk_{kind}"),
        sa.UniqueConstraint("name", name=f"uq_{kind}_name"),
        sqlite_autoincrement=True,
    )


def _records(kind: str, *columns: sa.schema.SchemaItem) -> None:
    op.create_table(
        kind,
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("record_id", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("id", name=f"pk_{kind}"),
        sa.UniqueConstraint("record_id", name=f"uq_{kind}_record_id"),
    )
    op.create_index(f"ix_{kind}_at_id", kind, ["at", "id"])
    op.create_index(f"ix_{kind}_host_at_id", kind, ["host", "at", "id"])
    op.create_index(f"ix_{kind}_vm_at_id", kind, ["vm", "at", "id"])


def upgrade() -> None:
    _registered(
        "hosts",
        sa.Column("mode", _WORD, nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("pinning", sa.Boolean(), nullable=False),
        sa.Column("last_seen_at", _TIME),
        sa.Column("agent_version", sa.String()),
        sa.Column("tick", sa.JSON()),
        sa.Column("capabilities", sa.JSON()),
    )
    _registered(
        "vms",
        sa.Column("vm_class", _WORD, nullable=False),
        sa.Column("libvirt_name", sa.String()),
        sa.Column("libvirt_uuid", sa.String()),
        sa.Column("host", sa.String()),
        sa.Column("weight", sa.Integer()),
        sa.Column("pin", sa.Boolean()),
        sa.UniqueConstraint("libvirt_uuid", name="uq_vms_libvirt_uuid"),
    )
    op.create_index("ix_vms_host", "vms", ["host"])
    op.create_index("ix_vms_libvirt_name", "vms", ["libvirt_name"])
    op.create_table(
        "vm_status",
        sa.Column("vm", sa.String(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("vm", name="pk_vm_status"),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_vm_status_host_id_hosts", ondelete="CASCADE"),
    )
    op.create_index("ix_vm_status_host_id", "vm_status", ["host_id"])
    _registered(
        "applications",
        sa.Column("mode", _WORD),
        sa.Column("sla_response_time_ms", sa.Double()),
        sa.Column("sla_percentile", sa.Double()),
        sa.Column("sla_max_rate_rps", sa.Double()),
        sa.Column("latest_from", _TIME),
    )
    op.create_table(
        "tiers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tiers"),
        sa.UniqueConstraint("application_id", "name", name="uq_tiers_application_id_name"),
        sa.ForeignKeyConstraint(
            ["application_id"], ["applications.id"], name="fk_tiers_application_id_applications", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "tier_vms",
        sa.Column("vm_id", sa.Integer(), nullable=False),
        sa.Column("tier_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("vm_id", name="pk_tier_vms"),
        sa.ForeignKeyConstraint(["vm_id"], ["vms.id"], name="fk_tier_vms_vm_id_vms", ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["tier_id"], ["tiers.id"], name="fk_tier_vms_tier_id_tiers", ondelete="CASCADE"),
    )
    op.create_index("ix_tier_vms_tier_id", "tier_vms", ["tier_id"])
    op.create_table(
        "windows",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("slot", _TIME, nullable=False),
        sa.Column("start_at", _TIME, nullable=False),
        sa.Column("end_at", _TIME, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("buckets", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_windows"),
        sa.UniqueConstraint("application_id", "slot", name="uq_windows_application_id_slot"),
        sa.ForeignKeyConstraint(
            ["application_id"], ["applications.id"], name="fk_windows_application_id_applications", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_windows_slot", "windows", ["slot"])
    _registered(
        "tokens",
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("last_used_at", _TIME),
        sa.UniqueConstraint("secret_hash", name="uq_tokens_secret_hash"),
    )
    _records(
        "decisions",
        sa.Column("vm", sa.String(), nullable=False),
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
        sa.Column("vm", sa.String()),
        sa.Column("severity", _WORD, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
    )


def downgrade() -> None:
    for table in ("events", "decisions", "tokens", "windows", "tier_vms", "tiers", "applications"):
        op.drop_table(table)
    for table in ("vm_status", "vms", "hosts"):
        op.drop_table(table)
