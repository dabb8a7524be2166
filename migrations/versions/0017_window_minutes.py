"""Windows of a minute that a host's history brought together are one row; and back: each is one.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite

from manager.model.packed_histogram import UnreadHistogram
from manager.model.packed_records import moment_of
from manager.model.packed_windows import PackedWindow, unpack_windows

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_BATCH = 500
_WINDOWS = sa.table(
    "windows",
    sa.column("application_id", sa.Integer()),
    sa.column("slot", _TIME),
    sa.column("origin", sa.String()),
    sa.column("start_at", _TIME),
    sa.column("end_at", _TIME),
    sa.column("count", sa.BigInteger()),
    sa.column("histogram", sa.LargeBinary()),
    sa.column("requests", sa.Float()),
    sa.column("ready", sa.JSON(none_as_null=True)),
    sa.column("ahead", sa.Boolean()),
)


def upgrade() -> None:
    op.create_table(
        "window_minutes",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("newest", _TIME, nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("digest", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_window_minutes"),
        sa.UniqueConstraint(
            "application_id", "newest", "origin", "digest", name="uq_window_minutes_application_id_newest_origin_digest"
        ),
    )


def downgrade() -> None:
    connection = op.get_bind()
    minutes = sa.table(
        "window_minutes",
        sa.column("id", sa.BigInteger()),
        sa.column("application_id", sa.Integer()),
        sa.column("body", sa.LargeBinary()),
    )
    some = sa.select(minutes).order_by(minutes.c.id).limit(_BATCH)
    last = 0
    while rows := connection.execute(some.where(minutes.c.id > last)).all():
        last = rows[-1].id
        for row in rows:
            for window in unpack_windows(row.body):
                connection.execute(_stored(connection, row.application_id, window))
    op.drop_table("window_minutes")


def _stored(connection: sa.Connection, application: int, window: PackedWindow) -> sa.Executable:
    """Store a window, unless as much or more is known of its slot."""
    embedded = connection.dialect.name == "sqlite"

    def moment(time_us: int) -> datetime:
        """As the database stores it: SQLite without a time zone."""
        return moment_of(time_us).replace(tzinfo=None) if embedded else moment_of(time_us)

    insert: Any = (
        (sqlite if embedded else postgresql)
        .insert(_WINDOWS)
        .values(
            application_id=application,
            slot=moment(window.slot_us),
            origin=window.origin,
            start_at=moment(window.start_us),
            end_at=moment(window.end_us),
            count=UnreadHistogram(window.histogram).count,
            histogram=window.histogram,
            requests=window.requests,
            ready=window.ready,
        )
    )
    changed = ("start_at", "end_at", "count", "histogram", "requests", "ready")
    return insert.on_conflict_do_update(
        index_elements=["application_id", "slot", "origin"],
        set_={name: insert.excluded[name] for name in changed} | {"ahead": sa.false()},
        where=(_WINDOWS.c.count < insert.excluded["count"]) | _WINDOWS.c.ahead,
    )
