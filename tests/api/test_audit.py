"""The audit over REST: every write of a person is in it, with who, when, before and after."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from manager.store.proposals import Proposal, propose
from tests.api.conftest import START, Api, record, report, status
from tests.api.test_auth import ROUTES, Route

# What agents and sources do is not what people do; a question changes nothing; and a token to join with is needed for
# the last, see test_joining.
UNAUDITED = ("/report", "/samples", "/admission", "/join")
WRITES = [route for route in ROUTES if route.method != "GET" and not route.rule.endswith(UNAUDITED)]
SHOP = {"tiers": [{"name": "web", "vms": ["a"]}], "sla": {"response_time_ms": 10.0}}


def audit(api: Api, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.ok("GET", f"/audit{query}", role="operator")["items"]
    return found


def propose_one(api: Api) -> None:
    """A migration of ``a`` from a host that reports it to another one, as proposal 1."""
    api.ok("PUT", "/hosts/kvm2", {})
    api.ok("POST", "/hosts/kvm1/report", report(vms=[status("a")]), role="host")
    with api.database.registering() as session:
        propose(session, Proposal("a", "kvm1", "kvm2", "shop", "its host is full", ()), START)


@pytest.mark.parametrize("route", WRITES, ids=lambda route: route.rule)
def test_every_write_is_audited(sqlite_api: Api, route: Route) -> None:
    if route.method != "PUT" or "/users/" in route.rule:  # what it is done to must be there
        sqlite_api.ok("PUT", "/hosts/kvm1", {})
        sqlite_api.ok("PUT", "/vms/a", {"class": "batch"})
        sqlite_api.ok("PUT", "/applications/shop", {})
        sqlite_api.ok("POST", "/users", {"name": "alice", "role": "operator", "password": "correct horse"})
        if route.method == "DELETE":
            sqlite_api.ok("POST", "/join-tokens", {"name": "new"})
        if route.rule.endswith("/replace-agent"):
            for digit in "12":
                agent = {"Equipoise_Instance": str(UUID(digit * 32)), "Equipoise_Boot": f"boot-{digit}"}
                sqlite_api.call("POST", "/hosts/kvm1/report", report(), "host", **agent)
        if "/proposals/" in route.rule:
            propose_one(sqlite_api)
    before = len(audit(sqlite_api))
    sqlite_api.clock.now_s += 1
    sqlite_api.ok(route.method, route.path, route.body)
    row, *rest = audit(sqlite_api)
    assert len(rest) == before
    assert (row["at"], row["actor_kind"], row["actor"]) == ("2026-03-01T12:00:01Z", "token", "the-admin")
    assert (row["role"], row["address"]) == ("admin", "127.0.0.1")
    kind = route.rule.split("/")[3].removesuffix("s")
    assert row["object_kind"] == kind
    assert row["action"].startswith(f"{kind}.")
    assert row["object"] in route.path or row["object"] == route.body["name"]


def test_before_and_after_are_what_was_registered(api: Api) -> None:
    api.ok("PUT", "/vms/a", {"class": "batch", "cpus": "0-3"})
    api.ok("PUT", "/applications/shop", SHOP)
    api.ok("PUT", "/applications/shop", {})
    api.ok("DELETE", "/applications/shop")
    api.ok("PUT", "/hosts/kvm1", {"law": {"gain": 3}})
    host, gone, emptied, made, vm = audit(api)
    assert vm["before"] is None
    assert (vm["after"]["class"], vm["after"]["cpus"]) == ("batch", "0-3")
    assert made["after"]["tiers"] == SHOP["tiers"]
    assert emptied["before"] == made["after"]
    assert emptied["after"]["sla"] is None
    assert (gone["before"], gone["after"]) == (emptied["after"], None)
    assert host["after"]["law"]["gain"] == 3


def test_what_was_registered_before_can_be_registered_again(api: Api) -> None:
    api.ok("PUT", "/vms/a", {"class": "critical", "weight": 9000, "max_pcpus": 1.5})
    api.ok("PUT", "/applications/shop", SHOP)
    api.ok("PUT", "/hosts/kvm1", {"law": {"gain": 3}, "placement": {"reserved_cpus": "0,2"}})
    paths = ("/applications/shop", "/hosts/kvm1", "/vms/a")
    etags = {path: api.call("GET", path).get_json() for path in paths}
    for path in paths:
        api.ok("DELETE", path)
    for row in audit(api)[:3]:
        api.ok("PUT", f"/{row['object_kind']}s/{row['object']}", row["before"])
    assert {path: api.call("GET", path).get_json() for path in paths} == etags


def test_a_put_that_changes_nothing_and_one_that_is_refused_are_not_in_it(sqlite_api: Api) -> None:
    for _ in range(2):
        sqlite_api.ok("PUT", "/vms/a", {"class": "batch"})
        sqlite_api.ok("PUT", "/hosts/kvm1", {})
        sqlite_api.ok("PUT", "/applications/shop", {})
    sqlite_api.refused(412, "PUT", "/vms/a", {"class": "critical"}, If_None_Match="*")
    sqlite_api.refused(403, "DELETE", "/vms/a", role="viewer")
    sqlite_api.refused(404, "DELETE", "/vms/b")
    assert len(audit(sqlite_api)) == 3


def test_what_agents_report_is_not_in_it(sqlite_api: Api) -> None:
    sqlite_api.ok("POST", "/hosts/kvm1/report", report(decisions=[record(1)]), role="host")
    sqlite_api.ok("PUT", "/applications/shop", {})
    sqlite_api.ok("POST", "/applications/shop/samples", {"times_ms": [1]})
    assert [row["action"] for row in audit(sqlite_api)] == ["application.put"]


def test_no_secret_is_in_it(sqlite_api: Api) -> None:
    secret = sqlite_api.ok("POST", "/tokens", {"name": "new", "role": "viewer"})["token"]
    sqlite_api.ok("POST", "/users", {"name": "alice", "role": "operator", "password": "correct horse"})
    sqlite_api.ok("PUT", "/users/alice/password", {"password": "battery staple"})
    sqlite_api.ok("DELETE", "/tokens/new")
    text = sqlite_api.call("GET", "/audit").get_data(as_text=True)
    assert "hash" not in text
    assert not any(word in text for word in (secret, "correct horse", "battery staple", "scrypt"))
    described = {"role": "viewer", "host": None, "application": None, "expires_at": None}
    assert [(row["action"], row["before"], row["after"]) for row in audit(sqlite_api)] == [
        ("token.delete", described, None),
        ("user.password", {"role": "operator"}, {"role": "operator"}),
        ("user.create", None, {"role": "operator"}),
        ("token.create", None, described),
    ]


def test_it_is_read_in_parts_and_narrowed(sqlite_api: Api) -> None:
    for number in range(5):
        sqlite_api.clock.now_s += 1
        sqlite_api.ok("PUT", f"/vms/vm{number}", {"class": "batch"}, role="operator" if number % 2 else "admin")
    page = sqlite_api.ok("GET", "/audit?limit=3")
    rest = sqlite_api.ok("GET", f"/audit?limit=3&cursor={page['next']}")
    found = [*page["items"], *rest["items"]]
    assert [row["object"] for row in found] == ["vm4", "vm3", "vm2", "vm1", "vm0"]
    assert rest["next"] is None

    def objects(query: str) -> list[str]:
        return [row["object"] for row in audit(sqlite_api, query)]

    assert objects("?actor=the-operator") == ["vm3", "vm1"]
    assert objects("?object=vm2&object_kind=vm") == ["vm2"]
    assert objects("?object_kind=host") == []
    assert objects("?since=2026-03-01T12:00:02Z&until=2026-03-01T12:00:04Z") == ["vm2", "vm1"]
    sqlite_api.refused(422, "GET", "/audit?since=yesterday")


@pytest.mark.parametrize(("path", "name"), [("/tokens", "token"), ("/join-tokens", "join-token")])
def test_a_time_of_another_zone_is_the_same_everywhere(sqlite_api: Api, path: str, name: str) -> None:
    expires = {"expires_at": "2026-03-02T01:00:00+05:00"}
    made = sqlite_api.ok("POST", path, {"name": "new", **({"role": "viewer"} if name == "token" else {}), **expires})
    listed = next(one for one in sqlite_api.ok("GET", path)["items"] if one["name"] == "new")
    assert made["expires_at"] == listed["expires_at"] == "2026-03-01T20:00:00Z"
    sqlite_api.ok("DELETE", f"{path}/new")
    removed, created = audit(sqlite_api)
    assert removed["before"] == created["after"]
