"""Reports: what is told to the manager, in which parts, what becomes of it without an answer; slots told in turn."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from manager.errors import ManagerUnavailable
from manager.loop.chronicle import new_event
from manager.loop.link import remember
from manager.loop.outbox import ItemKind
from manager.loop.pace import Waits
from manager.model.fields import json_fields, timestamp
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.records import DecisionRecord, Event, OutcomeKind, Severity, TickRecord, VmTick
from manager.model.registration import (
    Mode,
)
from manager.model.source import SourceKind, SourceState, SourceStatus
from manager.model.window import Window
from manager.protocol.report import ReportIn, TickStatus, reported_window
from tests.fakes.manager import (
    ASSIGNMENT,
    END_S,
    WINDOW,
    Answer,
    Manager,
    down,
    orders,
    problem,
    stored,
)
from tests.reported import ticks_in


def record(number: int) -> DecisionRecord:
    name = f"00000000-0000-4000-8000-{number:012}"
    return DecisionRecord(
        name, END_S, "h1", "web", Knob.WEIGHT, 0, "1024", "2", "why", "equal", "enforce", OutcomeKind.APPLIED
    )


def event(number: int = 0, message: str = "said") -> Event:
    return replace(new_event("h1", END_S, Severity.INFO, "vm-found", message), record_id=record(number).record_id)


def sent(manager: Manager) -> list[str]:
    """Ids of all records and events in the reports, in their order."""
    return [one.record_id for report in manager.reports for one in (*report.decisions, *report.events)]


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


@pytest.mark.parametrize(("rows", "batches"), [(1, [1]), (500, [500]), (501, [500, 1]), (1200, [500, 500, 200])])
def test_waiting_records_go_in_batches_until_none_wait(manager, link, outbox, report, rows: int, batches) -> None:
    manager.will(stored)
    outbox.put([record(number) for number in range(rows)])
    link.send(report)
    assert [len(body.decisions) for body in manager.reports] == batches
    assert sent(manager) == [record(number).record_id for number in range(rows)]
    assert outbox.peek(1, 10**6).last == 0


def test_records_and_events_arrive_as_they_were(manager, link, outbox, report) -> None:
    manager.will(stored)
    outbox.put([record(1), replace(event(2, "“text”\n"), vm="web")])
    link.send(report)
    [body] = manager.reports
    [decision], [told] = body.decisions, body.events
    assert (decision.record_id, decision.time_s, decision.vm, decision.before, decision.after) == (
        record(1).record_id,
        END_S,
        "web",
        "1024",
        "2",
    )
    assert (decision.knob, decision.outcome, decision.mode) == (Knob.WEIGHT, OutcomeKind.APPLIED, Mode.ENFORCE)
    assert (told.record_id, told.severity, told.kind, told.message, told.vm) == (
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
    outbox.put([record(number) for number in range(1200)])
    manager.will(stored, failure)
    with pytest.raises(ManagerUnavailable):
        link.send(report)
    assert len(manager.requests) == 2, "the first failure ends it"
    assert outbox.peek(1, 10**6).fields[ItemKind.DECISION][0]["record_id"] == record(500).record_id
    manager.requests.clear()
    manager.will(stored)
    outbox.put([record(1200)])
    link.send(report)
    assert sent(manager) == [record(number).record_id for number in range(500, 1201)]


def test_a_manager_that_refuses_is_sent_a_few_until_it_takes_these(manager, link, outbox, report) -> None:
    outbox.put([record(number) for number in range(1200)])
    told = replace(report, windows=tuple(slot(2.0 * number) for number in range(1, 41)))
    manager.will(problem(503, "no space left"))
    for _ in range(3):
        with pytest.raises(ManagerUnavailable):
            link.send(told)
    manager.will(stored)
    link.send(told)
    assert [len(body.decisions) for body in manager.reports] == [500, 10, 10, 10, 500, 500, 190]
    assert [len(body.windows) for body in manager.reports] == [40, 10, 10, 10, 30, 0, 0]
    assert sent(manager)[-1200:] == [record(number).record_id for number in range(1200)]


def test_the_present_is_told_as_a_whole_also_after_a_refusal(manager, link, outbox, report) -> None:
    told = replace(report, windows=tuple(slot(2.0 * number) for number in range(1, 41)), live=True)
    manager.will(down, stored)
    with pytest.raises(ManagerUnavailable):
        link.send(told, Waits.NOTHING)
    link.send(told, Waits.NOTHING)
    assert [len(body.windows) for body in manager.reports] == [40, 40]


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(302, headers={"Location": "https://m/"}), httpx.Response(200, text="<html>login</html>")],
    ids=["a redirect", "a page"],
)
def test_a_proxys_answer_acknowledges_nothing(manager, link, outbox, report, answer: httpx.Response) -> None:
    outbox.put([record(1)])
    manager.will(answer)
    with pytest.raises(ManagerUnavailable):
        link.send(report)
    assert outbox.peek(1, 10**6).last


@pytest.mark.parametrize("message", ["x" * 2001, "nul \x00"], ids=["too long", "NUL"])
def test_an_event_the_interface_does_not_take_stops_no_others(manager, link, outbox, report, message: str) -> None:
    """Such as the text of whatever a third party's policy raised."""
    outbox.put([record(1), event(2, message), event(3)])
    manager.will(stored)
    link.send(report)
    assert {record(1).record_id, record(3).record_id} <= set(sent(manager))
    assert outbox.peek(1, 10**6).last == 0


def test_an_answer_that_got_lost_sends_the_same_again(manager, link, outbox, report) -> None:
    outbox.put([record(1), event(2)])

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


def slot(end_s: float, count: int = 1) -> Window:
    return Window("shop", end_s - 2, end_s, Histogram({500: count}), count)


@pytest.mark.parametrize(
    ("known", "fresh", "merged"),
    [
        ([], [], []),
        ([slot(4)], [], [slot(4)]),
        ([], [slot(4), slot(6)], [slot(4), slot(6)]),
        ([slot(2), slot(4)], [slot(4, 9), slot(6)], [slot(2), slot(4, 9), slot(6)]),
        ([slot(3.5)], [slot(4, 2)], [slot(4, 2)]),  # the same slot, further on
        ([slot(100), slot(102)], [slot(402)], [slot(102), slot(402)]),  # five minutes
    ],
)
def test_earlier_slots_are_remembered(known: list[Window], fresh: list[Window], merged: list[Window]) -> None:
    found = remember({"shop": tuple(known)}, {"shop": tuple(fresh)} if fresh else {}, 2.0)
    assert found == ({"shop": tuple(merged)} if merged else {})


def told(*slots: Window, slot_s: float = 2.0, name: str = "shop", etag: str) -> Answer:
    windows = [
        {"start": timestamp(one.start_s).isoformat(), "end": timestamp(one.end_s).isoformat(), "buckets": {"500": 1}}
        for one in slots
    ]
    applications = [{"name": name, "windows": windows}]
    return orders(ASSIGNMENT | {"applications": applications, "slot_s": slot_s}, etag)


def test_slots_are_remembered_while_they_are_of_the_same_kind(manager, link) -> None:
    def seen() -> dict[str, list[float]]:
        return {name: [one.end_s for one in slots] for name, slots in link.fetch().slots.items()}

    manager.will(
        told(slot(2), slot(4), etag='"1"'),
        told(slot(6), etag='"2"'),
        told(slot(20), slot_s=5.0, etag='"3"'),
        told(slot(25), slot_s=5.0, name="blog", etag='"4"'),
    )
    assert [seen(), seen()] == [{"shop": [2, 4]}, {"shop": [2, 4, 6]}]
    assert seen() == {"shop": [20]}, "slots of another length cannot be merged with these"
    assert seen() == {"blog": [25]}, "the application is gone"


def test_windows_ticks_and_sources_arrive_as_they_were(manager, link, outbox, report) -> None:
    manager.will(stored)
    tick = TickRecord(END_S, "fair", Mode.ENFORCE, 0.5, (VmTick("web", 0.25, 0.01, None, Mode.OBSERVE),))
    outbox.put([WINDOW, tick])
    status = SourceStatus(
        "shop", "probe", SourceKind.HTTP_PROBE, SourceState.FAILING, END_S, 1, 2, 3, 4, 5, "no\0 route"
    )
    link.send(replace(report, windows=(replace(WINDOW, end_s=END_S + 1),), sources=(status,)))
    [body] = manager.reports
    sent_windows = WINDOW, replace(WINDOW, end_s=END_S + 1)
    assert body.windows == [reported_window(window, packed=False) for window in sent_windows]
    [sent_tick], [source] = body.ticks, body.sources
    assert (sent_tick.time_s, sent_tick.policy, sent_tick.vms[0].weight) == (END_S, "fair", None)
    assert (source.source, source.kind, source.state, source.last_sample_s, source.detail) == (
        "probe",
        "http_probe",
        "failing",
        END_S,
        "no\\x00 route",
    )
    assert [source.accepted, source.malformed, source.refused, source.late, source.errors] == [1, 2, 3, 4, 5]


def test_a_long_outage_is_reported_in_parts_that_the_manager_takes(manager, link, outbox, report) -> None:
    vms = tuple(VmTick(f"vm-{number}", 0.25, 0.01, 10_000, Mode.ENFORCE) for number in range(200))
    ticks = [TickRecord(END_S + number, "fair", Mode.ENFORCE, 0.5, vms) for number in range(200)]
    outbox.put(ticks)
    manager.will(stored)
    recent = tuple(slot(2.0 * number) for number in range(1, 701))
    link.send(replace(report, windows=recent))
    assert max(len(request.content) for request in manager.requests) < 4_000_000
    assert sum(len(body.ticks) for body in manager.reports) == 200
    assert sum(len(body.windows) for body in manager.reports) == 700


def test_histograms_are_packed_for_a_manager_that_reads_them_so(manager, link, outbox, report) -> None:
    waiting = Window("shop", END_S - 5, END_S, Histogram({500: 3, 600: 1}), 4.0)
    open_slot = replace(waiting, start_s=END_S, end_s=END_S + 1)
    told = replace(report, windows=(open_slot,))

    def reads_packed(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=stored(request).json() | {"packed": True})

    def windows() -> list[dict[str, Any]]:
        return json.loads(manager.requests[-1].content)["windows"]

    manager.will(reads_packed)
    link.send(told)
    assert [sorted(window.keys() & {"buckets", "packed"}) for window in windows()] == [["buckets"]], "it is not known"
    outbox.put([waiting])
    link.send(told)
    assert [sorted(window.keys() & {"buckets", "packed"}) for window in windows()] == [["packed"]] * 2
    assert [window.histogram for window in manager.reports[-1].windows] == [waiting.histogram] * 2
    outbox.put([waiting])
    asked = len(manager.requests)
    manager.will(stored)  # an earlier manager, which reads no window in these
    link.send(told)
    assert [window["buckets"] for window in windows()] == [{"500": 3, "600": 1}] * 2
    link.send(told)
    assert len(manager.requests) - asked == 3
    assert [window["buckets"] for window in windows()] == [{"500": 3, "600": 1}]
    assert link.take_rejected() == []


def test_ticks_are_packed_for_a_manager_that_reads_them_so(manager, link, outbox, report) -> None:
    vms = (VmTick("web", 0.5, 0.01, 100, Mode.ENFORCE),)
    ticks = [TickRecord(END_S + 5 * number, "fair", Mode.ENFORCE, 0.5, vms) for number in range(4)]

    def reads_packed(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=stored(request).json() | {"packed_ticks": True})

    def refuses_packed(request: httpx.Request) -> httpx.Response:
        packed = "packed_ticks" in json.loads(request.content)
        bad = [{"field": "packed_ticks[0]", "message": "is not taken"}] if packed else []
        return httpx.Response(200, json=reads_packed(request).json() | {"refused": bad})

    def sent(*some: TickRecord) -> list[tuple[int, int]]:
        """How many packs, and ticks that are in none, the reports have that are made of some."""
        asked = len(manager.requests)
        outbox.put(some)
        link.send(report)
        bodies = [json.loads(request.content) for request in manager.requests[asked:]]
        assert ticks_in(bodies[-1]) == [*map(json_fields, some)]
        return [(len(body.get("packed_ticks", ())), len(body["ticks"])) for body in bodies]

    manager.will(reads_packed)
    assert sent(ticks[0]) == [(0, 1)], "it is not known"
    manager.will(reads_packed)
    assert sent(*ticks[1:]) == [(1, 0)]
    manager.will(stored)  # an earlier manager, which reads no pack
    assert sent(ticks[0]) == [(1, 0), (0, 1)]
    manager.will(reads_packed)
    assert sent(ticks[0]) == [(0, 1)]
    manager.will(refuses_packed)
    assert sent(*ticks) == [(1, 0), (0, 4)], "a manager of a later version, perhaps"
    manager.will(reads_packed)
    assert sent(ticks[0]) == [(0, 1)], "never again"
    assert link.take_rejected() == []


def all_stored(request: httpx.Request, **more: Any) -> httpx.Response:
    """A manager that took all windows of a report."""
    return httpx.Response(200, json=stored(request).json() | {"stored_windows": len(windows_in(request))} | more)


def windows_in(request: httpx.Request) -> list[dict[str, Any]]:
    return json.loads(request.content)["windows"]


def test_only_slots_that_grew_since_they_were_stored_are_sent_again(manager, link, outbox, report) -> None:
    manager.will(all_stored)
    old, new = slot(END_S), slot(END_S + 1)

    def sent_counts(*slots: Window, live: bool = False) -> list[int]:
        link.send(replace(report, windows=slots, live=live))
        return [window.histogram.count for window in manager.reports[-1].windows]

    assert sent_counts(old, new) == [1, 1]
    assert sent_counts(old, slot(END_S + 1, 2)) == [2]
    assert sent_counts(old, slot(END_S + 1, 2), live=True) == [1, 2], "all that is present, as one"
    outbox.put([old])
    assert sent_counts(slot(END_S + 1, 2), slot(END_S + 2, 3)) == [1, 3], "a slot that is closed is sent for good"


@pytest.mark.parametrize(
    "answer", [partial(all_stored, stored_windows=1), partial(all_stored, vms_missing=True)], ids=["one", "lost"]
)
def test_slots_that_were_not_stored_are_sent_again(manager, link, report, answer) -> None:
    told = replace(report, windows=(slot(END_S), slot(END_S + 1)))
    manager.will(answer)
    for _ in range(3):
        link.send(told)
    assert [len(windows_in(request)) for request in manager.requests] == [2, 2, 2]


def test_slots_of_a_report_that_failed_are_sent_again(manager, link, report) -> None:
    told = replace(report, windows=(slot(END_S), slot(END_S + 1)))
    manager.will(lambda _: httpx.Response(503))
    with pytest.raises(ManagerUnavailable):
        link.send(told)
    manager.will(all_stored)
    link.send(told)
    link.send(told)
    assert [len(windows_in(request)) for request in manager.requests[-2:]] == [2, 0]
