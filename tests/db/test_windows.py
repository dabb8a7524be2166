"""Response times in the store: slots, the latest window, and merging by many at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text

from manager.errors import InvalidRequest, NotFound
from manager.model.histogram import Histogram
from manager.model.registration import Application
from manager.model.window import MAX_COUNT, Ready, Window
from manager.store import windows as store_windows
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.models import ApplicationRow, WindowRow
from manager.store.registrations import get
from manager.store.windows import (
    add_samples,
    latest_windows,
    list_windows,
    recent_windows,
    replace_windows,
    slot_start,
)

MINUTE = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLOT = timedelta(seconds=5)


def at(second: float) -> datetime:
    return MINUTE + timedelta(seconds=second)


@pytest.fixture
def shop(database: Database) -> Database:
    """A database with the application ``shop``."""
    with database.registering() as session:
        put_application(session, Application("shop"), MINUTE, lambda _etag: None)
    return database


def window(start: float, end: float, count: int = 1, time_us: float = 1000.0) -> Window:
    histogram = Histogram.of([time_us] * count)
    return Window("shop", at(start).timestamp(), at(end).timestamp(), histogram, count)


def post(database: Database, start: float, end: float, count: int = 1, time_us: float = 1000.0) -> None:
    with database.writing() as session:
        add_samples(session, "shop", [window(start, end, count, time_us)], SLOT)


def windows(database: Database) -> list[tuple[float, float, int]]:
    """Start and end in seconds, and count, of all windows, newest first."""
    with database.reading() as session:
        rows = list_windows(session, get(session, ApplicationRow, "shop"), None, None, 100)
        return [seconds(one) for _, one in rows]


def latest(database: Database) -> tuple[float, float, int] | None:
    with database.reading() as session:
        found = latest_windows(session, [get(session, ApplicationRow, "shop")], SLOT)
    return seconds(found["shop"]) if found else None


def seconds(window: Window) -> tuple[float, float, int]:
    return window.start_s - MINUTE.timestamp(), window.end_s - MINUTE.timestamp(), window.histogram.count


@pytest.mark.parametrize(
    ("end_s", "length_s", "slot_s"),
    [(0.000001, 5, 0), (4.9, 5, 0), (5.0, 5, 0), (5.000001, 5, 5), (0.4, 0.2, 0.2), (0.5, 0.2, 0.4)],
)
def test_slots_are_aligned_and_closed_at_their_end(end_s: float, length_s: float, slot_s: float) -> None:
    assert slot_start(at(end_s), timedelta(seconds=length_s)) == at(slot_s)


def test_samples_merge_into_the_slot_in_which_they_ended(shop: Database) -> None:
    post(shop, 0, 1, 3)
    post(shop, 3.5, 4.5, 2)
    post(shop, 4.5, 5.5, 5)
    assert windows(shop) == [(4.5, 5.5, 5), (0, 4.5, 5)]


def test_the_latest_window_spans_two_adjacent_slots(shop: Database) -> None:
    assert latest(shop) is None
    post(shop, 0, 4, 10)
    assert latest(shop) == (0, 4, 10)
    post(shop, 4, 6, 1)
    assert latest(shop) == (0, 6, 11)
    post(shop, 6, 11, 2)
    assert latest(shop) == (4, 11, 3)
    post(shop, 30, 31, 7)
    assert latest(shop) == (30, 31, 7)
    post(shop, 1, 2, 5)  # late: counted where it belongs
    assert latest(shop) == (30, 31, 7)
    assert windows(shop)[-1] == (0, 4, 15)


def test_an_interval_without_requests_is_a_window_too(shop: Database) -> None:
    post(shop, 0, 1, 0)
    assert latest(shop) == (0, 1, 0)


def test_pages_of_windows(shop: Database) -> None:
    for second in (1, 6, 11, 16):
        post(shop, second, second + 1)
    with shop.reading() as session:
        row = get(session, ApplicationRow, "shop")
        newest = list_windows(session, row, None, None, 2)
        older = list_windows(session, row, at(5), newest[-1][0], 9)
    assert [slot for slot, _ in newest] == [at(15), at(10)]
    assert [slot for slot, _ in older] == [at(5)]


def test_more_than_can_be_counted_is_refused(shop: Database) -> None:
    full = replace(window(0, 1), histogram=Histogram({500: MAX_COUNT}))
    with shop.writing() as session:
        add_samples(session, "shop", [full], SLOT)
    with pytest.raises(InvalidRequest, match="buckets"):
        post(shop, 0, 1)
    assert windows(shop) == [(0, 1, MAX_COUNT)]


def test_samples_of_an_unknown_application_are_refused(database: Database) -> None:
    with pytest.raises(NotFound, match="no application named 'shop'"):
        post(database, 0, 1)


def test_samples_that_many_send_at_once_are_all_counted(shop: Database) -> None:
    barrier = threading.Barrier(8)

    def send(sender: int) -> None:
        barrier.wait()
        for number in range(25):
            post(shop, 0, 1, 2, time_us=100.0 * (1 + (sender + number) % 7))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(8)))
    assert latest(shop) == (0, 1, 8 * 25 * 2)


def test_samples_sent_while_the_application_is_registered_anew_are_kept(shop: Database) -> None:
    def register(number: int) -> None:
        with shop.registering() as session:
            put_application(session, Application(f"other-{number}"), MINUTE, lambda _etag: None)
            put_application(session, Application("shop"), MINUTE, lambda _etag: None)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(post, shop, 0, 1, 1) for _ in range(40)] + [pool.submit(register, n) for n in range(20)]
        for job in jobs:
            job.result()
    assert latest(shop) == (0, 1, 40)


def report(database: Database, origin: str, *found: Window) -> int:
    with database.writing() as session:
        number = get(session, ApplicationRow, "shop").id
        return replace_windows(session, origin, {"shop": number}, found, SLOT)


def recent(database: Database, slots: int, without: str | None = None) -> list[Window]:
    with database.reading() as session:
        row = get(session, ApplicationRow, "shop")
        return list(recent_windows(session, {row.id: row.name}, SLOT, slots, without).get("shop", ()))


def test_each_application_has_a_latest_window_of_its_own(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_windows, "_BATCH", 2)
    ends = {f"a{number}": 5.0 * (number // 2 + 1) for number in range(7)}
    with shop.registering() as session:
        rows = [put_application(session, Application(name), MINUTE, lambda _etag: None)[0] for name in ends]
        session.flush()
        numbers = {row.name: row.id for row in rows}
    told = [
        replace(window(end - 5 * back - 5, end - 5 * back), application=name)
        for name, end in ends.items()
        for back in (0, 1, 2)
    ]
    with shop.writing() as session:
        replace_windows(session, "h", numbers, told, SLOT)
    with shop.reading() as session:
        rows = session.scalars(select(ApplicationRow)).all()
        found = latest_windows(session, rows, SLOT)
    assert {name: seconds(one) for name, one in found.items()} == {
        name: (end - 10, end, 2) for name, end in ends.items()
    }


def test_what_an_origin_reports_replaces_what_it_reported(shop: Database) -> None:
    assert report(shop, "h", window(0, 2, 3), window(5, 6, 1)) == 2
    assert report(shop, "h", window(0, 5, 9)) == 1
    assert windows(shop) == [(5, 6, 1), (0, 5, 9)]


@pytest.mark.parametrize("counts", [(5, 5), (5, 3), (3, 5), (5, 3, 4)])
def test_a_slot_never_shrinks(shop: Database, counts: tuple[int, ...]) -> None:
    for count in counts:
        report(shop, "h", window(0, 5, count))
    assert windows(shop) == [(0, 5, 5)]
    with shop.writing() as session:
        session.query(WindowRow).delete()
    report(shop, "h", *(window(0, 5, count) for count in counts))
    assert windows(shop) == [(0, 5, 5)], "also in one report"


def test_origins_are_added_up_wherever_windows_are_read(shop: Database) -> None:
    post(shop, 1, 4, 1)
    report(shop, "h", window(0, 5, 10))
    report(shop, "g", window(0, 3, 100), window(5, 8, 1000))
    post(shop, 1, 4, 1)
    assert windows(shop) == [(5, 8, 1000), (0, 5, 112)]
    assert latest(shop) == (0, 8, 1112)
    assert [seconds(one) for one in recent(shop, 2)] == [(0, 5, 112), (5, 8, 1000)]
    assert [seconds(one) for one in recent(shop, 1)] == [(5, 8, 1000)]
    assert [seconds(one) for one in recent(shop, 2, without="g")] == [(0, 5, 12)]


def test_what_is_unknown_stays_unknown(shop: Database) -> None:
    ready = Ready(95, 12.5)
    unknown = replace(window(0, 5, 0), requests=None, ready=ready)
    report(shop, "h", unknown)
    assert recent(shop, 1) == [unknown]
    report(shop, "g", replace(window(0, 5, 0), requests=2.5))
    assert (recent(shop, 1)[0].requests, recent(shop, 1)[0].ready) == (2.5, ready)


def test_many_slots_are_found(shop: Database) -> None:
    report(shop, "h", *(window(5 * number, 5 * number + 5) for number in range(1200)))
    assert len(recent(shop, 1100)) == 1100


def test_many_agents_report_at_once(shop: Database) -> None:
    def send(origin: int) -> None:
        for count in range(1, 11):
            report(shop, f"h{origin}", *(window(5 * slot, 5 * slot + 5, count) for slot in range(5)))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(send, range(6)))
    assert [count for _, _, count in windows(shop)] == [60] * 5


def test_a_slot_that_is_reported_again_as_it_was_is_not_written_again(shop: Database) -> None:
    first = window(0, 5, 3)
    report(shop, "h", first)
    version = {"sqlite": "SELECT total_changes()", "postgresql": "SELECT xmin::text FROM windows"}
    with shop.writing() as session:
        read = text(version[session.get_bind().dialect.name])
        before = session.scalar(read)
        numbers = {"shop": get(session, ApplicationRow, "shop").id}
        replace_windows(session, "h", numbers, [first], SLOT)
        assert session.scalar(read) == before


def test_of_as_many_response_times_what_was_reported_last_stays(shop: Database) -> None:
    first = window(0, 5, 3)
    report(shop, "h", first)
    ready = replace(first, requests=99.0, ready=Ready(95, 7.0))
    for newer in (replace(first, requests=99.0), ready, replace(ready, ready=Ready(95, 8.0))):
        report(shop, "h", newer)
        assert recent(shop, 1) == [newer]
