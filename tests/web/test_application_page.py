"""The page of an application, its files and its report."""

from __future__ import annotations

import csv
import io

import pytest

from manager.store.tokens import Role
from tests.api.conftest import HOST, report, source_status, tick, tick_of, window
from tests.web.desk import Desk


def test_it_shows_promise_measure_and_where_its_vms_run(shop: Desk) -> None:
    page = shop.browser(Role.VIEWER).get("/applications/shop")
    assert "p95 ≤ 10 ms up to 5 req/s" in page.text
    assert "▲ above the agreed rate" in page.text
    assert "No recent violation" in page.text
    assert page.all("a", href=f"/hosts/{HOST}")
    assert page.by_id("charts")["data-application"] == "shop"
    assert page.all("body")[0]["data-live"] == "application:shop"


def test_the_figure_and_the_file_have_the_percentile_of_the_sla(shop: Desk) -> None:
    shop.api.ok("PUT", "/applications/shop", {"sla": {"percentile": 97.5, "response_time_ms": 80}})
    shop.api.ok("POST", "/applications/shop/samples", {"times_ms": [*range(1, 101)] * 10})
    browser = shop.browser(Role.VIEWER)
    page = browser.get("/applications/shop")
    measured_ms = shop.api.ok("GET", "/applications/shop")["measured_ms"]
    [strong] = [one.text for one in page.all("strong") if "ms" in one.text]
    assert measured_ms == pytest.approx(97.5, rel=0.02)
    assert (strong, "p97.5 now" + strong in page.text) == (f"{measured_ms:.1f} ms", True)
    names = [one.text for one in page.all("dt")]
    assert [name for name in names if name.startswith("p")] == ["p97.5 now", "p50 now", "p95 now", "p99 now"]
    rows = list(csv.DictReader(io.StringIO(browser.get("/applications/shop/times.csv").source)))
    assert float(rows[-1]["percentile_ms"]) == pytest.approx(97.5, rel=0.03)


def test_the_steps_of_the_policy_are_told_with_their_host_and_their_age(shop: Desk) -> None:
    browser = shop.browser(Role.VIEWER)
    assert "Steps of the policy" not in browser.get("/applications/shop").text, "this policy says nothing"
    told = tick(policy="auto", explanations=[{"application": "shop", "text": "Nothing is needed: p95 <b>is</b> met."}])
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(tick=told), role="host")
    page = browser.get("/applications/shop")
    assert page.by_id("policy").text == "Steps of the policy"
    assert f"{HOST} auto Nothing is needed: p95 <b>is</b> met." in page.text
    assert "Last reported" not in page.text
    shop.api.clock.now_s += 200
    assert "Last reported 3 min ago." in browser.get("/applications/shop").text


def test_no_data_stale_data_and_no_sla_look_different(shop: Desk) -> None:
    browser = shop.browser(Role.VIEWER)
    ids = {"no-sla", "no-data", "stale"}

    def notices(name: str) -> set[str]:
        return {one.attributes.get("id", "") for one in browser.get(f"/applications/{name}").elements} & ids

    shop.api.ok("PUT", "/applications/new", {"sla": {"response_time_ms": 10}})
    shop.api.ok("PUT", "/applications/free", {})
    assert notices("shop") == set()
    assert notices("new") == {"no-data"}
    assert notices("free") == {"no-sla"}
    shop.api.clock.now_s += 200
    assert notices("shop") == {"stale"}


def test_sources_say_how_they_are(shop: Desk) -> None:
    sources = [{"type": "http_probe", "name": name, "url": "http://shop/"} for name in ("ran", "never")]
    shop.api.ok(
        "PUT",
        "/applications/shop",
        {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": {"response_time_ms": 10}, "sources": sources},
    )
    failing = source_status("ran", state="failing", detail="connection refused")
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(sources=[failing]), role="host")
    browser = shop.browser()
    page = browser.get("/applications/shop")
    assert "✗ failing" in page.text
    assert "connection refused" in page.text
    assert "no host is registered for VM web-1: set its host, or that of the source" in page.text
    shop.api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    assert "no agent runs it" in browser.get("/applications/shop").text


@pytest.mark.parametrize(
    ("disks", "shown"),
    [
        ((), "–"),
        ((("vda", None),), "–"),
        ((("vda", 1.5), ("vdb", 42.0), ("vdc", None)), "vdb 42 ms, vda 1.5 ms"),
        ((("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0), ("e", 5.0)), "e 5 ms, d 4 ms, c 3 ms, 2 more"),
    ],
)
def test_the_disks_of_each_vm_have_their_latency(
    shop: Desk, disks: tuple[tuple[str, float | None], ...], shown: str
) -> None:
    own = [
        {"disk": name, "requests_per_s": 3.0} | ({} if latency_ms is None else {"latency_ms": latency_ms})
        for name, latency_ms in disks
    ]
    use = {"vms": [{"vm": "web-1", "memory_pressure": 0.1, "virtual_disks": own}]}
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(resources=use)), role="host")
    page = shop.browser(Role.VIEWER).get("/applications/shop")
    [cell] = page.all("td", **{"data-label": "Disk latency"})
    assert cell.text == shown


def test_an_application_that_is_not_there_is_said_so(desk: Desk) -> None:
    page = desk.browser().get("/applications/nothing")
    assert page.status == 404
    assert "nothing" in page.text


def violated(shop: Desk) -> None:
    """40 response times of 5 ms against an SLA of 4 ms, and the tick that saw it."""
    tiers = [{"name": "web", "vms": ["web-1"]}]
    shop.api.clock.now_s -= 60
    shop.api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 4}})
    shop.api.clock.now_s += 60
    windows = [window(end=end, count=40) for end in (-10, -5, 0)]
    ticks = [tick_of(second) for second in (-10, -5, 0)]
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(windows=windows, ticks=ticks), role="host")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_values_are_saved_as_files_with_units_in_their_heads(shop: Desk) -> None:
    violated(shop)
    query = "?since=2026-03-01T11:59:00Z&until=2026-03-01T12:00:00Z"
    browser = shop.browser(Role.VIEWER)
    page = browser.get(f"/applications/shop/times.csv{query}")
    headers = page.response.headers
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    assert headers["Content-Disposition"] == 'attachment; filename="shop-times.csv"'
    found = rows(page.source)
    assert [row["violated"] for row in found][-3:] == ["1", "1", "1"]
    assert float(found[-1]["p95_ms"]) == pytest.approx(5, rel=0.02)
    page = browser.get(f"/applications/shop/tiers.csv{query}")
    assert {(row["tier"], row["vm"], row["host"], row["weight"]) for row in rows(page.source)} == {
        ("web", "web-1", HOST, "10000")
    }


def test_a_bad_range_is_said_with_its_field(shop: Desk) -> None:
    page = shop.browser().get("/applications/shop/times.csv?since=yesterday")
    assert page.status == 422
    assert "since" in page.text


def test_the_report_has_attainment_and_likely_causes(shop: Desk) -> None:
    violated(shop)
    page = shop.browser(Role.VIEWER).get("/applications/shop/report?since=2026-03-01&until=2026-03-02")
    assert "95 % of response times in each interval are at most 4 ms" in page.text
    assert "SLA attainment0 %" in page.text
    assert "Violated3 of 3 intervals" in page.text
    told = shop.api.ok("GET", "/applications/shop/evidence")
    assert told["violation"]
    assert told["evidence"][0] in page.text
    assert page.all("svg", class_="report-chart")
    assert page.by_id("since")["value"] == "2026-03-01"
    assert page.by_id("until")["value"] == "2026-03-02"


def test_a_report_of_a_time_without_data_says_so(shop: Desk) -> None:
    page = shop.browser().get("/applications/shop/report?since=2025-03-01&until=2025-03-02")
    assert "No response times in this period" in page.text
    assert "No data100 % of intervals" in page.text
    assert "0 of 17,280 intervals of 5 s had enough samples." in page.text
    assert "None." in page.text


@pytest.mark.parametrize("query", ["since=now", "until=2026-13-01", "since=2026-03-01T12:00:00", "until=0001-01-01"])
def test_a_period_that_is_none_is_refused_with_how_to_write_it(shop: Desk, query: str) -> None:
    page = shop.browser().get(f"/applications/shop/report?{query}")
    assert page.status == 422
    assert "use a day such as" in page.text


def test_without_a_period_the_report_begins_with_the_first_response_time(shop: Desk) -> None:
    violated(shop)
    browser = shop.browser()
    page = browser.get("/applications/shop/report")
    assert "2026-03-01 11:59:45 to 2026-03-01 12:00:00: since the first response time" in page.text
    assert "3 of 3 intervals of 5 s had enough samples." in page.text
    assert "The rest had" not in page.text
    for days, begin in ((29, "2026-01-31 11:59:55"), (31, "2026-01-30 12:00:00")):
        windows = [window(end=-86400 * days, count=40)]
        shop.api.ok("POST", f"/hosts/{HOST}/report", report(windows=windows), role="host")
        page = browser.get("/applications/shop/report")
        assert f"{begin} to 2026-03-01 12:00:00" in page.text
    assert "since the first" not in page.text


def test_the_attainment_tells_how_much_could_not_be_evaluated(shop: Desk) -> None:
    violated(shop)
    [hour, *_] = [row.text for row in shop.browser().get("/applications/shop").all("tr") if "last hour" in row.text]
    assert hour == "last hour0 %100×3 of 399.58 %15 s4.97 ms", "attainment, burn rate, violated, no data, longest, p95"


def test_the_days_of_a_report_are_those_of_utc(shop: Desk) -> None:
    page = shop.browser().get("/applications/shop/report?since=2026-02-01T01:00:00%2B02:00&until=2026-02-20")
    assert "2026-01-31 23:00:00 to 2026-02-20 00:00:00" in page.text
    assert page.by_id("since")["value"] == "2026-01-31"


def test_a_report_until_a_time_to_come_is_until_now(shop: Desk) -> None:
    page = shop.browser().get("/applications/shop/report?until=2027-01-01")
    assert page.status == 200
    assert "2026-03-01 11:59:55 to 2026-03-01 12:00:00: since the first response time" in page.text
