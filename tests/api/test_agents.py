"""What agents report, what they are told, and the records that come of it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import select

from manager.api.schemas.registration_shapes import HostOut
from manager.model.costs import STUDY_COSTS
from manager.model.fields import adapter_of
from manager.model.histogram import Histogram
from manager.model.packed_histogram import pack
from manager.model.packed_ticks import packs_of
from manager.model.records import TickRecord
from manager.protocol.assignment import AssignmentOut
from manager.store.pack_models import TickPackRow
from tests.api.conftest import (
    CAPABILITIES,
    DISK,
    HOST,
    LAW,
    MEMORY,
    NETWORK,
    PLACEMENT,
    Api,
    event,
    moment,
    record,
    report,
    source_status,
    status,
    tick,
    tick_of,
    window,
)


def without(item: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in item.items() if field != name}


def in_packed(item: dict[str, Any]) -> dict[str, Any]:
    """The same window with its histogram as bytes."""
    histogram = Histogram({int(bucket): count for bucket, count in item["buckets"].items()})
    return without(item, "buckets") | {"packed": b64encode(pack(histogram)).decode()}


def packs(*ticks: dict[str, Any]) -> list[str]:
    """The same ticks in packs."""
    return [*packs_of([adapter_of(TickRecord).validate_python(tick) for tick in ticks])]


def test_the_first_report_registers_its_host(api: Api) -> None:
    assert api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick()), role="host") == {
        "stored_decisions": 0,
        "stored_events": 0,
        "stored_ticks": 0,
        "stored_windows": 0,
        "vms_missing": False,
        "slots": None,
        "cadence": None,
        "packed": True,
        "packed_ticks": True,
        "refused": [],
    }
    host = api.ok("GET", f"/hosts/{HOST}")
    adapter_of(HostOut).validate_json(api.call("GET", f"/hosts/{HOST}").data, strict=True)
    assert (host["mode"], host["policy"], host["pinning"]) == ("enforce", "priority", True)
    assert (host["last_seen_at"], host["agent_version"]) == ("2026-03-01T12:00:00Z", "0.1.0")
    assert (host["tick"], host["capabilities"]) == (tick(), CAPABILITIES)
    assert api.ok("GET", f"/hosts/{HOST}/capabilities") == CAPABILITIES
    assert api.ok("GET", "/capabilities")["items"] == [{"host": HOST, "capabilities": CAPABILITIES}]


def test_a_list_has_the_hosts_as_they_are_by_themselves(api: Api) -> None:
    def check() -> None:
        singly = [api.ok("GET", f"/hosts/{name}") for name in (HOST, "kvm2", "kvm3")]
        assert api.ok("GET", "/hosts") == {"items": singly, "next": None}

    api.ok("PUT", "/hosts/kvm3", {"policy": "equal", "law": {"gain": 1}})
    api.ok("POST", "/hosts/kvm2/report", report(tick=tick(errors=0)), role="other host")
    api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick()), role="host")
    check()
    api.ok("POST", f"/hosts/{HOST}/report", report(capabilities={**CAPABILITIES, "kernel": "6.2"}), role="host")
    check()
    assert [host["capabilities"] and host["capabilities"]["kernel"] for host in api.ok("GET", "/hosts")["items"]] == [
        "6.2",
        CAPABILITIES["kernel"],
        None,
    ]


def test_a_report_leaves_the_registration_alone(api: Api) -> None:
    etag = api.call("PUT", f"/hosts/{HOST}", {"mode": "observe"}).headers["ETag"]
    api.clock.now_s += 5
    api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick()), role="host")
    read = api.call("GET", f"/hosts/{HOST}")
    assert (read.headers["ETag"], read.get_json()["mode"]) == (etag, "observe")
    assert read.get_json()["updated_at"] == "2026-03-01T12:00:00Z"
    api.ok("POST", f"/hosts/{HOST}/report", report(), role="host")  # no tick since: the last one stays
    assert api.ok("GET", f"/hosts/{HOST}")["tick"] == tick()


def test_shares_are_those_of_the_newest_tick(api: Api) -> None:
    for name in ("web", "hog"):
        api.ok("PUT", f"/vms/{name}", {"class": "batch"})

    def told(**fields: object) -> tuple[bool, list[tuple[str, float, int]]]:
        missing = api.ok("POST", f"/hosts/{HOST}/report", report(**fields), role="host")["vms_missing"]
        seen = [vm["status"] for vm in api.ok("GET", "/vms")["items"] if vm["status"]]
        return missing, [(one["vm"], one["cpu_share"], one["vcpus"]) for one in seen]

    def ticked(number: int, **shares: float) -> dict[str, object]:
        some = {"run_delay_share": 0.0, "weight": None, "mode": "enforce"}
        return {**tick_of(number), "vms": [{"vm": vm, "cpu_share": share, **some} for vm, share in shares.items()]}

    both = [status("hog", vcpus=2), status("web", vcpus=2)]
    old, new = ticked(1, web=0.125, hog=0.5), ticked(2, web=0.25, hog=0.75)
    assert told(vms=both, ticks=[new, old]) == (False, [("hog", 0.75, 2), ("web", 0.25, 2)])
    assert told(ticks=[ticked(3, web=0.5, hog=0.5)]) == (False, [("hog", 0.5, 2), ("web", 0.5, 2)])
    plugged = [status("web", cpu_share=0.0, vcpus=4)]
    assert told(vms=plugged, vms_changed_only=True) == (False, [("hog", 0.5, 2), ("web", 0.0, 4)])
    assert told(ticks=[ticked(4, web=1.0)]) == (True, [("hog", 0.5, 2), ("web", 1.0, 4)]), "of hog nothing is told"
    assert told(ticks=[ticked(5, web=0.5, hog=0.5, new=0.0)])[0], "nothing is known of the new one"
    assert told(vms=[], ticks=[ticked(6)]) == (False, [])
    packed = packs(ticked(7, web=0.25, hog=0.25), ticked(8, web=0.5, hog=0.75))
    assert told(vms=both, packed_ticks=packed) == (False, [("hog", 0.75, 2), ("web", 0.5, 2)])
    older = packs(ticked(9, web=0.125, hog=0.125))
    assert told(packed_ticks=older, ticks=[ticked(10, web=1.0, hog=0.0)])[1] == [("hog", 0.0, 2), ("web", 1.0, 2)]
    assert told(packed_ticks=packs(ticked(11, web=0.5)))[0], "of hog nothing is told"


def test_packed_ticks_are_stored_as_they_come_and_once(api: Api) -> None:
    def stored(**fields: object) -> int:
        number: int = api.ok("POST", f"/hosts/{HOST}/report", report(**fields), "host")["stored_ticks"]
        return number

    def kept() -> list[dict[str, Any]]:
        return list(reversed(api.ok("GET", f"/hosts/{HOST}/ticks")["items"]))

    ticks = [tick_of(number) for number in range(-80, 0, 5)]
    assert stored(packed_ticks=packs(*ticks[:4])) == 4
    with api.database.reading() as session:
        [body] = session.scalars(select(TickPackRow.body))
    assert [b64encode(body).decode()] == packs(*ticks[:4])
    assert stored(packed_ticks=packs(*ticks[:4])) == 0
    assert stored(packed_ticks=packs(*ticks[2:6]), ticks=ticks[5:8]) == 4, "of some that is known, the rest is taken"
    assert stored(packed_ticks=packs(*ticks)) == 8
    assert stored(ticks=ticks) == 0
    assert kept() == ticks


def test_packed_ticks_of_a_clock_that_is_ahead_are_dated_as_others_are(get_api: Callable[[str], Api]) -> None:
    ahead = [tick_of(3600), tick_of(3605)]
    dated = []
    for body in (report(ticks=ahead), report(packed_ticks=packs(*ahead))):
        api = get_api("sqlite")
        assert api.ok("POST", f"/hosts/{HOST}/report", body, "host")["stored_ticks"] == 2
        assert api.ok("POST", f"/hosts/{HOST}/report", body, "host")["stored_ticks"] == 0
        dated.append(api.ok("GET", f"/hosts/{HOST}/ticks")["items"])
    assert dated[0] == dated[1]
    assert dated[0][0]["at"] < ahead[0]["at"]


def test_a_pack_that_is_none_is_left_out_and_named(api: Api) -> None:
    body = report(packed_ticks=["AgA=", *packs(tick_of(1)), "A!"], ticks=[tick_of(2)])
    answer = api.ok("POST", f"/hosts/{HOST}/report", body, "host")
    assert sorted(item["field"] for item in answer["refused"]) == ["packed_ticks[0]", "packed_ticks[2]"]
    assert answer["stored_ticks"] == 2


def test_a_report_sent_again_stores_nothing_twice(api: Api) -> None:
    body = report(decisions=[record(1), record(2)], events=[event(1)], ticks=[tick_of(1), tick_of(2)])

    def stored() -> list[int]:
        answer = api.ok("POST", f"/hosts/{HOST}/report", body, "host")
        return [answer[f"stored_{kind}"] for kind in ("decisions", "events", "ticks")]

    assert stored() == [2, 1, 2]
    assert stored() == [0, 0, 0]
    body["decisions"].append(record(3))
    assert stored() == [1, 0, 0]
    assert api.ok("GET", "/decisions")["items"] == [record(3), record(2), record(1)]
    assert api.ok("GET", "/events")["items"] == [event(1)]


def test_the_first_reports_of_a_host_may_come_at_once(api: Api) -> None:
    with ThreadPoolExecutor(4) as pool:
        bodies = [report(decisions=[record(number)]) for number in range(8)]
        answers = list(pool.map(lambda body: api.call("POST", f"/hosts/{HOST}/report", body, "host"), bodies))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len(api.ok("GET", "/decisions")["items"]) == 8


def test_statuses_are_replaced_as_a_whole_or_left_alone(shop: Api) -> None:
    def seen() -> list[str]:
        return [vm["name"] for vm in shop.ok("GET", "/vms")["items"] if vm["status"]]

    shop.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1"), status("db-1"), status("ghost")]))
    assert seen() == ["db-1", "web-1"]
    shop.ok("POST", f"/hosts/{HOST}/report", report())
    assert seen() == ["db-1", "web-1"]
    shop.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-2")]))
    assert seen() == ["web-2"]
    shop.ok("POST", f"/hosts/{HOST}/report", report(vms=[]))
    assert seen() == []


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"decisions": [record(1), record(2, host="kvm2")]}, "decisions[1].host", ['"kvm2"', "allowed: kvm1"]),
        ({"events": [event(1, host="kvm2")]}, "events[0].host", ['"kvm2"', "allowed: kvm1"]),
        ({"vms": [status("a"), status("a")]}, "vms[1].vm", ['"a"', "twice"]),
        ({"vms": [status("a", cpu_share=1.5)]}, "vms[0].cpu_share", ["1.5", "at least 0 and at most 1"]),
        ({"decisions": [record(1, detail="a\0")]}, "decisions[0].detail", ["none of them NUL"]),
        ({"decisions": [record(1, at="0001-01-01T00:00:00+14:00")]}, "decisions[0].at", ["from 1970 to 9998"]),
        ({"decisions": [record(1, at="2026-03-01T12:00:00")]}, "decisions[0].at", ["RFC 3339 time with offset"]),
        ({"decisions": [record(1, id="X" * 36)]}, "decisions[0].id", ["UUID in lower case"]),
        ({"tick": tick(number=2**53 + 1)}, "tick.number", ["9007199254740992"]),
        ({"windows": [window(), window(start=moment(1))]}, "windows[1].start", ["at most the end"]),
        ({"windows": [window(buckets={"500": 2**53, "501": 1})]}, "windows[0].buckets", [str(2**53 + 1), "in all"]),
        ({"windows": [window(packed="A!")]}, "windows[0].packed", ['"A!"', "allowed: base64 of a histogram"]),
        ({"windows": [window(packed="AQ==")]}, "windows[0].packed", ['"AQ=="', "not a packed histogram"]),
        ({"windows": [without(window(), "buckets")]}, "windows[0].buckets", ["is required", "`packed`"]),
        ({"windows": [without(window(), "buckets") | {"packed": None}]}, "windows[0].buckets", ["is required"]),
        (
            {"windows": [in_packed(window(buckets={"500": 2**53, "501": 1}))]},
            "windows[0].buckets",
            [str(2**53 + 1), "in all"],
        ),
        (
            {"windows": [window(ready={"percentile": 95, "percentile_ms": -1})]},
            "windows[0].ready.percentile_ms",
            ["at least 0"],
        ),
        ({"sources": [source_status("a"), source_status("a")]}, "sources[1].source", ["shop a", "twice"]),
        ({"sources": [source_status("a", state="fine")]}, "sources[0].state", ['"fine"', "silent"]),
        ({"ticks": [tick_of(1, host_cpu_share=2)]}, "ticks[0].host_cpu_share", ["2", "at most 1"]),
        (
            {"capabilities": {**CAPABILITIES, "cgroup_version": 3}},
            "capabilities.cgroup_version",
            ["3", "at least 0 and at most 2"],
        ),
    ],
)
def test_what_cannot_be_accepted_is_named_and_the_rest_is_stored(
    api: Api, change: dict[str, Any], field: str, words: list[str]
) -> None:
    good = report(**{"decisions": [record(9)], "events": [event(9)], **change})
    answer = api.ok("POST", f"/hosts/{HOST}/report", good, role="host")
    [refused] = answer["refused"]
    assert refused["field"] == field
    assert all(word in refused["message"] for word in words), refused
    assert api.ok("GET", f"/hosts/{HOST}")["agent_version"] == "0.1.0"
    decided, happened = len(good["decisions"]), len(good["events"])
    assert answer["stored_decisions"] == decided - field.startswith("decisions")
    assert answer["stored_events"] == happened - field.startswith("events")
    name = field.partition("[")[0].partition(".")[0]
    metrics = api.call("GET", "//metrics", role="").text
    assert f'equipoise_report_items_refused_total{{field="{name}"}} 0.0' not in metrics


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"decisions": [record(n) for n in range(1001)]}, "decisions", ["at most 1000"]),
        ({"agent_version": 5}, "agent_version", ["5 is refused"]),
        ({"vms": "many"}, "vms", ["a list"]),
    ],
)
def test_what_is_no_report_is_refused_as_a_whole(
    api: Api, change: dict[str, Any], field: str, words: list[str]
) -> None:
    [error] = api.refused(422, "POST", f"/hosts/{HOST}/report", report(**{"decisions": [record(9)], **change}))[
        "errors"
    ]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error
    api.refused(404, "GET", f"/hosts/{HOST}")
    assert api.ok("GET", "/decisions")["items"] == []


def assignment(api: Api, **headers: str) -> tuple[int, Any, str]:
    response = api.call("GET", f"/hosts/{HOST}/assignment", role="host", **headers)
    return response.status_code, response.get_json(silent=True), response.headers["ETag"]


def test_an_assignment_holds_what_concerns_the_host(shop: Api) -> None:
    shop.refused(404, "GET", f"/hosts/{HOST}/assignment", role="host")
    shop.ok("PUT", f"/hosts/{HOST}", {"policy": "equal"})
    shop.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST, "weight": 7})
    shop.ok("PUT", "/vms/db-1", {"class": "critical", "host": "kvm2"})
    shop.ok("PUT", "/vms/blog", {"class": "critical", "host": "kvm2"})
    shop.ok("PUT", "/applications/blog", {"tiers": [{"name": "web", "vms": ["blog"]}]})
    shop.ok("POST", "/applications/shop/samples", {"times_ms": [1, 2, 3]}, role="host")
    code, body, _ = assignment(shop)
    assert code == 200
    assert body["host"] == {
        "name": HOST,
        "mode": "enforce",
        "policy": "equal",
        "pinning": True,
        "batch_idle": False,
        "warp": "off",
        "warp_max_us": 50_000,
        "cache": "off",
        "cache_mount": False,
        "bandwidth_warning": 0.9,
        "migrate": "propose",
        "law": LAW,
        "placement": PLACEMENT,
        "memory": MEMORY,
        "disk": DISK,
        "network": NETWORK,
        "costs": asdict(STUDY_COSTS),
        "adoptions": 0,
    }
    assert body["slot_s"] == 5
    assert [(vm["name"], vm["host"], vm["weight"]) for vm in body["vms"]] == [("web-1", HOST, 7), ("web-2", None, None)]
    [application] = body["applications"]
    assert application["name"] == "shop"
    assert [tier["vms"] for tier in application["tiers"]] == [["web-1", "web-2"], ["db-1"]]
    assert [sum(slot["buckets"].values()) for slot in application["windows"]] == [3]
    alone = shop.ok("GET", f"/hosts/{HOST}/slots", role="host")
    assert alone == {"digest": body["digest"], "windows": {"shop": application["windows"]}, "shared": True}
    read = adapter_of(AssignmentOut).validate_json(shop.call("GET", f"/hosts/{HOST}/assignment").data)
    counts = [slot.histogram.count for slot in read.slots["shop"]]
    assert (read.assignment.applications[0].sla is not None, counts) == (True, [3])


def test_a_report_can_ask_for_the_slots_as_they_are_after_it(shop: Api) -> None:
    shop.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    shop.ok("POST", "/applications/shop/samples", {"times_ms": [1, 2, 3]}, role="host")
    answered = shop.call("POST", f"/hosts/{HOST}/report", report(wants_slots=True), role="host")
    alone = shop.call("GET", f"/hosts/{HOST}/slots", role="host")
    assert answered.get_json()["slots"] == alone.get_json()
    assert len(alone.get_json()["windows"]["shop"]) == 1
    assert answered.headers["Equipoise-Revision"] == alone.headers["Equipoise-Revision"]


@pytest.mark.parametrize(("other", "shared"), [(HOST, False), (None, False), ("kvm2", True)])
def test_an_agent_is_told_whether_others_wait_for_what_it_tells(shop: Api, other: str | None, shared: bool) -> None:
    shop.ok("PUT", f"/hosts/{HOST}", {})
    for vm, host in (("web-1", HOST), ("web-2", HOST), ("db-1", other)):
        shop.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": host})
    assert shop.ok("GET", f"/hosts/{HOST}/slots", role="host")["shared"] == shared


def test_an_unchanged_assignment_is_not_sent_again(shop: Api) -> None:
    shop.ok("PUT", f"/hosts/{HOST}", {})
    _, _, etag = assignment(shop)
    assert assignment(shop, If_None_Match=etag) == (304, None, etag)
    assert assignment(shop, If_None_Match=f'"x", W/{etag}')[0] == 304
    assert assignment(shop, If_None_Match='"x"')[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "concerns"),
    [
        ("PUT", f"/hosts/{HOST}", {"mode": "observe"}, True),
        ("PUT", "/vms/web-1", {"class": "critical", "host": HOST}, True),
        ("PUT", "/vms/new", {"class": "batch"}, True),
        ("PUT", "/vms/new", {"class": "batch", "host": HOST}, True),
        ("PUT", "/applications/shop", {}, True),
        ("DELETE", "/applications/shop", None, True),
        ("POST", "/applications/shop/samples", {"times_ms": [1]}, True),
        ("PUT", "/vms/new", {"class": "batch", "host": "kvm2"}, False),
        ("PUT", "/vms/web-1", {"class": "critical"}, False),
        ("PUT", "/hosts/kvm2", {}, False),
        ("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1")]), False),
    ],
)
def test_the_etag_of_an_assignment_changes_with_it(
    shop: Api, method: str, path: str, body: Any, concerns: bool
) -> None:
    shop.ok("PUT", f"/hosts/{HOST}", {})
    _, before, etag = assignment(shop)
    slots_etag = shop.call("GET", f"/hosts/{HOST}/slots", role="host").headers["ETag"]
    shop.clock.now_s += 1
    shop.ok(method, path, body)
    code, after, _ = assignment(shop, If_None_Match=etag)
    assert code == (200 if concerns else 304)
    if concerns:
        assert (after["digest"] != before["digest"]) == ("samples" not in path), "slots are not registered"
    code = shop.call("GET", f"/hosts/{HOST}/slots", role="host", If_None_Match=slots_etag).status_code
    assert code == (200 if concerns else 304)


def test_records_come_in_parts_that_new_ones_do_not_move(api: Api) -> None:
    api.ok("POST", f"/hosts/{HOST}/report", report(decisions=[record(n, at="2026-03-01T12:00:00Z") for n in range(7)]))
    first = api.ok("GET", "/decisions?limit=3")
    api.ok("POST", f"/hosts/{HOST}/report", report(decisions=[record(8)]))
    second = api.ok("GET", f"/decisions?limit=3&cursor={first['next']}")
    third = api.ok("GET", f"/decisions?limit=3&cursor={second['next']}")
    ids = [item["id"][-1] for page in (first, second, third) for item in page["items"]]
    assert (ids, third["next"]) == (list("6543210"), None)


def test_records_are_filtered(api: Api) -> None:
    decisions = [record(1), record(2, vm="web-2"), record(3, knob="vcpu_pin", index=1)]
    events = [event(1), event(2, severity="error", vm="web-2")]
    api.ok("POST", f"/hosts/{HOST}/report", report(decisions=decisions, events=events))

    def numbers(path: str) -> list[int]:
        return [int(item["id"][-12:]) for item in api.ok("GET", path)["items"]]

    assert numbers("/decisions?host=kvm1") == [3, 2, 1]
    assert numbers("/decisions?host=kvm2") == []
    assert numbers("/decisions?vm=web-2") == [2]
    assert numbers("/decisions?knob=vcpu_pin") == [3]
    assert numbers("/decisions?since=2026-03-01T12:00:02Z") == [3, 2]
    assert numbers("/decisions?until=2026-03-01T13:00:02%2B01:00") == [1]
    assert numbers("/events?severity=error") == [2]
    assert numbers("/events?vm=web-2&severity=warning") == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/decisions?knob=volume", "knob"),
        ("/decisions?since=yesterday", "since"),
        ("/decisions?until=10000-01-01T00:00:00Z", "until"),
        ("/decisions?host=%00", "host"),
        ("/events?severity=fatal", "severity"),
        ("/events?limit=0", "limit"),
        ("/events?limit=1001", "limit"),
        ("/events?limit=many", "limit"),
        ("/events?page=2", "page"),
        *(
            (f"{path}?cursor={cursor}", "cursor")
            for path in ("/events", "/vms", "/applications/shop/windows")
            for cursor in ("%00", "AA==", "x")
        ),
        ("/events?cursor=MjAyNi0wMy0wMVQxMjowMDowMCAx", "cursor"),  # a time without an offset
        ("/events?cursor=MDAwMS0wMS0wMVQwMDowMDowMCsxNDowMCAx", "cursor"),  # before the year 1 in UTC
        ("/events?cursor=MjAyNi0wMy0wMVQxMjowMDowMCswMDowMCA5OTk5OTk5OTk5OTk5OTk5OTk5OTk5", "cursor"),
    ],
)
def test_a_bad_query_is_refused(shop: Api, path: str, field: str) -> None:
    assert shop.refused(422, "GET", path)["field"] == field


def test_a_window_that_comes_packed_is_the_same_as_one_in_buckets(api: Api) -> None:
    api.ok("PUT", "/vms/web", {"class": "critical", "host": HOST})
    sla = {"response_time_ms": 10}
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web"]}], "sla": sla})
    sent = window(buckets={"480": 3, "500": 200, "501": 1})

    def read(**fields: Any) -> tuple[int, Any]:
        answer = api.ok("POST", f"/hosts/{HOST}/report", report(**fields), role="host")
        return answer["stored_windows"], api.ok("GET", "/applications/shop/windows?buckets=true")["items"]

    plain = read(windows=[sent])
    assert (plain[0], plain[1][0]["buckets"]) == (1, sent["buckets"])
    assert read(windows=[in_packed(sent)]) == plain
    fuller = sent | {"buckets": {"480": 3, "500": 201, "501": 1}}
    assert read(windows=[in_packed(fuller)])[1][0]["buckets"] == fuller["buckets"]
    assert read(windows=[in_packed(sent) | {"buckets": {"500": 1000}}])[1][0]["buckets"] == fuller["buckets"]
