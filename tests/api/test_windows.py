"""Slots that agents report, what other agents are told of them, the health of sources, and the history of ticks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.conftest import HOST, Api, moment, report, source_status, tick_of, window

OTHER = "kvm2"


@pytest.fixture
def hosts(shop: Api) -> Api:
    """Two hosts with VMs of ``shop``."""
    for name, vm in ((HOST, "web-1"), (OTHER, "web-2")):
        shop.ok("PUT", f"/hosts/{name}", {})
        shop.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": name})
    return shop


def send(api: Api, host: str, **changes: Any) -> dict[str, int]:
    stored: dict[str, int] = api.ok("POST", f"/hosts/{host}/report", report(**changes))
    return stored


def counts(api: Api) -> list[int]:
    return [one["count"] for one in api.ok("GET", "/applications/shop/windows")["items"]]


def told(api: Api, host: str) -> list[tuple[int, float | None]]:
    """Number of response times and of requests in each slot that an agent is told of."""
    [application] = api.ok("GET", f"/hosts/{host}/assignment")["applications"]
    return [(sum(one["buckets"].values()), one["requests"]) for one in application["windows"]]


def test_a_slot_is_replaced_by_what_its_host_says_of_it_later(hosts: Api) -> None:
    for count in (3, 3, 7):
        assert send(hosts, HOST, windows=[window(count=count)])["stored_windows"] == 1
    assert counts(hosts) == [7]
    send(hosts, HOST, windows=[window(count=2)])
    assert counts(hosts) == [7], "an agent that was started anew counts from 0"
    send(hosts, HOST, windows=[window(end=-5, count=1), window(count=9), window(count=8)])
    assert counts(hosts) == [9, 1]


def test_percentiles_come_from_all_origins_together(hosts: Api) -> None:
    fast = window(count=94)
    slow = {str(bucket + 100): 6 for bucket in map(int, window()["buckets"])}
    send(hosts, HOST, windows=[fast])
    send(hosts, OTHER, windows=[window(buckets=slow, requests=6)])
    hosts.ok("POST", "/applications/shop/samples", {"times_ms": [5.0] * 100, "start": moment(-5)})
    shown = hosts.ok("GET", "/applications/shop")["window"]
    assert (shown["count"], shown["requests"], shown["rate_rps"]) == (200, 200, 40)
    assert shown["p95_ms"] == pytest.approx(5, rel=0.01), "6 of 200 are slow, though they are all that one host saw"
    assert shown["p99_ms"] == pytest.approx(5 * (1.01 / 0.99) ** 100, rel=0.02)
    assert hosts.ok("GET", "/applications/shop/windows")["items"] == [shown]


def test_windows_come_as_histograms_on_demand(hosts: Api) -> None:
    ready = {"percentile": 95, "percentile_ms": 12.5}
    send(hosts, HOST, windows=[window(end=-5, count=3, ready=ready), window(count=4)])
    send(hosts, OTHER, windows=[window(count=5, requests=None)])
    items = hosts.ok("GET", "/applications/shop/windows?buckets=true", role="viewer")["items"]
    assert [one["buckets"] for one in items] == [window(count=9)["buckets"], window(count=3)["buckets"]]
    assert [(one["requests"], one["ready"]) for one in items] == [(4, None), (3, ready)]
    plain = hosts.ok("GET", "/applications/shop/windows?buckets=false")["items"]
    assert plain == [{**one, "buckets": None, "ready": None} for one in items]
    assert hosts.ok("GET", "/applications/shop/windows")["items"] == plain
    problem = hosts.refused(422, "GET", "/applications/shop/windows?buckets=perhaps")
    assert problem["errors"][0]["field"] == "buckets"


def test_windows_of_a_time(hosts: Api) -> None:
    send(hosts, HOST, windows=[window(end=-5 * back, count=back + 1) for back in range(6)])
    path = f"/applications/shop/windows?since={moment(-25)}&until={moment(-5)}"
    assert [one["count"] for one in hosts.ok("GET", path)["items"]] == [2, 3, 4, 5]
    first = hosts.ok("GET", f"{path}&limit=3")
    rest = hosts.ok("GET", f"{path}&limit=3&cursor={first['next']}")
    assert [one["count"] for one in first["items"] + rest["items"]] == [2, 3, 4, 5]
    assert rest["next"] is None


def test_an_agent_is_told_what_came_from_elsewhere(hosts: Api) -> None:
    send(hosts, HOST, windows=[window(count=3)])
    send(hosts, OTHER, windows=[window(count=4, requests=None), window(end=-5, count=5)])
    assert told(hosts, HOST) == [(5, 5), (4, None)]
    assert told(hosts, OTHER) == [(3, 3)]
    hosts.ok("POST", "/applications/shop/samples", {"times_ms": [5.0] * 10})
    assert told(hosts, HOST) == [(5, 5), (14, 10)]
    assert told(hosts, OTHER) == [(13, 13)]


def test_an_agent_is_told_of_the_last_four_slots(hosts: Api) -> None:
    send(hosts, OTHER, windows=[window(end=-5 * back, count=back + 1) for back in range(6)])
    assert [count for count, _ in told(hosts, HOST)] == [4, 3, 2, 1]
    send(hosts, HOST, windows=[window(end=10)])
    assert [count for count, _ in told(hosts, HOST)] == [2, 1], "the newest slot is the newest of all"


def test_own_slots_do_not_make_an_agent_ask_again(hosts: Api) -> None:
    etag = hosts.call("GET", f"/hosts/{HOST}/assignment").headers["ETag"]
    send(hosts, HOST, windows=[window()])
    assert hosts.call("GET", f"/hosts/{HOST}/assignment", If_None_Match=etag).status_code == 304
    send(hosts, OTHER, windows=[window()])
    assert hosts.call("GET", f"/hosts/{HOST}/assignment", If_None_Match=etag).status_code == 200


def test_windows_of_what_does_not_concern_the_host_are_passed_over(hosts: Api) -> None:
    for vm in ("web-1", "web-2", "db-1"):
        hosts.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": OTHER})
    windows = [window(), window("nothing")]
    assert send(hosts, HOST, windows=windows, sources=[source_status("probe")])["stored_windows"] == 0
    assert counts(hosts) == []
    probe = {"type": "http_probe", "name": "probe", "url": "http://shop/", "host": HOST}
    hosts.ok("PUT", "/applications/shop", {"sources": [probe]})
    assert send(hosts, HOST, windows=windows)["stored_windows"] == 1, "a source of its own is a concern, too"


def test_windows_from_the_future_are_passed_over(hosts: Api) -> None:
    assert send(hosts, HOST, windows=[window(end=61), window(end=60)])["stored_windows"] == 1
    assert [one["end"] for one in hosts.ok("GET", "/applications/shop/windows")["items"]] == [moment(60)]


def test_a_ready_percentile_is_answered_for_its_own(hosts: Api) -> None:
    ready = {"percentile": 95, "percentile_ms": 12.5}
    send(hosts, HOST, windows=[window(buckets={}, requests=None, ready=ready)])
    application = hosts.ok("GET", "/applications/shop")
    shown = application["window"]
    assert (shown["p50_ms"], shown["p95_ms"], shown["rate_rps"]) == (None, 12.5, None)
    assert application["sla_state"] == "violated"
    [assigned] = hosts.ok("GET", f"/hosts/{OTHER}/assignment")["applications"]
    assert assigned["windows"][0]["ready"] == ready


def test_windows_in_parts(hosts: Api) -> None:
    for host in (HOST, OTHER):
        send(hosts, host, windows=[window(end=-5 * back, count=back + 1) for back in range(5)])
    first = hosts.ok("GET", "/applications/shop/windows?limit=3")
    second = hosts.ok("GET", f"/applications/shop/windows?limit=3&cursor={first['next']}")
    assert [one["count"] for one in first["items"] + second["items"]] == [2, 4, 6, 8, 10]
    assert second["next"] is None


SOURCES = [
    {"type": "nginx_syslog", "name": "log", "tag": "shop"},
    {"type": "http_probe", "name": "probe", "url": "http://10.0.0.1/"},
]


def test_an_agent_is_told_of_the_sources_that_run_there(hosts: Api) -> None:
    hosts.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    hosts.ok("PUT", "/vms/web-2", {"class": "critical", "host": OTHER})
    tiers = [{"name": "web", "vms": ["web-1", "web-2"]}]
    hosts.ok("PUT", "/applications/shop", {"tiers": tiers, "sources": SOURCES})

    def names(host: str) -> list[str]:
        [application] = hosts.ok("GET", f"/hosts/{host}/assignment")["applications"]
        return [source["name"] for source in application["sources"]]

    assert (names(HOST), names(OTHER)) == (["log", "probe"], ["log"])


def test_the_health_of_sources(hosts: Api) -> None:
    hosts.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1", "web-2"]}], "sources": SOURCES})

    def health() -> list[tuple[Any, ...]]:
        items = hosts.ok("GET", "/applications/shop/sources", role="viewer")["items"]
        return [(one["source"], one["host"], one["status"] and one["status"]["state"]) for one in items]

    assert health() == [("log", None, None), ("probe", None, None)]
    failing = source_status("probe", state="failing", detail="connection refused")
    send(hosts, HOST, sources=[failing, source_status("log", type="nginx_syslog")])
    send(hosts, OTHER, sources=[source_status("log", type="nginx_syslog", state="silent"), source_status("removed")])
    assert health() == [("log", HOST, "ok"), ("log", OTHER, "silent"), ("probe", HOST, "failing")]
    items = hosts.ok("GET", "/applications/shop/sources")["items"]
    assert items[2] == {
        "source": "probe",
        "type": "http_probe",
        "host": HOST,
        "at": moment(0),
        "status": failing,
        "problem": "",
    }
    first = hosts.ok("GET", "/applications/shop/sources?limit=2")
    rest = hosts.ok("GET", f"/applications/shop/sources?cursor={first['next']}")
    assert (first["items"] + rest["items"], rest["next"]) == (items, None)
    send(hosts, HOST)
    assert len(health()) == 3, "unchanged"
    send(hosts, HOST, sources=[])
    assert health() == [("log", OTHER, "silent"), ("probe", None, None)]
    hosts.ok("DELETE", f"/hosts/{OTHER}")
    assert health() == [("log", None, None), ("probe", None, None)]


def test_the_history_of_ticks(hosts: Api) -> None:
    ticks = [tick_of(second) for second in range(5)]
    send(hosts, HOST, ticks=ticks)
    send(hosts, OTHER, ticks=[tick_of(2, policy="equal", vms=[])])
    path = f"/hosts/{HOST}/ticks"
    assert hosts.ok("GET", path, role="viewer")["items"] == ticks[::-1]
    assert hosts.ok("GET", f"{path}?since={moment(1)}&until={moment(3)}")["items"] == [ticks[2], ticks[1]]
    first = hosts.ok("GET", f"{path}?limit=2&until={moment(4)}")
    rest = hosts.ok("GET", f"{path}?cursor={first['next']}&until={moment(4)}")
    assert (first["items"] + rest["items"], rest["next"]) == (ticks[3::-1], None)
    assert hosts.ok("GET", f"/hosts/{OTHER}/ticks")["items"][0]["policy"] == "equal"
    hosts.refused(404, "GET", "/hosts/nowhere/ticks")


def test_an_application_may_be_removed_while_agents_report_of_it(hosts: Api) -> None:
    hosts.ok("DELETE", "/applications/shop")
    body = {"tiers": [{"name": "web", "vms": ["web-1"]}], "sources": SOURCES}

    def register(_: int) -> set[int]:
        made = hosts.call("PUT", "/applications/shop", body).status_code
        return {made, hosts.call("DELETE", "/applications/shop").status_code}

    def tell(number: int) -> set[int]:
        found = report(windows=[window(count=number + 1)], sources=[source_status("probe")])
        return {hosts.call("POST", f"/hosts/{(HOST, OTHER)[number % 2]}/report", found).status_code}

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(act, number) for number in range(40) for act in (register, tell, tell)]
        codes = set().union(*(job.result() for job in jobs))
    assert codes <= {200, 201, 204, 404}


def slots_after(api: Api, host: str, **changes: Any) -> dict[str, Any]:
    """The slots that answer a report, which must be what the route for them answers just after it."""
    answered: dict[str, Any] = api.ok("POST", f"/hosts/{host}/report", report(wants_slots=True, **changes))["slots"]
    assert answered == api.ok("GET", f"/hosts/{host}/slots")
    return answered


def counted(slots: dict[str, Any]) -> list[int]:
    return [sum(one["buckets"].values()) for one in slots["windows"].get("shop", ())]


def test_a_report_is_answered_with_the_slots_of_others_whatever_is_known_of_its_host(shop: Api) -> None:
    for vm in ("web-1", "web-2", "db-1"):
        shop.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": HOST})
    for count in (3, 4):  # the second one is answered from what the first one made known
        alone = slots_after(shop, HOST, windows=[window(count=count)])
        assert (counted(alone), alone["shared"]) == ([], False)
    shop.ok("POST", "/applications/shop/samples", {"times_ms": [5.0] * 10})
    assert counted(slots_after(shop, HOST, windows=[window(count=5)])) == [10]
    shop.ok("PUT", f"/hosts/{OTHER}", {})
    shop.ok("PUT", "/vms/web-2", {"class": "critical", "host": OTHER})
    assert slots_after(shop, HOST)["shared"]
    assert slots_after(shop, HOST, windows=[window(count=6)])["shared"]
    assert counted(slots_after(shop, OTHER, windows=[window(count=2)])) == [16]
    assert counted(slots_after(shop, HOST, windows=[window(count=7)])) == [12]


def test_what_others_measured_before_a_long_silence_is_still_answered(hosts: Api) -> None:
    send(hosts, OTHER, windows=[window(count=4)])
    slots_after(hosts, HOST)
    hosts.clock.now_s += 3600
    assert counted(slots_after(hosts, HOST)) == [4], "it is of the newest slot"
    assert counted(slots_after(hosts, HOST, windows=[window(end=3600, count=1)])) == []


def test_a_vm_that_was_registered_for_another_host_meanwhile_is_refused_at_once(hosts: Api) -> None:
    slots_after(hosts, HOST, windows=[window(count=1)])
    hosts.ok("PUT", "/vms/web-1", {"class": "critical", "host": OTHER})
    assert send(hosts, HOST, windows=[window(end=-5)], wants_slots=True)["stored_windows"] == 0
