"""Evidence from what agents reported."""

from __future__ import annotations

from typing import Any

import pytest

from manager.model.histogram import Histogram
from tests.api.conftest import CAPABILITIES, HOST, Api, moment, report, status, tick_of, window
from tests.api.conftest import tick as tick_now

WORSE_S = -60
"""When ``hog`` began to run, and the SLA of 10 ms to be violated."""


def slot(end: int, percentile_ms: float, requests: float = 20) -> dict[str, Any]:
    buckets = Histogram.of([percentile_ms * 1000] * 20).buckets
    return window(end=end, buckets={str(number): count for number, count in buckets.items()}, requests=requests)


def vm(name: str, share: float, delay: float = 0.0) -> dict[str, Any]:
    return {"vm": name, "cpu_share": share, "run_delay_share": delay, "weight": 100, "mode": "enforce"}


def tell(api: Api, calm: list[dict[str, Any]], worse: list[dict[str, Any]], until: int = 0, **changes: Any) -> None:
    """Ticks and slots of ten minutes; the SLA is violated from ``WORSE_S`` until ``until``."""
    ends = range(-600, 5, 5)
    api.ok(
        "POST",
        f"/hosts/{HOST}/report",
        report(
            vms=[status("web-1", vcpus=2)],
            ticks=[tick_of(end, vms=worse if WORSE_S < end <= until else calm) for end in ends],
            windows=[slot(end, 40.0 if WORSE_S < end <= until else 5.0) for end in ends],
            **changes,
        ),
    )


def put_before(api: Api, body: dict[str, Any]) -> None:
    """Register ``shop`` an hour ago: of a violation counts what was registered then."""
    api.clock.now_s -= 3600
    api.ok("PUT", "/applications/shop", body)
    api.clock.now_s += 3600


CALM = [vm("web-1", 0.2, 0.01), vm("hog", 0.1)]
WORSE = [vm("web-1", 0.2, 0.5), vm("hog", 0.7)]


@pytest.fixture
def site(shop: Api) -> Api:
    shop.ok("PUT", "/vms/hog", {"class": "batch"})
    return shop


def test_the_neighbour_is_named(site: Api) -> None:
    tell(site, CALM, WORSE)
    found = site.ok("GET", "/applications/shop/evidence", role="viewer")
    assert (found["verdict"], found["vm"], found["host"]) == ("neighbour", "hog", HOST)
    assert found["violation"] == {"start": moment(WORSE_S), "end": moment(0), "violated": 12}
    assert (found["at"], found["rate_rps"]) == (moment(0), 4)
    assert "batch VM hog rose from 10.0 % to 70.0 %" in found["evidence"][1]
    shares = {(one["subject"], one["metric"]): (one["before"], one["during"]) for one in found["measures"]}
    assert shares["hog", "cpu_share"] == (pytest.approx(0.1), pytest.approx(0.7))


def test_the_latest_violation_is_found_and_an_earlier_one_on_demand(site: Api) -> None:
    tell(site, CALM, WORSE, until=-30)
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["violation"]["end"], found["verdict"]) == (moment(-30), "neighbour")
    assert site.ok("GET", f"/applications/shop/evidence?at={moment(-35)}")["verdict"] == "neighbour"
    before = site.ok("GET", f"/applications/shop/evidence?at={moment(-200)}")
    assert (before["verdict"], before["violation"], before["vm"]) == ("unknown", None, None)
    assert "was not violated in the minute until" in before["evidence"][0]


def test_a_rate_above_what_was_agreed(site: Api) -> None:
    tiers = [{"name": "web", "vms": ["web-1"]}]
    put_before(site, {"tiers": tiers, "sla": {"response_time_ms": 10, "max_rate_rps": 3}})
    tell(site, CALM, WORSE)
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["verdict"], found["vm"]) == ("overload", None)
    assert "4 req/s exceeds the agreed 3 req/s" in found["evidence"][0]


def test_a_vm_at_its_limit(site: Api) -> None:
    site.ok("PUT", "/vms/web-1", {"class": "critical", "max_pcpus": 1})
    tell(site, CALM, [vm("web-1", 0.24, 0.01), vm("hog", 0.1)])
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["verdict"], found["host"]) == ("overload", HOST)
    assert "0.96 of its limit of 1 pCPUs" in found["evidence"][0]


def test_one_full_vcpu_of_two(site: Api) -> None:
    site.ok("PUT", "/vms/web-1", {"class": "critical"})
    hot = {"index": 1, "used": 0.96, "waited": 0.02, "full": 1}
    tell(site, CALM, [vm("web-1", 0.26, 0.02) | {"vcpu": hot}, vm("hog", 0.1)])
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["verdict"], found["vm"], found["host"]) == ("imbalance", None, HOST)
    assert "vCPU 1 of web-1 is full: it runs 96 % of the time" in found["evidence"][0]
    measured = {one["metric"]: one["during"] for one in found["measures"]}
    assert (measured["vcpu_used"], measured["vcpu_wait"]) == (pytest.approx(0.96), pytest.approx(0.02))
    history = site.ok("GET", f"/hosts/{HOST}/ticks")["items"]
    assert [one.get("vcpu") for one in history[0]["vms"]] == [hot, None]


def disk_use(*vms: dict[str, Any], latency_ms: float) -> dict[str, Any]:
    disk = {"device": "vda", "bytes_per_s": 1e8, "requests_per_s": 900.0, "busy": 0.9, "latency_ms": latency_ms}
    return {"vms": list(vms), "disks": [disk]}


def test_a_neighbour_on_the_same_disk_is_named(site: Api) -> None:
    web = {
        "vm": "web-1",
        "io_pressure": 0.3,
        "disks": [{"device": "vda", "read_bytes_per_s": 1e5, "written_bytes_per_s": 0.0}],
    }
    hog = {
        "vm": "hog",
        "disks": [{"device": "vda", "read_bytes_per_s": 9e7, "written_bytes_per_s": 0.0, "requests_per_s": 800.0}],
    }
    ends = range(-600, 5, 5)
    worse = disk_use(hog, web, latency_ms=40.0)
    ticks = [tick_of(end, vms=CALM, resources=worse if end > WORSE_S else disk_use(latency_ms=1.0)) for end in ends]
    windows = [slot(end, 40.0 if end > WORSE_S else 5.0) for end in ends]
    site.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1", vcpus=2)], ticks=ticks, windows=windows))
    found = site.ok("GET", "/applications/shop/evidence", role="viewer")
    assert (found["verdict"], found["vm"], found["host"]) == ("disk", "hog", HOST)
    measures = {(one["subject"], one["metric"]): (one["before"], one["during"]) for one in found["measures"]}
    assert measures["vda", "disk_latency_ms"] == (1.0, 40.0)
    assert measures["web-1", "io_pressure"] == (0.0, pytest.approx(0.3))
    assert measures["hog", "disk_bytes_per_s"] == (0.0, pytest.approx(9e7))
    newest = site.ok("GET", f"/hosts/{HOST}/ticks")["items"][0]
    assert newest["resources"] == worse, "as it was reported"


def test_not_the_cpu(site: Api) -> None:
    tell(site, CALM, CALM)
    found = site.ok("GET", "/applications/shop/evidence")
    assert found["verdict"] == "not_cpu"
    assert found["evidence"][-1] == "memory, disks and network were not measured during the violation"


def test_nothing_is_said_without_evidence(site: Api) -> None:
    assert "was not violated in the last 30 days" in site.ok("GET", "/applications/shop/evidence")["evidence"][0]
    tell(site, CALM, WORSE, capabilities={**CAPABILITIES, "schedstat": False})
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["verdict"], found["vm"]) == ("unknown", None)
    assert "does not report vCPU wait" in found["evidence"][0]
    put_before(site, {"tiers": [], "sla": {"response_time_ms": 10}})
    assert site.ok("GET", "/applications/shop/evidence")["evidence"] == ["no VM serves the application"]
    site.ok("PUT", "/applications/shop", {})
    site.refused(404, "GET", "/applications/nothing/evidence")


def test_without_ticks_it_is_unknown_why(site: Api) -> None:
    site.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    site.ok("POST", f"/hosts/{HOST}/report", report(windows=[slot(-5, 40.0), slot(0, 40.0)]))
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["verdict"], found["violation"]["violated"]) == ("unknown", 2)
    assert found["evidence"] == ["no host is known on which its VMs run"]


def test_what_was_registered_when_the_violation_began_counts(site: Api) -> None:
    """Neither the VMs nor the promise of now."""
    tell(site, CALM, WORSE)
    before = site.ok("GET", "/applications/shop/evidence")
    site.clock.now_s += 60
    tiers = [{"name": "web", "vms": ["web-2"]}]
    site.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 500}})
    assert site.ok("GET", "/applications/shop/evidence") == before
    site.ok("PUT", "/vms/web-1", {"class": "critical"})
    site.ok("DELETE", "/vms/web-1")
    assert site.ok("GET", "/applications/shop/evidence")["vm"] == "hog"


def test_who_was_shown_by_experiment_is_named_with_its_confidence(site: Api) -> None:
    tell(site, CALM, WORSE)
    assert site.ok("GET", "/applications/shop/evidence")["confidence"] is None
    cause = {"vm": "db-1", "fall": 0.5, "confidence": 0.992, "age_s": 30.0}
    explanations = [{"application": "shop", "text": "It is slowed.", "cause": cause}]
    tick = tick_now(at=moment(0), explanations=explanations)
    site.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1", vcpus=2)], tick=tick))
    found = site.ok("GET", "/applications/shop/evidence", role="viewer")
    assert (found["verdict"], found["vm"], found["host"], found["confidence"]) == ("neighbour", "db-1", HOST, 0.992)
    assert "shown by experiment" in found["evidence"][0]
    [told] = site.ok("GET", "/applications/shop")["explanations"]
    assert told["cause"] == {"vm": "db-1", "fall": 0.5, "confidence": 0.992, "at": moment(-30)}
    cause["age_s"] = 7200.0
    site.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1", vcpus=2)], tick=tick))
    found = site.ok("GET", "/applications/shop/evidence")
    assert (found["vm"], found["confidence"]) == ("hog", None), "two hours ago it was another violation"
