"""The last minutes of all applications: what is remembered of them is never older than the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import delete, event, select

from manager.model.histogram import Histogram
from manager.model.registration import Application
from manager.model.window import Ready, Window
from manager.store import recent_percentiles
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.models import ApplicationRow, WindowRow
from manager.store.recent_percentiles import RecentPercentiles
from manager.store.windows import recent_windows, replace_windows

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLOT = timedelta(seconds=5)
MINUTES = timedelta(minutes=10)
NAMES = ("blog", "mail", "shop")


@dataclass
class Lines:
    """A database with three applications, and what is told of them; tests move the time."""

    database: Database
    now: datetime = NOW
    told: RecentPercentiles = field(default_factory=RecentPercentiles)

    def numbers(self) -> dict[str, int]:
        with self.database.reading() as session:
            return {row.name: row.id for row in session.scalars(select(ApplicationRow).order_by(ApplicationRow.name))}

    def report(self, *windows: Window, origin: str = "h", together: bool = False) -> None:
        with self.database.writing() as session:
            replace_windows(session, origin, self.numbers(), windows, SLOT, together=together)

    def of(self, name: str, percentile: float = 95.0) -> dict[float, float | None]:
        return self.all(percentile)[name]

    def all(self, percentile: float = 95.0) -> dict[str, dict[float, float | None]]:
        """Milliseconds by seconds before 12 o'clock, by application."""
        numbers = self.numbers()
        with self.database.reading() as session:
            wanted = dict.fromkeys(numbers.values(), percentile)
            found = self.told.of(session, wanted, self.now - MINUTES, self.now)
        return {
            name: {
                (NOW - slot).total_seconds(): value.value_ms and round(value.value_ms)
                for slot, value in sorted(found[number].items())
            }
            for name, number in numbers.items()
        }


@pytest.fixture
def lines(database: Database) -> Lines:
    with database.registering() as session:
        for name in NAMES:
            put_application(session, Application(name), NOW, lambda _etag: None)
    return Lines(database)


def window(
    back_s: float, *times_ms: float, name: str = "shop", covered_s: float = 5.0, ready: Ready | None = None
) -> Window:
    """The slot that begins so long before 12 o'clock."""
    start_s = NOW.timestamp() - back_s
    histogram = Histogram.of(percentile_ms * 1000 for percentile_ms in times_ms)
    return Window(name, start_s, start_s + covered_s, histogram, None, ready)


@pytest.mark.parametrize("back_s", [5, 25, 300, 595])
def test_a_slot_that_grows_is_told_anew_however_old_it_is(lines: Lines, back_s: float) -> None:
    lines.report(window(back_s, 10), window(0.0, 20))
    assert lines.of("shop")[back_s] == 10
    lines.report(window(back_s, 10, 50))
    assert lines.of("shop") == {back_s: 50, 0: 20}


def test_slots_that_come_late_or_go_are_followed(lines: Lines) -> None:
    lines.report(window(0, 10))
    assert lines.of("shop") == {0: 10}
    lines.report(window(400, 40), window(200, 20))
    assert lines.of("shop") == {400: 40, 200: 20, 0: 10}
    with lines.database.writing() as session:
        session.execute(delete(WindowRow).where(WindowRow.slot < NOW - timedelta(seconds=300)))
    assert lines.of("shop") == {200: 20, 0: 10}


def test_nothing_is_missed_between_two_questions(lines: Lines) -> None:
    lines.report(window(100, 10))
    lines.all()
    lines.report(*(window(-5.0 * number, 20 + number) for number in range(30)))
    lines.now += timedelta(seconds=150)
    assert lines.of("shop") == {100: 10} | {-5.0 * number: 20 + number for number in range(30)}
    lines.now += MINUTES
    assert lines.of("shop") == {}


def test_another_percentile_is_another_line(lines: Lines) -> None:
    lines.report(window(100, *[10.0] * 90, *[50.0] * 10))
    assert [lines.of("shop", percentile)[100] for percentile in (95.0, 50.0, 95.0)] == [50, 10, 50]


def test_origins_of_a_slot_are_told_together_and_of_ready_ones_the_latest(lines: Lines) -> None:
    lines.report(window(300, 10, 10), window(100, covered_s=3, ready=Ready(95.0, 70.0)))
    assert lines.of("shop") == {300: 10, 100: 70}
    lines.report(window(300, 60), window(100, covered_s=4, ready=Ready(95.0, 80.0)), origin="i")
    assert lines.of("shop") == {300: 60, 100: 80}
    assert lines.of("shop", 50.0) == {300: 10, 100: None}


def test_of_much_that_is_new_a_part_is_read_for_each_answer(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_percentiles, "MOST_READ", 20)
    monkeypatch.setattr(recent_percentiles, "MOST_AT_FIRST", 10)
    for name in NAMES:
        lines.report(*(window(5.0 * number, 10, name=name) for number in range(1, 100)))
    told = [{name: len(line) for name, line in lines.all().items()} for _ in range(20)]
    assert sum(told[0].values()) <= 20
    assert all(sum(after.values()) <= sum(before.values()) + 40 for before, after in pairwise(told))
    assert told[-1] == dict.fromkeys(NAMES, 99)
    assert next(one for one in told if one["blog"] == 99)["shop"] < 99, "the most urgent first"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_response_times_are_found_by_index(lines: Lines) -> None:
    for together in (False, True):
        of_all = (window(5.0 * number, 10, name=name) for number in range(1, 50) for name in NAMES)
        lines.report(*of_all, together=together)
    asked: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: object, _x: object, _many: bool) -> None:
        asked.append((statement, parameters))

    with lines.database.reading() as session:
        engine = session.get_bind()
        event.listen(engine, "before_cursor_execute", note)
        rows = session.scalars(select(ApplicationRow)).all()
        found = recent_windows(session, {row.id: row.name for row in rows}, SLOT, 2)
        RecentPercentiles().of(session, {row.id: 95.0 for row in rows}, NOW - MINUTES, NOW)
        event.remove(engine, "before_cursor_execute", note)
        plans = [
            line
            for statement, parameters in asked
            for *_, line in session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    assert [len(found[name]) for name in NAMES] == [2, 2, 2]
    assert any("SEARCH windows" in line for line in plans)
    assert any("SEARCH window_minutes" in line for line in plans)
    assert not [line for line in plans if "SCAN window" in line]
