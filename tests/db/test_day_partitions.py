"""History that PostgreSQL keeps a day in a partition: made ahead, read across days, dropped as a whole."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text

from manager.model.histogram import Histogram
from manager.model.registration import Application, HostSpec, Sla
from manager.model.window import Window
from manager.store.applications import put_application
from manager.store.backup import back_up, restore
from manager.store.database import Database, open_database
from manager.store.day_partitions import (
    CUT_TABLES,
    DECISIONS,
    MINUTES,
    TICKS,
    WINDOWS,
    CutByDay,
    make_days,
    partition_names,
    partitions,
)
from manager.store.decision_packs import DecisionFilter, newest_decisions, store_decisions
from manager.store.hosts import reporting_host
from manager.store.models import ApplicationRow
from manager.store.pack_models import DecisionPackRow
from manager.store.registrations import get
from manager.store.retention import Cleanup, Keep, prune
from manager.store.rollups import RollUps
from manager.store.tick_packs import list_ticks, store_ticks, ticks_between
from manager.store.tick_rollups import TickRollUps
from manager.store.tick_spans import join_ticks
from manager.store.window_packs import SPAN, pack_old
from manager.store.windows import replace_windows
from tests.aging import long_ago
from tests.db.test_records import decision

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
STEP = timedelta(microseconds=1)
KEEP = timedelta(days=2)
ALL_CUTS = pytest.mark.parametrize("cut", CUT_TABLES, ids=lambda cut: cut.table)


@pytest.fixture(scope="module")
def migrated_alone(new_url: Callable[[str], str]) -> Iterator[Database]:
    with closing(open_database(new_url("postgresql"))) as database:
        database.upgrade()
        yield database


@pytest.fixture
def database(migrated_alone: Database) -> Database:
    """One with nothing in its tables, and partitions for four days from ``FIRST`` on."""
    empty(migrated_alone)
    return migrated_alone


def empty(database: Database) -> None:
    with database.writing() as session:
        for cut in CUT_TABLES:
            for partition in partitions(session, cut.table):
                verb = "DELETE FROM" if partition.end is None else "DROP TABLE"
                session.execute(text(f"{verb} {partition.name}"))
        for table in ("decided_vms", "windows", "unrolled_windows", "unrolled_ticks", "applications", "hosts"):
            session.execute(text(f"DELETE FROM {table}"))
    for number in range(3):
        make_days(database, FIRST + number * DAY)


def put(database: Database, cut: CutByDay, *moments: datetime) -> list[int]:
    """Insert a row for each moment; returns their numbers."""
    table = cut.moment.class_
    numbers = []
    with database.writing() as session:
        for place, moment in enumerate(moments):
            values: dict[str, Any] = {
                "application_id": 1000 + place,
                "host": f"kvm{place}",
                "last_at": moment,
                "at": moment,
                "claimed_from": moment,
                "claimed_until": moment,
                "start": moment,
                "length_s": 60,
                "histogram": Histogram.of([1.0]),
                "body": "{}" if cut.table.startswith("tick_rollups") else b"",
                "about": "",
                **dict.fromkeys(("count", "slots", "judged", "violated", "ticks"), 1),
            }
            names = table.__table__.columns.keys()
            row = table(**{name: values[name] for name in names if name in values})
            session.add(row)
            session.flush()
            numbers.append(row.id)
    return numbers


def left(database: Database, cut: CutByDay) -> list[int]:
    with database.reading() as session:
        number = cut.moment.class_.id
        return [*session.scalars(select(number).order_by(number))]


def days_of(database: Database, cut: CutByDay) -> list[str]:
    """The days that have a partition."""
    with database.reading() as session:
        there = partitions(session, cut.table)
    return [partition.name.removeprefix(f"{cut.table}_") for partition in there if partition.end]


def remove(database: Database, cut: CutByDay, now: datetime, keep: timedelta = KEEP, **changed: Any) -> int:
    table = cut.moment.class_
    arrived = changed.pop("arrived", long_ago)
    return Cleanup(database, now, arrived).remove_old("some", table.id, cut.moment, keep, cut=cut, **changed)


@ALL_CUTS
def test_days_are_made_ahead_once(database: Database, cut: CutByDay) -> None:
    made = ["20260301", "20260302", "20260303", "20260304"]
    assert days_of(database, cut) == made
    assert make_days(database, FIRST + 3 * DAY - STEP) == 0
    assert make_days(database, FIRST + 3 * DAY) == len(CUT_TABLES)
    assert days_of(database, cut) == [*made, "20260305"]


@ALL_CUTS
def test_rows_that_are_there_before_their_day_is_move_into_it(database: Database, cut: CutByDay) -> None:
    moments = [FIRST + 4 * DAY - STEP, FIRST + 4 * DAY, FIRST + 5 * DAY - STEP, FIRST + 5 * DAY, FIRST - STEP]
    numbers = put(database, cut, *moments)
    assert rows_of(database, f"{cut.table}_rest") == 4
    make_days(database, FIRST + 3 * DAY)
    assert rows_of(database, f"{cut.table}_20260305") == 2
    assert rows_of(database, f"{cut.table}_rest") == 2
    assert left(database, cut) == numbers


def rows_of(database: Database, name: str) -> int:
    with database.reading() as session:
        return int(session.execute(text(f"SELECT count(*) FROM {name}")).scalar_one())


@ALL_CUTS
def test_a_day_goes_as_a_whole_once_all_of_it_is_old(database: Database, cut: CutByDay) -> None:
    numbers = put(database, cut, FIRST, FIRST + DAY - STEP, FIRST + DAY)
    assert remove(database, cut, FIRST + KEEP + DAY - STEP) == 0, "a part of the day is younger"
    assert left(database, cut) == numbers
    assert remove(database, cut, FIRST + KEEP + DAY) == 2
    assert left(database, cut) == numbers[2:]
    assert days_of(database, cut) == ["20260302", "20260303", "20260304"]


@ALL_CUTS
def test_what_has_no_day_goes_row_by_row(database: Database, cut: CutByDay) -> None:
    before, ahead = put(database, cut, FIRST - STEP, FIRST + 40 * DAY)
    assert remove(database, cut, FIRST + KEEP - STEP) == 0
    assert remove(database, cut, FIRST + KEEP) == 1
    assert left(database, cut) == [ahead] != [before]
    assert remove(database, cut, FIRST + 40 * DAY + KEEP + STEP) == 1


@ALL_CUTS
def test_what_is_kept_for_less_than_a_day_goes_row_by_row(database: Database, cut: CutByDay) -> None:
    put(database, cut, FIRST, FIRST + timedelta(hours=3))
    assert remove(database, cut, FIRST + timedelta(hours=9), timedelta(hours=6)) == 1
    assert remove(database, cut, FIRST + timedelta(hours=9, seconds=1), timedelta(hours=6)) == 1
    assert len(days_of(database, cut)) == 4


@ALL_CUTS
def test_a_day_to_which_something_came_late_stays_for_a_while(database: Database, cut: CutByDay) -> None:
    first, late = put(database, cut, FIRST, FIRST + STEP)

    def arrived(*_: object) -> int:
        return late - 1

    end = FIRST + DAY + KEEP
    assert remove(database, cut, end + DAY - STEP, arrived=arrived) == 0
    assert left(database, cut) == [first, late]
    assert remove(database, cut, end + DAY, arrived=arrived) == 1, "the rest of the day does not wait for it"
    assert left(database, cut) == [late]
    assert remove(database, cut, end + DAY) == 1
    assert "20260301" not in days_of(database, cut)


@ALL_CUTS
def test_of_a_day_with_rows_that_are_to_stay_the_others_go(database: Database, cut: CutByDay) -> None:
    numbers = put(database, cut, FIRST, FIRST + STEP, FIRST + DAY)
    may = cut.moment.class_.id != numbers[0]
    assert remove(database, cut, FIRST + DAY + KEEP, condition=may) == 1
    assert left(database, cut) == [numbers[0], numbers[2]]
    assert remove(database, cut, FIRST + DAY + KEEP) == 1
    assert "20260301" not in days_of(database, cut)


@ALL_CUTS
def test_a_day_that_is_read_goes_later_and_nobody_waits_for_it(
    database: Database, cut: CutByDay, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = put(database, cut, FIRST, FIRST + DAY)
    with database.reading() as session, caplog.at_level(logging.INFO):
        session.execute(select(func.count()).select_from(cut.moment.class_)).one()
        assert remove(database, cut, FIRST + DAY + KEEP) == 0
        assert "cannot be yet" in caplog.text
        assert len(put(database, cut, FIRST + DAY + STEP)) == 1
    assert left(database, cut)[:2] == numbers
    assert remove(database, cut, FIRST + DAY + KEEP) == 1


def test_a_day_that_cannot_be_made_is_told_and_made_later(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    [number] = put(database, DECISIONS, FIRST + 4 * DAY)
    with database.reading() as session:
        session.execute(select(func.count()).select_from(DecisionPackRow)).one()
        assert make_days(database, FIRST + 3 * DAY) == len(CUT_TABLES) - 1
    assert "there is no partition decision_packs_20260305 yet" in caplog.text
    assert left(database, DECISIONS) == [number]
    assert make_days(database, FIRST + 3 * DAY) == 1
    assert rows_of(database, "decision_packs_20260305") == 1


def test_a_dump_comes_back_with_its_days(database: Database, tmp_path: Path) -> None:
    numbers = {cut.table: put(database, cut, FIRST, FIRST + DAY, FIRST + 9 * DAY) for cut in CUT_TABLES}
    with database.reading() as session:
        names = partition_names(session.connection())
    back_up(database, tmp_path / "all", lambda _text: None)
    remove(database, TICKS, FIRST + DAY + KEEP)
    restore(database, tmp_path / "all", lambda _text: None, force=True)
    with database.reading() as session:
        assert partition_names(session.connection()) == names
    assert {cut.table: left(database, cut) for cut in CUT_TABLES} == numbers
    assert remove(database, TICKS, FIRST + DAY + KEEP) == 1


def test_hours_stay_when_the_minutes_of_their_day_go(database: Database) -> None:
    for host in ("a", "b"):
        with database.writing() as session:
            reporting_host(session, HostSpec(host), FIRST)
            for minute in (*range(0, 180, 20), 200):
                at = FIRST + timedelta(minutes=minute)
                tick = {"at": at.isoformat(), "policy": "fair", "mode": "enforce", "host_cpu_share": 0.1, "vms": []}
                store_ticks(session, host, {at: json.dumps(tick)})
    job = TickRollUps(database, Keep(DAY, KEEP, 9 * DAY))
    assert job.roll_up() == 2 * (9 + 3)
    assert rows_of(database, "tick_rollups_hours") == 6
    assert rows_of(database, "tick_rollups_minutes_20260301") == 18
    job.forget(Cleanup(database, FIRST + DAY + KEEP, long_ago))
    assert (rows_of(database, "tick_rollups_hours"), rows_of(database, "tick_rollups_minutes")) == (6, 0)
    assert job.forget(Cleanup(database, FIRST + 20 * DAY, long_ago)) == 6


def test_windows_and_minutes_of_a_day_go_with_it(database: Database) -> None:
    slot = timedelta(seconds=5)
    with database.registering() as session:
        put_application(session, Application("shop", sla=Sla(100.0)), FIRST, lambda _etag: None)
    ends = [FIRST + hour * timedelta(hours=1) + 3 * slot for hour in (1, 2, 30)]
    with database.writing() as session:
        numbers = {"shop": get(session, ApplicationRow, "shop").id}
        windows = [Window("shop", end.timestamp() - 5, end.timestamp(), Histogram.of([5e4]), 1) for end in ends]
        replace_windows(session, "a", numbers, windows, slot)
    job = RollUps(database, slot, 1, Keep(DAY, KEEP, 9 * DAY))
    now = FIRST + 2 * DAY
    assert job.roll_up(now) == 3 + 3
    assert pack_old(Cleanup(database, now, long_ago)) == 2, "the newest stays"
    assert (rows_of(database, "window_packs_20260301"), rows_of(database, "rollups_minutes_20260301")) == (2, 2)
    assert job.forget(Cleanup(database, FIRST + 2 * DAY + SPAN, long_ago)) == 2
    assert "20260301" not in days_of(database, WINDOWS)
    assert job.forget(Cleanup(database, FIRST + DAY + KEEP, long_ago)) == 2 + 1, "and the newest window, as reported"
    assert "20260301" not in days_of(database, MINUTES)
    assert (rows_of(database, "rollups_hours"), rows_of(database, "rollups_minutes")) == (3, 1)


def test_ticks_are_joined_whatever_day_their_host_claimed(database: Database) -> None:
    at = [FIRST + timedelta(hours=2, minutes=minute) for minute in range(3)]
    with database.writing() as session:
        reporting_host(session, HostSpec("a"), FIRST)
        for place, moment in enumerate(at):
            store_ticks(session, "a", {moment: f'"{moment}"'}, {moment: moment + (place % 2) * DAY})
    before = read_ticks(database, "a")
    assert join_ticks(Cleanup(database, at[0] + timedelta(hours=2), long_ago)) == 2
    assert read_ticks(database, "a") == before
    assert rows_of(database, "tick_packs_20260302") == 1, "by the newest time that its host claimed"
    with database.writing() as session:
        again = {moment: f'"{moment}"' for moment in at}
        claimed = {moment: moment + (place % 2) * DAY for place, moment in enumerate(at)}
        assert store_ticks(session, "a", again, claimed) == 0


def read_ticks(database: Database, host: str) -> list[object]:
    with database.reading() as session:
        return [(tick.at, tick.body) for tick in list_ticks(session, host, None, None, 1000)]


moments = st.integers(-6 * 3600, 5 * 86_400).map(lambda second: FIRST + timedelta(seconds=second))
reports = st.lists(st.tuples(moments, st.sampled_from([0, 0, 0, 7, 30 * 3600, 9 * 86_400]), st.booleans()), max_size=25)


@settings(max_examples=25, deadline=None)
@given(stored=reports, since=moments, length=st.integers(1, 4 * 86_400), limit=st.integers(1, 12))
def test_days_are_read_as_one_table_is(
    migrated_alone: Database,
    migrated: Callable[[str], Database],
    stored: list[tuple[datetime, int, bool]],
    since: datetime,
    length: int,
    limit: int,
) -> None:
    """SQLite has one table. What comes again, also of another day, is stored once in both."""
    empty(migrated_alone)
    whole = migrated("sqlite")
    answers = []
    for database in (migrated_alone, whole):
        with database.writing() as session:
            counts = []
            for number, (at, ahead_s, twice) in enumerate(stored):
                claimed = at + timedelta(seconds=ahead_s)
                row = decision(0) | {"at": at, "claimed_at": claimed, "record_id": f"{number:036}"}
                for _ in range(1 + twice):
                    counts.append(store_decisions(session, "h", [row]))
                    counts.append(store_ticks(session, "h", {at: f'"{number}"'}, {at: claimed}))
        until = since + timedelta(seconds=length)
        with database.reading() as session:
            listed = newest_decisions(session, DecisionFilter(), None, limit)
            within = newest_decisions(session, DecisionFilter(vm="a", since=since, until=until), None, limit)
            ticks = list_ticks(session, "h", since, until, limit), list_ticks(session, "h", None, None, limit)
            between = ticks_between(session, "h", since, until)
        shown = [[(one.at, one.record_id) for one in some] for some in (listed, within)]
        answers.append((counts, shown, [[(tick.at, tick.body) for tick in some] for some in (*ticks, between)]))
    assert answers[0] == answers[1]


def test_decisions_and_what_is_dated_ahead_are_pruned(database: Database) -> None:
    rows = [decision(0) | {"at": FIRST + hours * timedelta(hours=1)} for hours in (1, 23, 25)]
    ahead = decision(0) | {"at": FIRST + timedelta(hours=2), "claimed_at": FIRST + 30 * DAY}
    with database.writing() as session:
        assert store_decisions(session, "h", [*rows, ahead]) == 4
    assert rows_of(database, "decision_packs_rest") == 1
    assert prune(Cleanup(database, FIRST + timedelta(hours=3) + KEEP, long_ago), KEEP) == 1, "it has no day"
    assert rows_of(database, "decision_packs_20260301") == 2
    prune(Cleanup(database, FIRST + DAY + KEEP, long_ago), KEEP)
    assert rows_of(database, "decision_packs") == 1
