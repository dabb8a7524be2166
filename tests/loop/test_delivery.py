"""What a manager does not accept is set aside, and all else delivered, also to one that refuses whole reports."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manager.errors import ManagerUnavailable
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.delivery import Rejected
from manager.loop.link import ManagerLink, Report
from manager.loop.outbox import MOST_ASIDE, ItemKind, Outbox
from manager.loop.outgoing import Outgoing
from manager.model.histogram import Histogram
from manager.model.records import Event, Severity
from manager.model.window import Window
from manager.protocol.client import ManagerClient
from tests.fakes.manager import ASSIGNMENT, Wire, orders

NOTHING = Report(None, None, None)


def event(number: int, host: str = "h1", message: str = "said") -> Event:
    return Event(f"00000000-0000-4000-9000-{number:012d}", 1.0 + number, host, Severity.INFO, "read", message)


class Picky:
    """A manager that does not accept events with `bad` in them; ``way`` is how it says so."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.stored: set[str] = set()
        self.requests = 0
        self.bad_parts: set[str] = set()

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        body: dict[str, Any] = json.loads(request.content)
        bad = [place for place, one in enumerate(body["events"]) if "bad" in one["message"]]
        refused = [{"field": f"events[{place}].message", "message": "is bad", "id": ""} for place in bad]
        if self.way == "answers" or not (bad or self.bad_parts & {name for name in body if body[name] is not None}):
            self.stored |= {one["id"] for place, one in enumerate(body["events"]) if place not in bad}
            counts = dict.fromkeys(("stored_decisions", "stored_events", "stored_ticks", "stored_windows"), 0)
            return httpx.Response(200, json=counts | {"refused": refused})
        if self.way == "names":
            return httpx.Response(422, json={"detail": "bad", "errors": refused[:2]})
        return httpx.Response(int(self.way), text="no")


def made(folder: Path, manager: Picky, host: str = "h1") -> tuple[ManagerLink, Outbox]:
    outbox = Outbox(folder / "outbox.db", 10_000)
    client = ManagerClient("http://m", "x", Wire(manager.handle))
    return ManagerLink(client, host, "1", folder / "assignment.json", outbox), outbox


def aside(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "outbox.db")) as file:
        rows = file.execute("SELECT body, why FROM set_aside ORDER BY seq")
        return [(json.loads(body)["record_id"], why) for body, why in rows]


@pytest.mark.parametrize("way", ["answers", "names", "422", "413", "400"])
def test_bad_items_are_found_and_set_aside_and_all_others_delivered(tmp_path: Path, way: str) -> None:
    manager = Picky(way)
    link, outbox = made(tmp_path, manager)
    bad = {3, 4, 40, 99}
    events = [event(n, message="bad" if n in bad else "good") for n in range(100)]
    outbox.put(events)
    link.send(NOTHING)
    assert manager.stored == {one.record_id for n, one in enumerate(events) if n not in bad}
    assert outbox.peek(9, 10**6).last == 0, "nothing waits"
    assert sorted(one for one, _ in aside(tmp_path)) == sorted(events[n].record_id for n in bad)
    assert outbox.aside == len(bad) == len(link.take_rejected())
    assert manager.requests <= 2 * len(bad) * 8
    outbox.close()


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.booleans(), max_size=40), st.sampled_from(["answers", "names", "422"]))
def test_whatever_is_bad_the_rest_arrives(tmp_path_factory: pytest.TempPathFactory, good: list[bool], way: str) -> None:
    folder = tmp_path_factory.mktemp("box")
    manager = Picky(way)
    link, outbox = made(folder, manager)
    events = [event(n, message="good" if one else "bad") for n, one in enumerate(good)]
    outbox.put(events)
    link.send(NOTHING)
    assert manager.stored == {one.record_id for one, is_good in zip(events, good, strict=True) if is_good}
    outbox.close()


def test_a_part_that_an_older_manager_refuses_keeps_no_item_back(tmp_path: Path) -> None:
    manager = Picky("422")
    manager.bad_parts = {"vms"}
    link, outbox = made(tmp_path, manager)
    outbox.put([event(1), event(2)])
    link.send(replace(NOTHING, vms=[], vms_changed_only=True))
    assert manager.stored == {event(1).record_id, event(2).record_id}
    assert [one.what for one in link.take_rejected()] == ["vms"]
    outbox.close()


def test_items_of_another_hosts_name_are_set_aside(tmp_path: Path) -> None:
    manager = Picky("answers")
    link, outbox = made(tmp_path, manager)
    outbox.put([event(1), event(2, host="old"), event(3)])
    link.send(NOTHING)
    assert manager.stored == {event(1).record_id, event(3).record_id}
    assert aside(tmp_path) == [(event(2).record_id, "it is of host old, and this one is h1")]
    outbox.close()


def test_other_errors_lose_nothing(tmp_path: Path) -> None:
    for status in ("401", "403", "409", "426", "429", "500", "503"):
        manager = Picky(status)
        link, outbox = made(tmp_path / status, manager)
        outbox.put([event(1, message="bad")])
        with pytest.raises(ManagerUnavailable):
            link.send(NOTHING)
        assert outbox.peek(9, 10**6).last == 1
        assert outbox.aside == 0
        outbox.close()


def test_what_is_set_aside_is_bounded_and_kept_once(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", 100)
    for most in (5, 5, MOST_ASIDE + 5):
        outbox.set_aside([("event", {"record_id": str(n)}, "why") for n in range(most)])
        assert outbox.aside == min(most, MOST_ASIDE)
    outbox.close()
    assert [one for one, _ in aside(tmp_path)][-1] == str(MOST_ASIDE + 4)


def test_what_waits_of_another_host_name_is_set_aside_at_the_start(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", 100)
    assert outbox.claim("old") == ("", 0)
    outbox.put([event(1, host="old")])
    outbox.close()
    again = Outbox(tmp_path / "outbox.db", 100)
    assert again.claim("old") == ("", 0)
    assert again.claim("new") == ("old", 1)
    assert again.claim("new") == ("", 0)
    assert (again.peek(9, 10**6).last, again.aside) == (0, 1)
    again.close()


def test_it_is_told_now_and_then_and_always_counted(tmp_path: Path) -> None:
    metrics = AgentMetrics()
    outbox = Outbox(tmp_path / "outbox.db", 100)
    outgoing = Outgoing("h1", outbox, metrics)
    for now_s in (0.0, 1.0, 601.0):
        outgoing.reject([Rejected("event", "no"), Rejected("vms[3].vm", "no")], now_s)
    outgoing.reject([], 9999.0)
    assert [one["kind"] for one in outbox.peek(9, 10**6).fields[ItemKind.EVENT]] == ["items-refused"] * 2
    outbox.close()
    count = metrics.registry.get_sample_value
    assert count("equipoise_agent_items_refused_total", {"kind": "event"}) == 3
    assert count("equipoise_agent_items_refused_total", {"kind": "vms"}) == 3


@pytest.mark.parametrize("spoil", [{"class": "huge"}, {"cpus": "x"}, {"name": "a b"}])
def test_one_bad_vm_of_an_assignment_keeps_no_other_from_being_controlled(
    tmp_path: Path, spoil: dict[str, object]
) -> None:
    answers = [orders(), orders(json.loads(json.dumps(ASSIGNMENT)), '"2"')]
    changed = json.loads(json.dumps(ASSIGNMENT))
    changed["vms"][0] |= spoil
    changed["vms"][1]["weight"] = 9
    changed["applications"][1]["sla"] = {"response_time_ms": "soon"}
    answers[1] = orders(changed, '"2"')
    outbox = Outbox(tmp_path / "outbox.db", 100)

    def answer(request: httpx.Request) -> httpx.Response:
        return answers.pop(0)(request)

    wire = Wire(answer)
    link = ManagerLink(ManagerClient("http://m", "x", wire), "h1", "1", tmp_path / "assignment.json", outbox)
    before = link.fetch().assignment
    after = link.fetch().assignment
    assert before is not None
    assert after is not None
    vms = {vm.name: vm for vm in after.vms}
    assert vms["hog"].weight == 9
    if "name" not in spoil:
        assert vms["web"] == before.vms[0], "it stays as it was"
    assert {one.name for one in after.applications} == {"shop", "silent"}
    assert len(link.take_rejected()) == 2
    outbox.close()


@pytest.mark.parametrize("packed", [False, True])
def test_windows_that_an_earlier_version_kept_are_delivered(tmp_path: Path, packed: bool) -> None:
    sent: list[dict[str, Any]] = []

    def taken(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        sent.append(body)
        stored = {f"stored_{kind}": len(body[kind]) for kind in ("decisions", "events", "ticks", "windows")}
        return httpx.Response(200, json={**stored, "packed": packed})

    path = tmp_path / "outbox.db"
    Outbox(path, 100).close()
    fields = {"application": "shop", "start_s": 1.0, "end_s": 2.0, "requests": 4.0, "ready": None}
    rows = [fields | {"histogram": {"buckets": {"500": 3}}}, fields | {"histogram": {"buckets": {"500": -3}}}]
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "INSERT INTO waiting (kind, body) VALUES ('window', ?)", [(json.dumps(row),) for row in rows]
        )
    with closing(Outbox(path, 100)) as outbox:
        link = ManagerLink(ManagerClient("http://m", "t", network=Wire(taken)), "h1", "1", tmp_path / "cache", outbox)
        link.send(NOTHING)
        link.send(replace(NOTHING, windows=(Window("shop", 2.0, 3.0, Histogram({500: 2}), None),)))
    [old], [new] = (body["windows"] for body in sent)
    assert old["buckets"] == {"500": 3}
    assert sorted(new.keys() & {"packed", "buckets"}) == (["packed"] if packed else ["buckets"])
    assert [rejected.what for rejected in link.take_rejected()] == ["window"]


def test_what_cannot_be_sent_is_said_once_however_long_nobody_answers(tmp_path: Path) -> None:
    manager = Picky("500")
    manager.bad_parts = {"events"}
    link, outbox = made(tmp_path, manager)
    outbox.put([event(1, host="h2"), event(2)])
    for _ in range(3):
        with pytest.raises(ManagerUnavailable):
            link.send(NOTHING)
    assert (link.take_rejected(), outbox.aside) == ([], 0)
    manager.way = "answers"
    link.send(NOTHING)
    assert [one.what for one in link.take_rejected()] == ["event"]
    assert aside(tmp_path) == [(event(1).record_id, "it is of host h2, and this one is h1")]
    assert manager.stored == {event(2).record_id}
    link.send(NOTHING)
    assert link.take_rejected() == []
    outbox.close()
