"""Registering hosts, VMs and applications: what is answered, conditions, and lists in parts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from manager.api.schemas.registration_shapes import ApplicationOut, HostOut, VmOut
from manager.model.fields import adapter_of
from tests.api.conftest import HOST, LAW, PLACEMENT, Api, report, status

UUID = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"
OBJECTS = [
    ("/hosts/a", {}, {"mode": "observe"}),
    ("/vms/a", {"class": "batch"}, {"class": "critical"}),
    ("/applications/a", {}, {"sla": {"response_time_ms": 5}}),
]


@pytest.mark.parametrize(("path", "body", "changed"), OBJECTS)
def test_put_creates_replaces_and_repeats(api: Api, path: str, body: Any, changed: Any) -> None:
    created = api.call("PUT", path, body)
    assert created.status_code == 201
    again = api.call("PUT", path, body)
    assert (again.status_code, again.get_json(), again.headers["ETag"]) == (
        200,
        created.get_json(),
        created.headers["ETag"],
    )
    api.clock.now_s += 1
    replaced = api.call("PUT", path, changed)
    assert replaced.status_code == 200
    assert replaced.headers["ETag"] != created.headers["ETag"]
    assert replaced.get_json()["created_at"] == "2026-03-01T12:00:00Z"
    assert replaced.get_json()["updated_at"] == "2026-03-01T12:00:01Z"
    read = api.call("GET", path)
    assert (read.get_json(), read.headers["ETag"]) == (replaced.get_json(), replaced.headers["ETag"])
    assert api.call("DELETE", path).status_code == 204
    api.refused(404, "GET", path)
    api.refused(404, "DELETE", path)


@pytest.mark.parametrize(("path", "body", "changed"), OBJECTS)
def test_conditions(api: Api, path: str, body: Any, changed: Any) -> None:
    api.refused(412, "PUT", path, body, If_Match='"1.1"')
    api.refused(412, "PUT", path, body, If_Match="*")
    api.refused(412, "DELETE", path, If_Match="*")
    old = api.call("PUT", path, body, If_None_Match="*").headers["ETag"]
    assert "exists already" in api.refused(412, "PUT", path, changed, If_None_Match="*")["detail"]
    new = api.call("PUT", path, changed, If_Match=old)
    assert new.status_code == 200
    for stale in (old, f"W/{new.headers['ETag']}", '"nonsense"', ",", ""):
        assert "changed" in api.refused(412, "PUT", path, body, If_Match=stale)["detail"], stale
        api.refused(412, "DELETE", path, If_Match=stale)
    assert api.call("GET", path).headers["ETag"] == new.headers["ETag"]
    assert api.call("DELETE", path, If_Match=f'"x", {new.headers["ETag"]}').status_code == 204


@pytest.mark.parametrize("kind", ["hosts", "vms", "applications"])
def test_lists_come_in_parts(api: Api, kind: str) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in reversed(names):
        api.ok("PUT", f"/{kind}/{name}", {"class": "batch"} if kind == "vms" else {})
    seen, cursor, sizes = [], "", []
    while cursor is not None:
        page = api.ok("GET", f"/{kind}?limit=2" + (f"&cursor={cursor}" if cursor else ""))
        seen += [item["name"] for item in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next"]
        if len(sizes) == 1:
            api.ok("PUT", f"/{kind}/n0a", {"class": "batch"} if kind == "vms" else {})  # before the cursor: not seen
    assert (seen, sizes) == (names, [2, 2, 1])
    assert len(api.ok("GET", f"/{kind}")["items"]) == 6


def test_a_parameter_that_is_repeated_is_refused(sqlite_api: Api) -> None:
    [error] = sqlite_api.refused(422, "GET", "/vms?host=kvm1&host=kvm2&limit=1")["errors"]
    assert error == {"field": "host", "message": "2 are refused; allowed: one"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/hosts/kvm1", None),
        ("PUT", "/vms/web", {"class": "batch"}),
        ("POST", "/hosts/kvm1/adopt", None),
        ("DELETE", "/hosts/kvm1", None),
        ("GET", "/policies/priority", None),
    ],
)
def test_a_parameter_is_refused_where_there_are_none(sqlite_api: Api, method: str, path: str, body: Any) -> None:
    sqlite_api.ok("PUT", "/hosts/kvm1", {})
    problem = sqlite_api.refused(422, method, f"{path}?dry_run=true", body)
    assert problem["errors"] == [{"field": "dry_run", "message": "is not a known field; known: none"}]
    sqlite_api.ok(method, path, body)
    sqlite_api.ok("GET", "/health?probe=1")


def test_a_parameter_of_a_later_agent_is_ignored(sqlite_api: Api) -> None:
    sqlite_api.ok("PUT", f"/hosts/{HOST}", {})
    sqlite_api.ok("POST", f"/hosts/{HOST}/report?of_tomorrow=1", report())
    sqlite_api.ok("GET", f"/hosts/{HOST}/assignment?of_tomorrow=1")


@pytest.mark.parametrize(("kind", "most"), [("hosts", 63), ("vms", 63), ("applications", 63), ("domains", 255)])
@pytest.mark.parametrize("search", ["%00", "a%00b", "a" * 64])
def test_a_search_that_no_name_can_hold_is_refused(api: Api, kind: str, most: int, search: str) -> None:
    [error] = api.refused(422, "GET", f"/{kind}?search={search * (1 + most // 64)}")["errors"]
    assert error["field"] == "search"
    assert f"allowed: up to {most} characters, none of them NUL" in error["message"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"policy": "magic"}, "policy", ['"magic"', "equal, priority"]),
        ({"mode": "off"}, "mode", ['"off"', "enforce, observe, released"]),
        ({"pinning": "yes"}, "pinning", ['"yes"', "true or false"]),
        (
            {"colour": 1},
            "colour",
            ["bandwidth_warning, batch_idle, cache, cache_mount, costs, disk, law, memory, migrate, mode, network"],
        ),
        ({"law": {"gain": 6}}, "law.gain", ["6", "at least 0.05 and at most 5"]),
        ({"law": {"min_samples": 1.5}}, "law.min_samples", ["1.5", "a whole number at least 1 and at most 100000"]),
        ({"law": {"speed": 1}}, "law.speed", ["known: batch_floor, dead_band"]),
        ({"placement": {"batch": "away"}}, "placement.batch", ['"away"', "float, fence, single"]),
        ({"placement": {"irqs": True}}, "placement.irqs", ["true", "off, reserved, serving"]),
        ({"placement": {"reserved_cpus": "1-"}}, "placement.reserved_cpus", ['"1-"', "pCPU numbers and ranges"]),
        ({"placement": {"reserved_cpus": "3-1"}}, "placement.reserved_cpus", ["'3-1'", "ascending range"]),
        ({"memory": {"headroom": 0.01}}, "memory.headroom", ["0.01", "at least 0.02 and at most 1"]),
        ({"memory": {"most_protected": 1}}, "memory.most_protected", ["1", "at most 0.9"]),
        ({"costs": {"years": 0}}, "costs.years", ["0", "at least 0.1 and at most 20"]),
        ({"costs": {"server_usd": -1}}, "costs.server_usd", ["-1", "at least 0 and at most 10000000"]),
        ({"costs": {"pue": 2}}, "costs.pue", ["known: cooling_capital_factor, cooling_factor"]),
        ({"network": {"batch_tap_mbit": 0}}, "network.batch_tap_mbit", ["0", "at least 1 and at most 34000"]),
        ({"network": {"batch_floor": 0.01}}, "network.batch_floor", ["0.01", "at least 0.05 and at most 1"]),
        (
            {"network": {"uplinks": [{"interface": "a b"}]}},
            "network.uplinks[0].interface",
            ['"a b"', "network interface"],
        ),
        ({"placement": {"min_gain": 11}}, "placement.min_gain", ["11", "at least 0 and at most 10"]),
    ],
)
def test_a_bad_host_is_refused(api: Api, body: Any, field: str, words: list[str]) -> None:
    [error] = api.refused(422, "PUT", "/hosts/kvm1", body)["errors"]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error
    api.refused(404, "GET", "/hosts/kvm1")


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"cpus": ""}, "cpus", ['""', "names no pCPU"]),
        ({"cpus": "0-9000"}, "cpus", ["0-9000"]),
        ({"max_pcpus": 0}, "max_pcpus", ["0", "at least 0.01"]),
        ({"mode": "off"}, "mode", ['"off"', "enforce, observe, released"]),
        ({"adoptions": 3}, "adoptions", ["not a known field"]),
        ({"warp_us": "much"}, "warp_us", ['"much" is refused', "at most 100000 or auto"]),
        ({"warp_us": 100_001}, "warp_us", ["100001 is refused"]),
        ({"warp_us": "5"}, "warp_us", ['"5" is refused']),
        ({"scheduling": {"policy": "other"}}, "scheduling", ["only critical VMs"]),
    ],
)
def test_a_bad_limit_of_a_vm_is_refused(api: Api, body: Any, field: str, words: list[str]) -> None:
    [error] = api.refused(422, "PUT", "/vms/a", {"class": "batch"} | body)["errors"]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error


def test_placement_and_limits_are_kept_and_told_to_the_agent(api: Api) -> None:
    placement = PLACEMENT | {"batch": "single", "reserved_cpus": "3,1,2", "irqs": "serving"}
    api.ok("PUT", "/hosts/kvm1", {"placement": placement, "batch_idle": True})
    api.ok("PUT", "/vms/a", {"class": "batch", "cpus": "2,1", "max_pcpus": 1.5, "mode": "observe"})
    told = api.ok("GET", "/hosts/kvm1/assignment")
    assert told["host"]["placement"] == placement | {"reserved_cpus": "1-3"}
    assert told["host"]["batch_idle"]
    [vm] = told["vms"]
    assert (vm["cpus"], vm["max_pcpus"], vm["mode"], vm["adoptions"]) == ("1-2", 1.5, "observe", 0)
    api.ok("PUT", "/hosts/kvm1", {})
    assert api.ok("GET", "/hosts/kvm1")["placement"] == PLACEMENT


def test_uplinks_are_kept_and_told_to_the_agent(api: Api) -> None:
    api.ok("PUT", "/hosts/kvm1", {"network": {"batch_floor": 0.2}})
    api.ok("PATCH", "/hosts/kvm1", {"network": {"shares": True, "uplinks": [{"interface": "eth0", "rate_mbit": 900}]}})
    own = {"batch_floor": 0.2, "steps": False, "batch_tap_mbit": None}
    divided = {"shares": True, "uplinks": [{"interface": "eth0", "rate_mbit": 900}], **own}
    assert api.ok("GET", "/hosts/kvm1")["network"] == divided
    assert api.ok("GET", "/hosts/kvm1/assignment")["host"]["network"] == divided
    api.ok("PATCH", "/hosts/kvm1", {"network": {"shares": False, "uplinks": [{"interface": "bond0"}]}})
    assert api.ok("GET", "/hosts/kvm1")["network"]["uplinks"] == [{"interface": "bond0", "rate_mbit": None}]


def test_warps_are_kept_and_told_to_the_agent(shop: Api) -> None:
    shop.ok("PUT", "/hosts/kvm1", {"warp": "sched_ext", "warp_max_us": 20_000})
    shop.ok("PATCH", "/vms/web-1", {"warp_us": 12_000})
    shop.ok("PATCH", "/applications/shop", {"warp_us": "auto"})
    told = shop.ok("GET", "/hosts/kvm1/assignment")
    assert (told["host"]["warp"], told["host"]["warp_max_us"]) == ("sched_ext", 20_000)
    assert [vm["warp_us"] for vm in told["vms"] if vm["name"] == "web-1"] == [12_000]
    assert [one["warp_us"] for one in told["applications"]] == ["auto"]
    assert shop.ok("GET", "/vms/web-1")["warp_us"] == 12_000
    shop.ok("PATCH", "/vms/web-1", {"warp_us": "auto"})
    assert shop.ok("GET", "/vms/web-1")["warp_us"] == "auto"
    shop.ok("PATCH", "/vms/web-1", {"warp_us": 0})
    assert shop.ok("GET", "/vms/web-1")["warp_us"] == 0
    for path in ("/vms/web-1", "/applications/shop"):
        shop.ok("PATCH", path, {"warp_us": None})
        assert shop.ok("GET", path)["warp_us"] is None
    shop.ok("PATCH", "/hosts/kvm1", {"warp": None, "warp_max_us": None})
    assert [shop.ok("GET", "/hosts/kvm1")[name] for name in ("warp", "warp_max_us")] == ["off", 50_000]
    [error] = shop.refused(422, "PATCH", "/hosts/kvm1", {"warp": "fast"})["errors"]
    assert "off, on, sched_ext" in error["message"]


@pytest.mark.parametrize(
    ("scheduling", "field", "words"),
    [
        ({}, "scheduling.policy", ["is required", "fifo, rr, other"]),
        ({"policy": "deadline"}, "scheduling.policy", ['"deadline" is refused', "fifo, rr, other"]),
        (
            {"policy": "fifo"},
            "scheduling.limit",
            ["null is refused", "fifo needs a limit", "at least 0.05 and at most"],
        ),
        ({"policy": "rr", "limit": 0.91}, "scheduling.limit", ["0.91 is refused", "at most 0.9"]),
        ({"policy": "rr", "limit": 0.04}, "scheduling.limit", ["0.04 is refused", "at least 0.05"]),
        ({"policy": "fifo", "limit": 0.5, "priority": 11}, "scheduling.priority", ["11 is refused", "at most 10"]),
        ({"policy": "fifo", "limit": 0.5, "nice": 3}, "scheduling.nice", ["3 is refused", "fifo has no nice"]),
        ({"policy": "other", "limit": 0.5}, "scheduling.limit", ["0.5 is refused", "other has no limit"]),
        ({"policy": "other", "priority": 1}, "scheduling.priority", ["1 is refused", "other has no priority"]),
        ({"policy": "other", "nice": -21}, "scheduling.nice", ["-21 is refused", "at least -20 and at most 19"]),
        ({"policy": "other", "share": 1}, "scheduling.share", ["not a known field"]),
        ("fifo", "scheduling", ['"fifo" is refused', "an object"]),
    ],
)
def test_a_bad_scheduling_is_refused(api: Api, scheduling: Any, field: str, words: list[str]) -> None:
    [error] = api.refused(422, "PUT", "/vms/a", {"class": "critical", "scheduling": scheduling})["errors"]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error


def test_scheduling_is_kept_and_told_to_the_agent(api: Api) -> None:
    fifo = {"policy": "fifo", "priority": None, "nice": None, "limit": 0.3}
    api.ok("PUT", "/hosts/kvm1", {})
    api.ok("PUT", "/vms/a", {"class": "critical", "warp_us": 0, "scheduling": {"policy": "fifo", "limit": 0.3}})
    assert api.ok("GET", "/vms/a")["scheduling"] == fifo
    assert [vm["scheduling"] for vm in api.ok("GET", "/hosts/kvm1/assignment")["vms"]] == [fifo]
    [error] = api.refused(422, "PATCH", "/vms/a", {"warp_us": "auto"})["errors"]
    assert (error["field"], "no warp reaches fifo" in error["message"]) == ("scheduling", True)
    api.refused(422, "PATCH", "/vms/a", {"class": "batch"})
    api.ok("PATCH", "/vms/a", {"warp_us": 500, "scheduling": {"policy": "other", "nice": -5, "limit": None}})
    assert api.ok("GET", "/vms/a")["scheduling"] == fifo | {"policy": "other", "nice": -5, "limit": None}
    api.ok("PATCH", "/vms/a", {"scheduling": None})
    assert api.ok("GET", "/vms/a")["scheduling"] is None


def test_taking_back_is_told_to_the_agent(api: Api) -> None:
    api.ok("PUT", "/hosts/kvm1", {})
    api.ok("PUT", "/vms/a", {"class": "batch"})
    before = api.call("GET", "/hosts/kvm1/assignment").headers["ETag"]
    assert "adoptions" not in api.ok("POST", "/vms/a/adopt")
    after = api.call("GET", "/hosts/kvm1/assignment")
    assert after.headers["ETag"] != before
    assert [vm["adoptions"] for vm in after.get_json()["vms"]] == [1]
    api.ok("POST", "/hosts/kvm1/adopt")
    assert api.ok("GET", "/hosts/kvm1/assignment")["host"]["adoptions"] == 1
    for path in ("/vms/none/adopt", "/hosts/none/adopt"):
        api.refused(404, "POST", path)


def test_a_host_is_answered_whole(api: Api) -> None:
    api.ok("PUT", "/hosts/kvm1", {"policy": "equal", "pinning": False})
    host = adapter_of(HostOut).validate_python(api.ok("GET", "/hosts/kvm1"))
    assert (host.mode, host.policy, host.pinning, host.last_seen_at, host.tick) == (
        "enforce",
        "equal",
        False,
        None,
        None,
    )
    assert host.law.gain == LAW["gain"]
    api.ok("PUT", "/hosts/kvm1", {"law": {"gain": 1, "published": True}})
    assert api.ok("GET", "/hosts/kvm1")["law"] == {**LAW, "gain": 1, "published": True}
    assert api.ok("GET", "/hosts/kvm1/assignment")["host"]["law"]["gain"] == 1
    api.refused(404, "GET", "/hosts/kvm1/capabilities")
    assert api.ok("GET", "/capabilities")["items"] == [{"host": "kvm1", "capabilities": None}]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "class", ["is required", "critical, batch"]),
        ({"class": "gold"}, "class", ['"gold"', "critical, batch"]),
        ({"class": "batch", "weight": 300000}, "weight", ["300000", "at least 1 and at most 262144"]),
        ({"class": "batch", "weight": 10**30}, "weight", ["262144"]),
        ({"class": "batch", "weight": "5"}, "weight", ['"5"', "whole number"]),
        ({"class": "batch", "weight": True}, "weight", ["true", "whole number"]),
        ({"class": "batch", "libvirt_uuid": "x"}, "libvirt_uuid", ['"x"', "a UUID such as"]),
        ({"class": "batch", "libvirt_uuid": UUID + "\n"}, "libvirt_uuid", ["a UUID such as"]),
        ({"class": "batch", "libvirt_name": ""}, "libvirt_name", ["1 to 255"]),
        ({"class": "batch", "libvirt_name": "a\0b"}, "libvirt_name", ["printable"]),
        ({"class": "batch", "libvirt_name": "a" * 256}, "libvirt_name", ["…", "1 to 255"]),
        ({"class": "batch", "host": "a/b"}, "host", ['"a/b"', "1 to 63 letters"]),
        ({"class": "batch", "pin": 1}, "pin", ["1", "true or false"]),
        ({"class": "batch", "vm_class": "batch"}, "vm_class", ["not a known field"]),
        ([], "body", ["an object"]),
        ("text", "body", ["an object"]),
    ],
)
def test_a_bad_vm_is_refused(api: Api, body: Any, field: str, words: list[str]) -> None:
    [error] = api.refused(422, "PUT", "/vms/a", body)["errors"]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error
    assert not re.search("or null|input should|string should|value error", error["message"], re.IGNORECASE)
    api.refused(404, "GET", "/vms/a")


def test_a_field_has_no_name_but_its_own(sqlite_api: Api) -> None:
    errors = sqlite_api.refused(422, "PUT", "/vms/a", {"vm_class": "batch"})["errors"]
    assert {error["field"] for error in errors} == {"class", "vm_class"}


def test_a_vm_is_answered_with_application_and_status(shop: Api) -> None:
    body = {"class": "critical", "libvirt_uuid": UUID.upper(), "host": "kvm1", "weight": 500, "pin": True}
    shop.ok("PUT", "/vms/web-1", body)
    vm = shop.ok("GET", "/vms/web-1")
    assert {key: vm[key] for key in body} == body | {"libvirt_uuid": UUID}
    assert (vm["libvirt_name"], vm["application"], vm["status"]) == (None, "shop", None)
    shop.ok("POST", "/hosts/kvm1/report", report(vms=[status("web-1")]), role="host")
    vm = shop.ok("GET", "/vms/web-1")
    assert vm["status"] == status("web-1")
    assert (vm["status_host"], vm["status_at"]) == ("kvm1", "2026-03-01T12:00:00Z")
    adapter_of(VmOut).validate_json(shop.call("GET", "/vms/web-1").data, strict=True)
    assert vm in shop.ok("GET", "/vms")["items"]


def test_a_vm_registered_by_nothing_is_found_by_its_name(api: Api) -> None:
    assert api.ok("PUT", "/vms/a", {"class": "batch"})["libvirt_name"] == "a"
    problem = api.refused(409, "PUT", "/vms/b", {"class": "batch", "libvirt_name": "a"})
    assert "libvirt_name 'a' belongs to VM 'a' already" in problem["detail"]


def test_vms_are_filtered(shop: Api) -> None:
    shop.ok("PUT", "/vms/hog", {"class": "batch", "host": "kvm1"})
    shop.ok("POST", "/hosts/kvm1/report", report(vms=[status("db-1")]))

    def names(query: str) -> list[str]:
        return [vm["name"] for vm in shop.ok("GET", f"/vms?{query}")["items"]]

    assert names("class=batch") == ["hog"]
    assert names("host=kvm1") == ["db-1", "hog"]
    assert names("application=shop&limit=2") == ["db-1", "web-1"]
    assert names("application=blog") == []
    assert shop.refused(422, "GET", "/vms?class=gold")["field"] == "class"


def test_a_vm_in_use_cannot_be_removed(shop: Api) -> None:
    assert "application 'shop'" in shop.refused(409, "DELETE", "/vms/web-1")["detail"]
    shop.ok("DELETE", "/applications/shop")
    shop.ok("DELETE", "/vms/web-1")


@pytest.mark.parametrize(
    ("body", "code", "field", "words"),
    [
        ({"tiers": [{"name": "web", "vms": ["spare", "ghost"]}]}, 422, "tiers[0].vms[1]", ["'ghost'", "register it"]),
        (
            {"tiers": [{"name": "a", "vms": ["spare"]}, {"name": "b", "vms": ["spare"]}]},
            422,
            "tiers[1].vms[0]",
            ["twice"],
        ),
        ({"tiers": [{"name": "a"}, {"name": "a"}]}, 422, "tiers[1].name", ["'a'"]),
        ({"tiers": [{"vms": []}]}, 422, "tiers[0].name", ["is required", "1 to 63"]),
        ({"tiers": [{"name": "a"}] * 51}, 422, "tiers", ["at most 50"]),
        ({"sla": {}}, 422, "sla.response_time_ms", ["is required", "more than 0"]),
        ({"sla": {"response_time_ms": 0}}, 422, "sla.response_time_ms", ["0", "more than 0 and at most 100000"]),
        ({"sla": {"response_time_ms": 5, "percentile": 100}}, 422, "sla.percentile", ["100", "less than 100"]),
        ({"sla": {"response_time_ms": 5, "max_rate_rps": -1}}, 422, "sla.max_rate_rps", ["-1", "at most 1000000000"]),
        ({"mode": "off"}, 422, "mode", ["enforce, observe, released"]),
        ({"sharing": "greedy"}, 422, "sharing", ["fair, isolation"]),
        ({"tiers": [{"name": "a", "vms": ["db-1"]}]}, 409, None, ["'db-1' serves application 'shop'"]),
    ],
)
def test_a_bad_application_is_refused(shop: Api, body: Any, code: int, field: str | None, words: list[str]) -> None:
    shop.ok("PUT", "/vms/spare", {"class": "batch"})
    problem = shop.refused(code, "PUT", "/applications/blog", body)
    assert problem["field"] == field
    assert all(word in problem["detail"] for word in words), problem
    shop.refused(404, "GET", "/applications/blog")


def test_every_bad_field_is_named_at_once(api: Api) -> None:
    body = {"tiers": [{"name": "!", "vms": ["?"]}], "sla": {"percentile": 0}, "x": 1}
    problem = api.refused(422, "PUT", "/applications/blog", body)
    fields = [error["field"] for error in problem["errors"]]
    assert sorted(fields) == ["sla.percentile", "sla.response_time_ms", "tiers[0].name", "tiers[0].vms[0]", "x"]
    assert "(and 4 more)" in problem["detail"]


def test_an_application_is_answered_whole(shop: Api) -> None:
    application = shop.ok("GET", "/applications/shop")
    assert application["tiers"] == [{"name": "web", "vms": ["web-1", "web-2"]}, {"name": "db", "vms": ["db-1"]}]
    assert application["sla"] == {"response_time_ms": 10.0, "percentile": 95.0, "max_rate_rps": None}
    assert (application["mode"], application["sla_state"], application["window"]) == (None, "no_data", None)
    adapter_of(ApplicationOut).validate_json(shop.call("GET", "/applications/shop").data, strict=True)
    assert shop.ok("GET", "/applications")["items"] == [application]


def test_policies(sqlite_api: Api) -> None:
    listed = sqlite_api.ok("GET", "/policies")
    assert ([policy["name"] for policy in listed["items"]], listed["next"]) == (["equal", "priority"], None)
    assert sqlite_api.ok("GET", "/policies/equal") == listed["items"][0]
    assert "magic" in sqlite_api.refused(404, "GET", "/policies/magic")["detail"]
    first = sqlite_api.ok("GET", "/policies?limit=1")
    assert sqlite_api.ok("GET", f"/policies?limit=1&cursor={first['next']}")["items"] == listed["items"][1:]


@pytest.mark.parametrize("wish", ["auto", "40%", "6 ways", "5MiB"])
def test_a_part_of_the_cache_is_kept_and_told_to_the_agent(shop: Api, wish: str) -> None:
    shop.ok("PATCH", "/applications/shop", {"cache": wish})
    shop.ok("PUT", "/hosts/kvm1", {"cache": "on", "cache_mount": True, "bandwidth_warning": 0})
    assert shop.ok("GET", "/applications/shop")["cache"] == wish
    told = shop.ok("GET", "/hosts/kvm1/assignment")
    assert [one["cache"] for one in told["applications"]] == [wish]
    assert [told["host"][name] for name in ("cache", "cache_mount", "bandwidth_warning")] == ["on", True, 0]
    shop.ok("PATCH", "/applications/shop", {"cache": None})
    shop.ok("PATCH", "/hosts/kvm1", {"cache": None, "cache_mount": None, "bandwidth_warning": None})
    assert shop.ok("GET", "/applications/shop")["cache"] is None
    host = shop.ok("GET", "/hosts/kvm1")
    assert [host[name] for name in ("cache", "cache_mount", "bandwidth_warning")] == ["off", False, 0.9]


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("/applications/shop", {"cache": "much"}, "cache", ["'much' is neither auto nor a size such as 40%, 6 ways"]),
        ("/applications/shop", {"cache": "0 ways"}, "cache", ["no part of a cache"]),
        ("/applications/shop", {"cache": "101%"}, "cache", ["no part of a cache"]),
        ("/applications/shop", {"cache": 5}, "cache", ["5 is refused"]),
        ("/hosts/kvm1", {"cache": "auto"}, "cache", ['"auto" is refused', "off, on"]),
        ("/hosts/kvm1", {"cache_mount": "maybe"}, "cache_mount", ['"maybe" is refused']),
        ("/hosts/kvm1", {"bandwidth_warning": 1.1}, "bandwidth_warning", ["1.1 is refused", "at most 1"]),
    ],
)
def test_a_bad_part_of_the_cache_is_refused(shop: Api, path: str, body: Any, field: str, words: list[str]) -> None:
    shop.ok("PUT", "/hosts/kvm1", {})
    [error] = shop.refused(422, "PATCH", path, body)["errors"]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error
