"""What sharing hosts saved, as a report to print and as a file."""

from __future__ import annotations

import csv
import io

import pytest

from manager.control.savings import CostedUse, CostModel, HostUse, saved_by
from manager.store.tokens import Role
from tests.api.conftest import HOST, report, status, tick_of
from tests.web.desk import Desk
from webui import savings_pages


@pytest.fixture
def used(desk: Desk) -> Desk:
    """A host that critical VMs use by a tenth and batch VMs by 80 %, for 500 s."""
    shares = {"web-1": 0.1, "hog": 0.8}
    for name, vm_class in (("web-1", "critical"), ("hog", "batch")):
        desk.api.ok("PUT", f"/vms/{name}", {"class": vm_class})
    vms = [
        {"vm": name, "cpu_share": share, "run_delay_share": 0.0, "weight": 100, "mode": "enforce"}
        for name, share in shares.items()
    ]
    ticks = [tick_of(-5 * number, vms=vms, host_cpu_share=0.95) for number in range(100)][::-1]
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[status(name) for name in shares], ticks=ticks))
    return desk


def test_the_report_says_what_was_saved_and_that_it_is_a_model(used: Desk) -> None:
    browser = used.browser(Role.VIEWER)
    page = browser.get("/savings")
    text = " ".join(page.text.split())
    assert "Servers saved0.80" in text
    assert "Gained by batch VMs80 %" in text
    assert "calculated from CPU use by a model, not measured" in text
    assert page.by_id("server_usd")["value"] == "", "each host's own count"
    assert "2000" in page.by_id("costs").text
    assert HOST in page.by_id("savings").text
    assert browser.get("/hosts").all("a", href="/savings")


def test_the_file_counts_with_the_costs_of_the_url(used: Desk) -> None:
    source = used.browser(Role.VIEWER).get("/savings.csv?server_usd=6500&peak_watts=550").source
    [row] = csv.DictReader(io.StringIO(source))
    expected = saved_by([CostedUse(HostUse(HOST, 0.1, 0.8, 0.05, 1.0), CostModel(server_usd=6500, peak_kw=0.55))])
    assert expected is not None
    assert float(row["gain"]) == pytest.approx(expected.gain, rel=0.01)
    assert (row["host"], float(row["saved_servers"])) == (HOST, pytest.approx(0.8, rel=0.01))
    assert float(row["hours"]) == pytest.approx(500 / 3600, rel=0.02), "of 30 days"


def test_a_host_counts_by_its_own_costs_unless_others_are_filled_in(used: Desk) -> None:
    used.api.ok("PATCH", f"/hosts/{HOST}", {"costs": {"server_usd": 6500, "peak_watts": 550}})
    browser = used.browser(Role.VIEWER)
    own, filled_in = (
        next(csv.DictReader(io.StringIO(browser.get(f"/savings.csv{query}").source))) for query in ("", "?years=6")
    )
    assert float(own["together_usd_per_year"]) == pytest.approx(
        CostModel(server_usd=6500, peak_kw=0.55).tco_usd(0.95) / 3, rel=0.01
    )
    assert float(filled_in["together_usd_per_year"]) == pytest.approx(
        CostModel(server_usd=6500, peak_kw=0.55, years=6).tco_usd(0.95) / 6, rel=0.01
    )
    page = browser.get("/savings?years=6")
    assert page.by_id("years")["value"] == "6"
    assert "6500" in page.by_id("costs").text


def test_an_operator_sets_costs_in_the_form_of_the_host(desk: Desk) -> None:
    desk.api.ok("PUT", f"/hosts/{HOST}", {})
    page = desk.browser(Role.OPERATOR).get(f"/registered/hosts/{HOST}")
    assert page.by_id("f-costs-server_usd")["value"] == "2000"
    assert "Price of the server ($)" in page.text


def test_measured_energy_is_labelled(used: Desk) -> None:
    browser = used.browser(Role.VIEWER)
    assert "Energy, model" in browser.get("/savings").text
    ticks = [tick_of(second, vms=[], host_cpu_share=0.9, power_watts=143.0) for second in range(5, 1000, 5)]
    used.api.clock.now_s += 1000
    used.api.ok("POST", f"/hosts/{HOST}/report", report(ticks=ticks))
    text = " ".join(browser.get("/savings").text.split())
    assert "Energy, measured (RAPL)" in text
    assert "without fans, disks and power supplies" in text


def test_many_hosts_come_in_parts_and_are_searched(used: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kvm2", "kvm3"):
        used.api.ok("PUT", f"/hosts/{name}", {})
    browser = used.browser(Role.VIEWER)
    assert "All 1 hosts" in browser.get("/savings").text
    monkeypatch.setattr(savings_pages, "_PAGE_HOSTS", 2)
    first = browser.get("/savings?years=6")
    assert "1 of 3 hosts" in first.text
    [following] = first.all("a", rel="next")
    assert "years=6" in following["href"]
    last = browser.get(following["href"])
    assert "No CPU use of these hosts was measured" in last.text
    assert not last.all("a", rel="next")
    assert browser.get(last.all("a", class_="button", href="/savings?years=6")[0]["href"]).by_id("savings")
    assert "1 matching host" in browser.get(f"/savings?search={HOST.upper()}").text
    assert "No matching hosts" in browser.get("/savings?search=none").text
    file = browser.get(f"/savings.csv?search={HOST}").source
    assert [row["host"] for row in csv.DictReader(io.StringIO(file))] == [HOST]


def test_without_measurements_it_says_so(desk: Desk) -> None:
    assert "No CPU use was measured in this period" in desk.browser(Role.VIEWER).get("/savings").text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("years=0", "years: '0' is refused; use 0.1 to 20"),
        ("idle_percent=much", "idle_percent: 'much' is refused; use 0 to 100"),
        ("server_usd=nan", "server_usd: 'nan' is refused; use 0 to 10,000,000"),
        ("since=2026-03-01&until=2026-02-01", "since: it is not before until"),
        ("since=yesterday", "'yesterday' is no time"),
        ("until=0001-01-01", "'0001-01-01' is no time"),
        ("since=9999-12-31T23:59:59Z", "is no time"),
    ],
)
def test_bad_periods_and_costs_are_refused(used: Desk, query: str, says: str) -> None:
    page = used.browser(Role.VIEWER).get(f"/savings?{query}")
    assert page.status == 422
    assert says in page.text


@pytest.mark.parametrize("query", ["endpoint=x", "_method=POST", "_external=1", "_anchor=x"])
def test_links_hold_what_the_page_knows_of_the_url_alone(used: Desk, query: str) -> None:
    page = used.browser(Role.VIEWER).get(f"/savings?years=4&{query}")
    assert page.status == 200
    assert page.all("a", href="/savings.csv?years=4")


def test_until_a_time_to_come_the_last_days_count(used: Desk) -> None:
    page = used.browser(Role.VIEWER).get("/savings?until=2027-01-01")
    assert page.status == 200
    assert page.by_id("since")["value"] == "2026-01-30"
