"""Interference tables as stored: replaced as a whole, due by age or by another SLA, gone with the application."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from manager.control.interference_table import MeasuredMinute, interference_table
from manager.model.histogram import Histogram
from manager.model.registration import Application, Sla
from manager.model.window import Window
from manager.store.applications import put_application, remove_application
from manager.store.database import Database
from manager.store.interference_models import InterferenceLookRow, InterferenceTableRow
from manager.store.interference_tables import (
    Due,
    InterferenceLook,
    MadeTables,
    count_with_sla,
    due_applications,
    look_of,
    measured_of,
    put_tables,
    tables_of,
)
from manager.store.models import ApplicationRow
from manager.store.registrations import get
from manager.store.windows import replace_windows

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLA = Sla(20.0)
MINUTES = [MeasuredMinute(NOW.timestamp() + 60 * number, 10.0 + number, 10.123, 0.6, 0.01) for number in range(60)]
LOADS = interference_table(MINUTES, SLA.response_time_ms)


def register(database: Database, name: str, sla: Sla | None = SLA) -> None:
    with database.registering() as session:
        put_application(session, Application(name, sla=sla), NOW, lambda _etag: None)


def put(database: Database, name: str, at: datetime = NOW, *kinds: str) -> int:
    with database.writing() as session:
        look = InterferenceLook(at, NOW, SLA, "web 2", None, "why")
        number = get(session, ApplicationRow, name).id
        return put_tables(session, [MadeTables(number, look, dict.fromkeys(kinds, (MINUTES, LOADS)))])


def due_at(before: datetime, small_before: datetime | None = None, measured_since: datetime = NOW) -> Due:
    return Due(before, small_before or before, before - timedelta(hours=6), measured_since)


def measure(database: Database, *names: str, at: datetime = NOW) -> None:
    with database.writing() as session:
        numbers = {name: get(session, ApplicationRow, name).id for name in names}
        windows = [Window(name, at.timestamp(), at.timestamp() + 5, Histogram({1: 1})) for name in names]
        replace_windows(session, "kvm1", numbers, windows, timedelta(seconds=5))


@pytest.fixture
def shops(database: Database) -> Database:
    for name in ("blog", "shop"):
        register(database, name)
    register(database, "bare", None)
    return database


def test_tables_are_read_as_they_were_put_and_replaced_as_a_whole(shops: Database) -> None:
    assert put(shops, "shop", NOW, "big", "small") == 2
    assert put(shops, "shop", NOW + timedelta(hours=1), "big", "tiny") == 2
    with shops.reading() as session:
        row = get(session, ApplicationRow, "shop")
        big, tiny = tables_of(session, row)
        assert (big.host_type, tiny.host_type) == ("big", "tiny")
        assert big.loads == LOADS
        assert (big.since, big.until) == (NOW, NOW + timedelta(minutes=59))
        assert (big.minutes, big.peak_rps) == (60, 69.0)
        assert measured_of(session, [row.id]) == {row.id: {"big": MINUTES, "tiny": MINUTES}}
        look = look_of(session, row)
        assert look == InterferenceLook(NOW + timedelta(hours=1), NOW, SLA, "web 2", None, "why")
        assert look_of(session, get(session, ApplicationRow, "blog")) is None
        assert tables_of(session, get(session, ApplicationRow, "blog")) == []


def test_the_oldest_are_due_first(shops: Database) -> None:
    measure(shops, "blog", "shop")

    def due(limit: int = 9) -> list[str]:
        with shops.reading() as session:
            return due_applications(session, due_at(NOW), limit)

    assert due() == ["blog", "shop"], "an application without an SLA never is"
    with shops.reading() as session:
        assert count_with_sla(session) == 2
    put(shops, "blog", NOW - timedelta(minutes=1))
    assert due() == ["shop", "blog"]
    put(shops, "shop", NOW - timedelta(minutes=2))
    assert due() == ["shop", "blog"]
    assert due(1) == ["shop"]
    put(shops, "shop", NOW)
    put(shops, "blog", NOW)
    assert due() == []
    put(shops, "blog", NOW, "big")
    with shops.reading() as session:
        later = NOW + timedelta(minutes=5)
        assert due_applications(session, due_at(NOW, later), 9) == ["shop"], "it has no table yet"


def test_where_nothing_was_measured_nothing_is_due_for_hours(shops: Database) -> None:
    for name in ("blog", "shop"):
        put(shops, name, NOW, "big")
    measure(shops, "shop")

    def due(at: datetime, measured_since: datetime) -> list[str]:
        with shops.reading() as session:
            return due_applications(session, due_at(at, at, measured_since), 9)

    later = NOW + timedelta(minutes=5)
    assert due(later, NOW) == ["shop"]
    assert due(later, NOW + timedelta(seconds=5)) == []
    assert due(NOW + timedelta(hours=6, seconds=1), NOW) == ["blog", "shop"]


@pytest.mark.parametrize("sla", [Sla(21.0), Sla(20.0, 99.0)])
def test_another_sla_makes_a_table_due_and_hides_it(shops: Database, sla: Sla) -> None:
    for name in ("shop", "blog"):
        put(shops, name, NOW, "big")
    register(shops, "shop", sla)
    register(shops, "blog", Sla(20.0, max_rate_rps=500.0))
    with shops.reading() as session:
        assert due_applications(session, due_at(NOW), 9) == ["shop"]
        assert tables_of(session, get(session, ApplicationRow, "shop")) == []
        assert len(tables_of(session, get(session, ApplicationRow, "blog"))) == 1, "the agreed rate is another matter"


def test_tables_go_with_their_application(shops: Database) -> None:
    put(shops, "shop", NOW, "big")
    with shops.reading() as session:
        row = get(session, ApplicationRow, "shop")
    with shops.registering() as session:
        remove_application(session, "shop", NOW, lambda _etag: None)
    with shops.writing() as session:
        counts = [
            session.scalar(select(func.count()).select_from(kind))
            for kind in (InterferenceLookRow, InterferenceTableRow)
        ]
        assert counts == [0, 0]
        look = InterferenceLook(NOW, NOW, SLA, "", None, "")
        made = MadeTables(row.id, look, {"big": (MINUTES, LOADS)})
        assert put_tables(session, [made]) == 0, "it was removed meanwhile"
