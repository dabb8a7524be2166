"""Lists longer than a page: fields suggest what the manager finds, and boxes that are ticked stay while others come."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import Visits
from tests.e2e.service import Service
from tests.e2e.test_every_page import check


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A manager with more VMs and hosts than a list shows, and no agent."""
    service = Service(tmp_path_factory.mktemp("crowded"))
    service.prepare()
    service.add_users()
    for number in range(105):
        service.ask("PUT", f"/vms/vm-{number:03}", {"class": "critical"})
        service.ask("PUT", f"/hosts/kvm{number:03}", {})
    service.ask("PUT", "/applications/calm", {})
    yield service
    service.close()


def test_free_vms_are_found_by_name_and_registered(visits: Visits, crowded: Service) -> None:
    page = visits.page(crowded)
    page.goto("/registered/new/applications")
    search = page.get_by_label("Search VMs for VMs")
    expect(page.locator("label", has_text="vm-000")).to_be_visible()
    expect(page.locator("label", has_text="vm-104")).to_have_count(0)
    page.get_by_label("vm-007").check()
    search.fill("vm-104")
    expect(page.locator("label", has_text="vm-104")).to_be_visible()
    expect(page.get_by_label("vm-007")).to_be_checked()
    expect(page.locator("label", has_text="vm-000")).to_have_count(0)
    search.press("Enter")
    expect(page).to_have_url(re.compile("/registered/new/applications$"))
    search.press("Tab")
    expect(page.get_by_role("button", name="Search")).to_be_focused()
    page.get_by_label("vm-104").check()
    search.fill("")
    expect(page.locator("label", has_text="vm-000")).to_be_visible()
    check(page)
    page.get_by_label("Name", exact=True).first.fill("shop")
    page.locator("#f-tiers-0-name").fill("web")
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page).to_have_url(re.compile("saved=applications"))
    assert crowded.ask("GET", "/applications/shop")["tiers"][0]["vms"] == ["vm-007", "vm-104"]


@pytest.mark.parametrize(
    ("path", "field", "entered"),
    [("/what-if", "#host", "kvm104"), ("/hosts/kvm001/admission", "#f-vm", "vm-104"), ("/", "#host", "kvm104")],
)
def test_a_field_suggests_what_is_entered(
    visits: Visits, crowded: Service, path: str, field: str, entered: str
) -> None:
    page = visits.page(crowded, "viewer")
    page.goto(path)
    names = page.locator(f"datalist option[value='{entered}']")
    expect(names).to_have_count(0)
    page.locator(field).fill("")
    page.locator(field).press_sequentially(entered)
    expect(names).to_have_count(1)
