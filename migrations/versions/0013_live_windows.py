"""The newest windows of a host's applications, as its last live report said; and back: packed rows as before.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

from manager.model.packed_records import PackedDecision, unpack_decisions, unpack_ticks
from manager.model.packed_windows import unpack_windows
from migrations.older_formats import deflated

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_COLUMNS = b"\x02"
_BATCH = 1000


def upgrade() -> None:
    op.add_column("hosts", sa.Column("live", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    _rewrite("window_packs", _windows)
    _rewrite("tick_packs", _ticks)
    _rewrite("decision_packs", _decisions)
    op.drop_column("hosts", "live")


def _rewrite(table: str, older: Callable[[bytes], bytes]) -> None:
    """Bring the rows of a table into the format that the program before reads."""
    connection = op.get_bind()
    packs = sa.table(table, sa.column("id", sa.BigInteger()), sa.column("body", sa.LargeBinary()))
    last = 0
    while rows := connection.execute(
        sa.select(packs).where(packs.c.id > last).order_by(packs.c.id).limit(_BATCH)
    ).all():
        last = rows[-1].id
        for number, body in rows:
            if body[:1] == _COLUMNS:
                connection.execute(sa.update(packs).where(packs.c.id == number).values(body=older(body)))


def _windows(body: bytes) -> bytes:
    windows = unpack_windows(body)
    columns = {
        "slot_us": [window.slot_us for window in windows],
        "origin": [window.origin for window in windows],
        "start_us": [window.start_us - window.slot_us for window in windows],
        "end_us": [window.end_us - window.slot_us for window in windows],
        "requests": [window.requests for window in windows],
        "ready": [window.ready for window in windows],
        "length": [len(window.histogram) for window in windows],
    }
    text = deflated(json.dumps(columns, separators=(",", ":")).encode())
    return struct.pack(">BI", 1, len(text)) + text + b"".join(window.histogram for window in windows)


def _ticks(body: bytes) -> bytes:
    ticks = unpack_ticks(body)
    times = {"at_us": [tick.at_us for tick in ticks], "claimed_us": [tick.claimed_us for tick in ticks]}
    return b"\x01" + deflated("\n".join([json.dumps(times), *(tick.body for tick in ticks)]).encode())


def _decisions(body: bytes) -> bytes:
    decisions = unpack_decisions(body)
    names = [name for name in PackedDecision.__dataclass_fields__ if name != "record_id" or not decisions]
    columns = {name: [getattr(decision, name) for decision in decisions] for name in names}
    ids = b"".join(uuid.UUID(decision.record_id).bytes for decision in decisions)
    return (
        b"\x01" + struct.pack(">H", len(decisions)) + ids + deflated(json.dumps(columns, ensure_ascii=False).encode())
    )
