"""The pages that ask before they delete something say what happens: each test does it, and looks."""

from __future__ import annotations

import pytest

from tests.api.conftest import HOST, record, report, tick_of
from tests.web.desk import Desk, Page

HISTORIES = ("/applications/shop/history", "/applications/shop/windows", "/decisions?vm=web-1")
OF_THE_HOST = f"/hosts/{HOST}/history"


@pytest.fixture
def kept(shop: Desk) -> Desk:
    """The application ``shop`` with decisions and ticks, too."""
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(decisions=[record(1)], ticks=[tick_of(-5)]), role="host")
    return shop


def delete(desk: Desk, path: str) -> Page:
    """Deletes it, and answers the page that asked before."""
    browser = desk.browser()
    asked = browser.get(f"/registered/{path}/delete")
    histories = [desk.api.ok("GET", one) for one in HISTORIES]
    assert browser.post(f"/registered/{path}/delete", asked.fields()).status == 303
    assert desk.api.call("GET", f"/{path}").status_code == 404
    assert [desk.api.ok("GET", one) for one in HISTORIES] == histories
    assert all(histories)
    assert "History is kept" in asked.text
    assert "history of its response times are removed" not in asked.text
    return asked


def test_an_applications_history_is_kept_and_its_vms_follow_their_own_mode(kept: Desk) -> None:
    tiers = [{"name": "web", "vms": ["web-1"]}]
    kept.api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}, "mode": "observe"})
    asked = delete(kept, "applications/shop")
    assert "these VMs are no longer controlled by response time" in asked.text
    assert "Its mode observe goes with it" in asked.text
    assigned = kept.api.ok("GET", f"/hosts/{HOST}/assignment", role="host")
    assert assigned["applications"] == []
    assert [(one["name"], one["class"], one["mode"]) for one in assigned["vms"]] == [("web-1", "critical", None)]
    assert assigned["host"]["mode"] == "enforce"
    before = kept.api.ok("GET", "/applications/shop/history")["steps"]
    kept.api.ok("PUT", "/applications/shop", {})
    again = kept.api.ok("GET", "/applications/shop/history")["steps"]
    assert [one["count"] for one in again] == [one["count"] for one in before]
    assert sum(one["count"] for one in again) == 40


def test_an_application_in_force_has_no_mode_to_warn_of(kept: Desk) -> None:
    assert "goes with it" not in delete(kept, "applications/shop").text


def test_a_hosts_history_is_kept_and_so_are_its_tokens(kept: Desk) -> None:
    kept.api.ok("PATCH", f"/hosts/{HOST}", {"mode": "observe"}, Content_Type="application/merge-patch+json")
    history = kept.api.ok("GET", OF_THE_HOST)
    asked = delete(kept, f"hosts/{HOST}")
    assert "the host's own is readable again once a host of this name is registered" in asked.text
    kept.api.refused(404, "GET", OF_THE_HOST)
    assert "tokens of its agent stay valid until they are revoked" in asked.text
    assert "VMs stay registered" in asked.text
    assert kept.api.ok("GET", "/vms/web-1")["class"] == "critical"
    kept.api.ok("POST", f"/hosts/{HOST}/report", report(), role="host")
    assert "comes back with the default settings" in asked.text
    assert kept.api.ok("GET", f"/hosts/{HOST}")["mode"] == "enforce"
    assert kept.api.ok("GET", OF_THE_HOST) == history


def test_a_vms_history_is_kept(kept: Desk) -> None:
    kept.api.ok("PUT", "/applications/shop", {"sla": {"response_time_ms": 10}})
    assert "an externally modified setting stays as it is" in delete(kept, "vms/web-1").text


def test_a_removed_users_tokens_stay(desk: Desk) -> None:
    secret = desk.api.ok("POST", "/tokens", {"name": "made-by-ada", "role": "viewer"})["token"]
    desk.api.ok("POST", "/users", {"name": "ada", "role": "viewer", "password": "long enough for it"})
    browser = desk.browser()
    assert "Tokens stay valid" in browser.get("/people/users/ada").text
    assert browser.post("/people/users/ada", {"form": "delete"}).status == 303
    desk.api.ok("GET", "/hosts", role="", Authorization=f"Bearer {secret}")
