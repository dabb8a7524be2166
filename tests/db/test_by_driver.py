"""Statements given to the driver: the same rows and the same errors as by way of SQLAlchemy, on every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from sqlalchemy import Select, String, bindparam, column, func, select, table, union
from sqlalchemy.exc import IntegrityError

from manager.errors import DatabaseUnavailable
from manager.model.histogram import Histogram
from manager.model.registration import HostSpec, Mode
from manager.store import database as store_database
from manager.store.by_driver import rows_of
from manager.store.database import Database
from manager.store.hosts import put_host
from manager.store.models import HostRow, RollupRow, UtcDateTime, VmStatusRow
from manager.store.row_writes import among, has_arrays, upsert
from tests.statements import counted

MOMENT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
READY = {"percentile": 95.0, "percentile_ms": 2.5}
RUNS = [{"start_s": 0.5, "end_s": 5.0, "violated": 1}]
COLUMNS = (RollupRow.application_id, RollupRow.start, RollupRow.histogram, RollupRow.requests, RollupRow.ready)


def rollup(number: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"application_id": number, "length_s": 60, "start": MOMENT + timedelta(minutes=number)}
    row |= {"histogram": Histogram({500: number}), "requests": None, "ready": None, "violations": None}
    return row | {"count": number, "slots": 12, "judged": 1, "violated": 0} | changes


def late_minutes() -> Select[*tuple[Any, ...]]:
    """A query with a value of its own besides its parameter."""
    begin = bindparam("begin", type_=UtcDateTime())
    return select(*COLUMNS).where(RollupRow.start >= begin, RollupRow.length_s == 60).order_by(RollupRow.application_id)


def write(database: Database, *rows: dict[str, Any]) -> None:
    with database.writing() as session:
        upsert(session, RollupRow, rows, ("application_id", "length_s", "start"))


def test_rows_are_those_that_sqlalchemy_reads(database: Database) -> None:
    write(database, rollup(1), rollup(3, length_s=3600), rollup(4, histogram=Histogram()))
    write(database, rollup(2, requests=0.1, ready=READY, violations=RUNS, count=2**60))
    query, second = late_minutes(), MOMENT + timedelta(minutes=2)
    for begin, numbers in (
        (MOMENT, [1, 2, 4]),
        (second, [2, 4]),
        (second.astimezone(timezone(timedelta(hours=3))), [2, 4]),
    ):
        with database.reading() as session:
            rows = rows_of(session, query, {"begin": begin})
            assert rows == [tuple(row) for row in session.execute(query, {"begin": begin})]
        assert [row[0] for row in rows] == numbers
    assert rows[0] == (2, second, Histogram({500: 2}), 0.1, READY)


def test_lists_unions_and_no_rows_at_all(database: Database) -> None:
    write(database, *(rollup(number) for number in range(1, 5)))
    with database.reading() as session:
        some = select(RollupRow.application_id).where(among(RollupRow.application_id, "some", has_arrays(session)))
        most = union(some.where(RollupRow.count < 2), some.where(RollupRow.count > 2))
        for numbers in ([], [7], [1], [1, 2, 3, 9]):
            there = {number for number in numbers if number <= 4}
            assert {number for (number,) in rows_of(session, some, {"some": numbers})} == there
            assert {number for (number,) in rows_of(session, most, {"some": numbers})} == there - {2}


def written(database: Database) -> list[dict[str, Any]]:
    """What is in the tables after rows were written and replaced."""
    write(database, rollup(1), rollup(2, ready=READY, violations=RUNS))
    write(database, rollup(1, requests=0.1, histogram=Histogram({500: 3, 507: 2**40})), rollup(3, count=2**53))
    with database.writing() as session:
        put_host(session, HostSpec("a", Mode.OBSERVE), MOMENT, lambda _etag: None)
        number = session.scalars(select(HostRow.id)).one()
        status = {"vm": "ü \\ {\"'%s", "host_id": number, "at": MOMENT, "cpu_share": 0.1, "run_delay_share": 1e-9}
        for body in ("{}", '{"a":"%(b)s \\u0000"}'):
            upsert(session, VmStatusRow, [status | {"body": body}], ["vm"])
    with database.reading() as session:
        minutes = session.scalars(select(RollupRow).order_by(RollupRow.application_id))
        rows = [{name: getattr(row, name) for name in rollup(0)} for row in minutes]
        statuses = session.scalars(select(VmStatusRow))
        return [*rows, *({name: getattr(row, name) for name in (*status, "body")} for row in statuses)]


def test_with_sqlalchemy_and_without_the_same_is_written(migrated: Callable[[str], Database]) -> None:
    """SQLite's statements go through SQLAlchemy, PostgreSQL's do not."""
    rows = written(migrated("postgresql"))
    assert rows == written(migrated("sqlite"))
    assert [row.get("count") for row in rows] == [1, 2, 2**53, None]
    assert rows[-1]["body"] == '{"a":"%(b)s \\u0000"}'


def test_it_is_part_of_the_transaction_and_new_objects_are_written_before(database: Database) -> None:
    names = select(HostRow.name).where(HostRow.name == bindparam("name", type_=String()))
    with pytest.raises(LookupError), database.writing() as session:
        put_host(session, HostSpec("a"), MOMENT, lambda _etag: None)
        assert rows_of(session, names, {"name": "a"}) == [("a",)]
        upsert(session, RollupRow, [rollup(1)], ("application_id", "length_s", "start"))
        raise LookupError
    with database.reading() as session:
        assert rows_of(session, names, {"name": "a"}) == []
        assert rows_of(session, late_minutes(), {"begin": MOMENT}) == []


def test_a_reader_sees_one_state(database: Database) -> None:
    query = late_minutes()
    with database.reading() as session:
        assert rows_of(session, query, {"begin": MOMENT}) == []
        write(database, rollup(1))
        assert rows_of(session, query, {"begin": MOMENT}) == []
    with database.reading() as session:
        assert len(rows_of(session, query, {"begin": MOMENT})) == 1


def test_statements_are_counted(database: Database) -> None:
    with counted(database) as count:
        write(database, rollup(1))
        with database.reading() as session:
            rows_of(session, late_minutes(), {"begin": MOMENT})
    begins = 2 if database.file else 0
    assert count.statements == 2 + begins


def test_a_refused_row_is_an_error_of_ours(database: Database) -> None:
    with pytest.raises(IntegrityError, match=r"(?i)null"):
        write(database, rollup(1, count=None))
    with database.reading() as session:
        assert rows_of(session, late_minutes(), {"begin": MOMENT}) == []


def test_without_a_table_the_database_is_named_and_goes_on(database: Database) -> None:
    nowhere = select(column("x")).select_from(table("nowhere"))
    with pytest.raises(DatabaseUnavailable, match="nowhere"), database.writing() as session:
        rows_of(session, nowhere, {})
    write(database, rollup(1))


def test_a_connection_that_ends_within_a_transaction_is_an_error_and_the_next_is_a_new_one(
    migrated: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = migrated("postgresql")
    monkeypatch.setattr(store_database, "_IDLE_S", 60.0)
    with database.reading() as first, database.reading() as second:  # two connections at least
        rows_of(first, late_minutes(), {"begin": MOMENT}), rows_of(second, late_minutes(), {"begin": MOMENT})
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with pytest.raises(DatabaseUnavailable), database.writing() as session:
        upsert(session, RollupRow, [rollup(1)], ("application_id", "length_s", "start"))
        with psycopg.connect(url, autocommit=True) as connection:
            others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.execute(f"{others} AND datname = current_database()")
        upsert(session, RollupRow, [rollup(2)], ("application_id", "length_s", "start"))
    for _ in range(2):
        with database.reading() as first, database.reading() as second:
            assert first.scalar(select(func.count()).select_from(RollupRow)) == 0
            assert rows_of(second, late_minutes(), {"begin": MOMENT}) == []
