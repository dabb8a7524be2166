"""Agents and managers of different versions, and clocks that differ.

What is in ``protocol_1`` was recorded of the first version that spoke protocol 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from manager.errors import ManagerUnavailable
from manager.loop import link as link_module
from manager.loop.link import ManagerLink, Report
from manager.loop.observer import Clock
from manager.loop.outbox import Outbox
from manager.model.knobs import Knob
from manager.model.records import DecisionRecord, OutcomeKind
from manager.protocol.client import Answer, ManagerClient
from manager.store.models import EventRow
from manager.store.pack_models import DecisionPackRow, TickPackRow, WindowMinuteRow
from tests.api.conftest import HOST, START, Api, moment, report, window
from tests.fakes.host import FakeHost

RECORDED = Path(__file__).parent / "protocol_1"
PATHS = {"report": "report-answer", "assignment": "assignment", "slots": "slots"}
REPORT = Report(FakeHost().capabilities, None, None)
DECISION = DecisionRecord(
    "d", 1.0, HOST, "web-1", Knob.WEIGHT, 0, "1", "2", "why", "fair", "enforce", OutcomeKind.APPLIED
)


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def of_a_later_version(body: Any) -> Any:
    """A body with one more field in every object; mappings have names or numbers for keys and no fields."""
    if isinstance(body, list):
        return [of_a_later_version(one) for one in body]
    if not isinstance(body, dict):
        return body
    inner = {
        name: {key: of_a_later_version(one) for key, one in value.items()}
        if name in {"buckets", "windows"} and isinstance(value, dict)
        else of_a_later_version(value)
        for name, value in body.items()
    }
    return inner | {"of_tomorrow": {"deep": [1]}}


@pytest.fixture
def site(api: Api) -> Api:
    """What was registered when the bodies were recorded."""
    for name in ("web-1", "db-1"):
        api.ok("PUT", f"/vms/{name}", {"class": "critical", "host": HOST})
    api.ok("PUT", "/vms/hog", {"class": "batch", "libvirt_name": "hog"})
    tiers = [{"name": "web", "vms": ["web-1"]}, {"name": "db", "vms": ["db-1"]}]
    api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    return api


def stored(api: Api) -> list[int]:
    with api.database.reading() as session:
        kinds = (DecisionPackRow, EventRow, TickPackRow, WindowMinuteRow)
        return [len(session.scalars(select(kind.id)).all()) for kind in kinds]


@pytest.mark.parametrize("later", [False, True])
def test_the_manager_takes_reports_of_earlier_and_of_later_agents(site: Api, later: bool) -> None:
    body = of_a_later_version(recorded("report")) if later else recorded("report")
    answer = site.ok("POST", f"/hosts/{HOST}/report", body, role="host", Equipoise_Protocol="1")
    assert recorded("report-answer").keys() <= answer.keys(), "an earlier agent misses nothing in an answer"
    assert stored(site) == [1, 1, 1, 1], "both windows are of one minute"
    assert site.ok("GET", f"/hosts/{HOST}")["tick"]["policy"] == "priority"


def test_people_are_still_told_of_fields_that_nobody_knows_and_agents_of_bad_values(site: Api) -> None:
    refused = site.refused(422, "PUT", f"/hosts/{HOST}", {"of_tomorrow": 1})
    assert "is not a known field" in refused["errors"][0]["message"]
    body = recorded("report")
    body["windows"][0]["buckets"] = {"7": 1}
    answer = site.ok("POST", f"/hosts/{HOST}/report", body, role="host")
    assert [one["field"] for one in answer["refused"]] == ["windows[0].buckets.7"]
    assert stored(site) == [1, 1, 1, 1]


@pytest.mark.parametrize("spoken", ["0", "2", "none"])
def test_an_agent_with_another_protocol_is_refused(site: Api, spoken: str) -> None:
    for method, what in (("POST", "report"), ("GET", "assignment"), ("GET", "slots")):
        body = recorded("report") if method == "POST" else None
        problem = site.refused(426, method, f"/hosts/{HOST}/{what}", body, role="host", Equipoise_Protocol=spoken)
        assert f'Equipoise-Protocol "{spoken}" is refused; allowed: 1; install the same' in problem["detail"]
    assert stored(site) == [0, 0, 0, 0]


class Recorded:
    """A manager that answers what was recorded, with the headers of another version."""

    def __init__(self, later: bool, **headers: str) -> None:
        self.later = later
        self.headers = headers
        self.sent: list[tuple[str, Mapping[str, str], Any]] = []

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        what = target.rpartition("/")[2]
        self.sent.append((what, headers, body and json.loads(body)))
        told = Message()
        for name, value in self.headers.items():
            told[name.replace("_", "-")] = value
        said = recorded(PATHS[what])
        return Answer(200, told, json.dumps(of_a_later_version(said) if self.later else said).encode())

    def close(self) -> None:
        """Nothing is open."""


class Agent:
    """The part of an agent that talks."""

    def __init__(self, folder: Path, stack: ExitStack, manager: Recorded) -> None:
        self.outbox = Outbox(folder / "outbox.db", 1000)
        stack.callback(self.outbox.close)
        self.cache = folder / "assignment.json"
        self.link = ManagerLink(ManagerClient("http://m", "x", manager), HOST, "1", self.cache, self.outbox)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("later", [False, True])
def test_an_agent_understands_earlier_and_later_managers(tmp_path: Path, stack: ExitStack, later: bool) -> None:
    manager = Recorded(later, Equipoise_Protocol="1")
    agent = Agent(tmp_path, stack, manager)
    orders = agent.link.fetch()
    assert orders.assignment is not None
    assert [vm.name for vm in orders.assignment.vms] == [vm["name"] for vm in recorded("assignment")["vms"]]
    assert agent.link.fetch().slots["shop"][-1].histogram.count == 7
    agent.outbox.put([DECISION])
    agent.link.send(REPORT, ask=True)
    assert agent.outbox.peek(9, 10**6).last == 0, "it was taken"
    assert [what for what, _, _ in manager.sent] == ["assignment", "slots", "report"]
    assert agent.link.clock_ahead_s is None
    again = ManagerLink(ManagerClient("http://m", "x", manager), HOST, "1", agent.cache, agent.outbox)
    assert again.cached().assignment == orders.assignment, "also from the cache that a later version wrote"


def test_a_manager_with_another_protocol_is_refused_and_nothing_is_lost(tmp_path: Path, stack: ExitStack) -> None:
    agent = Agent(tmp_path, stack, Recorded(later=False, Equipoise_Protocol="2"))
    agent.outbox.put([DECISION])
    for talk in (agent.link.fetch, lambda: agent.link.send(REPORT)):
        with pytest.raises(ManagerUnavailable, match="protocol 2, and this agent 1: install the same version"):
            talk()
    assert agent.outbox.peek(9, 10**6).last == 1


def test_the_agent_finds_out_how_far_its_clock_is_ahead_and_tells(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Recorded(later=False, Equipoise_Clock="1000.0")
    agent = Agent(tmp_path, stack, manager)
    sent, answered = Clock(1003.0, 60.0), Clock(0.0, 75.0)
    times = iter([Clock(1007.0, 50.0), Clock(1009.0, 51.0), sent, sent, answered, answered])
    monkeypatch.setattr(link_module, "system_clock", lambda: next(times))
    agent.link.fetch()
    assert agent.link.clock_ahead_s == 7.5, "when half of the second had passed it was 1007.5 here"
    agent.link.send(REPORT)
    assert agent.link.clock_ahead_s == 7.5, "an answer that came after 15 s tells nothing"
    assert "Equipoise-Clock-Ahead" not in manager.sent[0][1]
    assert manager.sent[1][1]["Equipoise-Clock-Ahead"] == "7.500000"
    assert manager.sent[1][1]["Equipoise-Protocol"] == "1"


def tell(api: Api, ahead: str, **changes: Any) -> Any:
    api.clock.now_s += 1
    headers = {"Equipoise_Clock_Ahead": ahead} if ahead else {}
    return api.ok("POST", f"/hosts/{HOST}/report", report(**changes), role="host", **headers)


def test_a_clock_that_is_off_is_told_of_once_and_once_that_it_is_well(site: Api) -> None:
    for ahead in ("0.9", "-1.5", "-1.2", "0.8", "-0.4", "0.7", "", "nonsense", "inf", "120"):
        tell(site, ahead)
    events = [(one["kind"], one["severity"]) for one in reversed(site.ok("GET", f"/events?host={HOST}")["items"])]
    assert events == [("clock-off", "warning"), ("clock-well", "info"), ("clock-off", "warning")]
    messages = [one["message"] for one in site.ok("GET", f"/events?host={HOST}")["items"]]
    assert messages[-1].startswith("the clock of kvm1 is 1.5 s behind the manager's, more than 1 s")
    assert messages[0].startswith("the clock of kvm1 is 120 s ahead of the manager's")
    assert site.ok("GET", f"/hosts/{HOST}")["clock_ahead_s"] == 120
    assert f'equipoise_host_clock_ahead_seconds{{host="{HOST}"}} 120.0' in site.call("GET", "//metrics", role="").text


def test_windows_of_a_host_whose_clock_is_ahead_are_kept_and_tell_nothing_about_now(site: Api) -> None:
    tell(site, "0", windows=[window(end=0, count=30)])
    assert tell(site, "3600", windows=[window(end=3600, count=50)])["stored_windows"] == 1
    assert tell(site, "100", windows=[window(end=3600)])["stored_windows"] == 0, "not by its own clock either"
    assert tell(site, str(2 * 86_400), windows=[window(end=2 * 86_400)])["stored_windows"] == 0, "more than a day"
    assert site.ok("GET", "/applications/shop")["window"]["count"] == 30
    site.clock.now_s = START.timestamp() + 3605
    assert site.ok("GET", "/applications/shop")["window"]["count"] == 50
    assert len(site.ok("GET", f"/applications/shop/windows?since={moment(-5)}")["items"]) == 2


def test_every_answer_to_an_agent_says_the_protocol_and_the_time(site: Api) -> None:
    site.clock.now_s += 0.25
    first = site.call("POST", f"/hosts/{HOST}/report", report(), role="host")
    whole = site.call("GET", f"/hosts/{HOST}/assignment", role="host")
    same = site.call("GET", f"/hosts/{HOST}/assignment", role="host", If_None_Match=whole.headers["ETag"])
    answers = [first, whole, same, site.call("GET", f"/hosts/{HOST}/slots", role="host")]
    assert [one.status_code for one in answers] == [200, 200, 304, 200]
    for one in answers:
        assert one.headers["Equipoise-Protocol"] == "1"
        assert float(one.headers["Equipoise-Clock"]) == START.timestamp() + 0.25
