"""A host is silent where the interface says so: every page says the same, at the same moment."""

from __future__ import annotations

import pytest

from manager.store.tokens import Role
from tests.api.conftest import HOST, notice_silence, report, tick
from tests.web.desk import Browser, Desk


@pytest.fixture
def browser(shop: Desk) -> Browser:
    return shop.browser(Role.OPERATOR)


def says_silent(desk: Desk, browser: Browser) -> dict[str, bool]:
    """By page and answer of the interface, whether the host is silent."""
    [glance] = desk.api.ok("GET", "/fleet")["hosts"]
    return {
        "hosts of the interface": desk.api.ok("GET", f"/hosts/{HOST}")["silent"],
        "fleet of the interface": glance["silent"],
        "preview": bool(desk.api.ok("GET", f"/hosts/{HOST}/preview")["notes"]),
        "fleet": "check that equipoise agent runs" in browser.get("/").text,
        "hosts": "Silent: last seen" in browser.get("/hosts").text,
        "host": "Silent: last seen" in browser.get(f"/hosts/{HOST}").text,
        "first steps": f"{HOST}: last seen" in browser.get("/first?step=agent").text,
    }


def test_all_pages_agree(shop: Desk, browser: Browser) -> None:
    """However long ago it is, and whatever ``stale_s``: the manager's own look decides."""
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick()), role="host")
    for passed_s in (0, 16, 29, 40, 3000):
        shop.api.clock.now_s += passed_s
        said = says_silent(shop, browser)
        assert not any(said.values()), (passed_s, said)
    notice_silence(shop.api)
    said = says_silent(shop, browser)
    assert all(said.values()), said
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick()), role="host")
    notice_silence(shop.api)
    said = says_silent(shop, browser)
    assert not any(said.values()), said


def test_an_estimate_begins_with_a_host_that_is_not_silent(shop: Desk, browser: Browser) -> None:
    shop.api.clock.now_s += 100
    shop.api.ok("POST", "/hosts/z-reports/report", report(), role="admin")
    notice_silence(shop.api)
    assert browser.get("/what-if").by_id("host")["value"] == "z-reports"
