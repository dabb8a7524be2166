"""VMs in lists, whose parts are kept between answers: each is as it is alone, whatever changed."""

from __future__ import annotations

from typing import Any

import pytest

from manager.api.kept_texts import KeptTexts
from tests.api.conftest import Api, report, status, tick
from tests.api.test_jobs import FARES

HOST = "kvm1"
POWER = {"package_watts": 180.0}
RESOURCES = {"vms": [{"vm": "web", "resident_bytes": 5, "disks": [], "interfaces": []}]}


def listed(api: Api, path: str = "/vms") -> list[dict[str, Any]]:
    """The list, after each of its VMs was compared with that VM alone, whose parts are not kept."""
    vms: list[dict[str, Any]] = api.ok("GET", path)["items"]
    for vm in vms:
        alone = api.ok("GET", f"/vms/{vm['name']}")
        assert vm == alone
        assert list(vm) == list(alone)
    return vms


def told(api: Api, *vms: dict[str, Any], **changes: Any) -> None:
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=list(vms), tick=tick(**changes)))


@pytest.fixture
def vms(api: Api) -> Api:
    """A critical VM and a batch VM that run, and one that does not; listed once."""
    for name, vm_class in (("render", "batch"), ("spare", "batch"), ("web", "critical")):
        api.ok("PUT", f"/vms/{name}", {"class": vm_class})
    told(
        api,
        status("web", cpu_share=0.25),
        status("render", cpu_share=0.5),
        batch_vms=[FARES],
        power=POWER,
        resources=RESOURCES,
    )
    render, spare, web = listed(api)
    assert (render["status"]["cpu_share"], render["batch"], spare["status"]) == (0.5, FARES, None)
    assert web["resources"]["resident_bytes"] == 5
    return api


def test_what_is_registered_anew(vms: Api) -> None:
    vms.ok("PATCH", "/vms/web", {"weight": 300})
    vms.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web"]}]})
    _, _, web = listed(vms)
    assert (web["weight"], web["application"]) == (300, "shop")
    vms.ok("DELETE", "/applications/shop")
    vms.ok("DELETE", "/vms/spare")
    render, web = listed(vms)
    assert (render["name"], web["application"]) == ("render", None)
    vms.ok("DELETE", "/vms/render")
    vms.ok("PUT", "/vms/render", {"class": "critical"})
    assert listed(vms)[0]["class"] == "critical"


def test_what_is_reported_anew(vms: Api) -> None:
    vms.clock.now_s += 5
    told(vms, status("web", cpu_share=0.75), status("render", cpu_share=0.125))
    render, _, web = listed(vms)
    assert (render["status"]["cpu_share"], render["batch"], web["resources"], web["power_watts"]) == (
        0.125,
        None,
        None,
        None,
    )
    told(vms, status("web", vcpus=7), status("render"))
    assert listed(vms)[2]["status"]["vcpus"] == 7
    told(vms, status("web"))
    render, _, web = listed(vms)
    assert (render["status"], render["status_host"], web["status_host"]) == (None, None, HOST)


def test_what_is_back_as_it_was(vms: Api) -> None:
    first = listed(vms)[2]["status"]
    told(vms, status("web", vcpus=7))
    told(vms, status("web", cpu_share=0.25))
    assert listed(vms)[2]["status"] == first


def test_pages_and_parts_of_the_list(vms: Api) -> None:
    page = vms.ok("GET", "/vms?limit=2")
    assert [vm["name"] for vm in page["items"]] == ["render", "spare"]
    assert [vm["name"] for vm in listed(vms, f"/vms?limit=2&cursor={page['next']}")] == ["web"]
    assert [vm["name"] for vm in listed(vms, f"/vms?host={HOST}")] == ["render", "web"]
    assert listed(vms, "/vms?search=nothing") == []


def test_texts_are_read_once_and_the_kept_ones_are_bounded() -> None:
    reads: list[list[int]] = []

    def read(numbers: Any) -> dict[int, bytes]:
        reads.append(sorted(numbers))
        return {number: b"%d" % number for number in numbers}

    texts: KeptTexts[int] = KeptTexts(3)
    assert texts.of([1, 2], read) == {1: b"1", 2: b"2"}
    assert texts.of([2, 3, 3], read)[3] == b"3"
    assert set(texts.of([3, 4], read)) >= {3, 4}
    assert texts.of([3, 4], read) == {3: b"3", 4: b"4"}, "more than three: the others are forgotten"
    texts.of([1, 2, 3, 4, 5], read)
    assert reads == [[1, 2], [3], [4], [1, 2, 5]]
