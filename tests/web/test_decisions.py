"""Decisions and their effect, likely causes, and events."""

from __future__ import annotations

from typing import Any

import pytest

from manager.model.fields import MANAGER
from manager.model.histogram import Histogram
from manager.model.records import Severity
from manager.store.event_records import store_events
from manager.store.silent_hosts import host_event
from manager.store.tokens import Role
from tests.api.conftest import HOST, START, event, record, report, tick, tick_of, window
from tests.web.desk import Browser, Desk, Page
from webui.record_pages import moments


def told(desk: Desk, **changes: Any) -> None:
    """What the agent reports two minutes later."""
    desk.api.clock.now_s += 120
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(**changes), role="host")


def said(page: Page) -> list[str]:
    """The sentences of the story on a page."""
    assert page.status == 200
    return [" ".join(one.text.split()) for one in page.all("p", class_="entry-said")]


def slow(end: int) -> dict[str, Any]:
    """A slot in which all response times were 50 ms."""
    buckets = {str(bucket): number for bucket, number in Histogram.of([50_000.0] * 40).buckets.items()}
    return window(end=end, buckets=buckets, requests=10)


@pytest.fixture
def story(shop: Desk) -> Browser:
    """Two decisions about one VM in one tick, and one about another that the kernel ignored."""
    told(
        shop,
        decisions=[
            record(1, after="9100"),
            record(2, at=record(1)["at"], knob="vcpu_pin", before="0-3", after="2", reason="a core of its own"),
            record(3, vm="crunch", before="100", after="1", outcome="ignored", detail="still 100", reason="batch VM"),
        ],
    )
    return shop.browser(Role.VIEWER)


def test_without_decisions_it_says_why_there_may_be_none(desk: Desk) -> None:
    browser = desk.browser(Role.VIEWER)
    assert "No decisions in the last hour." in browser.get("/decisions").text
    assert "No matching decisions in the last day." in browser.get("/decisions?vm=web-1&last=1d").text


def test_an_entry_is_a_sentence_that_unfolds_to_its_records(story: Browser) -> None:
    page = story.get("/decisions")
    ignored, applied = said(page)
    assert ignored.startswith("crunch: CPU weight of crunch from 100 to 1")
    assert "shop: p95 4.97 ms, SLA 10 ms" in applied
    assert "100 to 9,100" in applied
    cells = [" ".join(one.text.split()) for one in page.all("td")]
    assert record(1)["id"] in cells
    assert record(2)["id"] in cells
    assert "ignored by the kernel: still 100" in cells
    assert "a core of its own" in cells


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        ("", 2),
        ("vm=crunch", 1),
        ("application=shop", 1),
        ("host=kvm1", 2),
        ("host=kvm2", 0),
        ("outcome=ignored", 1),
        ("outcome=restored", 0),
        ("last=all", 2),
        ("since=2026-03-01T12:00:02Z", 1),
        ("until=2026-03-01T12:00:02Z", 1),
    ],
)
def test_entries_are_filtered(story: Browser, choice: str, count: int) -> None:
    assert len(said(story.get(f"/decisions?{choice}"))) == count


def test_the_time_back_is_kept_to(shop: Desk) -> None:
    told(shop, decisions=[record(1)])
    browser = shop.browser(Role.VIEWER)
    assert len(said(browser.get("/decisions?last=15min"))) == 1
    shop.api.clock.now_s += 900
    assert said(browser.get("/decisions?last=15min")) == []
    assert len(said(browser.get("/decisions?last=nonsense"))) == 1


def test_the_form_shows_what_was_chosen(story: Browser) -> None:
    page = story.get("/decisions?vm=crunch&outcome=ignored&last=6h")
    given = {name: value for name, value in page.fields().items() if name != "csrf_token"}
    assert given == {"application": "", "host": "", "vm": "crunch", "outcome": "ignored", "last": "6h"}
    known = {one.attributes["value"] for one in page.all("option") if "value" in one.attributes}
    assert {"shop", "web-1", "kvm1"} <= known


@pytest.mark.parametrize(
    "choice", ["since=yesterday", "host=a%20b", "outcome=splendid", "cursor=x", "application=none"]
)
def test_a_choice_that_cannot_be_is_told_with_the_form_to_mend_it(story: Browser, choice: str) -> None:
    page = story.get(f"/decisions?{choice}")
    assert page.status == 200
    assert "Invalid filter" in page.text
    assert page.by_id("filter-host")


def test_older_entries_are_a_page_away_and_that_page_stands_still(shop: Desk) -> None:
    told(shop, decisions=[record(number) for number in range(60)])
    browser = shop.browser(Role.VIEWER)
    first = browser.get("/decisions?host=kvm1")
    [older] = [link for link in first.all("a") if link.text == "Older"]
    assert first.all("body")[0]["data-live"] == "decisions"
    second = browser.get(older["href"])
    assert (len(said(first)), len(said(second))) == (50, 10)
    assert "data-live" not in second.all("body")[0].attributes
    assert "host=kvm1" in older["href"]


def test_the_likely_cause_is_asked_where_the_sla_was_violated(shop: Desk) -> None:
    told(shop, decisions=[record(8), record(61)], windows=[slow(5), slow(10)])
    page = shop.browser(Role.VIEWER).get("/decisions")
    assert [one["hx-get"] for one in page.all("div", hx_trigger="load, again")] == ["/decisions/cause?application=shop"]
    [asked] = page.all("div", hx_trigger="toggle from:closest details once")
    assert asked["hx-get"] == "/decisions/cause?application=shop&at=2026-03-01T12:00:08Z"


def test_the_noisy_neighbour_is_named_with_the_evidence(shop: Desk) -> None:
    shop.api.ok("PUT", "/vms/crunch", {"class": "batch"})

    def busy(second: int, crunch: float, waited: float) -> dict[str, Any]:
        vms = [
            {"vm": "web-1", "cpu_share": 0.25, "run_delay_share": waited, "weight": 100, "mode": "enforce"},
            {"vm": "crunch", "cpu_share": crunch, "run_delay_share": 0.5, "weight": 100, "mode": "enforce"},
        ]
        return tick_of(second, vms=vms)

    ticks = [busy(second, 0.05, 0.01) for second in (-20, -15, -10, -5)] + [busy(s, 0.6, 0.9) for s in (10, 15, 20)]
    told(shop, ticks=ticks, windows=[slow(end) for end in (10, 15, 20)])
    page = shop.browser(Role.VIEWER).get("/decisions/cause?application=shop")
    assert page.status == 200
    assert "Noisy neighbour: crunch on kvm1." in page.text
    assert "batch VM crunch rose from 5.0 % to 60.0 %" in page.text


def test_who_was_shown_by_experiment_is_named_with_the_confidence(shop: Desk) -> None:
    cause = {"vm": "db-1", "fall": 0.5, "confidence": 0.992, "age_s": 5.0}
    explanations = [{"application": "shop", "text": "It is slowed.", "cause": cause}]
    told(shop, windows=[slow(10)], tick=tick(explanations=explanations))
    page = shop.browser(Role.VIEWER).get("/decisions/cause?application=shop")
    assert "Noisy neighbour: db-1 on kvm1, shown by experiment (confidence 99.2 %)." in page.text
    assert "response times fell by 39 % while" in page.text


def test_without_evidence_nobody_is_named(shop: Desk) -> None:
    page = shop.browser(Role.VIEWER).get("/decisions/cause?application=shop", HX_Request="true")
    assert "No recent violation" in page.source


def test_events_are_listed_newest_first_and_filtered(desk: Desk) -> None:
    told(desk, events=[event(1), event(2, severity="error", message="the kernel <refused>", vm="web-1")])
    browser = desk.browser(Role.VIEWER)
    page = browser.get("/events")
    assert [one["id"][-1] for one in page.all("tr", class_="entry")] == ["2", "1"]
    assert "✗ error" in page.text
    assert "&lt;refused&gt;" in page.source
    only = browser.get("/events?severity=warning")
    assert [one["id"][-1] for one in only.all("tr", class_="entry")] == ["1"]
    assert "No matching events" in browser.get("/events?severity=info").text
    assert "No events in the last 7 days." not in page.text


def test_a_message_neither_turns_nor_hides_what_is_read(desk: Desk) -> None:
    told(desk, events=[event(1, message="the \u202egnp.exe\u2066 \u200b\x1b[2J \x9b31m [/x] end")])
    page = desk.browser(Role.VIEWER).get("/events")
    assert "gnp.exe" in page.source
    assert page.source.replace("\n", "").isprintable()


@pytest.mark.parametrize("path", ["/decisions", "/decisions/cause?application=shop", "/events"])
def test_who_is_not_signed_in_is_sent_to_the_form(desk: Desk, path: str) -> None:
    response = desk.browser(None).get(path).response
    assert response.status_code == 303
    assert response.location.startswith("/sign-in?next=")


def test_of_what_there_is_none_is_said(desk: Desk) -> None:
    browser = desk.browser(Role.VIEWER)
    assert "No decisions." in browser.get("/decisions?last=all").text
    page = browser.get("/events?last=6h&since=2026-01-31T12:00:00Z")
    assert "No events in this time." in page.text
    assert "Back to the last 6 hours" in page.text
    assert "Back to all that is kept" in browser.get("/events?last=all&since=2026-01-31T12:00:00Z").text


@pytest.mark.parametrize("since", ["2026-01-31t12:00:00z", "2026-01-31T14:00:00%2B02:00", "2026-01-31 12:00:00Z"])
def test_a_time_is_shown_in_utc_however_it_is_written(desk: Desk, since: str) -> None:
    page = desk.browser(Role.VIEWER).get(f"/decisions?since={since}")
    assert page.status == 200
    assert "Only from 2026-01-31 12:00:00" in page.text


def test_the_managers_own_events_lead_to_no_host(shop: Desk) -> None:
    with shop.database.writing() as session:
        store_events(session, [host_event(MANAGER, START, Severity.WARNING, "clock-jumped", "the clock jumped")])
    told(shop, events=[event(1)])
    browser = shop.browser(Role.VIEWER)
    page = browser.get("/events")
    assert "clock jumped" in page.text
    links = {link["href"] for link in page.all("a") if link["href"].startswith("/hosts/")}
    assert links == {f"/hosts/{HOST}"}


def test_rows_of_hosts_of_like_names_are_told_apart() -> None:
    entries = [{"at": "2026-03-01T12:00:00Z", "host": host, "policy": "equal"} for host in ("kvm-1", "kvm1")]
    assert len({moment.key for moment in moments(entries)}) == 2
