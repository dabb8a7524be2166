"""Pages of a fleet with more of everything than a page shows: none reads more rows than it shows."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from manager.store.database import open_database
from manager.store.tokens import Role
from tests.api.conftest import START
from tests.bench.fleet_lists import Fleet, fill
from tests.postgres import PostgresServer
from tests.statements import counted
from tests.web.desk import Browser, Desk, Page, make_desk
from webui.editing_pages import PICKED_VMS
from webui.rest import SUGGESTED

FLEET = Fleet(hosts=120, vms=10, applications=240)
"""480 critical VMs, two for each application, and 720 of batch."""
BESIDES = 70
"""Rows besides what a page shows: for each of its requests who asks, one to know whether more follow, and the like."""


@pytest.fixture(scope="module")
def large(postgres: PostgresServer) -> Iterator[Desk]:
    database = open_database(postgres.create("large_lists"))
    database.upgrade()
    fill(database, FLEET, START)
    yield make_desk(database)
    database.close()


@pytest.fixture(scope="module")
def operator(large: Desk) -> Browser:
    return large.browser(Role.OPERATOR)


@pytest.fixture(scope="module")
def viewer(large: Desk) -> Browser:
    return large.browser(Role.VIEWER)


def read(desk: Desk, browser: Browser, path: str) -> tuple[Page, int]:
    """A page, and the rows that it reads while the overview of the fleet is kept: it is read anew now and then."""
    rows = []
    for _ in range(3):
        with counted(desk.database) as count:
            page = browser.get(path)
        assert page.status == 200
        rows.append(count.rows)
    return page, min(rows)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/registered/new/applications", PICKED_VMS + SUGGESTED),
        ("/registered/applications/app-0100", PICKED_VMS + SUGGESTED + 4),
        ("/registered/new/vms", SUGGESTED),
        ("/hosts/kvm0050/admission", SUGGESTED + 5),
        ("/what-if", SUGGESTED + 1),
        ("/what-if?application=app-0100", SUGGESTED + 4),
        ("/first", 10 + 2 + 1),
        ("/first?step=agent", 2 + 10 + 2 + 1),
        ("/first?step=application", PICKED_VMS + 2 * 10 + 10 * 10),
        ("/first?step=sources&application=app-0100", 10 + 2 + 1),
        ("/first?step=done&application=app-0100", 10 + 2 + 1),
        ("/savings", 50 * (5 + 2 * 15)),  # of hosts so young the ten minutes that are known
        ("/control/hosts/kvm0050", FLEET.vms),
        ("/control/applications/app-0100", 2),
        ("/registered/pick", 100),
        ("/forms/suggest/vms?field=vm&vm=vm-00", SUGGESTED + 10),
        ("/forms/suggest/hosts?field=host&host=kvm", SUGGESTED),
    ],
)
def test_a_page_reads_no_more_than_it_shows(large: Desk, operator: Browser, path: str, shown: int) -> None:
    """Listed VMs come with the last tick of their host, and a request with who asks: that is what there is besides."""
    _, rows = read(large, operator, path)
    assert 0 < rows <= shown + BESIDES


def boxes(page: Page) -> list[str]:
    return [box["value"] for box in page.all("input", type="checkbox", name="tiers[0].vms")]


def test_free_vms_are_searched_and_those_picked_stay(operator: Browser) -> None:
    page = operator.get("/registered/applications/app-0100")
    assert boxes(page)[:2] == page.fields().getlist("tiers[0].vms") == ["vm-0050-00", "vm-0050-01"]
    assert len(boxes(page)) == PICKED_VMS + 2
    [search] = page.all("input", type="search", name="find tiers[0].vms")
    given = page.fields()
    given["find tiers[0].vms"] = "0119-0"
    found = operator.post(search["hx-post"], given)
    assert boxes(found) == ["vm-0050-00", "vm-0050-01", *(f"vm-0119-{number:02}" for number in range(4, 10))]
    assert found.fields().getlist("tiers[0].vms") == ["vm-0050-00", "vm-0050-01"]
    given.add("tiers[0].vms", "vm-0119-09")
    given["find tiers[0].vms"] = "nothing"
    found = operator.post(search["hx-post"], given)
    assert found.fields().getlist("tiers[0].vms") == boxes(found) == ["vm-0050-00", "vm-0050-01", "vm-0119-09"]


def test_without_scripts_the_search_is_sent_with_the_form(operator: Browser) -> None:
    path = "/registered/applications/app-0101"
    given = operator.get(path).filled({"find tiers[0].vms": "0119-07", "do": "find tiers[0].vms"})
    page = operator.post(path, given)
    assert page.status == 200
    assert boxes(page) == ["vm-0050-02", "vm-0050-03", "vm-0119-07"]
    [search] = page.all("input", type="search", name="find tiers[0].vms")
    assert search["value"] == "0119-07"
    given = page.filled({"find tiers[0].vms": "0118-06", "do": "find tiers[0].vms"})
    given.add("tiers[0].vms", "vm-0119-07")
    assert boxes(operator.post(path, given)) == ["vm-0050-02", "vm-0050-03", "vm-0119-07", "vm-0118-06"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("vms?field=vm&vm=VM-0119-0", [f"vm-0119-{number:02}" for number in range(10)]),
        ("vms?field=vm&vm=vm-0119&elsewhere=kvm0119", []),
        ("hosts?field=sources%5B0%5D.host&sources%5B0%5D.host=kvm011", [f"kvm011{number}" for number in range(10)]),
        (f"hosts?field=host&host={quote('%')}", []),
    ],
)
def test_fields_suggest_names_that_have_what_was_entered(viewer: Browser, query: str, expected: list[str]) -> None:
    page = viewer.get(f"/forms/suggest/{query}")
    assert [option["value"] for option in page.all("option")] == expected


def test_a_service_page_has_few_hosts_and_is_searched(operator: Browser) -> None:
    first = operator.get("/first?step=application")
    [following] = first.all("a", rel="next")
    assert "kvm0001:" in first.text
    assert "kvm0011:" not in first.text
    second = operator.get(following["href"])
    assert "kvm0011:" in second.text
    assert "kvm0001:" not in second.text
    assert "kvm0077:" in operator.get("/first?step=application&search=KVM0077").text
