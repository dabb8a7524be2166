"""What Prometheus reads."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select

from manager.model.histogram import Histogram
from manager.store.database import Database
from manager.store.models import ApplicationRow, RollupRow
from tests.api.conftest import HOST, START, Api, event, make_api, record, report, tick, tick_of, window

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def api(database: Database) -> Api:
    """An application of its own, so that its counters begin at 0."""
    made = make_api(database)
    made.make_tokens()
    return made


def scrape(api: Api) -> Samples:
    response = api.call("GET", "//metrics", role="")
    assert response.content_type.startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.get_data(as_text=True))
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_hosts(api: Api) -> None:
    api.ok("PUT", "/hosts/silent", {})
    body = report(
        tick=tick(duration_ms=12.5, overruns=3, errors=4),
        decisions=[record(1), record(2)],
        events=[event(1)],
        ticks=[tick_of(1)],
    )
    api.ok("POST", f"/hosts/{HOST}/report", body, role="host")
    api.ok("POST", f"/hosts/{HOST}/report", body, role="host")
    api.clock.now_s += 7
    samples = scrape(api)
    assert value(samples, "equipoise_database_up") == 1
    assert value(samples, "equipoise_host_last_seen_age_seconds", host=HOST) == 7
    assert value(samples, "equipoise_host_tick_duration_seconds", host=HOST) == 0.0125
    assert value(samples, "equipoise_host_tick_overruns_total", host=HOST) == 3
    assert value(samples, "equipoise_host_tick_errors", host=HOST) == 4
    assert value(samples, "equipoise_records_stored_total", kind="decision") == 2
    assert value(samples, "equipoise_records_stored_total", kind="event") == 1
    assert value(samples, "equipoise_records_stored_total", kind="tick") == 1
    assert "silent" not in {dict(labels).get("host") for name, labels in samples if name != "equipoise_host_silent"}


def test_applications(api: Api) -> None:
    api.ok("PUT", "/applications/idle", {})
    api.ok("PUT", "/applications/shop", {"sla": {"response_time_ms": 10}})
    api.ok("POST", "/applications/shop/samples", {"times_ms": [20] * 50})
    api.clock.now_s += 7
    samples = scrape(api)
    labels = {"application": "shop", "percentile": "95"}
    measured_s = value(samples, "equipoise_application_response_time_seconds", **labels)
    assert measured_s == pytest.approx(0.02, rel=0.01)
    assert value(samples, "equipoise_application_sla_seconds", application="shop") == 0.01
    assert value(samples, "equipoise_application_rate_rps", application="shop") == 50
    assert value(samples, "equipoise_application_window_samples", application="shop") == 50
    assert value(samples, "equipoise_application_window_age_seconds", application="shop") == 7
    for application, current in (("shop", "violated"), ("idle", "no_data")):
        for state in ("met", "at_risk", "violated", "no_data"):
            seen = value(samples, "equipoise_application_sla_state", application=application, state=state)
            assert seen == (1 if state == current else 0)


def test_error_budgets(api: Api) -> None:
    for name in ("shop", "silent"):
        api.ok("PUT", f"/applications/{name}", {"sla": {"response_time_ms": 10}})
    with api.database.registering() as session:
        number = session.scalars(select(ApplicationRow.id).where(ApplicationRow.name == "shop")).one()
        for minutes_ago, violated in ((4, 3), (20, 0), (50, 0)):
            session.add(rolled_minute(number, START - timedelta(minutes=minutes_ago), judged=10, violated=violated))
    samples = scrape(api)
    for length, rate in (("5m", 30), ("30m", 15), ("1h", 10), ("6h", 10), ("30d", 10)):
        labels = {"application": "shop", "window": length}
        assert value(samples, "equipoise_application_burn_rate", **labels) == pytest.approx(rate)
    assert value(samples, "equipoise_application_sla_attainment_ratio", application="shop") == pytest.approx(0.9)
    remaining = value(samples, "equipoise_application_error_budget_remaining_ratio", application="shop")
    assert remaining == pytest.approx(-9)
    assert not [name for name, labels in samples if "budget" in name and ("application", "silent") in labels]


def rolled_minute(application_id: int, start: datetime, judged: int, violated: int) -> RollupRow:
    return RollupRow(
        application_id=application_id,
        length_s=60,
        start=start,
        count=100,
        histogram=Histogram(),
        requests=None,
        ready=None,
        slots=judged,
        judged=judged,
        violated=violated,
        violations=None,
    )


def test_reported_windows(api: Api) -> None:
    api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}]})
    windows = [window(end=-5), window(requests=None), window("elsewhere"), window(end=61)]
    api.ok("POST", f"/hosts/{HOST}/report", report(windows=windows), role="host")
    samples = scrape(api)
    for result, count in (("stored", 2), ("unknown", 1), ("future", 1)):
        assert value(samples, "equipoise_windows_total", result=result) == count
    assert value(samples, "equipoise_application_window_samples", application="shop") == 2
    assert value(samples, "equipoise_application_rate_rps", application="shop") == 0.1, "of the slot where it is known"


def test_a_rate_that_nobody_knows_has_no_line(api: Api) -> None:
    api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}]})
    api.ok("POST", f"/hosts/{HOST}/report", report(windows=[window(requests=None)]), role="host")
    assert "equipoise_application_rate_rps" not in {name for name, _ in scrape(api)}


def test_requests(api: Api) -> None:
    api.ok("GET", "/vms")
    api.ok("GET", "/vms?limit=5")
    api.call("GET", "/vms/a")
    api.call("GET", "/vms/b")
    api.call("GET", "/vms", role="")
    api.call("BREW", "/coffee")
    samples = scrape(api)
    name = "equipoise_api_requests_total"
    assert value(samples, name, method="GET", route="/api/v1/vms", status="200") == 2
    assert value(samples, name, method="GET", route="/api/v1/vms", status="401") == 1
    assert value(samples, name, method="GET", route="/api/v1/vms/<name>", status="404") == 2
    assert value(samples, name, method="other", route="none", status="404") == 1
    assert value(samples, "equipoise_api_request_duration_seconds_count", method="GET", route="/api/v1/vms") == 3
    assert value(samples, "equipoise_api_errors_total", kind="not_found") == 3
    assert value(samples, "equipoise_api_errors_total", kind="unauthorized") == 1


def test_strangers_make_no_series(api: Api) -> None:
    def series() -> int:
        return len([key for key in scrape(api) if key[0].startswith("equipoise_")])

    api.call("X0", "/0", role="")
    scrape(api)
    before = series()
    for number in range(20):
        api.call(f"X{number}", f"/{number}", role="")
        api.call(f"X{number}", f"/vms/{number}", role="")
    assert series() <= before + 8  # the two routes, not the names or methods


def test_names_are_alike(api: Api) -> None:
    text = api.call("GET", "//metrics", role="").get_data(as_text=True)
    helped = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    assert all(name.startswith(("equipoise_", "process_")) for name in helped)
