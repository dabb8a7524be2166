"""The first steps: from an empty system to an application that is observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manager.store.tokens import Role
from tests.api.conftest import HOST, notice_silence, report, tick
from tests.web.desk import Browser, Desk, Page

SOURCES = (Path(__file__).parents[2] / "docs/how-to/sources.md").read_text()
WEB = {"libvirt_name": "web-1", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"}
FILL = {"libvirt_name": "fill", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11"}


@pytest.fixture
def operator(desk: Desk) -> Browser:
    """A browser of an operator."""
    return desk.browser(Role.OPERATOR)


def step(page: Page) -> str:
    """The step that the page is at."""
    [current] = [one for one in page.all("li") if one.attributes.get("aria-current") == "step"]
    return current.text.split(". ", 1)[1]


def snippets(page: Page) -> list[str]:
    """Texts that can be copied."""
    return [page.by_id(button["data-copy"]).text for button in page.all("button") if "data-copy" in button.attributes]


def test_the_first_steps_lead_to_an_application_whose_sla_is_kept(desk: Desk, operator: Browser) -> None:
    page = operator.get("/first")
    assert step(page) == "An agent reports"
    assert any("equipoise agent" in text for text in snippets(page))

    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[WEB, FILL], tick=tick()), role="host")
    page = operator.get("/first")
    assert step(page) == "Its VMs are registered"
    assert f"Host {HOST} is in mode enforce" in page.text

    page = operator.get("/registered/pick?first=1")
    given = page.fields()
    keys = {one["libvirt_name"]: f"{HOST}/{one['libvirt_uuid']}" for one in (WEB, FILL)}
    for name, vm_class in (("web-1", "critical"), ("fill", "batch")):
        given[f"pick {keys[name]}"] = "on"
        given[f"class {keys[name]}"] = vm_class
    picked = operator.post("/registered/pick", given)
    assert picked.response.location.startswith("/first")
    assert {vm["name"]: vm["class"] for vm in desk.api.ok("GET", "/vms")["items"]} == {
        "web-1": "critical",
        "fill": "batch",
    }

    page = operator.get("/first")
    assert step(page) == "An application has an SLA"
    assert "required" in page.by_id("f-sla-response_time_ms").attributes
    given = page.filled({"name": "shop", "sla.response_time_ms": "10"})
    assert given.getlist("tiers[0].vms") == ["web-1"], "the only critical VM is picked"
    saved = operator.post("/first", given)
    assert saved.status == 303
    shop = desk.api.ok("GET", "/applications/shop")
    assert (shop["mode"], shop["tiers"]) == ("observe", [{"name": "web", "vms": ["web-1"]}])

    page = operator.get(saved.response.location)
    assert step(page) == "Response times arrive"
    for text in snippets(page):
        for line in text.splitlines():
            assert line in SOURCES, "a snippet is not what the documentation says"
    page = operator.post("/first", page.filled({"do": "add sources nginx_syslog"}))
    assert step(page) == "Response times arrive"
    assert operator.post("/first", page.filled({"sources[0].name": "no name"})).status == 422
    assert operator.post("/first", page.filled({"sources[0].name": "log"})).status == 303
    shop = desk.api.ok("GET", "/applications/shop")
    assert (shop["sources"][0]["type"], shop["sla"]["response_time_ms"]) == ("nginx_syslog", 10)

    page = operator.get("/first")
    assert step(page) == "Observe or enforce"
    assert page.all("a", href="/control/applications/shop?mode=enforce")
    assert step(operator.get("/first?step=done")) == "Running"
    desk.api.ok("PATCH", "/applications/shop", {"mode": "enforce"})
    assert step(operator.get("/first")) == "Running"


def service(domain: dict[str, str], port: int = 80, **changes: Any) -> dict[str, Any]:
    figures = {
        "libvirt_uuid": domain["libvirt_uuid"],
        "port": port,
        "protocol": "http",
        "protocol_share": 1.0,
        "rate_rps": 48.2,
        "p50_ms": 1.3,
        "p95_ms": 1.9,
        "p99_ms": 3.0,
        "error_share": 0.0,
        "since": "2026-03-01T11:58:05Z",
        "window_s": 45.0,
    }
    return figures | changes


@pytest.fixture
def registered(desk: Desk) -> Desk:
    """A critical VM and one of batch, in a host that reports."""
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[WEB, FILL], tick=tick()), role="host")
    for name, vm_class in (("web-1", "critical"), ("fill", "batch")):
        desk.api.ok("PUT", f"/vms/{name}", {"class": vm_class})
    return desk


def serving(desk: Desk, *services: dict[str, Any], **changes: Any) -> None:
    body = report(services={"services": list(services), **changes}, tick=tick())
    desk.api.ok("POST", f"/hosts/{HOST}/report", body, role="host")


def watch_links(page: Page) -> list[str]:
    """Where the buttons «Watch» lead to."""
    return [link["href"] for link in page.all("a", class_="button") if link.text.startswith("Watch")]


def test_a_service_that_was_seen_is_watched_without_any_configuration(registered: Desk, operator: Browser) -> None:
    serving(registered, service(FILL, 9100, protocol="other"), service(WEB))
    page = operator.get("/first")
    assert step(page) == "An application has an SLA"
    rows = [" ".join(row.text.split()) for row in page.all("tr")[1:]]
    assert rows[0].startswith("web-1 critical 80 http 48.2 req/s 1.3 ms 1.9 ms 3 ms 0 %")
    assert rows[1].startswith("fill batch 9100 other")
    assert page.all("body", data_live="fleet"), "the table is live"
    watch, _ = watch_links(page)

    page = operator.get(watch)
    assert not page.all("body", data_live="fleet"), "the form is not"
    text = page.by_id("derived").text
    assert "Suggested target: 10 ms." in text
    assert "The p95 was 1.9 ms over the last 45 s at 48.2 req/s" in text
    refused = operator.post(watch, page.filled({"name": "no name"}))
    assert refused.status == 422
    assert refused.fields()["sources[0].port"] == "80", "the source stays"
    saved = operator.post(watch, page.fields())
    assert saved.status == 303
    made = registered.api.ok("GET", "/applications/web")
    assert made["tiers"] == [{"name": "web", "vms": ["web-1"]}]
    assert (made["sla"]["percentile"], made["sla"]["response_time_ms"], made["mode"]) == (95, 10, "observe")
    assert [(one["type"], one["name"], one["port"]) for one in made["sources"]] == [("tap", "wire", 80)]
    assert step(operator.get(saved.response.location)) == "Observe or enforce", "application and source in one go"

    again = operator.get("/first?step=application")
    assert [row.text for row in again.all("a", href="/applications/web")] == ["web"]
    assert len(watch_links(again)) == 1


def test_a_target_is_derived_from_the_quietest_half_minute(registered: Desk, operator: Browser) -> None:
    serving(registered, service(WEB, p95_ms=90.0, quiet_p95_ms=1.9))
    [watch] = watch_links(operator.get("/first"))
    text = operator.get(watch).by_id("derived").text
    assert "Suggested target: 10 ms. The lowest p95 of half a minute so far was 1.9 ms" in text
    assert "The p95 was 90 ms over the last 45 s" in text


def test_a_service_of_a_batch_vm_is_watched_with_a_warning(registered: Desk, operator: Browser) -> None:
    registered.api.ok("PUT", "/applications/fill", {"tiers": []})
    serving(registered, service(FILL, 11211, protocol="memcached", p50_ms=None, p95_ms=None, p99_ms=None))
    [watch] = watch_links(operator.get("/first"))
    page = operator.get(watch)
    assert "is registered as batch" in page.text
    assert "No response time could be measured in the last 45 s" in page.by_id("derived").text
    given = page.fields()
    assert (given["name"], given["tiers[0].name"], given["sla.response_time_ms"]) == ("fill-2", "cache", "")
    page = operator.post(watch, given)
    assert page.status == 422
    assert "is required" in page.message_at("sla.response_time_ms")


def test_where_services_cannot_be_seen_the_page_says_why_and_goes_on(registered: Desk, operator: Browser) -> None:
    assert "no port of a registered VM has answered a request yet" in operator.get("/first").text
    serving(registered, problem="bpftool: [Errno 2] No such file or directory")
    page = operator.get("/first")
    assert f"On {HOST} services cannot be seen: bpftool" in page.text
    saved = operator.post("/first", page.filled({"name": "shop", "sla.response_time_ms": "10"}))
    assert saved.status == 303
    assert step(operator.get(saved.response.location)) == "Response times arrive"


@pytest.mark.parametrize("named", ["vm=web-1&port=81", "vm=ghost&port=80", "vm=web-1", "vm=web-1&port=x"])
def test_a_service_that_is_not_seen_any_more_is_not_watched(registered: Desk, operator: Browser, named: str) -> None:
    serving(registered, service(WEB))
    page = operator.get(f"/first?step=application&{named}")
    assert "That service is not seen any more" in page.text
    assert "sources[0].port" not in page.fields()


def test_an_agent_that_fell_silent_is_told_as_such(desk: Desk, operator: Browser) -> None:
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[WEB], tick=tick()), role="host")
    desk.api.clock.now_s += 31
    notice_silence(desk.api)
    page = operator.get("/first")
    assert step(page) == "An agent reports"
    assert f"{HOST}: last seen" in page.text
    assert "Is equipoise agent running there?" in page.text


def test_an_application_needs_an_sla_here(desk: Desk, operator: Browser) -> None:
    page = operator.post("/first", {"step": "application", "name": "shop", "sla.percentile": "95"})
    assert page.status == 422
    assert "is required" in page.message_at("sla.response_time_ms")
    assert desk.api.ok("GET", "/applications")["items"] == []


def test_steps_that_cannot_be_yet_are_not_shown(operator: Browser) -> None:
    for wanted in ("sources", "mode", "nonsense"):
        assert step(operator.get(f"/first?step={wanted}")) == "An agent reports"


def test_picking_tells_what_was_refused_and_keeps_it(desk: Desk, operator: Browser) -> None:
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[WEB, FILL], tick=tick()), role="host")
    page = operator.get("/registered/pick")
    [search] = page.all("input", name="search")
    assert search.attributes["maxlength"] == "255", "libvirt's names are longer than ours"
    assert "Select at least one VM" in operator.post("/registered/pick", page.fields()).text
    web, fill = (f"{HOST}/{one['libvirt_uuid']}" for one in (WEB, FILL))
    chosen = {f"pick {web}": "on", f"class {web}": "critical", f"pick {fill}": "on", f"name {fill}": "bad name"}
    page = operator.post("/registered/pick", page.filled(chosen))
    assert page.status == 422
    assert "1 registered, 1 not" in page.text
    assert [vm["name"] for vm in desk.api.ok("GET", "/vms")["items"]] == ["web-1"]
    problems = page.by_id("problems").text
    assert "Class: is required" in problems
    assert '"bad name" is refused' in problems
    [name] = [one for one in page.all("input") if one.attributes.get("name") == f"name {fill}"]
    assert name["value"] == "bad name"
    assert not [one for one in page.all("input") if one.attributes.get("name") == f"pick {web}"]


def test_where_nothing_runs_unregistered_the_page_says_so(desk: Desk, operator: Browser) -> None:
    assert "No host reports" in operator.get("/registered/pick").text
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[], tick=tick()), role="host")
    assert "No unregistered VM runs" in operator.get("/registered/pick").text
