"""Groups of applications on the first page: which come first, what of them is shown, and what opens them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manager.store.database import Database
from manager.store.tokens import Role
from tests.api.conftest import report, status, tick, window
from tests.statements import counted
from tests.web.desk import Browser, Desk, Page, make_desk
from webui.fleet_pages import FIRST_ROWS, OPEN_GROUPS, PAGE_GROUPS


def place(desk: Desk, host: str, applications: int, measured: str = "") -> None:
    """Register applications ``HOST-0`` and so on, each with a VM on the host; ``measured`` is the one with 5 ms."""
    api, names = desk.api, [f"{host}-{number}" for number in range(applications)]
    for name in names:
        api.ok("PUT", f"/vms/vm-{name}", {"class": "critical"})
        body = {"tiers": [{"name": "web", "vms": [f"vm-{name}"]}], "sla": {"response_time_ms": 4}}
        api.ok("PUT", f"/applications/{name}", body)
    windows = [window(measured, count=40)] if measured else []
    told = report(vms=[status(f"vm-{name}") for name in names], windows=windows, tick=tick(errors=0))
    api.ok("POST", f"/hosts/{host}/report", told, role="admin")


def headers(page: Page) -> list[str]:
    return [" ".join(heading.text.split()) for heading in page.all("h3") if heading.text.strip()[0] in "▸▾"]


def rows(page: Page) -> list[str]:
    return [row["id"].removeprefix("application-") for row in page.all("tr") if "id" in row.attributes]


@pytest.fixture
def placed(desk: Desk) -> Desk:
    """Two hosts with applications, one of which violates its SLA, and an application that runs nowhere."""
    place(desk, "a", 2)
    place(desk, "b", 3, "b-1")
    desk.api.ok("PUT", "/applications/idle", {"mode": "observe"})
    return desk


def test_the_worst_group_comes_first_and_is_open(placed: Desk) -> None:
    page = placed.browser(Role.VIEWER).get("/?group=host")
    assert headers(page) == [
        "▾ b ✗ violated 3 applications: 1 violated, 2 no data",
        "▸ a ○ no data 2 applications: 2 no data",
        "▸ not running ○ no data 1 application: 1 no data",
    ]
    assert rows(page) == ["b-b-1", "b-b-0", "b-b-2"]
    assert [page.by_id(f"group-{key}")["aria-expanded"] for key in ("b", "a", "-")] == ["true", "false", "false"]
    assert page.all("a", class_="button", href="/hosts/b")
    assert "b-1: ✗ violated" in page.by_id("attention").text


def test_a_group_is_opened_and_closed_by_its_link(placed: Desk) -> None:
    browser = placed.browser(Role.VIEWER)
    page = browser.get("/?group=host")
    both = browser.get(page.by_id("group--")["href"])
    assert rows(both) == ["b-b-1", "b-b-0", "b-b-2", "--idle"]
    one = browser.get(both.by_id("group-b")["href"])
    assert rows(one) == ["--idle"]
    closed = browser.get(one.by_id("group--")["href"])
    assert rows(closed) == []
    assert len(headers(closed)) == 3


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("group=state", ["▾ violated 1 application", "▸ no data 5 applications"]),
        ("group=mode", ["inherited from host", "observe"]),
        ("group=policy", ["priority", "not running"]),
        ("group=host&search=a-", ["▾ a ○ no data 2 applications: 2 no data"]),
        ("group=host&state=violated", ["▾ b ✗ violated 1 application: 1 violated"]),
    ],
)
def test_groups_of_each_kind_follow_the_filters(placed: Desk, query: str, expected: list[str]) -> None:
    found = headers(placed.browser(Role.VIEWER).get(f"/?{query}"))
    assert len(found) == len(expected)
    assert all(words in heading for words, heading in zip(expected, found, strict=True)), found


def test_a_long_group_leads_to_all_of_it(desk: Desk) -> None:
    place(desk, "a", FIRST_ROWS + 2)
    browser = desk.browser(Role.VIEWER)
    page = browser.get("/?group=host&sort=name")
    assert len(rows(page)) == FIRST_ROWS
    [link] = [one for one in page.all("a", class_="button") if one.text.startswith("All ")]
    assert link.text == f"All {FIRST_ROWS + 2} applications of a"
    whole = browser.get(link["href"], HX_Request="true")
    assert len(rows(whole)) == FIRST_ROWS + 2
    assert "Only applications of the group" in whole.source
    assert [one.text for one in whole.all("a", href="/?sort=name&group=host")] == ["All groups"]


def test_groups_come_in_parts_and_few_are_open(desk: Desk) -> None:
    for number in range(PAGE_GROUPS + 1):
        place(desk, f"h{number:02}", 1)
    browser = desk.browser(Role.VIEWER)
    first = browser.get("/?group=host")
    assert f"1 to {PAGE_GROUPS} of {PAGE_GROUPS + 1} groups" in first.text
    assert len(headers(browser.get(first.all("a", rel="next")[0]["href"]))) == 1
    asked = "&".join(f"open=h{number:02}" for number in range(OPEN_GROUPS + 2))
    assert rows(browser.get(f"/?group=host&{asked}")) == [f"h{n:02}-h{n:02}-0" for n in range(2, OPEN_GROUPS + 2)]


def rows_read(desk: Desk, browser: Browser, path: str) -> int:
    """What a page reads while the overview of the fleet is kept: it is read anew after half an interval."""
    read = []
    for _ in range(3):
        with counted(desk.database) as count:
            assert browser.get(path).status == 200
        read.append(count.rows)
    return min(read)


def test_a_page_reads_the_rows_of_open_groups_alone(migrated: Callable[[str], Database]) -> None:
    """Of an application: its newest slot, recent slots, error budget and hosts."""
    desk = make_desk(migrated("postgresql"))
    for host in "abcdef":
        place(desk, host, 8)
    for number in range(51):
        desk.api.ok("PUT", f"/hosts/kvm{number:02}", {})  # more than ``small_fleet``
    browser = desk.browser(Role.VIEWER)
    closed, one, two = (rows_read(desk, browser, f"/?group=host&open={asked}") for asked in ("", "a", "a&open=b"))
    assert 0 < one - closed <= 8 * 4
    assert 0 < two - one <= 8 * 4
    assert closed < 48, "fewer than there are applications"
