"""Orders: understood, cached, and every way in which a manager may fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from manager.errors import ManagerUnavailable
from manager.loop.assigned import Assigned
from manager.loop.link import ManagerLink
from manager.loop.outbox import Outbox
from manager.model.finding import Findings
from manager.model.histogram import Histogram
from manager.model.host import VmInstance
from manager.model.registration import VmClass
from manager.protocol.client import ManagerClient
from tests.fakes.examiner import FOUND
from tests.fakes.manager import (
    ASSIGNMENT,
    END_S,
    UNDERSTOOD,
    WINDOW,
    Manager,
    Wire,
    down,
    orders,
    problem,
    slots,
    stored,
    with_buckets,
)
from tests.fakes.vm import domain_uuid


def test_orders_are_understood(manager: Manager, link: ManagerLink) -> None:
    manager.will(orders())
    assert link.fetch() == Assigned(UNDERSTOOD, {"shop": (WINDOW,)})
    [request] = manager.requests
    assert request.url.path == "/api/v1/hosts/h1/assignment"
    assert request.headers["Authorization"] == "Bearer s3cret"
    assert "If-None-Match" not in request.headers


def test_what_has_not_changed_is_not_sent_again(manager: Manager, link: ManagerLink) -> None:
    manager.will(orders(etag='"1"'), httpx.Response(304), orders(with_buckets({"600": 1}), '"2"'), httpx.Response(304))
    first = link.fetch()
    assert link.fetch() is first
    third = link.fetch()
    assert third.assignment == first.assignment
    assert [slot.histogram for slot in third.slots["shop"]] == [Histogram({600: 1})]
    assert link.fetch() is third
    assert [request.headers.get("If-None-Match") for request in manager.requests] == [None, '"1"', '"1"', '"2"']


def test_registrations_that_change_with_the_response_times_are_understood(manager: Manager, link: ManagerLink) -> None:
    changed = with_buckets({"600": 1}) | {"digest": "b"}
    changed["vms"][0]["class"] = "batch"
    manager.will(
        orders(ASSIGNMENT | {"digest": "a"}),
        slots("a", {"700": 1}, '"2"'),
        httpx.Response(304),
        slots("a", {"700": 2}, '"3"'),
        slots("b", {"600": 1}, '"4"'),
        orders(changed, '"5"'),
        slots("b", {"600": 9}, '"6"'),
    )
    first, second, same, third, fourth, fifth = (link.fetch() for _ in range(6))
    assert second.assignment is third.assignment is first.assignment, "it was not sent again"
    assert [one.slots["shop"][0].histogram.buckets for one in (second, third)] == [{700: 1}, {700: 2}]
    assert same is second
    assert fourth.assignment is not None
    assert fourth.assignment.vms[0].vm_class is VmClass.BATCH
    assert fifth.slots["shop"][0].histogram.buckets == {600: 9}
    asked = [
        (request.url.path.rpartition("/")[2], request.headers.get("If-None-Match")) for request in manager.requests
    ]
    assert asked == [
        ("assignment", None),
        ("slots", None),
        ("slots", '"2"'),
        ("slots", '"2"'),
        ("slots", '"3"'),
        ("assignment", None),
        ("slots", None),
    ]


def test_slots_that_were_told_before_are_kept_as_they_were_made(manager: Manager, link: ManagerLink) -> None:
    told = json.loads(slots("a", {"700": 1}, '"2"').content)["windows"]["shop"][0]
    later = told | {"start": "2026-01-31T14:00:05Z", "end": "2026-01-31T14:00:07Z"}
    answers = [
        {"digest": "a", "windows": {"shop": windows}, "shared": True} for windows in ([told], [told, later], [later])
    ]
    manager.will(orders(ASSIGNMENT | {"digest": "a"}), *(httpx.Response(200, json=one) for one in answers))
    link.fetch()
    once, twice, thrice = (link.fetch().slots["shop"] for _ in range(3))
    assert [slot.end_s - END_S for slot in twice] == [0, 2]
    assert twice[0] is once[0]
    assert thrice == twice


@pytest.mark.parametrize(
    "said",
    [
        {"digest": "a", "windows": {"shop": [{"buckets": {"600": -1}}]}, "shared": True},
        {"digest": "a", "windows": {}},
        {"digest": "a"},
        {"windows": {}},
        [],
        "no JSON",
    ],
)
def test_slots_that_cannot_be_understood_are_refused(manager: Manager, link: ManagerLink, said: object) -> None:
    manager.will(orders(ASSIGNMENT | {"digest": "a"}), httpx.Response(200, json=said, headers={"ETag": '"2"'}))
    first = link.fetch()
    with pytest.raises(ManagerUnavailable, match="assignment is not understood"):
        link.fetch()
    manager.will(httpx.Response(304))
    assert link.fetch() is first
    assert "If-None-Match" not in manager.requests[-1].headers, "it was of no use"


def test_orders_come_with_the_answer_to_a_report_that_asks(manager: Manager, link: ManagerLink, report) -> None:
    def answered(digest: str, shared: bool) -> httpx.Response:
        said = stored(httpx.Request("POST", "/")).json()
        said["slots"] = slots(digest, {"700": 5}, "").json() | {"shared": shared}
        return httpx.Response(200, json=said, headers={"Equipoise-Revision": "7"})

    assert link.shared, "as long as nobody told otherwise"
    again = ASSIGNMENT | {"digest": "b"}
    manager.will(orders(ASSIGNMENT | {"digest": "a"}), answered("a", False), stored, answered("b", True), orders(again))
    first = link.fetch()
    second = link.send(report, ask=True)
    assert (second.assignment, second.slots["shop"][0].histogram) == (first.assignment, Histogram({700: 5}))
    assert (second.revision, link.shared) == (7, False)
    assert link.send(report) is second
    assert link.send(report, ask=True).slots["shop"][0].histogram == Histogram({500: 3})
    assert link.shared
    asked = [f"{one.method} {one.url.path.rpartition('/')[2]}" for one in manager.requests]
    assert asked == ["GET assignment", *["POST report"] * 3, "GET assignment"]
    assert [one.wants_slots for one in manager.reports] == [True, False, True]


def test_a_manager_without_etags_is_asked_for_everything(manager: Manager, link: ManagerLink) -> None:
    manager.will(httpx.Response(200, json=ASSIGNMENT))
    assert link.fetch() == link.fetch()
    assert all("If-None-Match" not in request.headers for request in manager.requests)


def test_the_number_of_what_is_registered_is_known_also_of_orders_that_are_not_sent_again(manager, link) -> None:
    def numbered(status: int, number: str) -> httpx.Response:
        body = ASSIGNMENT if status == 200 else None
        return httpx.Response(status, json=body, headers={"ETag": '"1"', "Equipoise-Revision": number})

    manager.will(numbered(200, "7"), numbered(304, "7"), numbered(304, "9"), numbered(304, "none"))
    first = link.fetch()
    assert first.revision == 7
    assert link.fetch() is first
    assert link.fetch() == replace(first, revision=9)
    assert link.fetch() == replace(first, revision=None)


def test_domains_and_findings_are_told_and_what_cannot_be_is_left_out(manager, link, report, caplog) -> None:
    manager.will(stored)
    domains = (VmInstance(domain_uuid("a"), "a", 1, 1), VmInstance(domain_uuid("b"), "b\nb", 2, 2))
    long = replace(FOUND, detail="x\0" * 2000)
    link.send(replace(report, domains=domains, findings=Findings(1_000.0, (long,))))
    link.send(report)
    first, second = manager.reports
    assert [one.libvirt_name for one in first.domains] == ["a"]
    assert "b\\nb" in caplog.text
    assert first.findings.time_s == 1_000.0
    [finding] = first.findings.findings
    assert (finding.id, finding.status, finding.detail) == (FOUND.id, FOUND.status, "x\\x00" * 400)
    assert (second.domains, second.findings) == (None, None)


def restarted(cache: Path, outbox: Outbox, host: str = "h1") -> Assigned:
    """What an agent that starts without its manager goes by."""
    client = ManagerClient("http://manager:8750", "", Wire(down))
    found = ManagerLink(client, host, "0.1.0", cache, outbox).cached()
    client.close()
    return found


def test_orders_are_there_at_the_next_start_without_stale_windows(manager, link, cache, outbox) -> None:
    manager.will(orders())
    link.fetch()
    assert restarted(cache, outbox) == Assigned(UNDERSTOOD, {})
    assert restarted(cache, outbox, "another-host") == Assigned()
    assert [file.name for file in cache.parent.iterdir() if "assignment" in file.name] == ["assignment.json"]


def test_the_cache_is_written_only_when_orders_change(manager, link, cache) -> None:
    changed = ASSIGNMENT | {"vms": []}
    manager.will(orders(), orders(with_buckets({"700": 9}), '"2"'), orders(changed, '"3"'))
    link.fetch()
    first = cache.stat().st_ino, cache.read_bytes()
    link.fetch()
    assert (cache.stat().st_ino, cache.read_bytes()) == first, "windows change all the time"
    link.fetch()
    assert json.loads(cache.read_text())["vms"] == []


def test_a_manager_that_comes_back_with_the_same_orders_writes_no_cache(manager, link, cache) -> None:
    manager.will(orders())
    link.fetch()
    before = cache.stat().st_ino
    assert link.cached() == Assigned(UNDERSTOOD)
    assert link.fetch().slots == {"shop": (WINDOW,)}
    assert cache.stat().st_ino == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        json.dumps(ASSIGNMENT).encode()[:-40],
        b'{"host": {"name": 5}}',
    ],
)
def test_a_cache_that_cannot_be_understood_is_ignored(cache, outbox, caplog, content: bytes) -> None:
    cache.write_bytes(content)
    assert restarted(cache, outbox) == Assigned()
    assert "is unusable and ignored" in caplog.text
    assert [one.read_bytes() for one in cache.parent.glob("assignment.json.broken-*")] == [content]
    assert not cache.exists()


def test_a_cache_that_cannot_be_read_is_ignored(cache, outbox, caplog) -> None:
    assert restarted(cache, outbox) == Assigned()
    assert caplog.text == "", "a first start is nothing to warn of"
    cache.mkdir()
    assert restarted(cache, outbox) == Assigned()
    assert "is unusable and ignored" in caplog.text


def test_a_cache_that_cannot_be_written_stops_nothing(manager, link, cache, caplog) -> None:
    (cache / "in the way").mkdir(parents=True)
    manager.will(orders())
    assert link.fetch().assignment == UNDERSTOOD
    assert "cannot be cached" in caplog.text
    assert [one.name for one in cache.parent.iterdir() if one.name.endswith(".new")] == []


BAD_ANSWERS = [
    pytest.param(httpx.Response(200, text="<html>login</html>"), "assignment is not understood", id="a page"),
    pytest.param(httpx.Response(200, json={}), "assignment is not understood", id="nothing in it"),
    pytest.param(httpx.Response(200, json=[ASSIGNMENT]), "assignment is not understood", id="a list"),
    pytest.param(httpx.Response(200), "assignment is not understood", id="empty"),
    pytest.param(httpx.Response(302, headers={"Location": "/login"}), "not understood|302", id="a redirect"),
    pytest.param(problem(404, "host 'h1' is not registered"), "404 host 'h1' is not registered", id="problem"),
    pytest.param(httpx.Response(401, text="no"), "401 Unauthorized", id="no problem+json"),
    pytest.param(httpx.Response(500, json=["?"]), "500 Internal Server Error", id="a broken problem"),
    pytest.param(httpx.Response(503, json={"detail": None}), "503", id="no detail"),
    pytest.param(down, "does not answer: Connection refused", id="nobody there"),
]


@pytest.mark.parametrize(("answer", "says"), BAD_ANSWERS)
def test_whatever_goes_wrong_is_one_error_and_orders_stay(manager, link, cache, answer, says: str) -> None:
    manager.will(orders())
    good = link.fetch()
    before = cache.read_bytes()
    manager.will(answer)
    with pytest.raises(ManagerUnavailable, match=says):
        link.fetch()
    manager.will(httpx.Response(304))
    assert link.fetch() is good
    assert manager.requests[-1].headers["If-None-Match"] == '"1"'
    assert cache.read_bytes() == before


def test_errors_name_the_bad_fields(manager, link) -> None:
    errors = [{"field": "tick.number", "message": "too small"}, {"field": "vms", "message": "too many"}]
    manager.will(httpx.Response(422, json={"detail": "bad body", "errors": errors}))
    with pytest.raises(ManagerUnavailable) as caught:
        link.fetch()
    assert str(caught.value) == (
        "GET /api/v1/hosts/h1/assignment: 422 bad body (tick.number: too small; vms: too many)"
    )
