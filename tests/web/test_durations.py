"""How long pages take, as Prometheus reads it."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from manager.api import manager_metrics
from tests.web.desk import Desk

SUM = "equipoise_api_request_duration_seconds_sum"


def test_the_time_of_a_page_holds_that_of_what_it_asks_the_interface(
    shop: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the clock is a second later: a request takes one, and two more for each that it makes within.
    monkeypatch.setattr(manager_metrics, "time", SimpleNamespace(perf_counter=count().__next__))

    def spent_s(route: str) -> float:
        text = shop.api.call("GET", "//metrics", role="").get_data(as_text=True)
        samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
        return sum(one.value for one in samples if one.name == SUM and one.labels["route"] == route)

    browser = shop.browser()
    before_s = {route: spent_s(route) for route in ("/", "/api/v1/fleet")}
    assert browser.get("/").status == 200
    assert {route: spent_s(route) - before_s[route] for route in before_s} == {"/": 3, "/api/v1/fleet": 1}
