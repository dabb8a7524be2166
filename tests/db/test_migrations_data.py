"""From each revision, with rows in every table: up to the newest, readable there, and down again as they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import MetaData, Table, select

from manager.model.costs import HostCosts
from manager.model.fields import fields_of
from manager.model.histogram import Histogram
from manager.model.law import Law
from manager.model.packed_histogram import pack
from manager.model.packed_records import (
    PackedDecision,
    PackedTick,
    microseconds,
    pack_decisions,
    pack_ticks,
    unpack_decisions,
    unpack_ticks,
)
from manager.model.packed_windows import PackedWindow, pack_windows, unpack_windows
from manager.model.registration import HostSpec
from manager.model.rules import DiskRules, MemoryRules, NetworkRules, PlacementRules
from manager.store.access_models import TokenRow, UserRow
from manager.store.applications import applications_of
from manager.store.audit import AuditFilter, list_audit
from manager.store.database import Database, open_database
from manager.store.day_partitions import partition_names
from manager.store.decision_packs import DecisionFilter, newest_decisions
from manager.store.event_records import RecordFilter, newest_events
from manager.store.models import ApplicationRow, Base, HostRow, UtcDateTime, WindowRow
from manager.store.tick_packs import ticks_between
from manager.store.tokens import described_token
from manager.store.users import described_user
from manager.store.vm_lists import VmFilter, list_vms
from manager.store.windows import window_of
from tests.db.test_migrations import revisions

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROWS = 3
EMPTY = frozenset({"alembic_version", "audit_retention"})
"""The latter has rows only within transactions."""
SINGLE = frozenset({"revision"})
PACKED = {"tick_packs": "ticks", "decision_packs": "decisions", "decided_vms": "decisions"}
"""Tables by that from which a migration made their rows."""
DECISION = ("record_id", "at", "claimed_at", "host", "vm", "knob", "before", "after", "reason", "policy", "detail")

GIVEN: dict[tuple[str, str], object] = {
    ("decisions", "knob"): "weight",
    ("decisions", "mode"): "enforce",
    ("decisions", "outcome"): "applied",
    ("vms", "cpus"): frozenset({0, 1}),
    ("vms", "scheduling"): None,
    ("vms", "job"): None,
    ("vms", "warp_us"): 1000,
    ("applications", "warp_us"): "auto",
    ("applications", "cache"): "auto",
    ("applications", "sources"): None,
    ("applications", "sla_percentile"): 95.0,
    ("hosts", "law"): Law(gain=0.5),
    ("hosts", "placement"): PlacementRules(),
    ("hosts", "memory"): MemoryRules(),
    ("hosts", "disk"): DiskRules(),
    ("hosts", "network"): NetworkRules(),
    ("hosts", "costs"): HostCosts(years=5.0),
    ("hosts", "tick"): None,
    ("hosts", "capabilities"): None,
    ("hosts", "shares"): None,
    ("hosts", "live"): None,
    ("hosts", "glances"): None,
    ("hosts", "cache"): "on",
    ("hosts", "warp"): "on",
    ("windows", "buckets"): {"500": 3},
    ("windows", "ready"): {"percentile": 95.0, "percentile_ms": 2.5},
    ("rollups", "buckets"): {"500": 3},
    ("windows", "histogram"): Histogram({500: 3}),
    ("rollups", "histogram"): Histogram({500: 3}),
    ("rollups", "ready"): None,
    ("rollups", "violations"): None,
    ("sessions", "token_id"): None,
    ("tokens", "application"): None,
    ("tokens", "expires_at"): None,
    ("tokens", "role"): "viewer",
    ("users", "role"): "viewer",
    ("audit", "role"): "admin",
}


def tick_body(row: int) -> bytes:
    return pack_ticks([PackedTick(microseconds(MOMENT) + row, None, "{}")])


def decision_body(row: int) -> bytes:
    texts = {name: name for name in ("before", "after", "reason", "policy", "detail")}
    kinds = {"knob": "weight", "mode": "enforce", "outcome": "applied", "index": 0}
    return pack_decisions([PackedDecision(microseconds(MOMENT) + row, None, str(row), "v", **texts, **kinds)])


def window_body(row: int) -> bytes:
    slot_us = microseconds(MOMENT + timedelta(hours=1, seconds=5 * row))
    histogram = pack(Histogram({500: 3 + row}))
    ready = {"percentile": 95.0, "percentile_ms": 2.5} if row else None
    return pack_windows([PackedWindow(slot_us, "h", slot_us + 1, slot_us + 5_000_000, None, ready, histogram)])


UNPACKED: dict[str, Callable[[bytes], object]] = {
    "tick_packs": unpack_ticks,
    "decision_packs": unpack_decisions,
    "window_packs": unpack_windows,
    "window_minutes": unpack_windows,
}
BODIES: dict[str, Callable[[int], object]] = {
    "tick_packs": tick_body,
    "decision_packs": decision_body,
    "window_packs": window_body,
    "window_minutes": window_body,
    "vm_status": lambda _row: json.dumps({"vm": "v", "knobs": []}),
}


def value(table: str, column: sa.Column[Any], row: int) -> object:
    """A value for the row of that number, fit for the type of a column and for what its table means by it."""
    if (table, column.name) in GIVEN:
        return GIVEN[table, column.name]
    if column.name == "body" and table in BODIES:
        return BODIES[table](row)
    if (column.foreign_keys or column.primary_key) and isinstance(column.type, sa.Integer | sa.String):
        return row + 1 if isinstance(column.type, sa.Integer) else f"{table}-{row}"
    modelled = Base.metadata.tables[table].c.get(column.name) if table in Base.metadata.tables else None
    enums = getattr(modelled.type, "enums", None) if modelled is not None else None
    if enums:
        return enums[row % len(enums)]
    if column.name == "body":
        return "{}"
    of_type: dict[type, object] = {
        bool: row % 2 == 0,
        datetime: MOMENT + timedelta(minutes=row),
        int: row + 1,
        float: 0.5 + row,
        dict: {"a": row},
    }
    plain = column.type.impl_instance if isinstance(column.type, sa.TypeDecorator) else column.type
    return of_type.get(plain.python_type, f"{table}-{column.name}-{row}")


def reflected(database: Database) -> MetaData:
    tables = MetaData()
    with database.reading() as session:
        connection = session.connection()
        parts = partition_names(connection)
        tables.reflect(connection, only=lambda name, _: name not in parts)
    for table in tables.tables.values():
        for column in table.columns:  # what the reflected type of SQLite cannot tell
            modelled = Base.metadata.tables.get(table.name)
            if modelled is not None and column.name in modelled.c:
                column.type = modelled.c[column.name].type
                if getattr(column.type, "enums", None):
                    column.type = sa.String()
            elif isinstance(column.type, sa.DateTime):
                column.type = UtcDateTime()
    return tables


def filled(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Rows in every table, and what they were."""
    tables = reflected(database)
    put: dict[str, list[dict[str, Any]]] = {}
    with database.writing() as session:
        for table in tables.sorted_tables:
            if table.name in EMPTY:
                continue
            rows = range(1 if table.name in SINGLE else ROWS)
            put[table.name] = [{one.name: value(table.name, one, row) for one in table.columns} for row in rows]
            session.execute(table.insert(), put[table.name])
    return put


def found(database: Database, tables: MetaData, names: Mapping[str, object]) -> dict[str, list[dict[str, Any]]]:
    """The rows of tables in the order of their keys."""
    with database.reading() as session:
        return {
            name: [dict(row) for row in session.execute(_ordered(tables.tables[name])).mappings()]
            for name in names
            if name in tables.tables
        }


def _ordered(table: Table) -> sa.Select[Any]:
    return select(table).order_by(*table.primary_key.columns)


def same(put: dict[str, list[dict[str, Any]]], there: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What of the rows that were put is not there."""
    problems = []
    for table, rows in put.items():
        if table in PACKED.values() and table not in there:
            continue
        if len(there[table]) != len(rows):
            problems.append(f"{table}: {len(there[table])} rows of {len(rows)}")
            continue
        for was, now in zip(rows, there[table], strict=True):
            columns = was.keys() & now.keys()
            differ = (one for one in columns if _meaning(table, one, was[one]) != _meaning(table, one, now[one]))
            problems += [f"{table}.{one}: {was[one]!r} is {now[one]!r}" for one in differ]
    return problems


def _meaning(table: str, column: str, value: Any) -> Any:
    """A value, which a migration may have written in another format."""
    return UNPACKED[table](value) if column == "body" and table in UNPACKED else value


@pytest.mark.parametrize("revision", revisions())
def test_rows_of_every_revision_are_readable_after_it_and_come_back(database_url: str, revision: str) -> None:
    database = open_database(database_url)
    with closing(database):
        _up_and_down(database, revision)


def _up_and_down(database: Database, revision: str) -> None:
    database.upgrade(revision)
    put = filled(database)
    assert all(put.values())
    database.upgrade()
    newest = reflected(database)
    assert same(put, found(database, newest, put)) == []
    _are_readable(database, put)
    database.downgrade(revision)
    assert same(put, found(database, reflected(database), put)) == []
    if "window_packs" in put:
        _are_windows_unpacked(database)
    database.downgrade("base")
    database.upgrade()


def _are_windows_unpacked(database: Database) -> None:
    if not database.file:  # the rows of this test have numbers that PostgreSQL did not give
        with database.writing() as session:
            session.execute(sa.text("SELECT setval(pg_get_serial_sequence('windows', 'id'), 100)"))
    database.downgrade("0008")
    with database.reading() as session:
        rows = session.scalars(select(WindowRow).where(WindowRow.origin == "h").order_by(WindowRow.slot)).all()
        counts = [window_of("a", row).histogram.count for row in rows]
        assert (counts, [row.count for row in rows]) == ([3, 4, 5], [3, 4, 5])
        assert [row.ready is None for row in rows] == [True, False, False]


def _are_readable(database: Database, put: Mapping[str, list[dict[str, Any]]]) -> None:
    """All rows through the models, and what the store makes of them."""
    with database.reading() as session:
        for mapper in Base.registry.mappers:
            name = mapper.local_table.name  # type: ignore[attr-defined]
            expected = len(put.get(name, put.get(PACKED.get(name, ""), [])))
            rows = session.scalars(select(mapper.class_)).all()
            assert len(rows) == expected
        vms = list_vms(session, VmFilter(), None, 100)
        assert [one["name"] for one in vms] == [one["name"] for one in put["vms"]]
        hosts = [HostSpec(**fields_of(HostSpec, row)) for row in session.scalars(select(HostRow).order_by(HostRow.id))]
        assert [one.name for one in hosts] == [one["name"] for one in put["hosts"]]
        rows = session.scalars(select(ApplicationRow).order_by(ApplicationRow.id)).all()
        applications = applications_of(session, rows)
        assert list(applications) == [one["name"] for one in put["applications"]]
        assert [len(one.tiers[0].vms) for one in applications.values()] == [1] * ROWS
        windows = [window_of("a", row) for row in session.scalars(select(WindowRow))]
        assert [one.histogram.count for one in windows] == [3] * ROWS
        decisions = newest_decisions(session, DecisionFilter(), None, 100)
        events = newest_events(session, RecordFilter(), None, 100)
        assert (len(decisions), len(events)) == (ROWS, ROWS)
        for decision, row in zip(reversed(decisions), put.get("decisions", ()), strict=False):
            assert {name: row[name] for name in DECISION} == {name: getattr(decision, name) for name in DECISION}
        for row in put.get("ticks", ()):
            [tick] = ticks_between(session, row["host"], row["at"], row["at"] + timedelta(seconds=1))
            assert (tick.at, tick.body, tick.claimed_at) == (row["at"], row["body"], row["claimed_at"])
        assert len([described_token(session, row) for row in session.scalars(select(TokenRow))]) == ROWS
        users = [described_user(session, row) for row in session.scalars(select(UserRow))]
        assert len(users) == len(put.get("users", []))
        assert len(list_audit(session, AuditFilter(), None, 100)) == len(put.get("audit", []))
