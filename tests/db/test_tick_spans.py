"""Older ticks of a quarter of an hour become one row, and are read as before."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from manager.model.registration import HostSpec
from manager.store import tick_spans
from manager.store.database import Database
from manager.store.hosts import reporting_host
from manager.store.pack_models import TickPackRow
from manager.store.retention import Cleanup, Keep
from manager.store.tick_packs import list_ticks, oldest_tick_at, store_ticks, ticks_between
from manager.store.tick_rollups import TickRollUps
from manager.store.tick_spans import join_ticks
from tests.aging import long_ago

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = START + timedelta(minutes=95)
DAY = timedelta(days=1)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def store(database: Database, host: str, *seconds: int) -> int:
    with database.writing() as session:
        reporting_host(session, HostSpec(host), START)
        return store_ticks(session, host, {at(second): body(second) for second in seconds})


def body(second: int) -> str:
    tick = {"at": at(second).isoformat(), "policy": "fair", "mode": "enforce", "host_cpu_share": 0.1, "vms": []}
    return json.dumps(tick, separators=(",", ":"))


def join(database: Database, now: datetime = LATER) -> int:
    return join_ticks(Cleanup(database, now, long_ago))


def read(database: Database) -> list[object]:
    """All ways to read ticks of a host, within the row and at its ends."""
    with database.reading() as session:
        return [
            list_ticks(session, "a", None, None, 100),
            list_ticks(session, "a", at(100), at(500), 3),
            list_ticks(session, "a", None, None, 2, after=at(130)),
            ticks_between(session, "a", at(60), at(600)),
            ticks_between(session, "a", at(870), at(1000)),
            oldest_tick_at(session, "a", at(65)),
        ]


def rows(database: Database) -> list[tuple[str, datetime, int]]:
    with database.reading() as session:
        columns = TickPackRow.host, TickPackRow.last_at, TickPackRow.id
        return [tuple(row) for row in session.execute(select(*columns).order_by(TickPackRow.id))]


@pytest.fixture
def fleet(database: Database) -> Database:
    """Two hosts with ticks of some minutes, stored out of order."""
    for seconds in ((0, 30), (60, 70), (580, 590), (130, 140), (870, 890), (905, 910)):
        store(database, "a", *seconds)
    store(database, "b", 5)
    return database


def test_joined_ticks_are_read_as_before(fleet: Database) -> None:
    expected, before = read(fleet), rows(fleet)
    assert join(fleet) == 4
    number = before[4][2]
    assert rows(fleet) == [("a", at(890), number), before[5], before[6]], "with the number of the newest"
    assert read(fleet) == expected
    assert join(fleet) == 0


def test_what_is_reported_again_or_late_counts_once(fleet: Database) -> None:
    join(fleet)
    assert store(fleet, "a", 60, 70, 75) == 1
    expected = read(fleet)
    assert (join(fleet), len(rows(fleet))) == (1, 3)
    assert read(fleet) == expected
    assert store(fleet, "a", 75, 580) == 0


def test_young_ticks_and_those_of_long_ago_stay_as_they_are(fleet: Database) -> None:
    assert join(fleet, START + timedelta(minutes=89)) == 0
    assert join(fleet, START + timedelta(hours=4)) == 0
    assert join_ticks(Cleanup(fleet, LATER, long_ago, lambda: True)) == 0, "stopped"


def test_ticks_of_many_hosts_are_joined_a_few_hosts_at_once(fleet: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_spans, "_TOGETHER", 1)
    store(fleet, "b", 70)
    assert join(fleet) == 5


def test_joined_ticks_go_once_the_youngest_was_kept_for_its_time_and_all_are_rolled_up(fleet: Database) -> None:
    join(fleet)
    job, late = TickRollUps(fleet, Keep(DAY, DAY, DAY)), Cleanup(fleet, at(891) + DAY, long_ago)
    assert job.forget(late) == 0, "not rolled up"
    job.roll_up()
    assert job.forget(Cleanup(fleet, at(889) + DAY, long_ago)) == 0
    job.forget(late)
    assert [host for host, *_ in rows(fleet)] == ["a", "b"]


def test_ticks_of_a_report_across_a_quarter_are_read_as_before_they_were_joined(database: Database) -> None:
    def lengths() -> list[int]:
        with database.reading() as session:
            page = list_ticks(session, "a", None, None, 100, after=at(875))
            return [len(page), len(ticks_between(session, "a", at(840), at(880)))]

    store(database, "a", 850, 860, 875, 890, 905)  # one report, in which a quarter of an hour ends
    store(database, "a", 1790)
    before = lengths()
    join(database, at(1800) + timedelta(minutes=76))
    assert lengths() == before == [2, 3]
