"""Ticks and decisions of a minute in few rows of packed bytes, and a table for older windows, packed as time goes by.

See ``manager.model.packed_records`` and ``manager.model.packed_windows``.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

from manager.model.packed_histogram import UnreadHistogram, pack
from manager.model.packed_records import (
    PackedDecision,
    PackedTick,
    microseconds,
    moment_of,
    pack_decisions,
    pack_ticks,
    unpack_decisions,
    unpack_ticks,
)
from manager.model.packed_windows import unpack_windows
from manager.store.window_packs import StoredWindow, joined_origins, unpacked

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TIME = sa.DateTime(timezone=True)
_BATCH = 2000
_MINUTE_US, _DAY_US = 60_000_000, 86_400_000_000
_PLAIN = ("record_id", "vm", "knob", "before", "after", "reason", "policy", "mode", "outcome", "detail")

_Rows = Iterator[dict[str, Any]]


def upgrade() -> None:
    about = sa.Column("about", sa.String(), nullable=False)
    tick_packs, decision_packs = _make_packs("tick_packs"), _make_packs("decision_packs", about)
    decided = op.create_table(
        "decided_vms",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("vm", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("day", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decided_vms"),
        sa.UniqueConstraint("vm", "host", "day", name="uq_decided_vms_vm_host_day"),
    )
    op.create_index("ix_decided_vms_day", "decided_vms", ["day"])
    _fill(tick_packs, _tick_packs(_rows_of(_ticks())))
    seen: set[tuple[str, str, int]] = set()
    _fill(decision_packs, _decision_packs(_rows_of(_decisions()), seen))
    _fill(
        decided, ({"vm": vm, "host": host, "day": _stored(day_us)} for vm, host, day_us in sorted(seen)), numbered=False
    )
    op.drop_table("ticks")
    op.drop_table("decisions")
    _make_window_packs()


def downgrade() -> None:
    ticks, decisions = _make_ticks(), _make_decisions()
    _fill(ticks, _unpacked(_packs("tick_packs"), unpack_ticks, _tick_columns))
    _fill(decisions, _unpacked(_packs("decision_packs"), unpack_decisions, _decision_columns))
    _unpack_windows()
    for table in ("tick_packs", "decision_packs", "decided_vms", "window_packs"):
        op.drop_table(table)


def _make_packs(name: str, *columns: sa.Column[Any]) -> sa.Table:
    table = op.create_table(
        name,
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("last_at", _TIME, nullable=False),
        sa.Column("claimed_from", _TIME, nullable=False),
        sa.Column("claimed_until", _TIME, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
    )
    for indexed in (["last_at"], ["host", "last_at"], ["host", "claimed_until"]):
        op.create_index(f"ix_{name}_{'_'.join(indexed)}", name, indexed)
    return table


def _make_window_packs() -> None:
    op.create_table(
        "window_packs",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("application_id", sa.Integer(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_window_packs"),
        sa.UniqueConstraint("application_id", "start", name="uq_window_packs_application_id_start"),
    )
    op.create_index("ix_window_packs_start", "window_packs", ["start"])


def _unpack_windows() -> None:
    """Windows as rows again, joined with rows of the same origin and slot, which came late, as readers of both do."""
    names = ("application_id", "origin", "count", "requests")
    windows = sa.table(
        "windows",
        *map(sa.column, ("id", *names)),
        sa.column("histogram", sa.LargeBinary()),
        sa.column("ready", sa.JSON(none_as_null=True)),
        sa.column("ahead", sa.Boolean()),
        *_times("slot", "start_at", "end_at"),
    )
    packs = sa.table("window_packs", sa.column("id"), sa.column("application_id"), sa.column("body", sa.LargeBinary()))
    connection = op.get_bind()
    for row in _rows_of(sa.select(packs).order_by(packs.c.id)):
        # A row may have a window twice: revision 0014 adds what came late to minutes as they were before.
        packed = [unpacked(row.application_id, window) for window in unpack_windows(row.body)]
        places = {(window.slot, window.origin) for window in packed}
        slots = {_stored(microseconds(slot)) for slot, _ in places}
        present = sa.select(windows).where(windows.c.application_id == row.application_id, windows.c.slot.in_(slots))
        late = {one.id: window for one in connection.execute(present) if (window := _window(one))[1:3] in places}
        joined = [window for origins in joined_origins([*late.values(), *packed]).values() for window in origins]
        connection.execute(sa.delete(windows).where(windows.c.id.in_(late)))
        if joined:
            connection.execute(sa.insert(windows), [*map(_window_columns, joined)])


def _window(row: sa.Row[Any]) -> StoredWindow:
    slot, start_at, end_at = (moment_of(_us(moment)) for moment in (row.slot, row.start_at, row.end_at))
    histogram = UnreadHistogram(row.histogram)
    given = row.requests, row.ready, bool(row.ahead)
    return StoredWindow(row.application_id, slot, row.origin, start_at, end_at, histogram, *given)


def _window_columns(window: StoredWindow) -> dict[str, Any]:
    times = {name: _stored(microseconds(getattr(window, name))) for name in ("slot", "start_at", "end_at")}
    columns = {**window._asdict(), **times, "histogram": pack(window.histogram)}
    return {**columns, "count": window.histogram.count, "ahead": False}


def _make_ticks() -> sa.Table:
    table = op.create_table(
        "ticks",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("claimed_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_ticks"),
        sa.UniqueConstraint("host", "at", name="uq_ticks_host_at"),
    )
    op.create_index("ix_ticks_at", "ticks", ["at"])
    claimed = {f"{dialect}_where": sa.text("claimed_at IS NOT NULL") for dialect in ("sqlite", "postgresql")}
    op.create_index("ix_ticks_host_claimed_at", "ticks", ["host", "claimed_at"], unique=True, **claimed)
    return table


def _make_decisions() -> sa.Table:
    texts = ("before", "after", "reason", "policy")
    table = op.create_table(
        "decisions",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("record_id", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("vm", sa.String()),
        sa.Column("claimed_at", _TIME),
        sa.Column("knob", sa.String(32), nullable=False),
        sa.Column("knob_index", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in texts),
        sa.Column("mode", sa.String(32), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.UniqueConstraint("record_id", name="uq_decisions_record_id"),
    )
    for first in ([], ["host"], ["vm"]):
        indexed = [*first, "at", "id"]
        op.create_index(f"ix_decisions_{'_'.join(indexed)}", "decisions", indexed)
    return table


def _ticks() -> sa.Select[Any]:
    table = sa.table("ticks", *(sa.column(name) for name in ("id", "host", "body")), *_times("at", "claimed_at"))
    return sa.select(table).order_by(table.c.host, table.c.at)


def _decisions() -> sa.Select[Any]:
    names = ("id", "host", "knob_index", *_PLAIN)
    table = sa.table("decisions", *map(sa.column, names), *_times("at", "claimed_at"))
    return sa.select(table).order_by(table.c.host, table.c.at, table.c.id)


def _packs(name: str) -> sa.Select[Any]:
    table = sa.table(name, sa.column("id"), sa.column("host"), sa.column("body", sa.LargeBinary()))
    return sa.select(table).order_by(table.c.id)


def _times(*names: str) -> Iterator[sa.ColumnClause[datetime]]:
    return (sa.column(name, _TIME) for name in names)


def _rows_of(query: sa.Select[Any]) -> Iterator[sa.Row[Any]]:
    """The rows of a query, some at a time."""
    with op.get_bind().execute(query, execution_options={"yield_per": _BATCH}) as rows:
        yield from rows


def _fill(table: sa.Table, rows: Iterable[dict[str, Any]], *, numbered: bool = True) -> None:
    """Insert rows, some at a time; ``numbered``: with their numbers, after which new ones go on."""
    connection, batch = op.get_bind(), []
    for row in rows:
        batch.append(row)
        if len(batch) >= _BATCH:
            connection.execute(sa.insert(table), batch)
            batch = []
    if batch:
        connection.execute(sa.insert(table), batch)
    newest = connection.scalar(sa.select(sa.func.max(table.c.id)))
    if numbered and newest is not None and connection.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(table.name, "id")
        connection.execute(sa.select(sa.func.setval(sequence, newest)))


def _tick_packs(rows: Iterable[sa.Row[Any]]) -> _Rows:
    for host, group in _by_minute(rows):
        ticks = [PackedTick(_us(row.at), _claimed_us(row), _one_line(row.body)) for row in group]
        yield {**_pack_columns(host, group), "body": pack_ticks(ticks)}


def _decision_packs(rows: Iterable[sa.Row[Any]], seen: set[tuple[str, str, int]]) -> _Rows:
    """And in ``seen``: of which VMs each host decided on which days."""
    for host, group in _by_minute(rows):
        decisions = [
            PackedDecision(
                _us(row.at), _claimed_us(row), index=row.knob_index, **{name: getattr(row, name) for name in _PLAIN}
            )
            for row in group
        ]
        lines = {
            line
            for decision in decisions
            for line in (f"vm={decision.vm or ''}", f"knob={decision.knob}", f"outcome={decision.outcome}")
        }
        seen.update((decision.vm, host, decision.at_us // _DAY_US * _DAY_US) for decision in decisions if decision.vm)
        about = "\n" + "\n".join(sorted(lines)) + "\n"
        yield {**_pack_columns(host, group), "about": about, "body": pack_decisions(decisions)}


def _by_minute(rows: Iterable[sa.Row[Any]]) -> Iterator[tuple[str, list[sa.Row[Any]]]]:
    for (host, _), group in groupby(rows, lambda row: (row.host, _us(row.at) // _MINUTE_US)):
        yield host, list(group)


def _pack_columns(host: str, rows: Sequence[sa.Row[Any]]) -> dict[str, Any]:
    claimed = [_us(row.claimed_at or row.at) for row in rows]
    return {
        "id": max(row.id for row in rows),
        "host": host,
        "last_at": _stored(max(_us(row.at) for row in rows)),
        "claimed_from": _stored(min(claimed)),
        "claimed_until": _stored(max(claimed)),
    }


def _unpacked(
    query: sa.Select[Any], unpack: Callable[[bytes], Sequence[Any]], columns: Callable[[Any], dict[str, Any]]
) -> _Rows:
    """Rows as they were, with numbers in the same order; the last of a pack has its number where that is free."""
    number = 0
    for row in _rows_of(query):
        items = unpack(row.body)
        number = max(number, row.id - len(items))
        for item in items:
            number += 1
            claimed_at = None if item.claimed_us is None else _stored(item.claimed_us)
            yield {
                "id": number,
                "host": row.host,
                "at": _stored(item.at_us),
                "claimed_at": claimed_at,
                **columns(item),
            }


def _tick_columns(tick: PackedTick) -> dict[str, Any]:
    return {"body": tick.body}


def _decision_columns(decision: PackedDecision) -> dict[str, Any]:
    return {"knob_index": decision.index, **{name: getattr(decision, name) for name in _PLAIN}}


def _one_line(body: str) -> str:
    return body.replace("\n", " ")


def _claimed_us(row: sa.Row[Any]) -> int | None:
    return None if row.claimed_at is None else _us(row.claimed_at)


def _us(moment: datetime) -> int:
    """SQLite's times are naive UTC."""
    return microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _stored(time_us: int) -> datetime:
    moment = moment_of(time_us)
    return moment.replace(tzinfo=None) if op.get_bind().dialect.name == "sqlite" else moment
