"""Control in the dashboard: what would change, the confirmation, and what is registered by it."""

from __future__ import annotations

from typing import Any

import pytest

from manager.store.tokens import Role
from tests.api.conftest import HOST, report, status, tick, tick_of
from tests.web.desk import Browser, Desk, Page


@pytest.fixture
def operator(desk: Desk) -> Browser:
    """A browser of an operator."""
    return desk.browser(Role.OPERATOR)


def ran(desk: Desk, mode: str = "enforce", **changes: Any) -> None:
    """``web-1`` of application ``shop`` runs on a host in that mode, which its agent reported."""
    desk.api.ok("PUT", "/vms/web-1", {"class": "critical"})
    sla = {"response_time_ms": 10}
    desk.api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": sla})
    desk.api.ok("PUT", f"/hosts/{HOST}", {"mode": mode})
    seen = [status("web-1", mode=mode, **changes)]
    told = report(tick=tick(mode=mode), vms=seen, ticks=[tick_of(-second, mode=mode) for second in range(1, 11)])
    desk.api.ok("POST", f"/hosts/{HOST}/report", told, role="host")


def plan(page: Page) -> list[str]:
    """The rows of what would change."""
    return [" ".join(cell.text for cell in row_cells(page, number)) for number in range(len(page.all("tr")) - 1)]


def row_cells(page: Page, number: int) -> list[Any]:
    cells = [one for one in page.elements if one.tag in {"td", "th"} and one.attributes.get("scope") != "col"]
    return cells[number * 5 : number * 5 + 5]


@pytest.mark.parametrize("path", [f"/control/hosts/{HOST}", "/control/vms/web-1", "/control/applications/shop"])
def test_a_release_shows_exactly_what_is_put_back_and_waits_for_the_confirmation(
    desk: Desk, operator: Browser, path: str
) -> None:
    ran(desk)
    page = operator.get(f"{path}?mode=released")
    assert page.status == 200
    assert [tag.text for tag in page.all("span", class_="tag")] == ["exact"]
    assert plan(page) == ["web-1 CPU weight 10000 100 mode released", "web-1 vCPU 0 pin 1 0-3 mode released"]
    kind, name = path.split("/")[2:]
    assert desk.api.ok("GET", f"/{kind}/{name}")["mode"] in {None, "enforce"}
    done = operator.post(path, confirmation(page))
    assert done.status == 303
    assert desk.api.ok("GET", f"/{kind}/{name}")["mode"] == "released"
    told = operator.get(done.response.location)
    assert "Saved" in told.text
    assert any(link["href"].startswith("/decisions?") for link in told.all("a"))
    assert not told.all("a", href=f"{path}?mode=released"), "what is released needs no release"


def confirmation(page: Page) -> dict[str, str]:
    """What the form that confirms sends: the only one with hidden fields besides the CSRF token."""
    inputs = page.all("input", type="hidden")
    return {one["name"]: one["value"] for one in inputs if one["name"] != "csrf_token"}


def test_another_policy_is_estimated_and_labelled_so(desk: Desk, operator: Browser) -> None:
    ran(desk)
    page = operator.get(f"/control/hosts/{HOST}?mode=enforce&policy=equal")
    assert [tag.text for tag in page.all("span", class_="tag")] == ["estimated"]
    assert len(plan(page)) == 1
    assert "Estimated from" in page.text
    assert confirmation(page).keys() == {"etag", "policy"}, "only what is to change is asked for"
    operator.post(f"/control/hosts/{HOST}", confirmation(page))
    host = desk.api.ok("GET", f"/hosts/{HOST}")
    assert (host["policy"], host["mode"]) == ("equal", "enforce")


def test_what_was_observed_is_shown_before_it_is_enforced(desk: Desk, operator: Browser) -> None:
    weight = {"knob": "weight", "index": 0, "current": "100", "planned": "9000", "reason": "fair: p95"}
    ran(desk, "observe", observed=[weight], knobs=[])
    page = operator.get(f"/control/hosts/{HOST}?mode=enforce")
    assert [tag.text for tag in page.all("span", class_="tag")] == ["observed"]
    assert plan(page) == ["web-1 CPU weight 100 9000 fair: p95"]


def test_a_mode_of_its_own_can_be_taken_from_a_vm(desk: Desk, operator: Browser) -> None:
    ran(desk)
    desk.api.ok("PATCH", "/vms/web-1", {"mode": "observe"})
    page = operator.get("/control/vms/web-1?mode=")
    assert confirmation(page)["mode"] == ""
    assert operator.post("/control/vms/web-1", confirmation(page)).status == 303
    assert desk.api.ok("GET", "/vms/web-1")["mode"] is None


def test_without_another_wish_nothing_is_asked(desk: Desk, operator: Browser) -> None:
    ran(desk)
    for query in ("", "?mode=enforce", "?mode=enforce&policy=priority"):
        page = operator.get(f"/control/hosts/{HOST}{query}")
        assert "Confirm" not in page.text
        assert not page.all("input", name="etag")


def test_what_somebody_else_changed_meanwhile_is_not_overwritten(desk: Desk, operator: Browser) -> None:
    ran(desk)
    given = confirmation(operator.get(f"/control/hosts/{HOST}?mode=released"))
    desk.api.ok("PATCH", f"/hosts/{HOST}", {"mode": "observe"})
    page = operator.post(f"/control/hosts/{HOST}", given)
    assert page.status == 412
    assert "It was changed meanwhile" in page.text
    assert desk.api.ok("GET", f"/hosts/{HOST}")["mode"] == "observe"
    assert operator.post(f"/control/hosts/{HOST}", confirmation(page)).status == 303, "asked again, with what is now"


def test_what_cannot_be_told_does_not_keep_from_releasing(desk: Desk, operator: Browser) -> None:
    desk.api.ok("PUT", "/vms/web-1", {"class": "critical"})
    page = operator.get("/control/vms/web-1?mode=released")
    assert "No agent sees web-1 run" in page.text
    assert operator.post("/control/vms/web-1", confirmation(page)).status == 303


@pytest.mark.parametrize("query", ["?mode=off", "?mode="])
def test_a_mode_that_there_is_not_is_refused(desk: Desk, operator: Browser, query: str) -> None:
    ran(desk)
    assert operator.get(f"/control/hosts/{HOST}{query}").status == 400


def test_a_policy_that_is_not_installed_is_refused(desk: Desk, operator: Browser) -> None:
    ran(desk)
    etag = desk.api.call("GET", f"/hosts/{HOST}").headers["ETag"].strip('"')
    page = operator.post(f"/control/hosts/{HOST}", {"policy": "none", "etag": etag})
    assert page.status == 422
    assert "is not installed" in page.text
    assert desk.api.ok("GET", f"/hosts/{HOST}")["policy"] == "priority"


def test_a_name_with_signs_of_markup_is_shown_as_text(desk: Desk, operator: Browser) -> None:
    ran(desk)
    page = operator.get(f"/control/hosts/{HOST}?policy=%3Cb%3E")
    assert "<b>&lt;" not in page.source.replace("&lt;b&gt;", "")
    assert "&lt;b&gt;" in page.source


def test_foreign_settings_are_listed_and_taken_back(desk: Desk, operator: Browser) -> None:
    foreign = {"knob": "weight", "index": 0, "value": "77", "original": "100", "owned": False, "external": True}
    ran(desk, knobs=[foreign])
    page = operator.get("/control/vms/web-1")
    assert "weight77" in page.text.replace(" ", "")
    assert operator.get(f"/control/hosts/{HOST}").all("a", href="/control/vms/web-1")
    before = desk.api.call("GET", "/vms/web-1").headers["ETag"]
    assert operator.post("/control/vms/web-1/adopt").status == 303
    assert desk.api.call("GET", "/vms/web-1").headers["ETag"] != before
    assert operator.post(f"/control/hosts/{HOST}/adopt").status == 303
    assert operator.post("/control/vms/none/adopt").status == 404


def test_a_viewer_controls_nothing(desk: Desk) -> None:
    ran(desk)
    viewer = desk.browser(Role.VIEWER)
    assert viewer.get(f"/control/hosts/{HOST}").status == 403
    assert viewer.post("/control/vms/web-1", {"mode": "released"}).status == 403
    assert viewer.post("/control/vms/web-1/adopt").status == 403
    assert desk.api.ok("GET", "/vms/web-1")["mode"] is None
