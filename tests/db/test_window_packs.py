"""Older windows are packed once they are rolled up, and are read as before, with what comes late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from manager.model.histogram import Histogram
from manager.model.registration import Application, Sla
from manager.model.window import Ready, Window
from manager.store import window_packs
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.history import MeasuredPast, first_measured
from manager.store.models import ApplicationRow, RollupRow, WindowRow
from manager.store.pack_models import WindowPackRow
from manager.store.registrations import get
from manager.store.retention import Cleanup, Keep
from manager.store.rollups import RollUps
from manager.store.window_packs import KEPT_AS_ROWS, SPAN, pack_old
from manager.store.windows import add_samples, list_windows, replace_windows, windows_at
from tests.aging import long_ago

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLOT, DAY = timedelta(seconds=5), timedelta(days=1)
LATER = HOUR + KEPT_AS_ROWS + SPAN + timedelta(minutes=10)
KEEP = Keep(DAY, 30 * DAY, 730 * DAY)


@pytest.fixture
def shop(database: Database) -> Database:
    with database.registering() as session:
        for name in ("blog", "shop"):
            put_application(session, Application(name, sla=Sla(100.0)), HOUR, lambda _etag: None)
    return database


def window(second: int, count: int, name: str = "shop", ready: Ready | None = None) -> Window:
    """One that ends so many seconds after the hour."""
    end_s = HOUR.timestamp() + second
    return Window(name, end_s - 5, end_s, Histogram.of([5e4] * count), count, ready)


def report(database: Database, host: str, *windows: Window) -> None:
    with database.writing() as session:
        numbers = {name: get(session, ApplicationRow, name).id for name in ("blog", "shop")}
        replace_windows(session, host, numbers, windows, SLOT)


def post(database: Database, *windows: Window) -> None:
    with database.writing() as session:
        add_samples(session, "shop", windows, SLOT)


def pack(database: Database, now: datetime = LATER) -> int:
    RollUps(database, SLOT, 1, KEEP).roll_up(now)
    return pack_old(Cleanup(database, now, long_ago))


def listed(database: Database, limit: int = 100, **bounds: datetime) -> dict[float, tuple[int, float | None]]:
    """Response times and requests by begin of the slot after the hour, newest first."""
    with database.reading() as session:
        row = get(session, ApplicationRow, "shop")
        found = list_windows(session, row, bounds.get("since"), bounds.get("before"), limit)
        return {(slot - HOUR).total_seconds(): (one.histogram.count, one.requests) for slot, one in found}


def left(database: Database) -> tuple[int, int]:
    with database.reading() as session:
        kinds: tuple[Any, ...] = (WindowRow, WindowPackRow)
        windows, packs = (session.scalar(select(func.count()).select_from(kind)) or 0 for kind in kinds)
        return windows, packs


def test_packed_windows_are_read_as_before(shop: Database) -> None:
    report(shop, "h", *(window(second, 10 + second) for second in range(5, 185, 5)), window(60, 7, "blog"))
    report(shop, "g", window(60, 1), window(125, 2, ready=Ready(95.0, 2.5)))
    post(shop, window(125, 3))
    places = [("since", HOUR + timedelta(seconds=30)), ("before", HOUR + timedelta(seconds=125))]
    expected = [listed(shop), listed(shop, 5), listed(shop, **dict(places)), listed(shop, 3, **dict(places))]
    assert (left(shop), pack(shop), left(shop)) == ((40, 0), 38, (2, 1)), "the newest of each stays"
    assert [listed(shop), listed(shop, 5), listed(shop, **dict(places)), listed(shop, 3, **dict(places))] == expected
    with shop.reading() as session:
        row = get(session, ApplicationRow, "shop")
        slot = HOUR + timedelta(seconds=120)
        [found] = windows_at(session, [(row.id, slot), (row.id, slot - DAY)], {row.id: "shop"}).values()
        assert (found.application, found.histogram.count) == ("shop", 125 + 10 + 2 + 3)
        assert first_measured(session, row) == HOUR


def test_what_comes_late_is_added_to_what_is_packed(shop: Database) -> None:
    report(shop, "h", window(5, 10), window(10, 10))
    post(shop, window(5, 3))
    assert pack(shop) == 2
    report(shop, "h", window(5, 12), window(10, 4), window(15, 1))
    post(shop, window(5, 2))
    expected = {10.0: (1, 1), 5.0: (10, 10), 0.0: (12 + 3 + 2, 17)}
    assert listed(shop) == expected
    assert (pack(shop), left(shop), listed(shop)) == (3, (1, 1), expected)
    with shop.reading() as session:
        [minute] = session.scalars(select(RollupRow).where(RollupRow.length_s == 60))
        assert (minute.count, minute.slots) == (17 + 10 + 1, 3), "it was rolled up again from both"


def test_the_newest_slots_are_those_of_rows_and_packs_together(shop: Database) -> None:
    report(shop, "h", *(window(second, 1) for second in range(5, 305, 5)))
    pack(shop)
    recent = (LATER - HOUR).total_seconds()
    report(shop, "h", *(window(int(recent) + second, 2) for second in (5, 10)), window(150, 9))
    assert list(listed(shop, 4)) == [recent + 5, recent, 295, 290]
    assert listed(shop, 1, before=HOUR + timedelta(seconds=150)) == {145: (9, 9)}


def test_neither_young_windows_nor_those_to_be_rolled_up_nor_of_the_future_are_packed(shop: Database) -> None:
    report(shop, "h", window(5, 1), window(3600, 1))
    assert pack_old(Cleanup(shop, LATER, long_ago)) == 0, "not rolled up"
    assert pack_old(Cleanup(shop, LATER, lambda *_of: 0)) == 0
    RollUps(shop, SLOT, 1, KEEP).roll_up(LATER)
    assert pack_old(Cleanup(shop, LATER, lambda *_of: 0)) == 0, "they arrived a moment ago"
    assert pack_old(Cleanup(shop, LATER, long_ago, lambda: True)) == 0, "stopped"
    assert (pack_old(Cleanup(shop, LATER, long_ago)), left(shop)) == (1, (1, 1))
    with shop.writing() as session:
        numbers = {"shop": get(session, ApplicationRow, "shop").id}
        replace_windows(session, "h", numbers, [window(10, 1)], SLOT, latest=HOUR - DAY)
    assert pack(shop) == 0, "it was in the future when it came"


def test_many_are_packed_in_batches_and_go_in_their_time(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_packs, "_BATCH", 7)
    report(shop, "h", *(window(second, 1) for second in range(5, 1205, 25)))
    before = listed(shop)
    later = LATER + SPAN
    assert (pack(shop, later), left(shop), listed(shop)) == (47, (1, 2), before)
    job = RollUps(shop, SLOT, 1, KEEP)
    with shop.reading() as session:
        past = MeasuredPast(session, get(session, ApplicationRow, "shop"), SLOT, 1)
        assert len(past.periods(HOUR, HOUR + timedelta(minutes=20), 5, later)) == 48
    assert job.forget(Cleanup(shop, HOUR + DAY + SPAN, long_ago)) == 0, "its youngest windows were kept for less"
    assert job.forget(Cleanup(shop, HOUR + DAY + SPAN + timedelta(minutes=1), long_ago)) == 1
    assert (left(shop), min(listed(shop))) == ((1, 1), 900)


def test_nothing_goes_that_is_to_be_rolled_up_again(shop: Database) -> None:
    report(shop, "h", *(window(second, 1) for second in (5, 125, 1500)))
    pack(shop, LATER + SPAN)
    report(shop, "h", window(130, 1))
    now = HOUR + DAY + 2 * SPAN
    assert RollUps(shop, SLOT, 1, KEEP).forget(Cleanup(shop, now, long_ago)) == 1, "of rows, the newest of before"
    assert left(shop) == (1, 1)
    pack(shop, now)
    RollUps(shop, SLOT, 1, KEEP).forget(Cleanup(shop, now, long_ago))
    assert left(shop) == (0, 0)


def test_rows_of_minutes_are_read_with_those_of_longer(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(window_packs, "SPAN", timedelta(minutes=1))
        report(shop, "h", *(window(second, 10) for second in (5, 130, 135, 1000)))
        assert (pack(shop), left(shop)) == (3, (1, 2))
    report(shop, "h", window(70, 1), window(130, 12), window(140, 5), window(600, 3))
    expected = listed(shop), listed(shop, 2), listed(shop, 3, before=HOUR + timedelta(seconds=600))
    assert (pack(shop), left(shop)) == (4, (1, 2))
    now = listed(shop), listed(shop, 2), listed(shop, 3, before=HOUR + timedelta(seconds=600))
    assert now == expected
    assert list(now[0].items())[1:4] == [(595, (3, 3)), (135, (5, 5)), (130, (10, 10))]
    with shop.reading() as session:
        minutes = session.scalars(select(RollupRow).where(RollupRow.length_s == 60).order_by(RollupRow.start))
        assert [(row.slots, row.count) for row in minutes][:3] == [(1, 10), (1, 1), (3, 27)]
