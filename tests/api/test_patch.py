"""Changes to single fields of what is registered."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from manager.store.models import HostRow
from tests.api.conftest import HOST, LAW, Api

SHOP = {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": {"response_time_ms": 9, "max_rate_rps": 100}}


def test_what_is_left_out_stays(api: Api) -> None:
    body = {"policy": "equal", "law": {"gain": 1.5}, "placement": {"reserved_cpus": "0-1"}, "batch_idle": True}
    before = api.ok("PUT", f"/hosts/{HOST}", body)
    api.clock.now_s += 1
    after = api.ok("PATCH", f"/hosts/{HOST}", {"mode": "observe"})
    later = {"mode": "observe", "updated_at": "2026-03-01T12:00:01Z"}
    assert after == before | later
    assert api.ok("GET", f"/hosts/{HOST}") == after


def test_objects_are_merged_and_null_is_the_default(api: Api) -> None:
    api.ok("PUT", f"/hosts/{HOST}", {"law": {"gain": 1.5, "dead_band": 0.5}, "policy": "equal"})
    assert api.ok("PATCH", f"/hosts/{HOST}", {"law": {"dead_band": None, "smoothing": 1}})["law"] == LAW | {
        "gain": 1.5,
        "smoothing": 1,
    }
    found = api.ok("PATCH", f"/hosts/{HOST}", {"law": None, "policy": None})
    assert (found["law"], found["policy"]) == (LAW, "priority")


def test_a_patch_that_changes_nothing_leaves_no_trace(api: Api) -> None:
    api.ok("PUT", "/vms/web-1", {"class": "critical", "mode": "observe"})
    before = api.call("GET", "/vms/web-1")
    api.clock.now_s += 1
    after = api.call("PATCH", "/vms/web-1", {"mode": "observe"})
    assert (after.get_json(), after.headers["ETag"]) == (before.get_json(), before.headers["ETag"])


def test_a_vm_is_patched(api: Api) -> None:
    api.ok("PUT", "/vms/web-1", {"class": "critical", "weight": 7, "cpus": "0-3", "max_pcpus": 1.5})
    found = api.ok("PATCH", "/vms/web-1", {"class": "batch", "weight": None})
    assert [found[name] for name in ("class", "weight", "cpus", "max_pcpus")] == ["batch", None, "0-3", 1.5]
    assert api.refused(422, "PATCH", "/vms/web-1", {"class": None})["field"] == "class"
    api.ok("PUT", "/vms/other", {"class": "batch"})
    api.refused(409, "PATCH", "/vms/web-1", {"libvirt_name": "other"})


def test_an_application_is_patched(api: Api) -> None:
    api.ok("PUT", "/vms/web-1", {"class": "critical"})
    api.ok("PUT", "/applications/shop", SHOP)
    found = api.ok("PATCH", "/applications/shop", {"mode": "observe", "sla": {"max_rate_rps": None}})
    assert (found["mode"], found["tiers"]) == ("observe", SHOP["tiers"])
    assert found["sla"] == {"response_time_ms": 9, "percentile": 95, "max_rate_rps": None}
    source = {"type": "prometheus", "name": "p", "url": "http://p", "query": "q", "percentile": 99}
    assert api.refused(422, "PATCH", "/applications/shop", {"sources": [source]})["field"] == "sources[0].percentile"
    unknown = {"tiers": [{"name": "web", "vms": ["ghost"]}]}
    assert api.refused(422, "PATCH", "/applications/shop", unknown)["field"] == "tiers[0].vms[0]"
    assert api.ok("GET", "/applications/shop") == found


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"mode": "off"}, "mode"),
        ({"law": {"gain": 0}}, "law.gain"),
        ({"law": 1}, "law"),
        ({"colour": "red"}, "colour"),
        ({"policy": "none"}, "policy"),
        ({"pinning": 1}, "pinning"),
        ([], "body"),
        (7, "body"),
    ],
)
def test_a_bad_patch_is_refused_by_field_and_changes_nothing(sqlite_api: Api, patch: Any, field: str) -> None:
    before = sqlite_api.ok("PUT", f"/hosts/{HOST}", {"policy": "equal"})
    response = sqlite_api.app.test_client().patch(
        f"/api/v1/hosts/{HOST}", json=patch, headers={"Authorization": f"Bearer {sqlite_api.secrets['operator']}"}
    )
    assert (response.status_code, response.get_json()["field"]) == (422, field)
    assert sqlite_api.ok("GET", f"/hosts/{HOST}") == before


@pytest.mark.parametrize("path", [f"/hosts/{HOST}", "/vms/web-1", "/applications/shop"])
def test_only_what_was_read_is_patched(shop: Api, path: str) -> None:
    shop.ok("PUT", f"/hosts/{HOST}", {})
    etag = shop.call("GET", path).headers["ETag"]
    changed = shop.call("PATCH", path, {"mode": "observe"}, If_Match=etag)
    assert changed.status_code == 200
    shop.refused(412, "PATCH", path, {"mode": "released"}, If_Match=etag)
    shop.ok("PATCH", path, {"mode": "released"}, If_Match=changed.headers["ETag"])
    assert shop.ok("GET", path)["mode"] == "released"


@pytest.mark.parametrize("path", ["/hosts/ghost", "/vms/ghost", "/applications/ghost"])
def test_a_patch_creates_nothing(sqlite_api: Api, path: str) -> None:
    sqlite_api.refused(404, "PATCH", path, {"mode": "observe"})
    sqlite_api.refused(404, "GET", path)


def test_a_merge_patch_may_say_what_it_is(sqlite_api: Api) -> None:
    sqlite_api.ok("PUT", f"/hosts/{HOST}", {})
    given = {"Authorization": f"Bearer {sqlite_api.secrets['operator']}"}
    url, client = f"/api/v1/hosts/{HOST}", sqlite_api.app.test_client()
    for kind, status in (("application/merge-patch+json", 200), ("text/plain", 415)):
        assert client.patch(url, data="{}", content_type=kind, headers=given).status_code == status


def test_a_policy_that_is_gone_does_not_keep_its_host_from_being_released(sqlite_api: Api) -> None:
    sqlite_api.ok("PUT", f"/hosts/{HOST}", {})
    with sqlite_api.database.writing() as session:
        session.execute(update(HostRow).values(policy="gone"))
    assert sqlite_api.ok("PATCH", f"/hosts/{HOST}", {"mode": "released"})["policy"] == "gone"
    sqlite_api.refused(422, "PATCH", f"/hosts/{HOST}", {"policy": "other"})
