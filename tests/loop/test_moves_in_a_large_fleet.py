"""A VM that moves in a large fleet loses no response times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from manager.loop import reporter as reporter_module
from manager.loop.observer import Clock
from manager.store.database import Database
from tests.fakes.telemetry import FakeTelemetry
from tests.loop.site import SLOT_S, START_S, Site

LATE_S = 15.0


@pytest.fixture
def site(migrated: Callable[[str], Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A fleet that is large by its setting, and a VM that is registered for no host."""
    with ExitStack() as stack:
        made = Site(migrated("sqlite"), tmp_path, stack, small_fleet=0)
        monkeypatch.setattr(reporter_module, "system_clock", lambda: Clock(made.now_s, made.now_s))
        for machine in made.machines:
            monkeypatch.setattr(machine.agent.reporter._stopping, "wait", lambda _s: False)
        made.client.request("PUT", "/vms/web-a", body={"class": "critical"})
        made.client.request("PUT", "/applications/shop", body={"tiers": [{"name": "web", "vms": ["web-a"]}]})
        yield made


def intervals(site: Site, serving: int, count: int) -> None:
    """So many in which one of the hosts serves the application."""
    for _ in range(count):
        site.now_s += SLOT_S
        site.machines[serving].telemetry.count("shop", site.now_s - 1, 30)
        for machine in site.machines:
            close_old(machine.telemetry, site.now_s)
            machine.agent.tick()
        for machine in reversed(site.machines):
            machine.agent.reporter.turn()


def close_old(telemetry: FakeTelemetry, now_s: float) -> None:
    """As sources do: a slot is closed some time after its end."""
    for place in [place for place in sorted(telemetry._open) if (place[1] + 1) * SLOT_S <= now_s - LATE_S]:
        telemetry._done[place] = telemetry._open.pop(place)
        telemetry._uncollected.append(telemetry._done[place])


@pytest.mark.parametrize("before", [24, 30])
@pytest.mark.parametrize("migrates", [False, True])
def test_a_vm_that_moves_in_a_large_fleet_loses_no_response_times(site: Site, before: int, migrates: bool) -> None:
    a, b = site.machines
    a.host.boot("web-a")
    intervals(site, 0, before)
    uuid = b.host.boot("web-a")
    if migrates:
        a.host.leaving.add(uuid)
    intervals(site, 0, 3)
    a.host.stop("web-a")
    intervals(site, 1, 36)
    items = site.client.get("/applications/shop/windows", limit="200")["items"]
    ends_s = sorted(datetime.fromisoformat(one["end"]).timestamp() - START_S for one in items)
    assert ends_s == [ends_s[0] + SLOT_S * number for number in range(len(ends_s))]
