"""The first page: every application against its SLA, every host, and what to do where there is nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from manager.store.retention import Keep
from manager.store.rollups import RollUps
from manager.store.tokens import Role
from tests.api.conftest import HOST, notice_silence, report, tick, window
from tests.web.desk import Desk, Page
from webui.fleet_pages import cpu_split


def test_an_empty_system_leads_to_the_first_application(desk: Desk) -> None:
    page = desk.browser(Role.OPERATOR).get("/")
    assert "No application is registered yet" in page.text
    assert page.all("a", href="/first")
    assert "No agent has reported yet" in page.text
    assert not page.all("form", role="search")


def test_a_viewer_is_told_whom_to_ask_and_sees_no_form(desk: Desk) -> None:
    page = desk.browser(Role.VIEWER).get("/")
    assert "Ask an operator" in page.text
    assert not page.all("a", href="/first")


def test_an_application_is_one_row_with_state_measure_line_rate_and_hosts(shop: Desk) -> None:
    page = shop.browser(Role.VIEWER).get("/")
    row = " ".join(page.by_id("application-shop").text.split())
    assert row == "shop ✓ met 4.97 ms of 10 ms 100 % 100 % 0× 8 req/s of 5 req/s above kvm1"
    [line] = page.all("svg", class_="spark")
    assert line["aria-label"] == "Last 10 minutes: at most 4.97 ms of 10 ms"
    assert "style" not in {name for one in page.elements for name in one.attributes}


@pytest.mark.parametrize("path", ["/", "/hosts"])
def test_what_stands_above_the_content_comes_first(shop: Desk, path: str) -> None:
    client = shop.browser(Role.VIEWER).client
    opening, content = (part.decode() for part in client.get(path).iter_encoded())
    assert opening.rstrip().endswith('<main id="main" tabindex="-1">')
    assert "Decisions</a>" in opening and "kvm1" not in opening
    assert "kvm1" in content and content.endswith("</html>")
    whole = client.get(f"{path}?sort=").get_data(as_text=True)
    assert whole.startswith(opening.rstrip())
    assert "Content-Length" in client.head(path).headers


def test_counts_filter_and_stay_in_the_url(shop: Desk) -> None:
    browser = shop.browser(Role.VIEWER)
    assert browser.get("/").all("a", class_="tile", href="/?state=violated")
    page = browser.get("/?state=violated&sort=name")
    assert "No matching applications" in page.text
    [chosen] = page.all("a", class_="tile", aria_current="true")
    assert chosen["href"] == "/?sort=name"  # takes the condition away
    assert [one.text for one in page.all("option", value="violated") if "selected" in one.attributes] == ["violated"]


def test_many_applications_come_in_parts(desk: Desk) -> None:
    for number in range(103):
        desk.api.ok("PUT", f"/applications/a{number:03}", {"sla": {"response_time_ms": 10}})
    browser = desk.browser()

    def rows(page: Page) -> list[str]:
        return [one["id"] for one in page.all("tr") if "id" in one.attributes]

    first = browser.get("/?sort=name")
    assert "1 to 30 of 103" in first.text
    assert first.by_id("live").attributes.get("data-more") == "", "its script asks for the rest"
    [following] = first.all("a", rel="next")
    second = browser.get(following["href"])
    assert "31 to 60 of 103" in second.text
    whole = browser.get("/?sort=name", HX_Request="true")
    assert "1 to 100 of 103" in whole.source
    assert rows(whole) == [f"application-a{number:03}" for number in range(100)]
    [following] = whole.all("a", rel="next")
    last = browser.get(following["href"])
    assert "101 to 103 of 103" in last.text
    assert rows(last) == ["application-a100", "application-a101", "application-a102"]
    assert "data-more" not in last.by_id("live").attributes


def test_only_the_live_part_is_answered_where_it_is_asked_for(shop: Desk) -> None:
    part = shop.browser().get("/", HX_Request="true")
    assert part.by_id("application-shop")
    assert not part.all("html")
    assert [form["id"] for form in part.all("form") if "data-keep" in form.attributes] == ["choose"]


def test_what_stopped_coming_looks_other_than_what_never_came(shop: Desk) -> None:
    shop.api.clock.now_s += 3000
    notice_silence(shop.api)
    page = shop.browser().get("/")
    assert "last response time 2026-03-01 12:00:00: check its source" in page.text
    assert "last seen 50 min ago" in page.text
    assert f"check that equipoise agent runs on {HOST}" in page.text
    shop.api.ok("PUT", "/applications/new", {"sla": {"response_time_ms": 10}})
    shop.api.ok("PUT", "/hosts/kvm9", {})
    page = shop.browser(Role.OPERATOR).get("/")
    assert "no response times yet" in page.by_id("application-new").text
    assert "never reported" in page.by_id("host-kvm9").text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"errors": 0}, "✓ healthy"),
        ({"errors": 2}, "▲ 2 errors in the last tick"),
        ({"errors": 0, "duration_ms": 6000}, "too long"),
        ({"errors": 0, "libvirt_connected": False}, "check that libvirtd runs"),
    ],
)
def test_a_host_says_how_its_last_tick_went(shop: Desk, changes: dict[str, object], words: str) -> None:
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(**changes), windows=[window()]), role="host")
    assert words in " ".join(shop.browser().get("/").by_id(f"host-{HOST}").text.split())


def test_the_cpu_is_split_among_the_classes_where_the_agent_tells_them_apart() -> None:
    parts = cpu_split(tick(critical_cpu_share=0.5, batch_cpu_share=0.3))
    assert [(part.name, round(part.share, 6)) for part in parts] == [
        ("critical", 0.5),
        ("batch", 0.3),
        ("other", 0.1),
        ("idle", 0.1),
    ]
    assert cpu_split(tick(critical_cpu_share=None, batch_cpu_share=None)) == (), "the first tick measures nothing"


def test_what_needs_a_human_stands_on_top(shop: Desk) -> None:
    browser = shop.browser(Role.VIEWER)
    assert "Needs attention" not in browser.get("/").text
    sla = shop.api.ok("GET", "/applications/shop")["sla"]
    shop.api.ok("PATCH", "/applications/shop", {"sla": {**sla, "response_time_ms": 4}})
    shop.api.clock.now_s += 10
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(windows=[window(end=10, count=40)], tick=tick()), role="host")
    told = browser.get("/").by_id("attention").text.split()
    words = "shop : ✗ violated 4.97 ms of 4 ms, above its agreed rate; burn rate 50×, error budget used up"
    assert " ".join(told).replace("shop:", "shop :") == f"Needs attention {words}"
    shop.api.clock.now_s += 3000
    notice_silence(shop.api)
    assert "kvm1: ✗ last seen 50 min ago check that equipoise agent runs" in " ".join(
        browser.get("/").by_id("attention").text.split()
    )


@pytest.mark.parametrize(
    ("path", "entry", "current"),
    [
        ("/", "Fleet", "page"),
        ("/applications/shop", "Fleet", "true"),
        (f"/hosts/{HOST}", "Hosts", "true"),
        (f"/control/hosts/{HOST}", "Hosts", "true"),
        ("/registered/applications/shop", "Inventory", "true"),
        ("/people/new-user", "People", "true"),
    ],
)
def test_the_navigation_marks_where_a_page_belongs(shop: Desk, path: str, entry: str, current: str) -> None:
    page = shop.browser(Role.ADMIN).get(path)
    assert page.status == 200
    marked = [(link.text, link["aria-current"]) for link in page.all("a") if "aria-current" in link.attributes]
    assert (entry, current) in marked


def test_an_application_that_lost_its_sla_burns_no_budget(shop: Desk) -> None:
    tiers = shop.api.ok("GET", "/applications/shop")["tiers"]
    shop.api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 1}})
    shop.api.clock.now_s += 900
    windows = [window(end=second, count=40) for second in range(5, 905, 5)]
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(windows=windows, tick=tick()), role="host")
    keep = Keep(timedelta(days=1), timedelta(days=30), timedelta(days=730))
    now = datetime.fromtimestamp(shop.api.clock.now_s, UTC)
    RollUps(shop.database, timedelta(seconds=5), 20, keep).roll_up(now)
    browser = shop.browser(Role.VIEWER)
    assert "burning fast" in browser.get("/").text
    shop.api.ok("PUT", "/applications/shop", {"tiers": tiers})
    for path in ("/", "/?group=state"):
        page = browser.get(path)
        assert page.status == 200
        assert "burning" not in page.text


def test_a_part_beyond_the_last_says_how_many_there_are(shop: Desk) -> None:
    page = shop.browser(Role.VIEWER).get("/?group=host&offset=50")
    [parts] = page.all("nav", aria_label="Parts of the list of groups")
    assert " ".join(parts.text.split()) == "1 groups Previous"
