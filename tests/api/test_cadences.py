"""How often the manager asks agents to report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from manager.api.cadences import Cadences
from manager.api.context import ManagerContext
from manager.model.registration import HostSpec
from manager.protocol.assignment import Cadence
from manager.store.database import Database
from manager.store.hosts import put_host
from manager.store.models import HostRow
from manager.store.registrations import get
from manager.store.watched_hosts import look_at
from tests.api.conftest import HOST, START, make_api, report


def cadence(database: Database, cadences: Cadences) -> Cadence | None:
    with database.reading() as session:
        return cadences.of(session, get(session, HostRow, "kvm1"), START)


@pytest.fixture
def database(migrated: Callable[[str], Database]) -> Database:
    made = migrated("sqlite")
    with made.registering() as session:
        for name in ("kvm1", "kvm2"):
            put_host(session, HostSpec(name), START, lambda _etag: None)
    return made


@pytest.mark.parametrize(
    ("slot_s", "silent_intervals", "expected"),
    [
        (5.0, 6, Cadence(live_s=10, history_s=60)),
        (5.0, 3, Cadence(live_s=5, history_s=60)),
        (5.0, 1000, Cadence(live_s=10, history_s=60)),
        (1.0, 6, Cadence(live_s=2, history_s=60)),
        (0.05, 24, Cadence(live_s=0.4, history_s=60)),
        (120.0, 6, Cadence(live_s=240, history_s=240)),
    ],
)
def test_a_host_that_misses_one_report_is_not_silent(
    database: Database, slot_s: float, silent_intervals: int, expected: Cadence
) -> None:
    silent = timedelta(seconds=slot_s * silent_intervals)
    context = ManagerContext(database, {}, 30, 1, slot_s=slot_s, silent=silent, small_fleet=1)
    assert cadence(database, Cadences(context)) == expected


def test_small_fleets_and_watched_hosts_report_all_in_each_interval(database: Database) -> None:
    steady_s = 0.0
    context = ManagerContext(database, {}, 30, 1, small_fleet=2)
    cadences = Cadences(context, lambda: steady_s)
    assert cadence(database, cadences) is None
    with database.registering() as session:
        put_host(session, HostSpec("kvm3"), START, lambda _etag: None)
    assert cadence(database, cadences) is None, "hosts are counted once a minute"
    steady_s = 61.0
    assert cadence(database, cadences) is not None
    look_at(database, START, hosts=["kvm1"])
    assert cadence(database, cadences) is None


def test_the_answer_to_a_report_says_it(migrated: Callable[[str], Database]) -> None:
    api = make_api(migrated("sqlite"))  # of its own: one that others share may have counted their hosts a moment ago
    api.make_tokens()
    assert api.ok("POST", f"/hosts/{HOST}/report", report(), role="host")["cadence"] is None
