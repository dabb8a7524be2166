"""History, budgets and lines of charts, as they are answered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from manager.model.histogram import Histogram
from manager.store.pack_models import WindowMinuteRow
from manager.store.retention import Cleanup, Keep
from manager.store.rollups import RollUps
from manager.store.tick_rollups import TickRollUps
from tests.aging import long_ago
from tests.api.conftest import HOST, START, Api, moment, record, report, status, tick_of, window

OTHER = "kvm2"


@pytest.fixture
def hosts(shop: Api) -> Api:
    """Two hosts with VMs of ``shop``, whose SLA is 10 ms."""
    for name, vm in ((HOST, "web-1"), (OTHER, "web-2")):
        shop.ok("PUT", f"/hosts/{name}", {})
        shop.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": name})
        shop.ok("POST", f"/hosts/{name}/report", report())
    shop.ok("PUT", "/vms/hog", {"class": "batch"})
    return shop


def slot(end: int, percentile_ms: float = 5.0, count: int = 20, **changes: Any) -> dict[str, Any]:
    buckets = Histogram.of([percentile_ms * 1000] * count).buckets
    return window(end=end, count=count, buckets={str(number): found for number, found in buckets.items()}, **changes)


def send(api: Api, host: str = HOST, **changes: Any) -> None:
    api.ok("POST", f"/hosts/{host}/report", report(**changes))


def roll_up(api: Api) -> None:
    keep = Keep(timedelta(days=1), timedelta(days=30), timedelta(days=730))
    now = datetime.fromtimestamp(api.clock(), UTC)
    RollUps(api.database, timedelta(seconds=5), 20, keep).roll_up(now)
    TickRollUps(api.database, keep).roll_up()


def test_the_last_hour_in_steps_of_slots(hosts: Api) -> None:
    send(
        hosts,
        windows=[
            slot(end=-15),
            slot(end=-10, percentile_ms=50.0),
            slot(end=-5, percentile_ms=50.0),
            slot(end=0, count=3),
        ],
    )
    found = hosts.ok("GET", "/applications/shop/history?points=2000", role="viewer")
    assert (found["step_s"], found["sla"]["response_time_ms"], found["until"]) == (5, 10, moment(0))
    assert len(found["steps"]) == 720
    assert found["since"] == found["steps"][0]["start"] == moment(-3600)
    last = found["steps"][-4:]
    assert [(one["count"], one["judged"], one["violated"]) for one in last] == [
        (20, 1, 0),
        (20, 1, 1),
        (20, 1, 1),
        (3, 0, 0),
    ]
    assert [one["rate_rps"] for one in last] == [4, 4, 4, 0.6]
    assert last[1]["p95_ms"] == last[1]["percentile_ms"] == pytest.approx(50, rel=0.01)
    assert found["violations"] == [{"start": moment(-15), "end": moment(-5), "violated": 2}]
    empty = found["steps"][0]
    assert (empty["count"], empty["p95_ms"], empty["rate_rps"]) == (0, None, None)


def test_a_step_has_the_percentiles_of_all_its_response_times(hosts: Api) -> None:
    send(hosts, windows=[slot(end=-10, count=97), slot(end=-5, percentile_ms=500.0, count=3)])
    found = hosts.ok("GET", f"/applications/shop/history?since={moment(-600)}&points=10")
    [step] = [one for one in found["steps"] if one["count"]]
    assert step["p95_ms"] == pytest.approx(5, rel=0.01)
    assert step["p99_ms"] == pytest.approx(500, rel=0.01)


def test_a_ready_percentile_stands_in_where_nothing_was_counted(hosts: Api) -> None:
    ready = {"percentile": 95, "percentile_ms": 12.5}
    send(hosts, windows=[window(buckets={}, requests=None, ready=ready)])
    [step] = [one for one in hosts.ok("GET", "/applications/shop/history")["steps"] if one["judged"]]
    assert (step["p50_ms"], step["p95_ms"], step["percentile_ms"], step["violated"]) == (None, 12.5, 12.5, 1)


@pytest.mark.parametrize("points", [10, 300, 2000])
def test_rolled_up_or_not_six_hours_are_the_same(hosts: Api, points: int) -> None:
    windows = [slot(end=-90 * number, percentile_ms=(5.0, 50.0)[number % 7 == 0], count=20) for number in range(200)]
    send(hosts, windows=windows)
    path = f"/applications/shop/history?since={moment(-6 * 3600)}&points={points}"
    before = hosts.ok("GET", path)
    roll_up(hosts)
    assert hosts.ok("GET", path) == before
    assert sum(step["count"] for step in before["steps"]) == 200 * 20
    assert sum(step["violated"] for step in before["steps"]) == 29
    assert len(before["steps"]) <= points


def test_thirty_days_are_answered_from_hours(hosts: Api) -> None:
    days = range(29)
    send(hosts, windows=[slot(end=-86_400 * day) for day in days])
    roll_up(hosts)
    found = hosts.ok("GET", f"/applications/shop/history?since={moment(-30 * 86_400)}")
    assert found["step_s"] == 3 * 3600
    assert [step["count"] for step in found["steps"] if step["count"]] == [20] * len(days)


@pytest.mark.parametrize(
    ("query", "field", "text"),
    [
        ("points=9", "points", "at least 10 and at most 2000"),
        ("points=2001", "points", "at least 10 and at most 2000"),
        (f"since={moment(0)}", "since", "earlier than until"),
        (f"since={moment(-10)}&until={moment(-20)}", "since", "2026-03-01 11:59:50"),
        (f"since={moment(-733 * 86_400)}", "since", "at most 17568 hours before until"),
        ("until=yesterday", "until", "yesterday"),
    ],
)
def test_a_range_that_cannot_be_answered_is_refused(hosts: Api, query: str, field: str, text: str) -> None:
    problem = hosts.refused(422, "GET", f"/applications/shop/history?{query}")
    [error] = problem["errors"]
    assert error["field"] == field
    assert text in error["message"]


def test_a_time_to_come_is_now(hosts: Api) -> None:
    found = hosts.ok("GET", f"/applications/shop/history?until={moment(86_400)}")
    assert (found["since"], found["until"]) == (moment(-3600), moment(0))


def test_what_is_not_there_has_no_history(hosts: Api) -> None:
    for path in ("applications/x/history", "applications/x/budget", "applications/x/tiers-history", "hosts/x/history"):
        hosts.refused(404, "GET", f"/{path}")


def test_budgets(hosts: Api) -> None:
    good, bad = {"percentile_ms": 5.0}, {"percentile_ms": 50.0}
    lately = [slot(end=-5 * number, **(bad if number in {3, 4, 5, 9} else good)) for number in range(10)]
    earlier = [slot(end=-7200 - 5 * number, **bad) for number in range(24)]
    month = [slot(end=-10 * 86_400 - 5 * number, **bad) for number in range(2)]
    send(hosts, windows=[*lately, *earlier, *month])

    def budgets() -> list[tuple[Any, ...]]:
        found = hosts.ok("GET", "/applications/shop/budget", role="viewer")
        assert (found["slot_s"], found["sla"]["percentile"]) == (5, 95)
        return [
            (one["length_s"], one["judged"], one["violated"], one["longest_violation_s"]) for one in found["budgets"]
        ]

    expected = [(3600, 10, 4, 15), (86_400, 34, 28, 120), (30 * 86_400, 36, 30, 120)]
    assert budgets() == expected
    roll_up(hosts)
    assert budgets() == expected
    [hour, *_] = hosts.ok("GET", "/applications/shop/budget")["budgets"]
    assert (hour["violated_share"], hour["percentile_ms"]) == (0.4, pytest.approx(50, rel=0.01))
    assert (hour["attainment"], hour["burn_rate"]) == (pytest.approx(0.6), pytest.approx(40))


def test_the_fleet_counts_hours_minutes_and_slots_once(hosts: Api) -> None:
    """What an application's own budget counts, whatever of it is rolled up."""
    places = [5 * number for number in range(12)] + [3 * 86_400, 2 * 86_400, 7200, 5000, 1800, 900, 500, 100]
    send(
        hosts,
        windows=[slot(end=-place, percentile_ms=50.0 if place % 100 == 0 else 5.0) for place in sorted(set(places))],
    )

    def agree() -> None:
        told = hosts.ok("GET", "/applications/shop/budget")
        [glance] = hosts.ok("GET", "/fleet?search=shop")["applications"]
        assert glance["attainment"] == pytest.approx(told["budgets"][-1]["attainment"])
        assert glance["budget_remaining"] == pytest.approx(told["budget_remaining"])
        assert glance["burn_rate"] == pytest.approx(told["budgets"][0]["burn_rate"])

    roll_up(hosts)
    agree()
    send(hosts, windows=[slot(end=-65, percentile_ms=50.0)])
    agree()


def test_a_budget_without_response_times_or_without_a_promise(hosts: Api) -> None:
    hosts.ok("PUT", "/applications/idle", {})
    [hour, *_] = hosts.ok("GET", "/applications/idle/budget")["budgets"]
    assert (hour["judged"], hour["violated_share"], hour["longest_violation_s"], hour["percentile_ms"]) == (
        0,
        None,
        0,
        None,
    )


def vm(name: str, share: float, weight: int | None = 100, delay: float = 0.0) -> dict[str, Any]:
    return {"vm": name, "cpu_share": share, "run_delay_share": delay, "weight": weight, "mode": "enforce"}


def test_the_history_of_a_host(hosts: Api) -> None:
    ticks = [
        tick_of(-24, host_cpu_share=0.9, vms=[vm("web-1", 0.2), vm("db-1", 0.1), vm("hog", 0.4, None)]),
        tick_of(-19, host_cpu_share=0.7, vms=[vm("web-1", 0.4, 200, 0.5), vm("gone", 0.1)]),
        tick_of(-4, host_cpu_share=0.5, vms=[]),
    ]
    send(hosts, ticks=ticks)
    found = hosts.ok("GET", f"/hosts/{HOST}/history?since={moment(-30)}&points=10", role="viewer")
    assert (found["step_s"], [one["ticks"] for one in found["steps"]]) == (5, [1, 1, 0, 0, 1, 0])
    assert found["steps"][0] == {
        "start": moment(-30),
        "ticks": 1,
        "host_cpu_share": 0.9,
        "critical_share": 0.3,
        "batch_share": 0.4,
        "other_share": 0.2,
        "power_watts": None,
    }, "a tick tells of the interval before it"
    lines = {one["vm"]: one for one in found["vms"]}
    assert sorted(lines) == ["db-1", "hog", "web-1"]
    assert (lines["hog"]["class"], lines["hog"]["host"]) == ("batch", HOST)
    assert lines["web-1"]["weight"] == [100, 200, None, None, None, None]
    assert lines["web-1"]["run_delay_share"] == [0, 0.5, None, None, None, None]
    assert lines["hog"]["cpu_share"] == [0.4, None, None, None, None, None]
    assert lines["hog"]["power_watts"] == [None] * 6


def test_the_history_of_a_host_has_its_power_and_the_parts_of_its_vms(hosts: Api) -> None:
    hosts.ok("PATCH", f"/hosts/{HOST}", {"costs": {"idle_percent": 20}})
    vms = [vm("web-1", 0.2), vm("hog", 0.6)]
    send(hosts, ticks=[tick_of(-24, host_cpu_share=0.8, vms=vms, power_watts=168.0), tick_of(-19, vms=vms)])
    found = hosts.ok("GET", f"/hosts/{HOST}/history?since={moment(-30)}&points=10", role="viewer")
    assert [step["power_watts"] for step in found["steps"]] == [168.0, None, None, None, None, None]
    lines = {one["vm"]: one["power_watts"][:2] for one in found["vms"]}
    assert lines == {"hog": [96.0, None], "web-1": [32.0, None]}, "of 168 W, 40 W are idle"
    [tick, *_] = hosts.ok("GET", f"/hosts/{HOST}/ticks?limit=2")["items"][::-1]
    assert tick["power_watts"] == 168.0


def test_more_ticks_than_are_read_are_thinned_out_evenly(hosts: Api) -> None:
    for part in range(8):
        numbers = range(500 * part, 500 * part + 500)
        send(hosts, ticks=[tick_of(-3 * number, host_cpu_share=0.5) for number in numbers])
    found = hosts.ok("GET", f"/hosts/{HOST}/history?since={moment(-12_000)}&points=10")
    counts = [step["ticks"] for step in found["steps"]]
    assert sum(counts) == 1334, "every third of 4000"
    assert {step["host_cpu_share"] for step in found["steps"] if step["ticks"]} == {0.5}
    assert min(counts[1:-1]) > 0.9 * max(counts)


def test_however_many_ticks_are_left_out_each_step_has_one(hosts: Api) -> None:
    for part in range(8):
        numbers = range(500 * part, 500 * part + 500)
        for host, name in ((HOST, "web-1"), (OTHER, "web-2")):
            ticks = [tick_of(-3 * number, host_cpu_share=0.5, vms=[vm(name, 0.25)]) for number in numbers]
            send(hosts, host, vms=[status(name)], ticks=ticks)
    found = hosts.ok("GET", f"/hosts/{HOST}/history?since={moment(-9000)}&points=2000")
    assert found["step_s"] == 5
    assert {step["host_cpu_share"] for step in found["steps"][1:-1]} == {0.5}
    of_tiers = hosts.ok("GET", f"/applications/shop/tiers-history?since={moment(-12_000)}&points=2000")
    assert of_tiers["step_s"] == 10
    assert set(of_tiers["tiers"][0]["pcpus"][1:-1]) == {2.0}, "of both hosts, in each step"


def test_more_than_two_years_of_ticks_are_refused(hosts: Api) -> None:
    for path in (f"/hosts/{HOST}/history", "/applications/shop/tiers-history"):
        hosts.ok("GET", f"{path}?since={moment(-732 * 86_400)}")
        problem = hosts.refused(422, "GET", f"{path}?since={moment(-732 * 86_400 - 1)}")
        assert "at most 17568 hours before until" in problem["errors"][0]["message"]


def test_months_of_a_host_are_answered_from_means_after_its_ticks_are_gone(hosts: Api) -> None:
    for day in (90, 20, 0):
        numbers = range(-day * 86_400 - 7200, -day * 86_400, 300)
        send(hosts, ticks=[tick_of(second, vms=[vm("web-1", 0.25, 300), vm("hog", 0.5)]) for second in numbers])
    roll_up(hosts)
    before = [step for step in line(hosts, 100, 60) if step["ticks"]]
    forget(hosts)
    assert [step for step in line(hosts, 100, 60) if step["ticks"]] == before
    assert len(before) == 3
    for step in before:
        assert (step["host_cpu_share"], step["critical_share"], step["batch_share"]) == (0.9, 0.25, 0.5)
    assert {row["at"] for row in hosts.ok("GET", f"/hosts/{HOST}/ticks")["items"]} == {
        moment(second) for second in range(-7200, 0, 300)
    }, "a day of them is kept as they were reported"


def test_the_history_of_what_was_removed_can_be_read(hosts: Api) -> None:
    send(hosts, vms=[status("web-1")], windows=[slot(-5 * number) for number in range(1, 100)], decisions=[record(0)])
    send(hosts, ticks=[tick_of(-5 * number, vms=[vm("web-1", 0.25, 300)]) for number in range(1, 100)])
    reads = [f"/applications/shop/{what}" for what in ("history", "budget", "windows")]
    reads += [f"/hosts/{HOST}/history", "/decisions?vm=web-1"]
    before = [hosts.ok("GET", path) for path in reads]
    hosts.ok("DELETE", "/applications/shop")
    hosts.ok("DELETE", "/vms/web-1")
    assert [hosts.ok("GET", path) for path in reads] == before
    hosts.refused(404, "GET", "/applications/shop")
    hosts.refused(404, "GET", "/applications/other/history")
    hosts.ok("PUT", "/applications/shop", {"sla": {"response_time_ms": 10}})
    assert [hosts.ok("GET", path) for path in reads] == before, "it goes on with its history"


def line(api: Api, days: int, points: int) -> list[Any]:
    """The steps of a host's history."""
    found = api.ok("GET", f"/hosts/{HOST}/history?since={moment(-days * 86_400)}&points={points}")
    steps: list[Any] = found["steps"]
    return steps


def forget(api: Api) -> None:
    keep = Keep(timedelta(days=1), timedelta(days=30), timedelta(days=730))
    assert TickRollUps(api.database, keep).forget(Cleanup(api.database, START, long_ago)) > 0


def test_the_history_of_tiers_over_the_hosts_on_which_they_ran(hosts: Api) -> None:
    send(hosts, vms=[status("web-1")], ticks=[tick_of(-4, vms=[vm("web-1", 0.25, 300), vm("hog", 0.5)])])
    send(
        hosts,
        OTHER,
        vms=[status("web-2"), status("db-1")],
        ticks=[tick_of(-4, vms=[vm("web-2", 0.5), vm("db-1", 0.1)])],
    )
    found = hosts.ok("GET", f"/applications/shop/tiers-history?since={moment(-10)}&points=10", role="viewer")
    assert found["starts"] == [moment(-10), moment(-5)]
    web, db = found["tiers"]
    assert [(one["vm"], one["host"], one["weight"]) for one in web["vms"]] == [
        ("web-1", HOST, [300, None]),
        ("web-2", OTHER, [100, None]),
    ]
    assert web["pcpus"] == [3.0, None], "of four pCPUs each"
    assert (db["tier"], db["pcpus"]) == ("db", [0.4, None])


def test_a_tier_that_moved_is_followed_by_its_decisions(hosts: Api) -> None:
    at = (START - timedelta(seconds=100)).isoformat()
    send(hosts, ticks=[tick_of(-104, vms=[vm("web-1", 0.25)])], decisions=[record(1, at=at)])
    send(hosts, OTHER, vms=[status("web-1")], ticks=[tick_of(-4, vms=[vm("web-1", 0.5)])])
    found = hosts.ok("GET", f"/applications/shop/tiers-history?since={moment(-200)}&points=41")
    assert [one["host"] for one in found["tiers"][0]["vms"]] == [HOST, OTHER]
    assert [value for value in found["tiers"][0]["pcpus"] if value is not None] == [1.0, 2.0]


@pytest.mark.parametrize("rolled", [False, True])
def test_a_slot_is_judged_by_the_sla_that_was_in_force_when_it_began(hosts: Api, rolled: bool) -> None:
    """Also when it is rolled up, or read, after the SLA was changed."""
    send(hosts, windows=[slot(end=5), slot(end=10)])
    hosts.clock.now_s += 5
    hosts.ok("PATCH", "/applications/shop", {"sla": {"response_time_ms": 1}})
    hosts.clock.now_s += 1000
    if rolled:
        roll_up(hosts)
    found = hosts.ok("GET", f"/applications/shop/history?since={moment(0)}")
    assert found["violations"] == [{"start": moment(5), "end": moment(10), "violated": 1}]
    assert [one["violated_share"] for one in hosts.ok("GET", "/applications/shop/budget")["budgets"]] == [0.5] * 3


def test_the_sla_in_force_follows_the_order_of_changes_whatever_the_clocks_of_managers(hosts: Api) -> None:
    send(hosts, windows=[slot(end=5), slot(end=10)])
    hosts.clock.now_s += 5
    hosts.ok("PATCH", "/applications/shop", {"sla": {"response_time_ms": 1}})
    hosts.clock.now_s -= 2  # another manager answers, whose clock is behind
    hosts.ok("PATCH", "/applications/shop", {"mode": "observe"})
    hosts.clock.now_s += 1002
    found = hosts.ok("GET", f"/applications/shop/history?since={moment(0)}")
    assert found["violations"] == [{"start": moment(5), "end": moment(10), "violated": 1}]


def test_the_budget_tells_since_when_anything_was_measured(hosts: Api) -> None:
    assert hosts.ok("GET", "/applications/shop/budget")["first_at"] is None
    send(hosts, windows=[slot(end=-4000), slot(end=0)])
    assert hosts.ok("GET", "/applications/shop/budget")["first_at"] == moment(-4005)
    hosts.clock.now_s += 400
    roll_up(hosts)
    assert hosts.ok("GET", "/applications/shop/budget")["first_at"] == moment(-4005)
    with hosts.database.writing() as session:
        session.execute(delete(WindowMinuteRow))
    assert hosts.ok("GET", "/applications/shop/budget")["first_at"] == moment(-4020), "its minute"
