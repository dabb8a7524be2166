"""An application is shown, and held against its SLA, by the percentile that its SLA names, and by no other."""

from __future__ import annotations

import pytest

from tests.api.conftest import Api
from tests.api.test_metrics import scrape

TIMES_MS = [*range(1, 101)] * 10
METRIC = "equipoise_application_response_time_seconds"


@pytest.mark.parametrize("percentile", [50, 90, 97.5, 99])
def test_it_is_the_slas_own(api: Api, percentile: float) -> None:
    sla = {"percentile": percentile, "response_time_ms": percentile}
    api.ok("PUT", "/applications/shop", {"sla": sla})
    api.ok("POST", "/applications/shop/samples", {"times_ms": TIMES_MS})
    shown = api.ok("GET", "/applications/shop")
    assert (shown["measured_percentile"], shown["measured_ms"]) == (percentile, pytest.approx(percentile, rel=0.02))
    [at_a_glance] = api.ok("GET", "/fleet")["applications"]
    assert at_a_glance["measured_ms"] == shown["measured_ms"]
    [(labels, seconds)] = [(dict(labels), value) for (name, labels), value in scrape(api).items() if name == METRIC]
    assert labels == {"application": "shop", "percentile": f"{percentile:g}"}
    assert seconds == pytest.approx(shown["measured_ms"] / 1000)


def test_without_an_sla_it_is_the_95th(api: Api) -> None:
    api.ok("PUT", "/applications/shop", {})
    assert api.ok("GET", "/applications/shop")["measured_ms"] is None
    api.ok("POST", "/applications/shop/samples", {"times_ms": TIMES_MS})
    shown = api.ok("GET", "/applications/shop")
    assert (shown["measured_percentile"], shown["measured_ms"]) == (95, pytest.approx(95, rel=0.02))


def test_no_metric_has_a_percentile_of_its_own(api: Api) -> None:
    assert not [name for name, _ in scrape(api) if "p95" in name or "p99" in name]
