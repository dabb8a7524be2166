"""Rows are read a page at a time, in order, each once, and nothing stays open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from sqlalchemy import select, text

from manager.store.database import Database
from manager.store.pack_models import WindowPackRow
from manager.store.row_pages import newest_rows

MINUTE = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLACE = WindowPackRow.start, WindowPackRow.application_id
PLACES = [(MINUTE + timedelta(minutes=minute), application) for minute in range(3) for application in (1, 2, 3)]


@pytest.fixture
def packs(database: Database) -> Database:
    with database.writing() as session:
        session.add_all(WindowPackRow(start=start, application_id=number, body=b"") for start, number in PLACES)
    return database


@pytest.mark.parametrize("page", [1, 2, 3, 8, 9, 10])
def test_pages_hold_all_rows_in_order(packs: Database, page: int) -> None:
    with packs.reading() as session:
        rows = newest_rows(session, select(*PLACE), PLACE, page)
        assert [(row.start, row.application_id) for row in rows] == PLACES[::-1]


def test_nothing_stays_open_when_no_more_is_read(packs: Database) -> None:
    with packs.reading() as session:
        rows = newest_rows(session, select(*PLACE), PLACE, 2)
        assert [row.application_id for row in islice(rows, 3)] == [3, 2, 1]
        if session.get_bind().dialect.name == "postgresql":
            assert session.scalar(text("SELECT count(*) FROM pg_cursors WHERE name <> ''")) == 0
    with packs.writing() as session:
        del rows  # a cursor would be closed here, and would end this transaction
        assert session.scalar(select(WindowPackRow.id).limit(1)) is not None
