"""What agents date in the future, and what a manager did whose clock was ahead: kept, and never first for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from manager.model.records import Severity
from manager.store.models import EventRow, TickRow
from manager.store.records import store_new
from manager.store.silence import host_event
from tests.api.conftest import HOST, START, Api, event, record, report, tick_of

FAR = "9998-12-31T23:59:59Z"
YEAR_S = 365 * 86_400


@pytest.fixture
def site(api: Api) -> Api:
    api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    return api


def send(api: Api, ahead: str = "", **changes: Any) -> Any:
    headers = {"Equipoise_Clock_Ahead": ahead} if ahead else {}
    return api.ok("POST", f"/hosts/{HOST}/report", report(**changes), role="host", **headers)


@pytest.mark.parametrize(("kind", "make"), [("events", event), ("decisions", record)])
def test_a_record_of_the_year_9998_is_not_first_for_ever(site: Api, kind: str, make: Any) -> None:
    stored = f"stored_{kind}"
    assert send(site, **{kind: [make(1, at=FAR)]})[stored] == 1
    assert send(site, **{kind: [make(1, at=FAR)]})[stored] == 0, "told again"
    site.clock.now_s += 60
    assert send(site, **{kind: [make(30)]})[stored] == 1
    found = site.ok("GET", f"/{kind}")["items"]
    assert [one["id"][-2:] for one in found] == ["30", "01"]
    assert found[1]["at"] == "2026-03-01T12:00:00Z", "when it arrived"


@pytest.mark.parametrize("ahead", ["", str(YEAR_S)])
def test_ticks_of_the_future_are_kept_once_and_come_before_what_follows(site: Api, ahead: str) -> None:
    ticks = [tick_of(YEAR_S - 5), tick_of(YEAR_S)]
    assert send(site, ahead, ticks=ticks)["stored_ticks"] == 2
    site.clock.now_s += 5
    assert send(site, ahead, ticks=ticks)["stored_ticks"] == 0, "told again"
    assert send(site, ticks=[tick_of(5)])["stored_ticks"] == 1
    found = [one["at"] for one in site.ok("GET", f"/hosts/{HOST}/ticks")["items"]]
    assert (len(found), found[0], found[1]) == (3, "2026-03-01T12:00:05Z", "2026-03-01T12:00:00Z")
    with site.database.reading() as session:
        claimed = session.scalars(select(TickRow.claimed_at).order_by(TickRow.at)).all()
    assert claimed[1:] == [START + timedelta(seconds=YEAR_S), None]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_events_of_a_manager_whose_clock_was_ahead_come_after_all_others(site: Api, limit: int) -> None:
    for place, shift in enumerate((timedelta(days=365), timedelta(days=366), -timedelta(minutes=2), timedelta(0))):
        with site.database.writing() as session:
            row = host_event(HOST, START + shift, Severity.INFO, f"kind-{place}", "x")
            store_new(session, EventRow, [row])
    found, cursor = [], None
    while cursor or not found:
        part = site.ok("GET", f"/events?limit={limit}" + (f"&cursor={cursor}" if cursor else ""))
        found += [one["kind"] for one in part["items"]]
        cursor = part["next"]
    assert found == ["kind-3", "kind-2", "kind-1", "kind-0"]


def test_the_audit_is_in_the_order_in_which_things_were_done(site: Api) -> None:
    site.clock.now_s += YEAR_S
    site.ok("PUT", "/vms/then", {"class": "batch"})
    site.clock.now_s -= YEAR_S
    site.ok("PUT", "/vms/now", {"class": "batch"})
    found = [one["object"] for one in site.ok("GET", "/audit")["items"]]
    assert found[:2] == ["now", "then"]
    assert datetime.fromtimestamp(site.clock(), UTC) == START
