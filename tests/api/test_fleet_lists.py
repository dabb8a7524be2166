"""Lists of a large fleet: problems first, page by page, and no more rows read than shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.utils import floatToGoString
from sqlalchemy import insert, update

from manager.model.host_health import TickHealth
from manager.model.registration import Mode, VmClass
from manager.protocol.report import TickStatus
from manager.store.models import ApplicationRow, HostRow, VmRow
from tests.api.conftest import CAPABILITIES, START, Api, report, status, tick, window
from tests.statements import counted

HOSTS = 60
TICKS: dict[int, dict[str, Any]] = {
    7: tick(errors=0, libvirt_connected=False),
    8: tick(errors=3),
    9: tick(errors=0, duration_ms=6000.0),
}
"""Of hosts with problems, by number; host 5 is silent, and host 6 never reported."""


def ticked(last: dict[str, Any] | None) -> dict[str, object]:
    """The columns of a host with this last tick."""
    health = TickHealth() if last is None else TickStatus.model_validate(last).health
    return {"tick": last, **health._asdict()}


def fill(api: Api) -> None:
    """A fleet above ``small_fleet``: hosts of two policies, as many VMs and applications."""
    fixed = {"version": 1, "created_at": START, "updated_at": START}
    numbers = range(1, HOSTS + 1)
    hosts = [
        {
            **fixed,
            "name": f"kvm{number:02}",
            "mode": Mode.ENFORCE,
            "policy": "equal" if number % 2 else "priority",
            "pinning": False,
            "silent": number == 5,
            "last_seen_at": None if number == 6 else START,
            **ticked(None if number == 6 else TICKS.get(number, tick(errors=0, host_cpu_share=number / 100))),
        }
        for number in numbers
    ]
    applications = [{**fixed, "name": f"app-{number:02}"} for number in numbers]
    vms = [{**fixed, "name": f"vm-{number:02}", "vm_class": VmClass.BATCH} for number in numbers]
    with api.database.registering() as session:
        for table, rows in ((HostRow, hosts), (ApplicationRow, applications), (VmRow, vms)):
            session.execute(insert(table), rows)


@pytest.fixture
def fleet(api: Api) -> Api:
    fill(api)
    return api


def names(api: Api, query: str) -> list[str]:
    return [host["name"] for host in api.ok("GET", f"/fleet/hosts{query}", role="viewer")["items"]]


def test_the_largest_counts_that_an_agent_may_report_are_shown(api: Api) -> None:
    most = 2**53
    for host in ("kvm1", "kvm2"):
        api.ok("POST", f"/hosts/{host}/report", report(tick=tick(errors=most, overruns=most)), role="admin")
    assert names(api, "") == ["kvm1", "kvm2"]
    shown = api.call("GET", "//metrics", role="").get_data(as_text=True)
    assert f'equipoise_host_tick_errors{{host="kvm1"}} {floatToGoString(most)}' in shown


def test_problems_come_first_and_are_counted(fleet: Api) -> None:
    answer = fleet.ok("GET", "/fleet/hosts?limit=6", role="viewer")
    assert [(host["name"], host["health"]) for host in answer["items"]] == [
        ("kvm05", "silent"),
        ("kvm07", "no_libvirt"),
        ("kvm08", "errors"),
        ("kvm09", "slow"),
        ("kvm06", "never_reported"),
        ("kvm01", "healthy"),
    ]
    assert answer["health"] == {
        "silent": 1,
        "no_libvirt": 1,
        "errors": 1,
        "slow": 1,
        "never_reported": 1,
        "healthy": HOSTS - 5,
    }
    assert answer["matching"] == HOSTS
    first_page = fleet.ok("GET", "/fleet?hosts_limit=2")
    assert [host["name"] for host in first_page["hosts"]] == ["kvm05", "kvm07"]
    assert first_page["hosts_health"] == answer["health"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?sort=name&limit=2&offset=58", ["kvm59", "kvm60"]),
        ("?sort=load&limit=4", ["kvm07", "kvm08", "kvm09", "kvm60"]),
        ("?search=VM0&sort=name&limit=2&offset=7", ["kvm08", "kvm09"]),
        ("?health=errors", ["kvm08"]),
        ("?policy=priority&health=slow", []),
        ("?group=policy&limit=3", ["kvm05", "kvm07", "kvm09"]),
        ("?offset=60", []),
    ],
)
def test_orders_filters_groups_and_parts_of_hosts(fleet: Api, query: str, expected: list[str]) -> None:
    assert names(fleet, query)[: len(expected) or None] == expected


def test_groups_are_counted_beyond_the_page(fleet: Api) -> None:
    assert fleet.ok("GET", "/fleet/hosts?group=policy&limit=1")["groups"] == {"equal": 30, "priority": 30}


def test_groups_of_hosts_say_their_health(fleet: Api) -> None:
    health = fleet.ok("GET", "/fleet/hosts?group=policy&limit=1")["groups_health"]
    assert list(health["equal"].items()) == [("silent", 1), ("no_libvirt", 1), ("slow", 1), ("healthy", 27)]
    assert fleet.ok("GET", "/fleet/hosts?limit=1")["groups_health"] == {}


def placed(api: Api) -> None:
    """Of the applications that ``fill`` made, the first ten run on two hosts each, of both policies; 1 violates."""
    sla = {"response_time_ms": 4}
    for number in range(1, 11):
        vms = [f"vm-{number:02}", f"vm-{number + 10:02}"]
        body: dict[str, Any] = {"tiers": [{"name": "web", "vms": vms}], "sla": sla if number == 7 else None}
        api.ok("PATCH", f"/applications/app-{number:02}", body | ({"mode": "observe"} if number < 4 else {}))
    for host, numbers in (("kvm01", range(1, 11)), ("kvm02", range(11, 21))):
        vms = [status(f"vm-{number:02}") for number in numbers]
        windows = [window("app-07", count=40)] if host == "kvm01" else []
        api.ok("POST", f"/hosts/{host}/report", report(vms=vms, windows=windows, tick=tick(errors=0)), role="admin")


@pytest.mark.parametrize(
    ("query", "values", "applications"),
    [
        ("group=state", ["violated", "no_data"], HOSTS),
        ("group=host", ["kvm01", "kvm02", ""], HOSTS),
        ("group=policy", ["equal", "priority", ""], HOSTS),
        ("group=mode", ["", "observe"], HOSTS),
        ("group=host&host=kvm01&search=app-0", ["kvm01", "kvm02"], 9),
        ("group=host&state=violated", ["kvm01", "kvm02"], 1),
        ("group=host&limit=1&offset=1", ["kvm02"], HOSTS),
    ],
)
def test_applications_are_grouped_the_worst_first(fleet: Api, query: str, values: list[str], applications: int) -> None:
    placed(fleet)
    answer = fleet.ok("GET", f"/fleet/groups?{query}", role="viewer")
    assert [group["value"] for group in answer["items"]] == values
    assert answer["applications"] == applications
    assert answer["matching"] == (3 if "limit" in query else len(values))


def test_a_group_has_the_applications_that_it_counts(fleet: Api) -> None:
    placed(fleet)
    for group in fleet.ok("GET", "/fleet/groups?group=host")["items"]:
        members = fleet.ok("GET", f"/fleet?group=host&in_group={group['value']}&limit=1")
        assert members["matching"] == sum(group["states"].values()), group
    assert fleet.ok("GET", "/fleet?group=mode&in_group=observe&sort=name")["applications"][0]["name"] == "app-01"
    violated = fleet.ok("GET", "/fleet/groups?group=policy")["items"][0]
    assert (violated["worst"], violated["states"]["violated"], violated["states"]["no_data"]) == ("violated", 1, 9)
    assert api_field(fleet, "/fleet/groups") == "group"


def api_field(api: Api, path: str) -> str:
    """The field that is refused."""
    field: str = api.refused(422, "GET", path)["errors"][0]["field"]
    return field


@pytest.mark.parametrize("query", ["health=well", "sort=best", "group=rack", "limit=0", "offset=-1"])
def test_a_bad_parameter_is_named(api: Api, query: str) -> None:
    field = query.partition("=")[0]
    assert api.refused(422, "GET", f"/fleet/hosts?{query}")["errors"][0]["field"] == field


@pytest.mark.parametrize("path", ["/hosts", "/applications", "/vms"])
def test_lists_by_name_can_be_searched_and_paged(fleet: Api, path: str) -> None:
    first = fleet.ok("GET", f"{path}?search=1&limit=4")
    assert [item["name"][-2:] for item in first["items"]] == ["01", "10", "11", "12"]
    second = fleet.ok("GET", f"{path}?search=1&limit=4&cursor={first['next']}")
    assert [item["name"][-2:] for item in second["items"]] == ["13", "14", "15", "16"]
    assert fleet.ok("GET", f"{path}?search=%25")["items"] == [], "no wildcards"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/applications?host=kvm02", [f"app-{number:02}" for number in range(1, 11)]),
        ("/applications?host=kvm02&search=0&limit=2", ["app-01", "app-02"]),
        ("/applications?sla=true", ["app-07"]),
        ("/applications?sla=false&limit=2", ["app-01", "app-02"]),
        ("/vms?serving=true&limit=1", ["vm-01"]),
        ("/vms?serving=false&limit=2", ["vm-21", "vm-22"]),
        ("/vms?host=kvm02&serving=true&search=2", ["vm-12", "vm-20"]),
        ("/hosts?reporting=true&limit=2", ["kvm01", "kvm02"]),
        ("/hosts?reporting=false", ["kvm05", "kvm06"]),
    ],
)
def test_lists_by_name_are_filtered(fleet: Api, path: str, expected: list[str]) -> None:
    placed(fleet)
    assert [item["name"] for item in fleet.ok("GET", path, role="viewer")["items"]] == expected


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/fleet/hosts?limit=5&offset=20", 5),
        ("/fleet/hosts?limit=5&search=kvm1&group=mode&sort=load", 5),
        ("/fleet?limit=5&hosts_limit=3&sort=name", 8),
        ("/fleet/groups?group=host&limit=5", 0),
        ("/fleet?group=host&in_group=kvm01&limit=5&hosts_limit=0", 10),
        ("/hosts?limit=5&search=kvm", 6),
        ("/applications?limit=5&search=app", 12),
        ("/vms?limit=5&search=vm", 6),
    ],
)
def test_a_part_reads_what_it_shows(get_api: Callable[[str], Api], path: str, most: int) -> None:
    """Once the overview and parts are kept. Besides: the token, the revision, and how many hosts there are; of an
    application also its newest slot."""
    api = get_api("postgresql")
    fill(api)
    api.ok("GET", "/fleet/groups?group=host", role="viewer")
    api.ok("GET", path, role="viewer")
    with counted(api.database) as count:
        api.ok("GET", path, role="viewer")
    assert 0 < count.rows <= most + 3


def test_what_is_registered_shows_at_once_in_a_large_fleet(fleet: Api) -> None:
    assert names(fleet, "?search=new") == []
    fleet.ok("PUT", "/hosts/new", {})
    assert names(fleet, "?search=new") == ["new"]


def test_an_sla_that_changes_shows_at_once_in_a_large_fleet(fleet: Api) -> None:
    def shown() -> list[object]:
        found = fleet.ok("GET", "/fleet?search=app-07", role="viewer")["applications"]
        return [application["sla"] and application["sla"]["response_time_ms"] for application in found]

    before = shown()
    fleet.ok("PATCH", "/applications/app-07", {"sla": {"response_time_ms": 77}})
    assert (before, shown()) == ([None], [77])
    fleet.ok("DELETE", "/applications/app-07")
    assert shown() == []


def test_capabilities_that_hosts_share_are_read_once(get_api: Callable[[str], Api]) -> None:
    api = get_api("postgresql")
    fill(api)
    with api.database.writing() as session:
        session.execute(update(HostRow).values(capabilities={**CAPABILITIES, "kernel": "read once"}))
    api.ok("GET", "/vms", role="viewer")  # the token is known from now on
    answers, statements = [], []
    for _ in range(2):
        with counted(api.database) as count:
            answers.append(api.ok("GET", "/hosts", role="viewer"))
        statements.append(count.statements)
    assert statements[1] == statements[0] - 1
    assert answers[0] == answers[1]
    assert {host["capabilities"]["kernel"] for host in answers[0]["items"]} == {"read once"}
