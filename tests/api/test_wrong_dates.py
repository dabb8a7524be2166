"""History of hosts and managers whose clocks are wrong, as the interface takes it and the jobs keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from manager.api.context import ManagerContext
from manager.api.manager_jobs import make_jobs
from manager.settings import load_settings
from manager.store.host_models import TickRollupRow
from manager.store.jobs import Run
from manager.store.models import ApplicationRow, RollupRow
from tests.api.conftest import HOST, START, Api, event, report, tick_of, window

MINUTE_S, HOUR_S, DAY_S, YEAR_S = 60, 3600, 86_400, 365 * 86_400
IN_A_MINUTE = 20
"""Response times of each application."""


@dataclass
class Kept:
    """A manager whose clock may be wrong, and a host that reports of each minute by a right one."""

    api: Api
    run_jobs: Callable[[], None]
    at_s: int = 0

    def live(self, minutes: int, manager_ahead_s: int = 0) -> None:
        """Report of so many minutes, five at a time, and have the jobs done."""
        for _ in range(minutes // 5):
            ends = range(self.at_s + MINUTE_S, self.at_s + 5 * MINUTE_S + 1, MINUTE_S)
            self.at_s += 5 * MINUTE_S
            self.api.clock.now_s = START.timestamp() + self.at_s + manager_ahead_s
            windows = [window(name, end - 30, IN_A_MINUTE) for end in ends for name in ("blog", "shop")]
            self.tell(windows=windows, ticks=[tick_of(end - 30) for end in ends])
            self.run_jobs()

    def tell(self, **changes: Any) -> None:
        self.api.ok("POST", f"/hosts/{HOST}/report", report(**changes), role="host")

    def response_times(self, name: str) -> list[int]:
        """Of each hour that is rolled up."""
        query = select(RollupRow.count).join(ApplicationRow, ApplicationRow.id == RollupRow.application_id)
        query = query.where(ApplicationRow.name == name, RollupRow.length_s == HOUR_S)
        with self.api.database.reading() as session:
            return list(session.scalars(query.order_by(RollupRow.start)))

    def minutes_of_ticks(self, until_s: int) -> int:
        """How many are rolled up, from the start on."""
        until = START + timedelta(seconds=until_s)
        query = select(func.count()).select_from(TickRollupRow)
        query = query.where(TickRollupRow.length_s == MINUTE_S, TickRollupRow.start < until)
        with self.api.database.reading() as session:
            return session.scalar(query) or 0


@pytest.fixture
def kept(sqlite_api: Api) -> Kept:
    context = ManagerContext(sqlite_api.database, {}, stale_s=30, min_samples=20, clock=sqlite_api.clock)
    jobs = make_jobs(load_settings(None, {}, {}), context)

    def run() -> None:
        for job in jobs:
            job.act(Run(datetime.fromtimestamp(sqlite_api.clock(), UTC), START))

    for name in ("blog", "shop"):
        sqlite_api.ok("PUT", f"/vms/{name}", {"class": "critical", "host": HOST})
        tiers = [{"name": "web", "vms": [name]}]
        sqlite_api.ok("PUT", f"/applications/{name}", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    return Kept(sqlite_api, run)


def test_two_ticks_a_year_ahead_stop_no_roll_up_of_what_follows(kept: Kept) -> None:
    kept.tell(ticks=[tick_of(YEAR_S), tick_of(YEAR_S + 2 * MINUTE_S)])
    kept.live(20)
    assert kept.minutes_of_ticks(20 * MINUTE_S) >= 18


def test_no_tick_is_forgotten_that_was_not_rolled_up(kept: Kept) -> None:
    kept.live(10)
    kept.tell(ticks=[tick_of(YEAR_S), tick_of(YEAR_S + 2 * MINUTE_S)])
    kept.run_jobs()
    kept.live(20)
    kept.api.clock.now_s += 3 * DAY_S
    kept.run_jobs()
    ticks = kept.api.ok("GET", f"/hosts/{HOST}/ticks?limit=200")["items"]
    of_the_day = [one for one in ticks if one["at"].startswith("2026-03-01T12:")]
    assert len(of_the_day) >= 30 or kept.minutes_of_ticks(30 * MINUTE_S) >= 28


@pytest.mark.parametrize("ahead_s", [2 * DAY_S, YEAR_S])
def test_a_managers_clock_that_is_ahead_for_ten_minutes_loses_no_response_time(kept: Kept, ahead_s: int) -> None:
    kept.live(20)
    kept.live(10, ahead_s)
    kept.live(100)
    for name in ("blog", "shop"):
        assert kept.response_times(name)[:2] == [60 * IN_A_MINUTE] * 2


def test_an_event_of_the_year_9998_is_not_first_for_ever(kept: Kept) -> None:
    kept.tell(events=[event(1, at="9998-12-31T23:59:59Z")])
    kept.api.clock.now_s += MINUTE_S
    kept.tell(events=[event(30)])
    found = kept.api.ok("GET", f"/events?host={HOST}")["items"]
    assert [one["id"][-2:] for one in found if one["kind"] == "tick_overrun"] == ["30", "01"]
