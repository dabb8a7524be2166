"""What readers of pages and metrics were told wrongly, or kept from: seen from outside."""

from __future__ import annotations

import re

from manager.model.histogram import Histogram
from tests.api.conftest import HOST, moment, record, report
from tests.web.desk import Desk

PASSWORD = "correct horse battery"


def buckets(**times_us: int) -> dict[str, int]:
    """Of as many response times."""
    times = [float(text.removeprefix("us")) for text, count in times_us.items() for _ in range(count)]
    return {str(bucket): count for bucket, count in Histogram.of(times).buckets.items()}


def test_the_metrics_tell_the_percentile_that_the_sla_is_about(shop: Desk) -> None:
    """Dashboards divide it by the SLA: half of the response times are 20 ms, a few are 900 ms."""
    shop.api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    sla = {"percentile": 50, "response_time_ms": 40}
    shop.api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": sla})
    slot = {"application": "shop", "start": moment(-5), "end": moment(0), "requests": 100, "ready": None}
    slot["buckets"] = buckets(us20000=90, us900000=10)
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(windows=[slot]), role="host")
    page = shop.api.call("GET", "//metrics", role="").text
    measured = re.findall(r'^equipoise_application_\w*seconds\{[^}]*application="shop"[^}]*\} (\S+)$', page, re.M)
    assert any(0.018 < float(text) < 0.022 for text in measured), page
    assert all(float(text) < 0.5 for text in measured), "the 95th percentile is not what was agreed on"


def test_slices_of_different_vcpus_look_different(shop: Desk) -> None:
    decisions = [
        record(index + 1, at=record(1)["at"], knob="slice", index=index, before="3000000", after="100000")
        for index in (0, 1)
    ]
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(decisions=decisions), role="host")
    shop.api.clock.now_s += 60
    page = shop.browser().get("/decisions")
    heads = [" ".join(head.text.split()) for head in page.all("th") if "slice" in head.text.lower()]
    assert len(heads) == len(set(heads)) == 2


def test_failures_to_sign_in_of_a_clock_that_was_ahead_lock_nobody_out(shop: Desk) -> None:
    shop.api.ok("POST", "/users", {"name": "ada", "role": "operator", "password": PASSWORD})

    def enter(password: str) -> int:
        return shop.browser(None).post("/sign-in", {"name": "ada", "password": password}).status

    shop.api.clock.now_s += 2 * 3600
    for _ in range(8):
        assert enter("wrong") in {401, 429}
    shop.api.clock.now_s -= 2 * 3600
    assert enter(PASSWORD) == 303
