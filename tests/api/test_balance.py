"""Migrations: proposed when a violation lasts, decided over the interface, and carried out by an agent's reports."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from manager.api import balance_job
from manager.api.balance_job import Balancer
from manager.api.context import ManagerContext
from manager.errors import TwinRefused
from manager.sim.twin import Twin
from manager.store.jobs import Run
from tests.api.conftest import HOST, START, Api, report, status, tick_of
from tests.api.test_evidence import slot, vm
from tests.sim.test_twin import truth, twin_of

VIOLATED_S = 720
CALM = [vm("web-1", 0.2, 0.01), vm("hog", 0.1)]
WORSE = [vm("web-1", 0.2, 0.5), vm("hog", 0.7)]
MIGRATION = {"number": 1, "state": "running", "copied": 0.5, "detail": ""}


def unknown(host: str, _on_step: Callable[[], None]) -> Twin:
    raise TwinRefused(f"{host} has no history")


def crowded(_host: str, _on_step: Callable[[], None]) -> Twin:
    """The twin of a host with a service and a batch VM of the same weight."""
    return twin_of(truth(), "equal")


class Fleet:
    """``web-1`` and ``hog`` on a host whose SLA is violated for twelve minutes, and an empty host."""

    def __init__(self, api: Api, twin: Callable[[str, Callable[[], None]], Twin] = crowded) -> None:
        self.api = api
        context = ManagerContext(api.database, {}, 30.0, 10, clock=api.clock)
        self.balancer = Balancer(context, twin_of=twin)

    def look(self, *, later_s: float = 0.0) -> int:
        now = datetime.fromtimestamp(self.api.clock.now_s + later_s, UTC)
        return self.balancer.look(Run(now, START))

    def proposals(self, **query: str) -> list[dict[str, Any]]:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        items: list[dict[str, Any]] = self.api.ok("GET", f"/proposals?{asked}", role="viewer")["items"]
        return items

    def tell(self, violated_s: int = VIOLATED_S, worse: list[dict[str, Any]] = WORSE) -> None:
        ends = range(-1200, 5, 5)
        body = report(
            vms=[status("web-1", vcpus=2, run_delay_share=0.5), status("hog", vcpus=3, cpu_share=0.7)],
            ticks=[tick_of(end, vms=worse if end > -violated_s else CALM) for end in ends],
            windows=[slot(end, 40.0 if end > -violated_s else 5.0) for end in ends],
        )
        body["vms"][1]["libvirt_uuid"] = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11"
        self.api.ok("POST", f"/hosts/{HOST}/report", body, role="host")

    def answer(self, *migrations: dict[str, Any], host: str = HOST, role: str = "host") -> dict[str, Any]:
        self.api.ok("GET", f"/hosts/{host}/assignment", role=role)
        body: dict[str, Any] = self.api.ok(
            "POST", f"/hosts/{host}/report", report(migrations=list(migrations)), role=role
        )
        return body


@pytest.fixture
def fleet(sqlite_api: Api) -> Fleet:
    """The store's own tests run on each kind of database."""
    api = sqlite_api
    api.ok("PUT", "/vms/web-1", {"class": "critical"})
    api.ok("PUT", "/vms/hog", {"class": "batch"})
    tiers = [{"name": "web", "vms": ["web-1"]}]
    api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    api.ok("PUT", "/hosts/kvm2", {})
    api.ok("POST", "/hosts/kvm2/report", report(), role="other host")
    return Fleet(api)


def test_the_neighbour_is_proposed_to_leave(fleet: Fleet) -> None:
    fleet.tell()
    assert fleet.look() == 1
    [proposal] = fleet.proposals(state="proposed", host="kvm2")
    assert (proposal["vm"], proposal["source"], proposal["destination"]) == ("hog", HOST, "kvm2")
    assert (proposal["application"], proposal["unpredicted"]) == ("shop", "")
    [prediction] = proposal["predictions"]
    assert prediction["after"]["ms"] < prediction["before"]["ms"]
    assert (
        "hog takes CPU time from it; hog wants 2.80 pCPUs, and with it VMs of kvm2 would want 70 %"
        in proposal["reason"]
    )
    assert fleet.look() == 0, "one at a time"
    events = fleet.api.ok("GET", "/events?kind=migration-proposed")["items"]
    assert [(event["host"], event["vm"]) for event in events] == [(HOST, "hog")]


@pytest.mark.parametrize("violated_s", [0, 300])
def test_nothing_is_proposed_while_no_violation_lasts(fleet: Fleet, violated_s: int) -> None:
    fleet.tell(violated_s)
    assert fleet.look() == 0
    assert fleet.proposals() == []


def test_full_hosts_alone_move_nothing(fleet: Fleet) -> None:
    fleet.tell(0, WORSE)
    assert fleet.look() == 0


def test_what_the_application_causes_itself_moves_nothing(fleet: Fleet) -> None:
    fleet.tell(worse=[vm("web-1", 0.45, 0.01), vm("hog", 0.1)])
    assert fleet.api.ok("GET", "/applications/shop/evidence")["verdict"] == "overload"
    assert fleet.look() == 0


@pytest.mark.parametrize(
    ("host", "change"),
    [
        (HOST, {"migrate": "off"}),
        ("kvm2", {"migrate": "off"}),
        ("kvm2", {"mode": "observe"}),
    ],
)
def test_hosts_that_must_not_take_part(fleet: Fleet, host: str, change: dict[str, str]) -> None:
    fleet.tell()
    fleet.api.ok("PATCH", f"/hosts/{host}", change)
    assert fleet.look() == 0


def test_without_twins_it_is_proposed_by_arithmetic_and_never_automatic(fleet: Fleet) -> None:
    fleet.tell()
    fleet.api.ok("PATCH", f"/hosts/{HOST}", {"migrate": "auto"})
    blind = Fleet(fleet.api, unknown)
    assert blind.look() == 1
    [proposal] = fleet.proposals()
    assert (proposal["state"], proposal["predictions"]) == ("proposed", [])
    assert proposal["unpredicted"] == f"{HOST}: {HOST} has no history"


def test_a_search_without_a_result_is_not_repeated_at_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_job, "AGAIN", timedelta(seconds=8))
    fleet.tell()
    fleet.api.ok("PATCH", "/hosts/kvm2", {"migrate": "off"})
    assert fleet.look() == 0
    fleet.api.ok("PATCH", "/hosts/kvm2", {"migrate": "propose"})
    assert [fleet.look(later_s=later_s) for later_s in (5, 10)] == [0, 1]


def test_an_approved_migration_is_ordered_watched_and_done(fleet: Fleet) -> None:
    fleet.tell()
    fleet.look()
    [proposal] = fleet.proposals()
    assert "migrations" not in fleet.answer()
    approved = fleet.api.ok("POST", "/proposals/1/approve", role="operator")
    assert (approved["state"], approved["decided_by"]) == ("approved", "token the-operator")
    order = {
        "number": proposal["number"],
        "vm": "hog",
        "libvirt_name": "hog",
        "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11",
        "to": "kvm2",
        "begun": False,
    }
    assert fleet.answer()["migrations"] == [order]
    assert "migrations" not in fleet.answer(host="kvm2", role="other host")
    fleet.answer(MIGRATION)
    assert fleet.proposals()[0]["copied"] == 0.5
    assert fleet.answer()["migrations"] == [order | {"begun": True}]
    fleet.answer(MIGRATION | {"state": "done", "copied": 1.0})
    done = fleet.api.ok("GET", "/proposals/1")
    assert (done["state"], done["copied"]) == ("done", 1.0)
    assert "migrations" not in fleet.answer()
    audit = [row["action"] for row in fleet.api.ok("GET", "/audit?object_kind=proposal")["items"]]
    assert audit == ["proposal.approve"]
    assert Fleet(fleet.api).look() == 0, "the hosts rest"


def test_a_dismissed_one_is_not_proposed_again_soon(fleet: Fleet) -> None:
    fleet.tell()
    fleet.look()
    assert fleet.api.ok("POST", "/proposals/1/dismiss", role="operator")["state"] == "dismissed"
    assert Fleet(fleet.api).look() == 0, "it rests"
    problem = fleet.api.refused(409, "POST", "/proposals/1/approve", role="operator")
    assert problem["detail"] == "proposal 1 is dismissed: only one that is proposed can be decided"


def test_the_setting_approves_by_itself(fleet: Fleet) -> None:
    fleet.tell()
    fleet.api.ok("PATCH", f"/hosts/{HOST}", {"migrate": "auto"})
    fleet.look()
    assert [(each["state"], each["decided_by"]) for each in fleet.proposals()] == [("approved", "the setting migrate")]
    assert fleet.answer()["migrations"][0]["vm"] == "hog"
    fleet.answer(MIGRATION | {"state": "failed", "copied": None, "detail": "no disk there"})
    assert fleet.api.ok("GET", "/proposals/1")["detail"] == "no disk there"


@pytest.mark.parametrize(
    ("host", "change", "states"),
    [
        (HOST, {"migrate": "off"}, []),
        (HOST, {"migrate": "propose"}, ["proposed"]),
        (HOST, {"mode": "observe"}, ["proposed"]),
        ("kvm2", {"migrate": "off"}, []),
        ("kvm2", {"mode": "released"}, []),
        ("kvm2", None, []),
    ],
)
def test_what_is_changed_during_the_search_counts(
    fleet: Fleet, host: str, change: dict[str, str] | None, states: list[str]
) -> None:
    def changing(name: str, on_step: Callable[[], None]) -> Twin:
        if change is not None:
            fleet.api.ok("PATCH", f"/hosts/{host}", change)
        elif fleet.api.call("GET", f"/hosts/{host}").status_code == 200:
            fleet.api.ok("DELETE", f"/hosts/{host}")
        return crowded(name, on_step)

    fleet.tell()
    fleet.api.ok("PATCH", f"/hosts/{HOST}", {"migrate": "auto"})
    assert Fleet(fleet.api, changing).look() == len(states)
    assert [each["state"] for each in fleet.proposals()] == states


def test_bad_requests_and_reports(fleet: Fleet) -> None:
    assert fleet.api.refused(404, "POST", "/proposals/7/approve")["detail"] == "there is no proposal 7"
    problem = fleet.api.refused(422, "GET", "/proposals/0")
    assert problem["errors"][0]["field"] == "number"
    fleet.api.refused(422, "GET", "/proposals?state=soon")
    fleet.tell(0)
    for method in ("approve", "dismiss"):
        fleet.api.refused(403, "POST", f"/proposals/1/{method}", role="viewer")
        fleet.api.refused(403, "POST", f"/proposals/1/{method}", role="host")
    answered = fleet.answer(MIGRATION | {"copied": 2})
    assert answered["refused"][0]["field"] == "migrations[0].copied"
    fleet.answer(MIGRATION | {"number": 99})
