"""What agents date in the future, and what a manager did whose clock was ahead: kept, and never first for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from manager.model.records import Severity
from manager.store.arrivals import Arrivals
from manager.store.event_records import store_events
from manager.store.models import WindowRow
from manager.store.silent_hosts import host_event
from manager.store.tick_packs import list_ticks
from tests.aging import Machine
from tests.api.conftest import HOST, START, Api, event, moment, record, report, tick_of, window

FAR = "9998-12-31T23:59:59Z"
YEAR_S = 365 * 86_400


@pytest.fixture
def site(api: Api) -> Api:
    api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    return api


def send(api: Api, ahead: str = "", **changes: Any) -> Any:
    given = {"Equipoise_Clock_Ahead": ahead}
    headers = {name: value for name, value in given.items() if value}
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
        claimed = [tick.claimed_at for tick in reversed(list_ticks(session, HOST, None, None, 9))]
    assert claimed[1:] == [START + timedelta(seconds=YEAR_S), None]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_events_of_a_manager_whose_clock_was_ahead_come_after_all_others(site: Api, limit: int) -> None:
    for place, shift in enumerate((timedelta(days=365), timedelta(days=366), -timedelta(minutes=2), timedelta(0))):
        with site.database.writing() as session:
            row = host_event(HOST, START + shift, Severity.INFO, f"kind-{place}", "x")
            store_events(session, [row])
    found, cursor = [], None
    while cursor or not found:
        part = site.ok("GET", f"/events?limit={limit}" + (f"&cursor={cursor}" if cursor else ""))
        found += [one["kind"] for one in part["items"]]
        cursor = part["next"]
    assert found == ["kind-3", "kind-2", "kind-1", "kind-0"]


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("path", ["/decisions/story", f"/hosts/{HOST}/ticks"])
def test_story_and_ticks_of_a_clock_that_was_ahead_come_after_all_others(site: Api, path: str, limit: int) -> None:
    shifts = YEAR_S, 2 * YEAR_S, -120, 0
    for number, shift in enumerate(shifts):
        site.clock.now_s += shift
        send(site, decisions=[record(number, at=moment(shift))], ticks=[tick_of(shift)])
        site.clock.now_s -= shift
    found, cursor = [], None
    while cursor or not found:
        part = site.ok("GET", f"{path}?limit={limit}" + (f"&cursor={quote(cursor)}" if cursor else ""))
        found += [one["at"] for one in part["items"]]
        cursor = part["next"]
    assert found == [moment(0), moment(-120), moment(2 * YEAR_S), moment(YEAR_S)]


def test_a_slot_of_the_future_is_in_no_sparkline(shop: Api) -> None:
    shop.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    assert send(shop, "3600", windows=[window(end=3600, count=50)])["stored_windows"] == 1
    [application] = shop.ok("GET", "/fleet")["applications"]
    assert set(application["points_ms"]) == {None}


def test_the_audit_is_in_the_order_in_which_things_were_done(site: Api) -> None:
    site.clock.now_s += YEAR_S
    site.ok("PUT", "/vms/then", {"class": "batch"})
    site.clock.now_s -= YEAR_S
    site.ok("PUT", "/vms/now", {"class": "batch"})
    found = [one["object"] for one in site.ok("GET", "/audit")["items"]]
    assert found[:2] == ["now", "then"]
    assert datetime.fromtimestamp(site.clock(), UTC) == START


@pytest.fixture
def shop_site(shop: Api) -> Api:
    shop.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    return shop


def counts(api: Api) -> dict[str, int]:
    return {one["end"]: one["count"] for one in api.ok("GET", "/applications/shop/windows")["items"]}


@pytest.mark.parametrize("back_s", [7200, YEAR_S])
def test_windows_are_kept_while_the_manager_s_clock_is_set_back(shop_site: Api, back_s: int) -> None:
    """From the first report on, when the agent has not found out yet."""
    Arrivals(shop_site.database, shop_site.clock, Machine(0).boot_clock)("windows", WindowRow.id, timedelta(days=1))
    shop_site.clock.now_s -= back_s
    for number, ahead in enumerate(("0", str(back_s), str(back_s))):
        windows = [window(end=5 * number, count=10 + number)]
        assert send(shop_site, ahead, windows=windows)["stored_windows"] == 1
        shop_site.clock.now_s += 5
    shop_site.clock.now_s += back_s
    assert counts(shop_site) == {moment(0): 10, moment(5): 11, moment(10): 12}


def test_a_manager_that_began_with_a_clock_that_is_behind_believes_the_hosts_that_agree(shop_site: Api) -> None:
    shop_site.clock.now_s -= YEAR_S
    headers = {"Equipoise_Clock_Ahead": str(YEAR_S)}
    assert send(shop_site, str(YEAR_S), windows=[window()])["stored_windows"] == 0, "it alone may be wrong itself"
    shop_site.ok("POST", "/hosts/kvm2/report", report(), role="other host", **headers)
    assert send(shop_site, str(YEAR_S), windows=[window()])["stored_windows"] == 1


def test_a_window_that_nobody_can_date_is_named_in_the_answer_and_not_taken(shop_site: Api) -> None:
    windows = [window("shop", 0), window("shop", 61), window("shop", 5)]
    answer = send(shop_site, windows=windows)
    assert (answer["stored_windows"], [one["field"] for one in answer["refused"]]) == (2, ["windows[1].end"])
    assert "is refused; allowed: at most 2026-03-01 12:01:00" in answer["refused"][0]["message"]
    answer = send(shop_site, str(2 * 86_400), windows=[window(end=2 * 86_400)])
    assert len(answer["refused"]) == 1, "a host's clock alone is believed for a day"


def test_a_slot_that_came_from_the_future_does_not_hide_the_one_that_comes_in_its_time(shop_site: Api) -> None:
    assert send(shop_site, "3600", windows=[window(end=3600, count=50)])["stored_windows"] == 1
    assert send(shop_site, "3600", windows=[window(end=3600, count=60)])["stored_windows"] == 1, "it grew"
    shop_site.clock.now_s += 3601
    for count, expected in ((5, 5), (20, 20), (3, 20)):
        send(shop_site, "0", windows=[window(end=3600, count=count)])
        assert counts(shop_site)[moment(3600)] == expected


def test_a_window_of_the_future_is_listed_only_where_it_is_asked_for(shop_site: Api) -> None:
    day_s = 86_400
    for end, ahead in ((day_s - 60, str(day_s - 60)), (0, "0")):
        assert send(shop_site, ahead, windows=[window(end=end)])["stored_windows"] == 1
    assert list(counts(shop_site)) == [moment(0)]
    asked = shop_site.ok("GET", f"/applications/shop/windows?until={quote(moment(2 * day_s))}")["items"]
    assert [one["end"] for one in asked] == [moment(day_s - 60), moment(0)]
