"""Pages follow what happens, and say so when they cannot: a lost manager, a silent agent, nothing there yet."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.e2e.browser import Visits
from tests.e2e.service import Service

LIVE = re.compile("^live")
OVER_THE_RATE = re.compile(r"\b[56]\d(\.\d)? req/s")
"""30/s before the spike, 60/s in it."""


def connection(page: Page) -> Locator:
    return page.locator("#connection")


def row(page: Page, application: str) -> Locator:
    """The fleet page's row of an application."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=application, exact=True))


def never_loaded_again(page: Page) -> None:
    """The page is the one that ``remember`` marked."""
    assert page.evaluate("window.remembered") is True


def remember(page: Page) -> None:
    page.evaluate("window.remembered = true")


def test_a_spike_is_seen_without_loading_the_page_again(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/")
    remember(page)
    expect(connection(page)).to_have_text(LIVE)
    expect(row(page, "spiking")).not_to_contain_text(OVER_THE_RATE, timeout=60_000)
    expect(row(page, "spiking")).to_contain_text(OVER_THE_RATE, timeout=60_000)
    expect(row(page, "calm")).not_to_contain_text(OVER_THE_RATE)
    expect(row(page, "spiking")).not_to_contain_text(OVER_THE_RATE, timeout=60_000)
    never_loaded_again(page)


def test_what_somebody_else_changes_is_seen(visits: Visits, own: Service) -> None:
    page = visits.page(own, "viewer")
    page.goto("/applications/tick")
    remember(page)
    expect(connection(page)).to_have_text(LIVE)
    before = own.ask("GET", "/applications/tick")["sla"]
    own.ask("PATCH", "/applications/tick", {"sla": {**before, "response_time_ms": 4321}})
    sla = page.locator("main dl div", has=page.locator("dt", has_text=re.compile("^SLA$")))
    expect(sla).to_contain_text("4,321 ms")
    own.ask("PATCH", "/applications/tick", {"sla": before})
    expect(sla).not_to_contain_text("4,321 ms")  # what was decided meanwhile goes on naming it, elsewhere on the page
    never_loaded_again(page)


def test_the_floor_in_the_chart_of_a_host_is_the_one_in_force(visits: Visits, own: Service) -> None:
    page = visits.page(own, "viewer")
    path = f"/hosts/{own.host}"
    page.goto(path)
    remember(page)
    legend = page.locator("#chart-batch .u-legend")
    before = own.ask("GET", path)["law"]
    expect(legend).to_contain_text(re.compile(r"floor\s*[\d.]+ %"))
    own.ask("PATCH", path, {"law": {**before, "batch_floor": 0.234}})
    expect(legend).to_contain_text("23.4 %")
    own.ask("PATCH", path, {"law": before})
    expect(legend).not_to_contain_text("23.4 %")
    never_loaded_again(page)


def test_a_lost_manager_is_told_and_found_again(visits: Visits, own: Service) -> None:
    visits.tolerated += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESP"]
    visits.tolerated += ["htmx:sendError", "htmx:afterRequest"]
    page = visits.page(own)
    page.goto("/")
    remember(page)
    expect(connection(page)).to_have_text(LIVE)
    own.stop("manager")
    expect(connection(page)).to_have_attribute("data-state", "lost")
    expect(connection(page)).to_contain_text("equipoise manager")
    expect(row(page, "tick")).to_be_visible()
    own.start("manager")
    before = own.ask("GET", "/applications/tick")["sla"]
    own.ask("PATCH", "/applications/tick", {"sla": {**before, "response_time_ms": 4321}})
    expect(connection(page)).to_have_text(LIVE, timeout=60_000)
    expect(row(page, "tick")).to_contain_text("4,321 ms")
    own.ask("PATCH", "/applications/tick", {"sla": before})
    expect(row(page, "tick")).not_to_contain_text("4,321 ms")
    never_loaded_again(page)


def test_a_silent_agent_is_told_apart_from_a_lost_manager(visits: Visits, own: Service) -> None:
    fleet, host = visits.page(own, "viewer"), visits.page(own, "viewer")
    fleet.goto("/")
    host.goto(f"/hosts/{own.host}")
    own.kill("agent")
    for page in (fleet, host):
        expect(page.get_by_role("main")).to_contain_text(re.compile("last seen .* ago", re.I), timeout=90_000)
        expect(page.get_by_role("main")).to_contain_text(f"runs on {own.host}")
        expect(connection(page)).to_have_text(LIVE)
    expect(row(fleet, "tick")).to_contain_text("no data", timeout=90_000)
    own.start("agent")
    for page in (fleet, host):
        expect(page.get_by_role("main")).not_to_contain_text(re.compile("last seen .* ago", re.I))
    expect(row(fleet, "tick")).not_to_contain_text("no data", timeout=60_000)


def test_an_empty_system_leads_on(visits: Visits, empty: Service) -> None:
    page = visits.page(empty, "operator")
    page.goto("/")
    page.get_by_role("main").get_by_role("link", name=re.compile("register", re.I)).first.click()
    expect(page).to_have_url(re.compile("/first"))
    page = visits.page(empty, "viewer")
    page.goto("/")
    expect(page.get_by_role("main")).to_contain_text("operator")
    expect(page.get_by_role("main").get_by_role("link", name=re.compile("register", re.I))).to_have_count(0)


def test_pages_work_without_scripts(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "operator", java_script=False)
    page.goto("/")
    row(page, "spiking").get_by_role("link", name="spiking", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("spiking")
    page.get_by_role("link", name="Hosts", exact=True).click()
    page.get_by_role("link", name=spike.host, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(spike.host)
    expect(page.get_by_role("main")).to_contain_text("batch-1")
