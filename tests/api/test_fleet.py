"""The fleet at a glance: states, orders, conditions, parts, and the lines of the last minutes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import HOST, Api, report, status, tick, window

SLAS_MS = {"late": 4.0, "close": 5.2, "fine": 50.0, "silent": 10.0}
"""Response times are 5 ms."""


@pytest.fixture
def fleet(api: Api) -> Api:
    for name, sla_ms in SLAS_MS.items():
        host = {"host": HOST} if name == "close" else {}
        api.ok("PUT", f"/vms/{name}-1", {"class": "critical", **host})
        tiers = [{"name": "web", "vms": [f"{name}-1"]}]
        api.ok("PUT", f"/applications/{name}", {"tiers": tiers, "sla": {"response_time_ms": sla_ms}})
    windows = [window(name, end=0, count=40 + 10 * place) for place, name in enumerate(("late", "close", "fine"))]
    told = report(vms=[status("late-1"), status("fine-1")], windows=windows, tick=tick())
    api.ok("POST", f"/hosts/{HOST}/report", told, role="host")
    return api


def names(api: Api, query: str = "") -> list[str]:
    return [one["name"] for one in api.ok("GET", f"/fleet{query}", role="viewer")["applications"]]


def test_the_worst_comes_first(fleet: Api) -> None:
    found = fleet.ok("GET", "/fleet")
    assert [(one["name"], one["sla_state"]) for one in found["applications"]] == [
        ("late", "violated"),
        ("close", "at_risk"),
        ("silent", "no_data"),
        ("fine", "met"),
    ]
    assert found["states"] == {"violated": 1, "at_risk": 1, "no_data": 1, "met": 1}
    assert (found["registered"], found["matching"]) == (4, 4)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?sort=name", ["close", "fine", "late", "silent"]),
        ("?sort=used", ["late", "close", "fine", "silent"]),
        ("?sort=rate", ["fine", "close", "late", "silent"]),
        ("?state=violated", ["late"]),
        ("?search=IL", ["silent"]),
        (f"?host={HOST}", ["late", "fine"]),
        ("?host=kvm9", []),
        ("?limit=2", ["late", "close"]),
        ("?limit=2&offset=2", ["silent", "fine"]),
    ],
)
def test_orders_conditions_and_parts(fleet: Api, query: str, expected: list[str]) -> None:
    assert names(fleet, query) == expected


def test_states_are_counted_whatever_state_is_asked_for(fleet: Api) -> None:
    found = fleet.ok("GET", "/fleet?state=met&host=" + HOST)
    assert found["states"] == {"violated": 1, "at_risk": 0, "no_data": 0, "met": 1}
    assert (found["registered"], found["matching"]) == (4, 1)


def one(api: Api, name: str) -> dict[str, Any]:
    [found] = api.ok("GET", f"/fleet?search={name}")["applications"]
    assert isinstance(found, dict)
    return found


def test_an_application_has_its_promise_its_measure_and_its_hosts(fleet: Api) -> None:
    late = one(fleet, "late")
    assert late["sla"] == {"percentile": 95.0, "response_time_ms": 4.0, "max_rate_rps": None}
    assert late["measured_ms"] == pytest.approx(5, rel=0.01)
    assert late["rate_rps"] == 8.0
    assert late["hosts"] == [HOST]
    assert one(fleet, "silent")["measured_ms"] is None


def test_the_line_has_the_slowest_slot_of_each_step(fleet: Api) -> None:
    slow = window("late", end=-20, count=30)
    slow["buckets"] = {str(int(bucket) + 100): count for bucket, count in slow["buckets"].items()}
    fleet.ok("POST", f"/hosts/{HOST}/report", report(windows=[window("late", end=-25), slow]), role="host")
    points = one(fleet, "late")["points_ms"]
    assert len(points) == 60
    known = {place: value for place, value in enumerate(points) if value is not None}
    assert list(known) == [57, 59]  # 30 to 20 s ago, and the last 10 s
    assert known[57] > 5 * known[59]


def test_a_line_follows_what_comes_late(fleet: Api) -> None:
    before = one(fleet, "fine")["points_ms"][59]
    slower = window("fine", end=0, count=100)
    slower["buckets"] = {str(int(bucket) + 100): count for bucket, count in slower["buckets"].items()}
    fleet.ok("POST", f"/hosts/{HOST}/report", report(windows=[slower]), role="host")
    assert one(fleet, "fine")["points_ms"][59] > 5 * before


def test_hosts_are_there_with_their_last_tick(fleet: Api) -> None:
    fleet.ok("PUT", "/hosts/kvm2", {})
    found = fleet.ok("GET", "/fleet")["hosts"]
    assert [(host["name"], host["tick"] is None) for host in found] == [(HOST, False), ("kvm2", True)]


def test_an_empty_fleet_is_an_answer(api: Api) -> None:
    found = api.ok("GET", "/fleet")
    assert (found["applications"], found["hosts"], found["registered"]) == ([], [], 0)


@pytest.mark.parametrize(("query", "field"), [("sort=best", "sort"), ("limit=0", "limit"), ("minutes=61", "minutes")])
def test_bad_questions_name_the_field(api: Api, query: str, field: str) -> None:
    assert api.refused(422, "GET", f"/fleet?{query}")["errors"][0]["field"] == field


def test_the_error_budget_and_its_burn_rate_follow_violations(fleet: Api) -> None:
    late, fine, silent = (one(fleet, name) for name in ("late", "fine", "silent"))
    assert (fine["attainment"], fine["budget_remaining"], fine["burn_rate"], fine["burning"]) == (1.0, 1.0, 0.0, "none")
    assert late["attainment"] == 0.0
    assert (late["budget_remaining"], late["burn_rate"]) == (pytest.approx(-99), pytest.approx(100))
    assert late["burning"] == "fast"
    assert (silent["attainment"], silent["budget_remaining"], silent["burn_rate"]) == (None, None, None)
    assert fleet.ok("GET", "/fleet")["attainment_target"] == 0.99


def test_the_fleet_and_the_budget_of_an_application_agree(fleet: Api) -> None:
    for name in ("late", "fine"):
        told = fleet.ok("GET", f"/applications/{name}/budget")
        glance = one(fleet, name)
        assert told["budget_remaining"] == glance["budget_remaining"]
        assert told["budgets"][0]["burn_rate"] == glance["burn_rate"]
        assert told["budgets"][-1]["attainment"] == glance["attainment"]


@pytest.mark.parametrize(
    ("name", "sla"), [("fine", {"response_time_ms": 4.0}), ("late", {"response_time_ms": 50.0}), ("late", None)]
)
def test_what_was_before_another_sla_is_judged_by_the_one_of_then(fleet: Api, name: str, sla: Any) -> None:
    before = one(fleet, name)
    fleet.ok("PATCH", f"/applications/{name}", {"sla": sla})
    told, glance = fleet.ok("GET", f"/applications/{name}/budget"), one(fleet, name)
    assert glance["burn_rate"] == told["budgets"][0]["burn_rate"] == before["burn_rate"]
    assert glance["attainment"] == told["budgets"][-1]["attainment"] == before["attainment"]
    assert glance["burning"] == (before["burning"] if sla else "none")


def test_what_was_before_another_percentile_waits_for_its_roll_up(fleet: Api) -> None:
    fleet.ok("PATCH", "/applications/fine", {"sla": {"response_time_ms": 4.0, "percentile": 50}})
    glance = one(fleet, "fine")
    assert (glance["attainment"], glance["burn_rate"], glance["burning"]) == (None, None, "none")
