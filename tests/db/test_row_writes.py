"""Many rows by one statement: as one by one, whatever is in them, on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement, select
from sqlalchemy.exc import IntegrityError

from manager.model.histogram import Histogram
from manager.store.database import Database
from manager.store.models import RollupRow, WindowRow
from manager.store.pack_models import DecidedVmRow
from manager.store.row_writes import insert_new, upsert

MOMENT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
KEYS = ("application_id", "length_s", "start")


def rollup(number: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"application_id": number, "length_s": 60, "start": MOMENT, "count": number}
    row |= {"histogram": Histogram({500: number}), "requests": None, "ready": None, "violations": None}
    return row | {"slots": 12, "judged": 1, "violated": 0} | changes


def read(database: Database) -> list[dict[str, Any]]:
    with database.reading() as session:
        rows = session.scalars(select(RollupRow).order_by(RollupRow.application_id))
        return [{name: getattr(row, name) for name in rollup(0)} for row in rows]


def write(database: Database, rows: list[dict[str, Any]], where: Any = None) -> None:
    with database.writing() as session:
        upsert(session, RollupRow, rows, KEYS, where)


def has_more(new: Any) -> ColumnElement[bool]:
    condition: ColumnElement[bool] = RollupRow.count < new["count"]
    return condition


def test_what_was_written_is_read_be_it_one_row_or_many(database: Database) -> None:
    runs = [{"start_s": 0.5, "end_s": 5.0, "violated": 1}, {"start_s": 10.0, "end_s": 15.0, "violated": 2}]
    whole = {"requests": 0.1, "ready": {"percentile": 95.0, "percentile_ms": 2.5}, "violations": runs}
    rows = [rollup(1), rollup(2, **whole), rollup(3, histogram=Histogram()), rollup(4, count=2**60)]
    write(database, rows[:1])
    write(database, rows)
    assert read(database) == rows


def test_present_rows_are_replaced_where_the_condition_holds(database: Database) -> None:
    write(database, [rollup(1, count=5), rollup(2, count=5)])
    write(database, [rollup(1, count=4, slots=1), rollup(2, count=6, slots=1), rollup(3)], has_more)
    assert [(row["count"], row["slots"]) for row in read(database)] == [(5, 12), (6, 1), (3, 12)]
    write(database, [rollup(1, count=1)])
    assert read(database)[0]["count"] == 1
    write(database, [])


def test_new_rows_are_counted_and_repeated_ones_are_not(database: Database) -> None:
    def put(*seconds: int, host: str = "h") -> int:
        at = [MOMENT + timedelta(seconds=second) for second in seconds]
        rows = [{"vm": "v", "host": host, "day": moment} for moment in at]
        with database.writing() as session:
            return insert_new(session, DecidedVmRow, rows)

    assert [put(1, 2), put(2, 3), put(), put(4, 4, 3), put(1, host="g")] == [2, 1, 0, 1, 1]


def test_of_a_row_that_cannot_be_stored_nothing_is(database: Database) -> None:
    places = {"slot": MOMENT, "origin": "h", "start_at": MOMENT, "end_at": MOMENT, "requests": None, "ready": None}
    good = {"application_id": 1, "count": 1, "histogram": Histogram({500: 1}), "ahead": False} | places
    bad = good | {"application_id": 2, "count": None}
    with pytest.raises(IntegrityError), database.writing() as session:
        upsert(session, WindowRow, [good, bad], ["application_id", "slot", "origin"])
    with database.reading() as session:
        assert session.scalars(select(WindowRow)).all() == []
