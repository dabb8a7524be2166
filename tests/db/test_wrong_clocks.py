"""Roll-ups and retention while clocks are wrong: of a host, and of the manager, ahead and back, for a while."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from manager.model.histogram import Histogram
from manager.model.records import Severity
from manager.model.registration import Application, HostSpec, Sla
from manager.model.window import Window
from manager.store.applications import put_application
from manager.store.arrivals import HELD, RESUMED, Arrivals, clock_ahead_s
from manager.store.audit import LOCAL, Actor, record
from manager.store.database import Database
from manager.store.event_records import store_events
from manager.store.host_models import TickRollupRow
from manager.store.hosts import put_host
from manager.store.models import ApplicationRow, Base, EventRow, RollupRow, WindowRow
from manager.store.pack_models import TickPackRow
from manager.store.registrations import get
from manager.store.retention import Cleanup, Keep, prune, prune_access
from manager.store.rollups import RollUps
from manager.store.silent_hosts import host_event
from manager.store.tick_packs import store_ticks
from manager.store.tick_rollups import TickRollUps
from manager.store.windows import replace_windows
from tests.aging import Machine

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLOT = timedelta(seconds=5)
MINUTE, STEP = timedelta(minutes=1), timedelta(minutes=5)
DAY, YEAR = timedelta(days=1), timedelta(days=365)
KEEP = Keep(timedelta(hours=3), 30 * DAY, 730 * DAY)
EVERYTHING = (WindowRow, RollupRow, TickPackRow, TickRollupRow, EventRow)


@dataclass
class Fleet:
    """A manager whose jobs run each minute, and what one host reports of two applications, by right clocks."""

    database: Database
    manager: Machine = field(default_factory=lambda: Machine(HOUR.timestamp()))
    true: datetime = HOUR
    shift: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, boot: str = "boot-1") -> None:
        """The manager's process; of another boot that of its machine."""
        if boot != self.manager.boot:
            self.manager.boot, self.manager.age_s = boot, 20.0
        self.rollups = RollUps(self.database, SLOT, 10, KEEP, lambda: self.manager.age_s)
        self.ticks = TickRollUps(self.database, KEEP)
        self.arrived = Arrivals(self.database, self.manager.clock, self.manager.boot_clock)

    def set_clock(self, shift: timedelta) -> None:
        """The manager's, to so much ahead of the right time."""
        self.manager.wall_s += (shift - self.shift).total_seconds()
        self.shift = shift

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.manager.wall_s, UTC)

    def report(self, name: str, *ends: datetime) -> None:
        windows = [
            Window(name, (end - SLOT).timestamp(), end.timestamp(), Histogram.of([5e4] * 20), 20) for end in ends
        ]
        with self.database.writing() as session:
            replace_windows(session, "h", {name: get(session, ApplicationRow, name).id}, windows, SLOT)

    def tick(self, *times: datetime, host: str = "h") -> None:
        def body(at: datetime) -> str:
            return json.dumps(
                {"at": at.isoformat(), "policy": "fair", "mode": "enforce", "host_cpu_share": 0.5, "vms": []}
            )

        with self.database.writing() as session:
            store_ticks(session, host, {at: body(at) for at in times})

    def live(self, length: timedelta, *, reports: bool = True) -> None:
        """Step by step, with a slot and a tick a minute."""
        for _ in range(length // STEP):
            self.true += STEP
            self.manager.live(STEP)
            if reports:
                times = [self.true - MINUTE * number + SLOT for number in range(5, 0, -1)]
                for name in ("blog", "shop"):
                    self.report(name, *times)
                self.tick(*times)
            self.work()

    def work(self) -> None:
        cleanup = Cleanup(self.database, self.now, self.arrived)
        self.rollups.roll_up(self.now)
        self.rollups.forget(cleanup)
        self.ticks.roll_up()
        self.ticks.forget(cleanup)
        prune(cleanup, 30 * DAY)
        prune_access(cleanup, 400 * DAY)

    def hours(self, name: str = "shop") -> list[tuple[float, int]]:
        """Begins in hours since noon, and response times."""
        with self.database.reading() as session:
            number = get(session, ApplicationRow, name).id
            query = select(RollupRow).where(RollupRow.length_s == 3600, RollupRow.application_id == number)
            rows = session.scalars(query.order_by(RollupRow.start)).all()
            return [((row.start - HOUR) / timedelta(hours=1), row.count) for row in rows]

    def tick_hours(self, host: str = "h") -> list[tuple[float, int]]:
        with self.database.reading() as session:
            query = select(TickRollupRow).where(TickRollupRow.length_s == 3600, TickRollupRow.host == host)
            rows = session.scalars(query.order_by(TickRollupRow.start)).all()
            return [((row.start - HOUR) / timedelta(hours=1), row.ticks) for row in rows]

    def count(self, *kinds: type[Base]) -> dict[str, int]:
        with self.database.reading() as session:
            return {
                kind.__tablename__: session.scalar(select(func.count()).select_from(kind)) or 0
                for kind in kinds or EVERYTHING
            }


@pytest.fixture
def fleet(database: Database) -> Fleet:
    with database.registering() as session:
        for name in ("blog", "shop"):
            put_application(session, Application(name, sla=Sla(100.0)), HOUR, lambda _etag: None)
        for name in ("h", "g"):
            put_host(session, HostSpec(name), HOUR, lambda _etag: None)
        record(session, Actor(LOCAL, "root", "admin", ""), "vm.put", "web", HOUR)
    store_new_event(database)
    return Fleet(database)


def store_new_event(database: Database) -> None:
    with database.writing() as session:
        store_events(session, [host_event("h", HOUR, Severity.INFO, "x", "x")])


FULL = 60 * 20
"""Response times of an hour."""


def test_two_ticks_a_year_ahead_stop_no_roll_up_and_nothing_is_forgotten_that_was_not_rolled_up(fleet: Fleet) -> None:
    fleet.tick(HOUR + YEAR, HOUR + YEAR + timedelta(minutes=2))
    fleet.live(timedelta(hours=2, minutes=5))
    assert fleet.tick_hours()[:2] == [(0, 60), (1, 60)]
    fleet.live(timedelta(hours=3, minutes=10), reports=False)
    assert fleet.count(TickPackRow)["tick_packs"] < 5, "but what was rolled up goes in its time"
    assert fleet.tick_hours()[:2] == [(0, 60), (1, 60)]


def test_a_window_of_the_future_hides_no_other_application_and_not_its_own(fleet: Fleet) -> None:
    fleet.report("blog", HOUR + YEAR)
    fleet.work()
    fleet.live(timedelta(hours=1, minutes=10))
    assert fleet.hours("shop") == fleet.hours("blog") == [(0, FULL)]


@pytest.mark.parametrize("shift", [2 * DAY, YEAR, -timedelta(hours=2), -YEAR])
def test_the_managers_clock_is_wrong_for_ten_minutes_and_no_hour_is_lost(fleet: Fleet, shift: timedelta) -> None:
    fleet.live(timedelta(minutes=30))
    fleet.set_clock(shift)
    fleet.live(timedelta(minutes=10))
    fleet.set_clock(timedelta(0))
    fleet.live(timedelta(hours=1, minutes=30))
    for name in ("blog", "shop"):
        assert fleet.hours(name) == [(0, FULL), (1, FULL)]
    assert fleet.tick_hours()[0] == (0, 60)


def test_while_the_managers_clock_is_back_minutes_are_rolled_up_all_the_same(fleet: Fleet) -> None:
    fleet.set_clock(-YEAR)
    fleet.live(timedelta(minutes=20))
    assert fleet.count(RollupRow)["rollups"] >= 2 * 8


@pytest.mark.parametrize("restarts", ["no", "process", "machine"])
def test_a_year_ahead_for_a_while_and_nothing_is_gone(
    fleet: Fleet, restarts: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.live(timedelta(hours=1, minutes=10))
    before, hours = fleet.count(), fleet.hours()
    if restarts != "no":
        fleet.restart("boot-2" if restarts == "machine" else "boot-1")
    fleet.set_clock(YEAR)
    with caplog.at_level(logging.WARNING):
        fleet.live(timedelta(minutes=30), reports=False)
    assert "windows stay for 3:00:00 of uptime, whatever their dates" in caplog.text
    fleet.set_clock(timedelta(0))
    fleet.work()
    after = fleet.count()
    assert all(after[kind] >= count for kind, count in before.items()), (before, after)
    assert fleet.hours()[:1] == hours


def test_what_is_old_by_date_and_by_uptime_is_forgotten_though_no_manager_ran_meanwhile(fleet: Fleet) -> None:
    fleet.live(timedelta(hours=1))
    fleet.restart("boot-2")
    fleet.manager.wall_s += DAY.total_seconds()
    fleet.true += DAY
    fleet.live(timedelta(hours=1), reports=False)
    assert fleet.count(WindowRow)["windows"] == 2 * 60, "they arrived an hour of uptime ago"
    fleet.live(timedelta(hours=3), reports=False)
    assert fleet.count(WindowRow, RollupRow) == {"windows": 0, "rollups": 2 * (60 + 1)}


def test_sessions_and_the_audit_outlive_a_clock_that_is_ahead(fleet: Fleet) -> None:
    fleet.work()
    fleet.set_clock(2 * YEAR)
    fleet.live(timedelta(minutes=5), reports=False)
    with fleet.database.reading() as session:
        tables = Base.metadata.tables
        assert session.scalar(select(func.count()).select_from(tables["audit"])) == 1
        kept = select(func.count()).where(EventRow.kind.not_in((HELD, RESUMED)))
        assert session.scalar(kept.select_from(EventRow)) == 1


def test_the_manager_knows_that_its_clock_was_set(fleet: Fleet) -> None:
    def ahead_s() -> float:
        with fleet.database.reading() as session:
            return clock_ahead_s(session, fleet.manager.boot_clock(), fleet.manager.wall_s)

    assert ahead_s() == 0
    fleet.live(timedelta(minutes=30), reports=False)
    fleet.set_clock(-timedelta(hours=2))
    assert ahead_s() == pytest.approx(-7200, abs=1)
    fleet.live(timedelta(minutes=10), reports=False)
    fleet.set_clock(timedelta(0))
    assert ahead_s() == pytest.approx(0, abs=1)


def test_that_retention_is_held_is_told_once_over_restarts_and_once_that_it_is_over(database: Database) -> None:
    machine = Machine(HOUR.timestamp())
    for shift in (timedelta(0), YEAR, timedelta(0), timedelta(0), -YEAR, timedelta(0)):
        machine.wall_s += shift.total_seconds()
        Arrivals(database, machine.clock, machine.boot_clock)("windows", WindowRow.id, DAY)
    with database.reading() as session:
        kinds = session.scalars(select(EventRow.kind).where(EventRow.host == "manager").order_by(EventRow.id)).all()
    assert kinds == ["retention-held", "retention-resumed"]
