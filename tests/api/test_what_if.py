"""What another policy would have decided, from what agents reported."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from manager.api import what_if_routes
from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.model.decision import Decision, Memory, Snapshot, WeightGoal
from manager.sim.twin_effort import Effort
from manager.store.database import Database
from policies.equal import POLICY as EQUAL
from policies.installed import InstalledPolicy
from tests.api.conftest import HOST, Api, Clock, moment, record, report, status, tick_of, window
from tests.sim.test_twin import recording, truth


def vm(name: str, weight: int) -> dict[str, Any]:
    return {"vm": name, "cpu_share": 0.2, "run_delay_share": 0.0, "weight": weight, "mode": "enforce"}


@pytest.fixture
def site(shop: Api) -> Api:
    """``web-1`` and ``hog`` on a host for a minute, with weights as under ``priority``."""
    shop.ok("PUT", "/vms/hog", {"class": "batch"})
    shop.ok("PUT", f"/hosts/{HOST}", {"law": {"gain": 1.5}})
    ends = range(-60, 0, 5)
    shop.ok(
        "POST",
        f"/hosts/{HOST}/report",
        report(
            vms=[status("web-1"), status("hog")],
            ticks=[tick_of(end, vms=[vm("web-1", 10_000), vm("hog", 1)]) for end in ends],
            windows=[window(end=end, count=20) for end in ends],
            decisions=[record(1, at=moment(-60), vm="web-1", before="100", after="10000")],
        ),
    )
    return shop


def test_the_same_minutes_under_another_policy(site: Api) -> None:
    found = site.ok("GET", f"/hosts/{HOST}/what-if?policy=equal", role="viewer")
    assert (found["estimated"], found["policy"], found["recorded_policies"]) == (True, "equal", ["priority"])
    assert (found["since"], found["until"], found["interval_s"], found["ticks"]) == (moment(-60), moment(0), 5, 12)
    [shop] = found["applications"]
    assert (shop["judged"], shop["violated"]) == (12, 0)
    assert (shop["recorded"], shop["replayed"]) == ([10_000, 10_000], [100, 100])
    assert shop["vms"] == [{"vm": "web-1", "recorded": [10_000] * 12, "replayed": [100] * 12}]
    assert found["at"] == [moment(end) for end in range(-60, 0, 5)]
    assert found["sla"] == {"shop": ["met"] * 12}
    assert {(one["vm"], one["after"]) for one in found["changes"]} == {("web-1", 100), ("hog", 100)}
    assert (found["changes_total"], found["left_out"], found["problems"]) == (2, [], [])
    assert (found["law"]["gain"], found["law"]["published"]) == (1.5, False)


def test_the_policy_that_was_in_force_decides_what_was_decided(site: Api) -> None:
    [shop] = site.ok("GET", f"/hosts/{HOST}/what-if?policy=priority")["applications"]
    assert shop["recorded"] == shop["replayed"] == [10_000, 10_000]


def test_only_so_many_minutes_are_replayed(site: Api) -> None:
    site.clock.now_s += 30
    assert site.ok("GET", f"/hosts/{HOST}/what-if?policy=equal&minutes=1")["ticks"] == 6
    site.clock.now_s += 3600
    problem = site.refused(404, "GET", f"/hosts/{HOST}/what-if?policy=equal")
    assert "no ticks of the last 60 minutes" in problem["detail"]


def test_points_and_changes_are_bounded(site: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if_routes, "MAX_POINTS", 5)
    monkeypatch.setattr(what_if_routes, "MAX_CHANGES", 1)
    found = site.ok("GET", f"/hosts/{HOST}/what-if?policy=equal&published=true")
    assert found["at"] == [moment(end) for end in (-50, -35, -20, -5)]
    assert [len(one["replayed"]) for one in found["applications"][0]["vms"]] == [4]
    assert (len(found["changes"]), found["changes_total"], found["law"]["published"]) == (1, 2, True)
    monkeypatch.setattr(what_if_routes, "MAX_TICKS", 3)
    found = site.ok("GET", f"/hosts/{HOST}/what-if?policy=equal")
    assert (found["ticks"], found["since"]) == (3, moment(-15)), "the newest"


@pytest.mark.parametrize(
    ("query", "field", "text"),
    [
        ("policy=nothing", "policy", "allowed: equal, priority"),
        ("", "policy", "is required"),
        ("policy=equal&minutes=61", "minutes", "at most 60"),
        ("policy=equal&minutes=0", "minutes", "at least 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(site: Api, query: str, field: str, text: str) -> None:
    [error] = site.refused(422, "GET", f"/hosts/{HOST}/what-if?{query}")["errors"]
    assert error["field"] == field
    assert text in error["message"]


def test_a_host_that_never_reported_has_nothing_to_replay(site: Api) -> None:
    site.refused(404, "GET", "/hosts/nowhere/what-if?policy=equal")
    site.ok("PUT", "/hosts/new", {})
    assert "never reported" in site.refused(404, "GET", "/hosts/new/what-if?policy=equal")["detail"]


@dataclass
class Waiting:
    """A policy that decides when it is told to."""

    asked: threading.Event
    go_on: threading.Event
    name: str = "waiting"
    summary: str = "waits"

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        self.asked.set()
        assert self.go_on.wait(120)
        return Decision(tuple(WeightGoal(one.name, 50, "waited") for one in snapshot.vms), memory)


def test_one_at_a_time(site: Api) -> None:
    waiting = Waiting(threading.Event(), threading.Event())
    policies = {one.name: InstalledPolicy(one, "here") for one in (EQUAL, waiting)}
    busy = Api(_app(site.database, policies, site.clock), site.database, site.clock, site.secrets)
    answers: list[Any] = []
    path = f"/hosts/{HOST}/what-if?policy="
    first = threading.Thread(target=lambda: answers.append(busy.ok("GET", f"{path}waiting")))
    first.start()
    assert waiting.asked.wait(120)
    refused = busy.call("GET", f"{path}equal")
    assert (refused.status_code, refused.mimetype) == (503, "application/problem+json")
    assert int(refused.headers["Retry-After"]) > 0
    waiting.go_on.set()
    first.join(120)
    assert answers[0]["applications"][0]["replayed"] == [50, 50]
    busy.ok("GET", f"{path}equal")


def _app(database: Database, policies: dict[str, InstalledPolicy], clock: Clock) -> Any:
    return create_app(ManagerContext(database, policies, stale_s=30, min_samples=20, clock=clock))


@pytest.fixture
def simulated(site: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A host whose history is that of a simulated one, for ten minutes."""
    monkeypatch.setattr(what_if_routes, "recorded", lambda *_: recording(truth()))
    monkeypatch.setattr(what_if_routes, "MAX_TWIN_S", 3600.0)
    return site


def test_what_would_have_been_is_simulated_beside_what_was_measured(simulated: Api) -> None:
    found = simulated.ok("GET", f"/hosts/{HOST}/what-if?policy=equal", role="viewer")
    assert found["closed_loop_refused"] is None
    closed = found["closed_loop"]
    assert (closed["simulated"], closed["seeds"], closed["simulated_share"], closed["refused"]) == (True, 3, 1, [])
    [shop] = closed["applications"]
    assert shop["low_ms"] < shop["predicted_ms"] < shop["high_ms"]
    assert shop["measured_ms"] < shop["predicted_ms"]
    assert closed["since"] < closed["until"]


def test_the_open_loop_stays_where_the_twin_refuses(site: Api) -> None:
    found = site.ok("GET", f"/hosts/{HOST}/what-if?policy=equal")
    assert found["closed_loop"] is None
    assert found["closed_loop_refused"] == (
        "the recording has 55 s under policy priority: record 240 s or more under one policy"
    )
    assert found["ticks"] == 12


@pytest.mark.parametrize(
    ("limit", "value", "query", "says"),
    [
        ("TWIN_EFFORT", Effort(500, 2, most=1000), "", "more requests came than can be simulated here"),
        ("MAX_TWIN_S", -1.0, "", "it takes longer than -1 s"),
        ("MAX_TWIN_S", 10.0, "&closed_loop=false", "not asked for"),
    ],
)
def test_a_simulation_is_bounded(
    simulated: Api, monkeypatch: pytest.MonkeyPatch, limit: str, value: object, query: str, says: str
) -> None:
    monkeypatch.setattr(what_if_routes, limit, value)
    found = simulated.ok("GET", f"/hosts/{HOST}/what-if?policy=equal{query}")
    assert found["closed_loop"] is None
    assert says in found["closed_loop_refused"]
