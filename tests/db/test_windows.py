"""Response times in the store: slots, the latest window, and merging by many at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from manager.errors import InvalidRequest, NotFound
from manager.model.histogram import Histogram
from manager.model.registration import Application
from manager.model.window import Window
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.models import ApplicationRow
from manager.store.registered import get
from manager.store.windows import MAX_COUNT, latest_windows, list_windows, merge_samples, slot_start, window_of

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


def post(database: Database, start: float, end: float, count: int = 1, time_us: float = 1000.0) -> None:
    with database.writing() as session:
        merge_samples(session, "shop", at(start), at(end), Histogram.of([time_us] * count), SLOT)


def windows(database: Database) -> list[tuple[float, float, int]]:
    """Start and end in seconds, and count, of all windows, newest first."""
    with database.reading() as session:
        rows = list_windows(session, get(session, ApplicationRow, "shop"), None, None, 100)
        return [seconds(window_of("shop", row)) for row in rows]


def latest(database: Database) -> tuple[float, float, int] | None:
    with database.reading() as session:
        found = latest_windows(session, [get(session, ApplicationRow, "shop")])
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
        older = list_windows(session, row, at(5), newest[-1].slot, 9)
    assert [one.slot for one in newest] == [at(15), at(10)]
    assert [one.slot for one in older] == [at(5)]


def test_more_than_can_be_counted_is_refused(shop: Database) -> None:
    full = Histogram({500: MAX_COUNT})
    with shop.writing() as session:
        merge_samples(session, "shop", at(0), at(1), full, SLOT)
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
