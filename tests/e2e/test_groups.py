"""Groups on the fleet page are opened with the keyboard, stay open while data comes, and work without scripts."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.e2e.browser import Visits
from tests.e2e.service import HOST, Service


def test_a_group_is_opened_and_closed_with_the_keyboard(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/")
    page.evaluate("window.remembered = true")
    page.get_by_label("Group by").select_option("host")
    header = page.locator(f"#group-{HOST}")
    expect(header).to_have_attribute("aria-expanded", "true")
    table = page.locator(f"#applications-{HOST}")
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    header.focus()
    page.keyboard.press("Enter")
    expect(header).to_have_attribute("aria-expanded", "false")
    expect(table).to_have_count(0)
    expect(header).to_be_focused()
    expect(page).to_have_url(re.compile("group=host&open="))
    page.keyboard.press("Enter")
    expect(table).to_be_visible()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as on return to the page: fetched anew
    expect(table).to_be_visible()
    assert page.evaluate("window.remembered") is True
    page.go_back()
    expect(page.locator(f"#group-{HOST}")).to_have_attribute("aria-expanded", "false")


def summary(page: Page) -> str:
    return page.locator("details.group summary").first.inner_text()


def test_groups_of_hosts_fold(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, "viewer")
    page.goto("/hosts?group=policy")
    card = page.locator(f"#host-{HOST}")
    expect(card).to_be_visible()
    assert re.search(r"\d+ (healthy|errors|slow)", summary(page))
    page.locator("details.group summary").first.focus()
    page.keyboard.press("Enter")
    expect(card).not_to_be_visible()
