"""Hosts that somebody looks at are marked for a minute, with all that serve what is looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from manager.errors import DatabaseUnavailable
from manager.model.histogram import Histogram
from manager.model.registration import Application, HostSpec, Tier, VmClass, VmSpec
from manager.model.window import Window
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.hosts import put_host, put_statuses
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import get
from manager.store.vms import put_vm
from manager.store.watched_hosts import is_watched, look_at
from manager.store.windows import replace_windows

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def fleet(database: Database) -> Database:
    """Application shop is served by kvm1, and was measured by kvm2; kvm3 and kvm4 have nothing to do with it."""
    with database.registering() as session:
        for name in ("kvm1", "kvm2", "kvm3", "kvm4"):
            put_host(session, HostSpec(name), NOW, lambda _etag: None)
        put_vm(session, VmSpec("web", VmClass.CRITICAL), NOW, lambda _etag: None)
        put_application(session, Application("shop", (Tier("web", ("web",)),)), NOW, lambda _etag: None)
    with database.writing() as session:
        status = {"vm": "web", "cpu_share": 0.0, "run_delay_share": 0.0, "body": "{}"}
        put_statuses(session, get(session, HostRow, "kvm1"), [status], NOW)
        window = Window("shop", NOW.timestamp() - 5, NOW.timestamp(), Histogram({500: 3}), 3)
        numbers = {"shop": get(session, ApplicationRow, "shop").id}
        replace_windows(session, "kvm2", numbers, [window], timedelta(seconds=5))
    return database


def watched(database: Database, now: datetime) -> set[str]:
    with database.reading() as session:
        names = ("kvm1", "kvm2", "kvm3", "kvm4")
        return {name for name in names if is_watched(get(session, HostRow, name), now)}


def test_hosts_are_watched_for_a_minute_after_somebody_looked(fleet: Database) -> None:
    assert watched(fleet, NOW) == set()
    look_at(fleet, NOW, hosts=["kvm3"])
    assert watched(fleet, NOW) == watched(fleet, NOW + MINUTE / 2) == {"kvm3"}
    assert watched(fleet, NOW + MINUTE) == set()
    look_at(fleet, NOW + MINUTE * 0.75, hosts=["kvm3", "unknown"])
    assert watched(fleet, NOW + MINUTE * 1.5) == {"kvm3"}


def test_an_application_is_watched_on_all_hosts_that_serve_or_measure_it(fleet: Database) -> None:
    look_at(fleet, NOW, hosts=["kvm4"], applications=["shop"])
    assert watched(fleet, NOW) == {"kvm1", "kvm2", "kvm4"}


def test_looking_again_writes_nothing_for_half_a_minute(fleet: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at(fleet, NOW, hosts=["kvm3"])
    monkeypatch.setattr(fleet, "writing", lambda: pytest.fail("written again"))
    look_at(fleet, NOW + MINUTE / 4, hosts=["kvm3"])
    look_at(fleet, NOW)


def test_a_clock_that_was_ahead_has_no_host_watched_for_long(fleet: Database) -> None:
    look_at(fleet, NOW + timedelta(days=1), hosts=["kvm3"])
    assert watched(fleet, NOW) == set()
    look_at(fleet, NOW, hosts=["kvm3"])
    assert watched(fleet, NOW) == {"kvm3"}


def test_a_database_that_cannot_be_written_is_still_read(
    fleet: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise DatabaseUnavailable("it is read-only")

    monkeypatch.setattr(fleet, "writing", refuse)
    look_at(fleet, NOW, hosts=["kvm3"])
    assert "it is read-only" in caplog.text
