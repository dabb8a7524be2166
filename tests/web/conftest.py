"""The dashboard over an SQLite database that is as if new."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manager.store.database import Database
from tests.api.conftest import START, report, status, tick, window
from tests.web.desk import Desk, make_desk


@pytest.fixture(scope="session")
def made_desk(migrated: Callable[[str], Database]) -> Desk:
    """One for all tests: making the application takes longer than most of them."""
    return make_desk(migrated("sqlite"))


@pytest.fixture
def desk(migrated: Callable[[str], Database], made_desk: Desk) -> Desk:
    """A manager with its dashboard, as if new."""
    migrated("sqlite")
    made_desk.api.clock.now_s = START.timestamp()
    made_desk.api.begin_to_listen()
    made_desk.api.make_tokens()
    return made_desk


@pytest.fixture
def shop(desk: Desk) -> Desk:
    """An application ``shop`` with an SLA of 10 ms, whose VM runs on host ``kvm1``; 40 requests at 5 ms came."""
    desk.api.ok("PUT", "/vms/web-1", {"class": "critical"})
    sla = {"response_time_ms": 10, "max_rate_rps": 5}
    desk.api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": sla})
    told = report(vms=[status("web-1")], windows=[window(count=40)], tick=tick())
    desk.api.ok("POST", "/hosts/kvm1/report", told, role="host")
    return desk
