"""Decisions as a story."""

from __future__ import annotations

from typing import Any

import pytest

from manager.model.histogram import Histogram
from tests.api.conftest import HOST, Api, moment, record, report, window

OTHER = "kvm2"


def slot(end: int, percentile_ms: float) -> dict[str, Any]:
    buckets = Histogram.of([percentile_ms * 1000] * 20).buckets
    return window(end=end, count=20, buckets={str(number): count for number, count in buckets.items()})


def of(number: int, second: int, **changes: Any) -> dict[str, Any]:
    return record(number, at=moment(second), **changes)


@pytest.fixture
def told(shop: Api) -> Api:
    """A weight and two pins of one VM, one weight of another, and an interrupt, at three ticks."""
    for host, vm in ((HOST, "web-1"), (OTHER, "web-2")):
        shop.ok("PUT", f"/hosts/{host}", {})
        shop.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": host})
    shop.clock.now_s += 60
    pins = [of(2 + n, 0, knob="vcpu_pin", index=n, before="0-3", after="1", reason="near its cache") for n in range(2)]
    decisions = [
        of(1, 0, before="9100", after="24300", reason="fair: p95 612 ms of 10 ms"),
        *pins,
        of(4, 0, vm="hog", before="100", after="1", mode="observe", outcome="observed"),
        of(5, 5, vm=None, knob="irq_affinity", index=40, before="0-3", after="0"),
        of(6, 10, vm="db-1", outcome="failed", detail="EBUSY"),
    ]
    windows = [slot(-5, 20.0), slot(0, 612.0), slot(5, 500.0), slot(10, 431.0)]
    shop.ok("POST", f"/hosts/{HOST}/report", report(decisions=decisions, windows=windows))
    return shop


def story(api: Api, query: str = "") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.ok("GET", f"/decisions/story?{query}", role="viewer")["items"]
    return items


def test_the_records_of_one_tick_about_one_vm_are_one_entry(told: Api) -> None:
    found = story(told)
    assert [(one["at"], one["vm"], len(one["changes"])) for one in found] == [
        (moment(10), "db-1", 1),
        (moment(5), None, 1),
        (moment(0), "hog", 1),
        (moment(0), "web-1", 3),
    ]
    web = found[3]
    assert [one["knob"] for one in web["changes"]] == ["weight", "vcpu_pin", "vcpu_pin"]
    assert web["reason"] == "fair: p95 612 ms of 10 ms; near its cache"
    assert (web["application"], web["policy"], web["mode"], web["outcome"]) == (
        "shop",
        "priority",
        "enforce",
        "applied",
    )
    known = {one["id"] for one in told.ok("GET", "/decisions")["items"]}
    assert {change["id"] for one in found for change in one["changes"]} == known


def test_an_entry_tells_of_the_response_times_then_and_later(told: Api) -> None:
    web = story(told)[3]
    assert web["sla"]["response_time_ms"] == 10
    assert web["percentile_ms"] == pytest.approx(612, rel=0.01), "of the two intervals that had ended"
    assert web["later_ms"] == pytest.approx(500, rel=0.01)
    assert web["later_s"] == 10
    assert web["sentence"].startswith("shop: p95 6")
    assert ", SLA 10 ms, CPU weight of web-1 from 9,100 to 24,300, vCPU 0 pin of web-1 from 0-3 to 1" in web["sentence"]
    assert "; 10 s later " in web["sentence"]


def test_what_serves_no_application_or_is_not_known_yet(told: Api) -> None:
    db, interrupt, hog, _ = story(told)
    assert (hog["application"], hog["sla"], hog["percentile_ms"]) == (None, None, None)
    assert hog["sentence"] == "hog: CPU weight of hog from 100 to 1 (observed only, nothing written)"
    assert interrupt["sentence"] == f"{HOST}: interrupt 40 affinity from 0-3 to 0"
    assert db["percentile_ms"] == pytest.approx(500, rel=0.01)
    assert db["later_ms"] is None
    assert db["sentence"].endswith("(could not be written: EBUSY)")


@pytest.mark.parametrize(
    ("query", "vms"),
    [
        ("application=shop", ["db-1", "web-1"]),
        ("vm=hog", ["hog"]),
        ("application=shop&vm=hog", []),
        (f"host={HOST}", ["db-1", None, "hog", "web-1"]),
        (f"host={OTHER}", []),
        (f"since={moment(5)}", ["db-1", None]),
        (f"until={moment(5)}", ["hog", "web-1"]),
    ],
)
def test_entries_are_filtered(told: Api, query: str, vms: list[str | None]) -> None:
    assert [one["vm"] for one in story(told, query)] == vms


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_entries_in_parts(told: Api, limit: int) -> None:
    whole, parts, cursor = story(told), [], ""
    while True:
        page = told.ok("GET", f"/decisions/story?limit={limit}{cursor}")
        assert 1 <= len(page["items"]) <= limit
        parts += page["items"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert parts == whole


def test_the_longest_names_are_listed_in_parts(told: Api) -> None:
    host, vms, at = "h" * 63, ["v" * 62 + digit for digit in "12"], "2026-03-01T12:00:00.123456Z"
    decisions = [record(7 + n, at=at, host=host, vm=vm) for n, vm in enumerate(vms)]
    told.ok("POST", f"/hosts/{host}/report", report(decisions=decisions))
    first = told.ok("GET", f"/decisions/story?host={host}&limit=1")
    second = told.ok("GET", f"/decisions/story?host={host}&limit=1&cursor={first['next']}")
    assert [one["vm"] for one in first["items"] + second["items"]] == vms


def test_long_reasons_are_shortened_together(told: Api) -> None:
    long = [of(7 + n, 15, knob="vcpu_pin", index=n, reason=f"{n}{'r' * 1999}") for n in range(3)]
    told.ok("POST", f"/hosts/{HOST}/report", report(decisions=long))
    newest = story(told)[0]
    assert newest["reason"].startswith("0rrr")
    assert len(newest["reason"]) == 2000
    assert [len(change["reason"]) for change in newest["changes"]] == [2000] * 3


def test_two_hosts_that_decide_at_the_same_moment_are_two_entries(told: Api) -> None:
    told.ok("POST", f"/hosts/{OTHER}/report", report(decisions=[of(7, 0, host=OTHER)]))
    assert [one["host"] for one in story(told, f"vm=web-1&until={moment(1)}")] == [HOST, OTHER]


def test_an_unknown_application_and_a_cursor_of_another_list_are_refused(told: Api) -> None:
    told.refused(404, "GET", "/decisions/story?application=nothing")
    cursor = told.ok("GET", "/applications?limit=1")["next"] or told.ok("GET", "/decisions?limit=1")["next"]
    told.refused(422, "GET", f"/decisions/story?cursor={cursor}")


def test_what_was_registered_then_is_told(told: Api) -> None:
    """A VM that serves another application since, and a promise that changed since."""
    before = story(told)
    told.clock.now_s += 60
    tiers = [{"name": "web", "vms": ["web-2"]}, {"name": "db", "vms": ["db-1"]}]
    told.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 700}})
    told.ok("PUT", "/applications/blog", {"tiers": [{"name": "web", "vms": ["web-1"]}]})
    assert story(told) == before
    assert [one["vm"] for one in story(told, "application=shop")] == ["db-1", "web-1"]
    assert [one["vm"] for one in story(told, f"application=shop&since={moment(5)}")] == ["db-1"]
    told.clock.now_s += 60
    now = [of(20 + n, 150, vm=vm) for n, vm in enumerate(("web-1", "db-1"))]
    told.ok("POST", f"/hosts/{HOST}/report", report(decisions=now))
    since = f"since={moment(150)}"
    found = {one["vm"]: (one["application"], one["sla"]) for one in story(told, since)}
    assert found["web-1"] == ("blog", None)
    assert (found["db-1"][0], found["db-1"][1]["response_time_ms"]) == ("shop", 700)
    assert [one["vm"] for one in story(told, f"application=shop&{since}")] == ["db-1"]
    assert [one["at"] for one in story(told, "application=shop&vm=web-1")] == [moment(0)]


def test_a_vm_that_serves_another_application_since_is_told_of_with_the_one_of_then(told: Api) -> None:
    tiers = [{"name": "web", "vms": ["hog"]}]
    told.ok("PUT", "/vms/hog", {"class": "critical"})
    told.ok("PUT", "/applications/new", {"tiers": tiers})
    told.clock.now_s += 60
    told.ok("PUT", "/applications/new", {})
    told.ok("PUT", "/applications/other", {"tiers": tiers})
    told.ok("POST", f"/hosts/{HOST}/report", report(decisions=[of(30, 30, vm="hog")]))
    assert [one["application"] for one in story(told, f"vm=hog&since={moment(20)}")] == ["new"]


def test_the_story_of_a_deleted_application_stays_readable(told: Api) -> None:
    before = story(told)
    told.clock.now_s += 60
    told.ok("DELETE", "/applications/shop")
    assert story(told) == before
    assert [one["vm"] for one in story(told, "application=shop")] == ["db-1", "web-1"]
    told.clock.now_s += 60
    told.ok("POST", f"/hosts/{HOST}/report", report(decisions=[of(20, 150, vm="web-1")]))
    assert [one["application"] for one in story(told, f"since={moment(150)}")] == [None]
    assert story(told, f"application=shop&since={moment(150)}") == []
