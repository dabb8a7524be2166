"""Windows that come together are one row for each minute, and are read as if each were one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, select

from manager.model.histogram import Histogram
from manager.model.registration import Application, Sla
from manager.model.window import Ready, Window
from manager.store.applications import put_application
from manager.store.database import Database, open_database
from manager.store.history import first_measured
from manager.store.latest_glances import latest_glances
from manager.store.models import ApplicationRow, RollupRow, WindowRow
from manager.store.pack_models import WindowMinuteRow, WindowPackRow
from manager.store.recent_percentiles import RecentPercentiles
from manager.store.registrations import get
from manager.store.retention import Cleanup, Keep
from manager.store.rollups import RollUps
from manager.store.window_packs import KEPT_AS_ROWS, SPAN, pack_old
from manager.store.windows import (
    add_samples,
    list_windows,
    measured_by_others,
    recent_windows,
    replace_windows,
    windows_at,
)
from tests.aging import long_ago

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLOT, DAY = timedelta(seconds=5), timedelta(days=1)
LATER = HOUR + KEPT_AS_ROWS + SPAN + timedelta(minutes=10)
KEEP = Keep(DAY, 30 * DAY, 730 * DAY)
SKEW = timedelta(seconds=60)
SINGLE, TOGETHER = "single", "together"
"""Two applications with the same response times, reported in either way."""


def at(second: float) -> datetime:
    return HOUR + timedelta(seconds=second)


def window(second: int, count: int, *, requests: float | None = None, ready: Ready | None = None) -> Window:
    """One that ends so many seconds after the hour."""
    end_s = HOUR.timestamp() + second
    return Window("", end_s - 5, end_s, Histogram.of([5e4, 1e3 * count] * count), requests, ready)


@dataclass
class Twins:
    """A database with both applications, and what is remembered of them."""

    database: Database
    recent: RecentPercentiles = field(default_factory=RecentPercentiles)
    now: datetime = HOUR + timedelta(hours=1)
    packed: bool = False

    def __post_init__(self) -> None:
        with self.database.registering() as session:
            for name in (SINGLE, TOGETHER):
                put_application(session, Application(name, sla=Sla(40.0)), HOUR, lambda _etag: None)
            self.numbers = {name: get(session, ApplicationRow, name).id for name in (SINGLE, TOGETHER)}

    def report(self, origin: str, *windows: Window) -> None:
        with self.database.writing() as session:
            for name, number in self.numbers.items():
                named = [replace(one, application=name) for one in windows]
                latest, together = self.now + SKEW, name == TOGETHER
                replace_windows(session, origin, {name: number}, named, SLOT, latest, together=together)

    def post(self, *windows: Window) -> None:
        with self.database.writing() as session:
            for name in self.numbers:
                add_samples(session, name, [replace(one, application=name) for one in windows], SLOT)

    def pack(self, now: datetime = LATER) -> int:
        self.packed = True
        RollUps(self.database, SLOT, 1, KEEP).roll_up(now)
        return pack_old(Cleanup(self.database, now, long_ago))

    def rows(self, name: str = TOGETHER) -> tuple[int, int, int]:
        """How many rows of windows, minutes and packs there are of an application."""
        with self.database.reading() as session:
            counts = [
                session.scalar(select(func.count()).where(kind.application_id == self.numbers[name]))
                for kind in (WindowRow, WindowMinuteRow, WindowPackRow)
            ]
        return counts[0] or 0, counts[1] or 0, counts[2] or 0

    def read(self, name: str, since: datetime, until: datetime, limit: int, without: str | None) -> list[Any]:
        """All that reads windows; what looks at those that are not packed yet only where none is."""
        number = self.numbers[name]
        with self.database.reading() as session:
            row = get(session, ApplicationRow, name)
            listed = [
                list_windows(session, row, begin, before, limit)
                for begin, before in ((None, None), (since, None), (since, until), (None, until))
            ]
            places = [(number, since + SLOT * back) for back in range(0, 50, 3)]
            there = windows_at(session, places, {number: ""})
            young: list[Any] = [recent_windows(session, {number: ""}, SLOT, 1, without)]
            percentiles: Any = {}
            if not self.packed:
                young += [
                    recent_windows(session, {number: ""}, SLOT, slots, without, latest)
                    for slots in (1, 2, 7)
                    for latest in (None, until)
                ]
                young.append(latest_glances(session, {number: 95.0}, SLOT, until).get(number))
                young += [measured_by_others(session, [number], host, since).get(number) for host in ("g", "h", "")]
                percentiles = self.recent.of(session, {number: 95.0}, since, until)[number]
            rolled = session.scalars(
                select(RollupRow)
                .where(RollupRow.application_id == number)
                .order_by(RollupRow.length_s, RollupRow.start)
            )
            return [
                [[(slot, replace(one, application="")) for slot, one in some] for some in listed],
                sorted((slot, one) for (_, slot), one in there.items()),
                young,
                percentiles,
                [(one.length_s, one.start, one.count, one.requests, one.slots, one.violated) for one in rolled],
                first_measured(session, row),
            ]


@pytest.fixture
def twins(database: Database) -> Twins:
    return Twins(database)


def test_a_minute_is_one_row_however_often_it_comes(twins: Twins) -> None:
    some = [window(second, 3) for second in range(5, 125, 5)]
    for _ in range(2):
        twins.report("h", *some)
        assert (twins.rows(), twins.rows(SINGLE)) == ((0, 2, 0), (24, 0, 0))
    twins.report("h", window(60, 4), window(65, 3))
    assert twins.rows() == (0, 4, 0), "what is fuller is beside it"
    twins.report("g", window(60, 1))
    twins.post(window(60, 2))
    assert twins.rows() == (1, 5, 0)


def test_old_minutes_are_packed_once_they_are_rolled_up_and_the_newest_stays(twins: Twins) -> None:
    twins.report("h", *(window(second, second % 7 + 1) for second in range(5, 305, 5)))
    twins.report("g", window(10, 2, ready=Ready(95.0, 3.0)))
    cleanup = Cleanup(twins.database, LATER, long_ago)
    assert pack_old(cleanup) == 0, "not rolled up"
    RollUps(twins.database, SLOT, 1, KEEP).roll_up(LATER)
    assert pack_old(Cleanup(twins.database, LATER, lambda *_of: 0)) == 0, "they arrived a moment ago"
    expected = twins.read(SINGLE, at(0), at(400), 100, None)
    assert pack_old(cleanup) == 60 + 5, "all but the newest rows"
    assert (twins.rows(), twins.rows(SINGLE)) == ((0, 1, 1), (1, 0, 1))
    assert twins.read(TOGETHER, at(0), at(400), 100, None)[0] == expected[0]


def test_each_goes_in_its_time_and_not_before_it_is_rolled_up(twins: Twins) -> None:
    twins.report("h", window(5, 1), window(65, 1))
    rollups = RollUps(twins.database, SLOT, 1, KEEP)
    late = Cleanup(twins.database, HOUR + DAY + timedelta(minutes=3), long_ago)
    rollups.forget(late)
    assert twins.rows() == (0, 2, 0)
    rollups.roll_up(LATER)
    rollups.forget(late)
    assert (twins.rows(), twins.rows(SINGLE)) == ((0, 0, 0), (0, 0, 0))


def test_what_was_in_the_future_gives_way_to_what_was_measured(twins: Twins) -> None:
    twins.now = HOUR
    twins.report("h", window(300, 9), window(5, 1))
    assert twins.rows() == (1, 1, 0)
    twins.now = at(300)
    twins.report("h", window(300, 2), window(305, 1))
    assert twins.rows() == (1, 3, 0)
    expected = twins.read(SINGLE, at(0), at(400), 100, None)
    assert twins.read(TOGETHER, at(0), at(400), 100, None) == expected
    assert [one.histogram.count for _, one in expected[0][0]] == [2, 4, 2]


def test_remembered_percentiles_of_minutes_that_are_gone_are_forgotten(twins: Twins) -> None:
    twins.report("h", window(65, 1), window(125, 2))
    assert [len(twins.read(name, at(0), at(400), 9, None)[3]) for name in (SINGLE, TOGETHER)] == [2, 2]
    with twins.database.writing() as session:
        session.execute(delete(WindowMinuteRow).where(WindowMinuteRow.newest < at(100)))
    assert [*twins.read(TOGETHER, at(0), at(400), 9, None)[3]] == [at(120)]


SECONDS = st.integers(1, 60).map(lambda number: 5 * number)
WINDOWS = st.lists(st.tuples(SECONDS, st.integers(1, 4)), min_size=1, max_size=14)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["g", "h"]), WINDOWS),
        st.tuples(st.just(""), WINDOWS),
        st.tuples(st.sampled_from(["pack", "later"]), st.just([])),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=30, deadline=None)
@given(
    steps=STEPS,
    since=st.integers(-1, 60).map(lambda number: at(5 * number)),
    until=st.integers(0, 400).map(at),
    limit=st.integers(1, 40),
    without=st.sampled_from([None, "g", "h", ""]),
)
def test_reads_do_not_depend_on_how_windows_came(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, list[tuple[int, int]]]],
    since: datetime,
    until: datetime,
    limit: int,
    without: str | None,
) -> None:
    folder: Path = tmp_path_factory.mktemp("twins")
    with closing(open_database(f"sqlite:///{folder}/equipoise.sqlite")) as database:
        database.upgrade()
        twins = Twins(database, now=HOUR)
        for what, told in steps:
            windows = [window(second, count, requests=count if count % 2 else None) for second, count in told]
            match what:
                case "pack":
                    twins.pack()
                case "later":
                    twins.now += timedelta(seconds=90)
                case "":
                    twins.post(*windows)
                case origin:
                    twins.report(origin, *windows)
            expected = twins.read(SINGLE, since, until, limit, without)
            found = twins.read(TOGETHER, since, until, limit, without)
            for single, together in zip(expected, found, strict=True):
                assert together == single


def test_going_back_makes_each_window_a_row_again(database_url: str) -> None:
    database = open_database(database_url)
    with closing(database):
        database.upgrade()
        twins = Twins(database)
        twins.report("h", window(5, 2, ready=Ready(95.0, 3.0)), window(65, 1, requests=2.0))
        twins.report("h", window(5, 3), window(70, 1))
        twins.report("g", window(65, 4))
        expected = twins.read(SINGLE, at(0), at(400), 9, None)
        assert twins.rows() == (0, 5, 0)
        database.downgrade("0016")
        database.upgrade()
        assert (twins.rows(), twins.rows(SINGLE)) == ((4, 0, 0), (4, 0, 0))
        assert twins.read(TOGETHER, at(0), at(400), 9, None) == expected
