"""What agents report of their hosts: the domains that run there, and what the doctor found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import HOST, Api, moment, report, status, tick

UUIDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(4)]


def domain(number: int, name: str) -> dict[str, str]:
    return {"libvirt_name": name, "libvirt_uuid": UUIDS[number]}


def told(api: Api, *domains: dict[str, str], host: str = HOST) -> None:
    api.ok("POST", f"/hosts/{host}/report", report(domains=list(domains)))


def seen(api: Api, path: str = "/domains") -> list[tuple[str, str, str | None]]:
    items = api.ok("GET", path, role="viewer")["items"]
    return [(one["host"], one["libvirt_name"], one["registered_as"]) for one in items]


def test_the_list_of_hosts_has_all_that_each_host_by_itself_has(api: Api) -> None:
    api.ok("PUT", "/hosts/aside", {"policy": "equal"})
    told(api)
    api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick()))
    api.ok("POST", "/hosts/kvm2/report", report(tick=tick(number=8, errors=0)))
    listed = api.ok("GET", "/hosts", role="viewer")["items"]
    assert [host["name"] for host in listed] == sorted(["aside", HOST, "kvm2"])
    assert [host["tick"] and host["tick"]["number"] for host in listed] == [None, 7, 8]
    assert listed == [api.ok("GET", f"/hosts/{host['name']}", role="viewer") for host in listed]


def test_domains_are_listed_with_the_vm_that_each_is_registered_as(api: Api) -> None:
    api.ok("PUT", "/vms/by-name", {"class": "batch", "libvirt_name": "domain 1"})
    api.ok("PUT", "/vms/by-uuid", {"class": "batch", "libvirt_uuid": UUIDS[2]})
    api.ok("PUT", "/vms/elsewhere", {"class": "batch", "libvirt_name": "domain 0", "host": "kvm2"})
    told(api, *(domain(number, f"domain {number}") for number in range(3)))
    told(api, domain(0, "domain 0"), host="kvm2")
    expected = [(HOST, "domain 0", None), (HOST, "domain 1", "by-name"), (HOST, "domain 2", "by-uuid")]
    assert seen(api, f"/hosts/{HOST}/domains") == expected
    assert seen(api) == [*expected, ("kvm2", "domain 0", "elsewhere")]
    assert seen(api, "/domains?registered=false") == expected[:1]
    assert seen(api, f"/hosts/{HOST}/domains?registered=true") == expected[1:]
    api.ok("DELETE", "/vms/by-uuid")
    assert seen(api, "/domains?registered=false") == [expected[0], (HOST, "domain 2", None)]


def test_a_uuid_decides_before_a_name(api: Api) -> None:
    api.ok("PUT", "/vms/a-name", {"class": "batch", "libvirt_name": "shop"})
    told(api, domain(0, "shop"), domain(1, "blog"))
    assert seen(api) == [(HOST, "shop", "a-name"), (HOST, "blog", None)]
    api.ok("PUT", "/vms/b-uuid", {"class": "batch", "libvirt_uuid": UUIDS[0]})
    assert seen(api) == [(HOST, "shop", "b-uuid"), (HOST, "blog", None)]
    api.ok("PUT", "/vms/b-uuid", {"class": "batch", "libvirt_uuid": UUIDS[3], "libvirt_name": "blog"})
    assert seen(api) == [(HOST, "shop", "a-name"), (HOST, "blog", None)], "the name of one with a UUID does not count"


def test_domains_are_replaced_as_a_whole_or_left_alone(api: Api) -> None:
    told(api, domain(0, "a"), domain(1, "b"))
    api.ok("POST", f"/hosts/{HOST}/report", report())
    assert [name for _, name, _ in seen(api)] == ["a", "b"]
    told(api, domain(1, "b, renamed"), domain(2, "c"))
    assert [name for _, name, _ in seen(api)] == ["b, renamed", "c"]
    told(api)
    assert seen(api) == []
    told(api, domain(0, "a"))
    api.ok("DELETE", f"/hosts/{HOST}")
    assert seen(api) == []


def test_domains_come_in_parts(api: Api) -> None:
    told(api, *(domain(number, "☃" * 255) for number in range(4)))
    told(api, domain(0, "x"), host="a" * 63)
    found: list[tuple[str, str]] = []
    cursor = ""
    while True:
        page = api.ok("GET", f"/domains?limit=2{cursor}")
        found += [(one["host"], one["libvirt_uuid"]) for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == [("a" * 63, UUIDS[0]), *((HOST, uuid) for uuid in UUIDS)]
    assert api.refused(422, "GET", "/domains?cursor=WyJhIl0=")["field"] == "cursor"
    assert api.refused(422, "GET", "/domains?registered=perhaps")["field"] == "registered"


def test_domains_are_found_by_all_of_a_long_name(api: Api) -> None:
    web, other = "web" * 85, "web" * 84 + "wet"
    told(api, domain(0, web), domain(1, other))
    assert (
        seen(api, f"/domains?search={web}") == seen(api, f"/hosts/{HOST}/domains?search={web}") == [(HOST, web, None)]
    )
    assert api.refused(422, "GET", f"/domains?search={web}x")["field"] == "search"
    assert api.refused(422, "GET", f"/vms?search={'x' * 64}")["field"] == "search"


def test_a_domain_listed_twice_is_refused(api: Api) -> None:
    body = report(domains=[domain(0, "a"), domain(0, "b")])
    answer = api.ok("POST", f"/hosts/{HOST}/report", body)
    assert [one["field"] for one in answer["refused"]] == ["domains[1].libvirt_uuid"]
    assert [one["libvirt_name"] for one in api.ok("GET", f"/hosts/{HOST}/domains")["items"]] == ["a"]


def findings(at: str, **changes: Any) -> dict[str, Any]:
    one = {
        "id": "sched-ext",
        "area": "Warp",
        "title": "sched_ext",
        "status": "missing",
        "essential": False,
        "detail": "this kernel has none",
        "advice": "run a newer one",
    }
    return {"at": at, "findings": [one | changes]}


def test_findings_are_those_of_the_last_look(api: Api) -> None:
    api.refused(404, "GET", f"/hosts/{HOST}/findings")
    api.ok("POST", f"/hosts/{HOST}/report", report())
    assert "never reported findings" in api.refused(404, "GET", f"/hosts/{HOST}/findings")["detail"]
    first, second = findings("2026-03-01T11:00:00Z"), findings("2026-03-01T12:00:00Z", status="works", advice="")
    for body in (first, second):
        api.ok("POST", f"/hosts/{HOST}/report", report(findings=body))
        api.ok("POST", f"/hosts/{HOST}/report", report())
        assert api.ok("GET", f"/hosts/{HOST}/findings", role="host") == body
    nameless = report(findings=findings("2026-03-01T12:00:00Z", id=""))
    answer = api.ok("POST", f"/hosts/{HOST}/report", nameless)
    assert [one["field"] for one in answer["refused"]] == ["findings.findings[0].id"]
    assert api.ok("GET", f"/hosts/{HOST}/findings") == second


def test_what_an_older_agent_does_not_tell_is_unknown(api: Api) -> None:
    api.ok("PUT", "/vms/web-1", {"class": "critical"})
    old_tick, old_status = tick(), status("web-1")
    for name in ("critical_cpu_share", "batch_cpu_share", "batch", "observed", "assignment_revision"):
        del old_tick[name]
    for name in ("mode", "observed"):
        del old_status[name]
    api.ok("POST", f"/hosts/{HOST}/report", report(tick=old_tick, vms=[old_status]))
    found = api.ok("GET", f"/hosts/{HOST}")["tick"]
    assert (found["critical_cpu_share"], found["batch"], found["assignment_revision"]) == (None, None, None)
    assert api.ok("GET", "/vms/web-1")["status"]["mode"] is None


def test_an_assignment_tells_the_number_of_what_is_registered(api: Api) -> None:
    api.ok("PUT", f"/hosts/{HOST}", {})

    def number(**headers: str) -> tuple[int, int]:
        response = api.call("GET", f"/hosts/{HOST}/assignment", role="host", **headers)
        return response.status_code, int(response.headers["Equipoise-Revision"])

    etag = api.call("GET", f"/hosts/{HOST}/assignment").headers["ETag"]
    _, first = number()
    assert number() == (200, first), "reading changes nothing"
    api.ok("PUT", "/hosts/kvm2", {})
    assert number(If_None_Match=etag) == (304, first), "nothing changed for this host"
    api.refused(422, "PATCH", f"/hosts/{HOST}", {"policy": "none"})
    assert number()[1] == first
    api.ok("PATCH", f"/hosts/{HOST}", {"mode": "released"})
    assert number()[1] > first


def service(number: int, port: int = 80, **changes: Any) -> dict[str, Any]:
    figures = {
        "libvirt_uuid": UUIDS[number],
        "port": port,
        "protocol": "http",
        "protocol_share": 1.0,
        "rate_rps": 48.2,
        "p50_ms": 1.3,
        "p95_ms": 1.9,
        "p99_ms": None,
        "error_share": 0.01,
        "since": "2026-03-01T11:58:05Z",
        "window_s": 45.0,
    }
    return figures | changes


def serving(*services: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A report of services in three domains."""
    domains = [domain(number, f"domain {number}") for number in range(3)]
    return report(domains=domains, services={"services": list(services), **changes})


def test_services_are_those_of_the_last_report(api: Api) -> None:
    path = f"/hosts/{HOST}/services"
    api.ok("POST", f"/hosts/{HOST}/report", report())
    assert api.ok("GET", path) == {"items": [], "next": None, "at": None, "problem": "", "simulated": False}
    api.ok("PUT", "/vms/web", {"class": "critical", "libvirt_uuid": UUIDS[1]})
    api.ok("POST", f"/hosts/{HOST}/report", serving(service(0), service(1, 11211), service(1, 8080)), role="host")
    reported_at = moment(0)
    unknown = {"quiet_p95_ms": None}
    api.clock.now_s += 5
    for role in ("viewer", "host"):
        answer = api.ok("GET", path, role=role)
        assert (answer["at"], answer["problem"], answer["simulated"]) == (reported_at, "", False)
        assert answer["items"] == [
            service(0) | unknown | {"libvirt_name": "domain 0", "registered_as": None},
            service(1, 8080) | unknown | {"libvirt_name": "domain 1", "registered_as": "web"},
            service(1, 11211) | unknown | {"libvirt_name": "domain 1", "registered_as": "web"},
        ]
    assert [one["port"] for one in api.ok("GET", f"{path}?vm=web")["items"]] == [8080, 11211]
    assert api.ok("GET", f"{path}?vm=blog")["items"] == []
    api.ok("POST", f"/hosts/{HOST}/report", report())
    assert len(api.ok("GET", path)["items"]) == 3, "null means unchanged"
    api.ok("POST", f"/hosts/{HOST}/report", serving(problem="no bpftool", simulated=True))
    answer = api.ok("GET", path)
    assert (answer["items"], answer["problem"], answer["simulated"]) == ([], "no bpftool", True)


def test_services_come_in_parts(api: Api) -> None:
    ports = [(number, port) for number in range(3) for port in (22, 80, 8080)]
    api.ok("POST", f"/hosts/{HOST}/report", serving(*(service(number, port) for number, port in ports)))
    found: list[tuple[str, int]] = []
    cursor = ""
    while True:
        page = api.ok("GET", f"/hosts/{HOST}/services?limit=2{cursor}")
        found += [(one["libvirt_uuid"], one["port"]) for one in page["items"]]
        if page["next"] is None:
            break
        assert len(page["items"]) == 2
        cursor = f"&cursor={page['next']}"
    assert found == [(UUIDS[number], port) for number, port in ports]
    assert api.refused(422, "GET", f"/hosts/{HOST}/services?cursor=WyJhIl0=")["field"] == "cursor"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"port": 0}, "port"),
        ({"port": 65_536}, "port"),
        ({"libvirt_uuid": "x"}, "libvirt_uuid"),
        ({"protocol": "a b"}, "protocol"),
        ({"rate_rps": -1.0}, "rate_rps"),
        ({"error_share": 1.5}, "error_share"),
        ({"since": "yesterday"}, "since"),
        ({"window_s": 0.0}, "window_s"),
    ],
)
def test_services_that_cannot_be_are_left_out_and_named(sqlite_api: Api, changes: dict[str, Any], field: str) -> None:
    api = sqlite_api
    api.ok("POST", f"/hosts/{HOST}/report", serving(service(0)))
    answer = api.ok("POST", f"/hosts/{HOST}/report", serving(service(0) | changes))
    assert [one["field"] for one in answer["refused"]] == [f"services.services[0].{field}"]
    assert [one["port"] for one in api.ok("GET", f"/hosts/{HOST}/services")["items"]] == [80]


def test_a_host_reports_services_of_its_own_domains_only(api: Api) -> None:
    told(api, domain(3, "elsewhere"), host="kvm2")
    api.ok("POST", f"/hosts/{HOST}/report", serving(service(3), service(2)))
    assert [one["libvirt_uuid"] for one in api.ok("GET", f"/hosts/{HOST}/services")["items"]] == [UUIDS[2]]
    assert api.ok("GET", "/hosts/kvm2/services")["items"] == []


@pytest.mark.parametrize(
    "path", ["/hosts/ghost/domains", "/hosts/ghost/findings", "/hosts/ghost/preview", "/hosts/ghost/services"]
)
def test_a_host_that_is_not_there_has_none(sqlite_api: Api, path: str) -> None:
    sqlite_api.refused(404, "GET", path)


def test_a_vm_has_its_part_of_the_power_of_its_host(api: Api) -> None:
    """Busy to 0.9, half of the peak when idle: of 190 W, 100 W are idle, and VMs share 90 W."""
    for name in ("web", "db"):
        api.ok("PUT", f"/vms/{name}", {"class": "critical"})
    vms = [status("web", cpu_share=0.3), status("db", cpu_share=0.6)]
    power = {"package_watts": 180.0, "dram_watts": 10.0}
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=vms, tick=tick(host_cpu_share=0.9, power=power)))
    assert api.ok("GET", "/vms/web")["power_watts"] == 30.0
    assert {vm["name"]: vm["power_watts"] for vm in api.ok("GET", "/vms")["items"]} == {"web": 30.0, "db": 60.0}
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=vms, tick=tick(host_cpu_share=0.0, power=power)))
    assert api.ok("GET", "/vms/web")["power_watts"] == 0.0
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=vms, tick=tick()))
    assert api.ok("GET", "/vms/web")["power_watts"] is None


@pytest.mark.parametrize("power", [{"package_watts": -1.0}, {"package_watts": 2e6}, {"dram_watts": 1.0}])
def test_power_that_cannot_be_is_refused(api: Api, power: dict[str, float]) -> None:
    answer = api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(power=power)))
    assert [refused["field"].startswith("tick") for refused in answer["refused"]] == [True]


def test_a_name_that_others_have_says_so(api: Api) -> None:
    """Two domains of one name, one whose name a VM of another host has, and one alone."""
    api.ok("PUT", "/vms/cache", {"class": "critical", "host": "kvm9"})
    told(api, domain(0, "web"), domain(1, "cache"), domain(2, "alone"))
    told(api, domain(3, "web"), host="kvm2")
    found = api.ok("GET", "/domains?registered=false&limit=3")["items"]
    assert {one["libvirt_name"]: one["name_shared"] for one in found} == {"web": True, "cache": True, "alone": False}
