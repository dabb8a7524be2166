"""The agent's talk with a manager: orders in, reports out, and every way in which a manager may fail."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from manager.api.convert import capabilities_body
from manager.api.schemas import ReportIn, TickStatus
from manager.client import ManagerClient
from manager.errors import ManagerUnavailable
from manager.loop.link import ManagerLink, Orders, Report
from manager.loop.outbox import Outbox
from manager.loop.records import new_event
from manager.model.histogram import Histogram
from manager.model.records import DecisionRecord, Event, Knob, OutcomeKind, Severity
from manager.model.registration import Application, Assignment, HostSpec, Mode, Sla, Tier, VmClass, VmSpec
from manager.model.window import Window
from tests.fakes.host import FakeHost

ASSIGNMENT = {
    "host": {"name": "h1", "mode": "observe", "policy": "equal", "pinning": False},
    "vms": [
        {"name": "web", "class": "critical", "libvirt_name": "shop web", "pin": True},
        {"name": "hog", "class": "batch", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10", "weight": 7},
    ],
    "applications": [
        {
            "name": "shop",
            "tiers": [{"name": "front", "vms": ["web"]}],
            "sla": {"response_time_ms": 5.0, "percentile": 99.0, "max_rate_rps": 100.0},
            "mode": None,
            "window": {
                "start": "2026-01-31T14:00:00Z",
                "end": "2026-01-31T14:00:05Z",
                "buckets": {"500": 3},
            },
        },
        {"name": "silent"},
    ],
}
UNDERSTOOD = Assignment(
    HostSpec("h1", Mode.OBSERVE, "equal", pinning=False),
    (
        VmSpec("web", VmClass.CRITICAL, libvirt_name="shop web", pin=True),
        VmSpec("hog", VmClass.BATCH, libvirt_uuid="6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10", weight=7),
    ),
    (Application("shop", (Tier("front", ("web",)),), Sla(5.0, 99.0, 100.0)), Application("silent")),
)
END_S = 1_769_868_005.0
WINDOW = Window("shop", END_S - 5, END_S, Histogram({500: 3}))
Answer = Callable[[httpx.Request], httpx.Response]


def with_buckets(buckets: dict[str, int]) -> dict[str, Any]:
    changed = json.loads(json.dumps(ASSIGNMENT))
    changed["applications"][0]["window"]["buckets"] = buckets
    return changed


class Manager:
    """Answers in turn what it is told to, the last one again and again; ``requests`` are those it got."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []

    def will(self, *answers: Answer | httpx.Response) -> None:
        self.answers = [one if callable(one) else lambda _, one=one: one for one in answers]

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request)

    @property
    def reports(self) -> list[ReportIn]:
        return [ReportIn.model_validate_json(one.content) for one in self.requests if one.method == "POST"]


def orders(body: object = ASSIGNMENT, etag: str = '"1"') -> Answer:
    return lambda _: httpx.Response(200, json=body, headers={"ETag": etag})


def stored(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"stored_decisions": 0, "stored_events": 0})


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused", request=request)


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "assignment.json"


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "outbox.db", 10_000)
    yield opened
    opened.close()


@pytest.fixture
def link(manager: Manager, cache: Path, outbox: Outbox) -> Iterator[ManagerLink]:
    client = ManagerClient("http://manager:8750/", "s3cret", httpx.MockTransport(manager.handle))
    yield ManagerLink(client, "h1", "0.1.0", cache, outbox)
    client.close()


@pytest.fixture
def report() -> Report:
    return Report(capabilities_body(FakeHost().capabilities), None, None)


def test_orders_are_understood(manager: Manager, link: ManagerLink) -> None:
    manager.will(orders())
    assert link.fetch() == Orders(UNDERSTOOD, {"shop": WINDOW})
    [request] = manager.requests
    assert str(request.url) == "http://manager:8750/api/v1/hosts/h1/assignment"
    assert request.headers["Authorization"] == "Bearer s3cret"
    assert "If-None-Match" not in request.headers


def test_what_has_not_changed_is_not_sent_again(manager: Manager, link: ManagerLink) -> None:
    manager.will(orders(etag='"1"'), httpx.Response(304), orders(with_buckets({"600": 1}), '"2"'), httpx.Response(304))
    first = link.fetch()
    assert link.fetch() is first
    third = link.fetch()
    assert third.assignment == first.assignment
    assert third.windows["shop"].histogram == Histogram({600: 1})
    assert link.fetch() is third
    assert [request.headers.get("If-None-Match") for request in manager.requests] == [None, '"1"', '"1"', '"2"']


def test_a_manager_without_etags_is_asked_for_everything(manager: Manager, link: ManagerLink) -> None:
    manager.will(httpx.Response(200, json=ASSIGNMENT))
    assert link.fetch() == link.fetch()
    assert all("If-None-Match" not in request.headers for request in manager.requests)


def restarted(cache: Path, outbox: Outbox, host: str = "h1") -> Orders:
    """What an agent that starts without its manager goes by."""
    client = ManagerClient("http://manager:8750", "", httpx.MockTransport(down))
    found = ManagerLink(client, host, "0.1.0", cache, outbox).cached_orders()
    client.close()
    return found


def test_orders_are_there_at_the_next_start_without_stale_windows(manager, link, cache, outbox) -> None:
    manager.will(orders())
    link.fetch()
    assert restarted(cache, outbox) == Orders(UNDERSTOOD, {})
    assert restarted(cache, outbox, "another-host") == Orders()
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
    assert link.cached_orders() == Orders(UNDERSTOOD)
    assert link.fetch().windows == {"shop": WINDOW}
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
    assert restarted(cache, outbox) == Orders()
    assert "is unusable and ignored" in caplog.text


def test_a_cache_that_cannot_be_read_is_ignored(cache, outbox, caplog) -> None:
    assert restarted(cache, outbox) == Orders()
    assert caplog.text == "", "a first start is nothing to warn of"
    cache.mkdir()
    assert restarted(cache, outbox) == Orders()
    assert "is unusable and ignored" in caplog.text


def test_a_cache_that_cannot_be_written_stops_nothing(manager, link, cache, caplog) -> None:
    (cache / "in the way").mkdir(parents=True)
    manager.will(orders())
    assert link.fetch().assignment == UNDERSTOOD
    assert "cannot be cached" in caplog.text
    assert not cache.with_suffix(".new").exists()


def problem(status: int, detail: str) -> httpx.Response:
    return httpx.Response(status, json={"title": "x", "status": status, "detail": detail})


BAD_ANSWERS = [
    pytest.param(httpx.Response(200, text="<html>login</html>"), "assignment is not understood", id="a page"),
    pytest.param(httpx.Response(200, json={}), "assignment is not understood", id="nothing in it"),
    pytest.param(httpx.Response(200, json=[ASSIGNMENT]), "assignment is not understood", id="a list"),
    pytest.param(
        httpx.Response(200, json=ASSIGNMENT | {"new": 1}), "assignment is not understood", id="a newer manager"
    ),
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


def record(number: int) -> DecisionRecord:
    name = f"00000000-0000-4000-8000-{number:012}"
    return DecisionRecord(
        name, END_S, "h1", "web", Knob.WEIGHT, 0, "1024", "2", "why", "equal", "enforce", OutcomeKind.APPLIED
    )


def event(number: int = 0, message: str = "said") -> Event:
    return replace(new_event("h1", END_S, Severity.INFO, "vm-found", message), event_id=record(number).record_id)


def sent(manager: Manager) -> list[str]:
    """Ids of all records and events in the reports, in their order."""
    return [one.id for report in manager.reports for one in (*report.decisions, *report.events)]


def test_a_report_is_sent_also_when_there_is_nothing_to_tell(manager, link, report) -> None:
    manager.will(stored)
    tick = TickStatus(
        number=1,
        at="2026-01-31T14:00:00Z",
        duration_ms=1,
        overruns=0,
        errors=0,
        host_cpu_share=0.5,
        vms_cpu_share=0.25,
        owned_knobs=3,
        mode=Mode.ENFORCE,
        policy="priority",
        libvirt_connected=True,
    )
    link.send(replace(report, tick=tick, vms=[]))
    [request], [body] = manager.requests, manager.reports
    assert (request.method, request.url.path) == ("POST", "/api/v1/hosts/h1/report")
    assert body == ReportIn(agent_version="0.1.0", capabilities=report.capabilities, tick=tick, vms=[])


@pytest.mark.parametrize(("rows", "batches"), [(1, [1]), (499, [499]), (500, [500, 0]), (1200, [500, 500, 200])])
def test_waiting_records_go_in_batches_until_none_wait(manager, link, outbox, report, rows: int, batches) -> None:
    manager.will(stored)
    outbox.put([record(number) for number in range(rows)], ())
    link.send(report)
    assert [len(body.decisions) for body in manager.reports] == batches
    assert sent(manager) == [record(number).record_id for number in range(rows)]
    assert outbox.peek(1) == (0, [], [])


def test_records_and_events_arrive_as_they_were(manager, link, outbox, report) -> None:
    manager.will(stored)
    outbox.put([record(1)], [replace(event(2, "“text”\n"), vm="web")])
    link.send(report)
    [body] = manager.reports
    [decision], [told] = body.decisions, body.events
    assert (decision.id, decision.at.timestamp(), decision.vm, decision.before, decision.after) == (
        record(1).record_id,
        END_S,
        "web",
        "1024",
        "2",
    )
    assert (decision.knob, decision.outcome, decision.mode) == (Knob.WEIGHT, OutcomeKind.APPLIED, Mode.ENFORCE)
    assert (told.id, told.severity, told.kind, told.message, told.vm) == (
        record(2).record_id,
        Severity.INFO,
        "vm-found",
        "“text”\n",
        "web",
    )


@pytest.mark.parametrize(
    "failure",
    [down, httpx.Response(500), problem(503, "busy"), problem(401, "unknown token")],
    ids=["down", "500", "503", "401"],
)
def test_what_was_not_acknowledged_stays_and_goes_next_time(manager, link, outbox, report, failure) -> None:
    outbox.put([record(number) for number in range(1200)], ())
    manager.will(stored, failure)
    with pytest.raises(ManagerUnavailable):
        link.send(report)
    assert len(manager.requests) == 2, "the first failure ends it"
    assert outbox.peek(1)[1][0]["record_id"] == record(500).record_id
    manager.requests.clear()
    manager.will(stored)
    outbox.put([record(1200)], ())
    link.send(report)
    assert sent(manager) == [record(number).record_id for number in range(500, 1201)]


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(302, headers={"Location": "https://m/"}), httpx.Response(200, text="<html>login</html>")],
    ids=["a redirect", "a page"],
)
def test_a_proxys_answer_acknowledges_nothing(manager, link, outbox, report, answer: httpx.Response) -> None:
    outbox.put([record(1)], ())
    manager.will(answer)
    with pytest.raises(ManagerUnavailable):
        link.send(report)
    assert outbox.peek(1)[1] != []


@pytest.mark.parametrize("message", ["x" * 2001, "nul \x00"], ids=["too long", "NUL"])
def test_an_event_the_interface_does_not_take_stops_no_others(manager, link, outbox, report, message: str) -> None:
    """Such as the text of whatever a third party's policy raised."""
    outbox.put([record(1)], [event(2, message), event(3)])
    manager.will(stored)
    link.send(report)
    assert {record(1).record_id, record(3).record_id} <= set(sent(manager))
    assert outbox.peek(1)[0] == 0


def test_an_answer_that_got_lost_sends_the_same_again(manager, link, outbox, report) -> None:
    outbox.put([record(1)], [event(2)])

    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request)

    manager.will(lose, stored)
    with pytest.raises(ManagerUnavailable, match="does not answer: timed out"):
        link.send(report)
    link.send(report)
    first, again = manager.reports
    assert first == again, "under the same ids, so that the manager stores them once"


def test_the_secret_is_in_no_log(manager, link, report, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    manager.will(down)
    with pytest.raises(ManagerUnavailable) as caught:
        link.send(report)
    assert "s3cret" not in caplog.text + str(caught.value)
