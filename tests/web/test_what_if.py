"""What another policy would have decided: always an estimate, and said to be one."""

from __future__ import annotations

import json

import pytest

from manager.api import what_if_routes
from manager.store.tokens import Role
from tests.api.conftest import HOST, report, tick_of, window
from tests.sim.test_twin import recording, truth
from tests.web.desk import Browser, Desk
from webui import rest
from webui.rest import RequestRefused


@pytest.fixture
def recorded(shop: Desk) -> Desk:
    """Six ticks of the host, in which the weight of web-1 was 100."""
    vm = {"vm": "web-1", "cpu_share": 0.25, "run_delay_share": 0.01, "weight": 100, "mode": "enforce"}
    ticks = [tick_of(second, vms=[vm]) for second in range(5, 35, 5)]
    shop.api.clock.now_s += 60
    windows = [window(end=second, count=40) for second in range(5, 35, 5)]
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(ticks=ticks, windows=windows), role="host")
    return shop


def test_without_a_host_there_is_nothing_to_choose(desk: Desk) -> None:
    page = desk.browser(Role.VIEWER).get("/what-if")
    assert "No host yet." in page.text
    assert "disabled" in page.all("button", class_="primary")[0].attributes


def test_the_form_offers_hosts_and_policies_and_nothing_is_estimated_unasked(recorded: Desk) -> None:
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1")
    assert {one["value"] for one in page.all("option")} == {HOST, "equal", "fair", "priority", "5", "15", "30", "60"}
    assert "ESTIMATED" not in page.text
    assert "Nothing is changed" in page.text


def test_an_estimate_is_labelled_and_shows_weights_intervals_violated_and_changes(recorded: Desk) -> None:
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=equal&minutes=15")
    assert "ESTIMATED, open loop." in page.text
    assert "which do not react to its weights" in page.text
    assert "violated at 0 of 6 ticks" in page.text
    assert "equal: " in page.text
    [chart] = page.all("div", class_="chart")
    data = json.loads(chart["data-weights"])
    assert [vm["vm"] for vm in data["vms"]] == ["web-1"]
    assert data["vms"][0]["recorded"] == [100] * 6
    assert len(data["at"]) == len(data["sla"]) == 6


def test_a_policy_that_would_have_changed_weights_says_which_and_why(recorded: Desk) -> None:
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=priority&minutes=60")
    cells = [cell.text for cell in page.all("td")]
    assert cells == ["12:00:05", "100", "begin", "10,000", "priority: critical VM"]


def test_only_the_estimate_is_answered_to_the_form(recorded: Desk) -> None:
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=equal&minutes=5", HX_Request="true")
    assert "ESTIMATED" in page.source
    assert not page.all("form")


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("host=kvm1&policy=magic&minutes=60", '"magic" is not installed'),
        ("host=kvm1&policy=equal&minutes=600", "minutes"),
        ("host=kvm9&policy=equal&minutes=60", "Nothing to replay."),
    ],
)
def test_what_cannot_be_estimated_is_told_with_the_form(recorded: Desk, choice: str, told: str) -> None:
    page = recorded.browser(Role.VIEWER).get(f"/what-if?{choice}")
    assert page.status == 200
    assert told in page.text
    assert page.by_id("policy")


def test_while_another_estimate_is_made_it_says_to_try_again(recorded: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_args: object, **_query: object) -> None:
        raise RequestRefused(503, "another what-if is being computed: try again")

    monkeypatch.setattr(rest, "get", busy)
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=equal&minutes=5", HX_Request="true")
    assert "Another estimate is running." in page.source


def chosen(browser: Browser, query: str = "") -> str:
    return browser.get(f"/what-if{query}").by_id("host")["value"]


def test_the_host_to_begin_with_is_one_that_reports(shop: Desk) -> None:
    for name in ("a-silent", "b-reports"):
        shop.api.ok("PUT", f"/hosts/{name}", {})
    shop.api.ok("POST", "/hosts/b-reports/report", report(), role="admin")
    browser = shop.browser(Role.VIEWER)
    assert chosen(browser) == "b-reports"
    assert chosen(browser, "?application=shop") == HOST, "where its VM runs"
    assert chosen(browser, "?host=a-silent") == "a-silent"


def test_what_would_have_been_comes_first_and_is_said_to_be_simulated(
    recorded: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if_routes, "recorded", lambda *_: recording(truth()))
    monkeypatch.setattr(what_if_routes, "MAX_TWIN_S", 3600.0)
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=equal&minutes=15")
    assert "SIMULATED, closed loop." in page.text
    assert page.text.index("SIMULATED, closed loop.") < page.text.index("ESTIMATED, open loop.")
    assert "Would have been" in page.text
    assert "No closed loop" not in page.text


def test_where_nothing_can_be_simulated_the_page_says_why(recorded: Desk) -> None:
    page = recorded.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=equal&minutes=15")
    assert "No closed loop: the recording has 25 s under policy priority" in page.text
    assert "ESTIMATED, open loop." in page.text


def test_what_is_simulated_is_shown_as_exactly_as_what_is_measured(shop: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"target_ms": 0.5, "measured_ms": 0.44, "predicted_ms": 0.31, "low_ms": 0.28, "high_ms": 12_345.0}
    shares = {"violated_measured": 0.004, "violated_predicted": 0.0}
    moments = {"since": "2026-03-01T11:00:00Z", "until": "2026-03-01T12:00:00Z"}
    closed = {
        **moments,
        "seeds": 3,
        "simulated_share": 0.034,
        "applications": [{"application": "shop", "percentile": 99.9, **times, **shares}],
        "refused": [],
        "batch_pcpus_in_force": 0.42,
        "batch_pcpus": 1.5,
    }
    lists = ("recorded_policies", "problems", "left_out", "notes", "applications", "changes")
    estimate = {**moments, "host": HOST, "policy": "equal", "ticks": 1, "interval_s": 5.0, "closed_loop": closed}
    monkeypatch.setattr(rest, "get", lambda *_, **__: {**estimate, **dict.fromkeys(lists, ())})
    page = shop.browser(Role.VIEWER).get("/what-if?host=kvm1&policy=equal&minutes=5", HX_Request="true")
    [cells] = [[cell.text for cell in page.all("td")]]
    assert cells == ["p99.9 ≤ 0.5 ms", "0.44 ms", "0.31 ms, 0.28 ms to 12.3 s", "0.4 %", "0 %"]
    assert "Of the requests 3.4 % were simulated" in " ".join(page.source.split())
    assert "0.42 pCPUs under" in page.source
    assert "1.50 under equal" in page.source
