"""What a change of mode or policy would come to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import HOST, Api, notice_silence, report, status, tick, tick_of, window

WEIGHT = {"vm": "web-1", "knob": "weight", "index": 0, "current": "10000", "planned": "100"}
PIN = {"vm": "web-1", "knob": "vcpu_pin", "index": 0, "current": "1", "planned": "0-3"}


def preview(api: Api, query: str = "", path: str = f"/hosts/{HOST}") -> dict[str, Any]:
    found: dict[str, Any] = api.ok("GET", f"{path}/preview{query}", role="viewer")
    return found


def plain(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: one[name] for name in ("vm", "knob", "index", "current", "planned")} for one in found["changes"]]


def knob(value: str, original: str | None, **changes: Any) -> dict[str, Any]:
    owned = original is not None
    return {
        "knob": "weight",
        "index": 0,
        "value": value,
        "original": original,
        "owned": owned,
        "external": False,
    } | changes


def ran(api: Api, mode: str, *statuses: dict[str, Any], ticks: int = 20, **changes: Any) -> None:
    """The host is in a mode, and its agent has reported in it."""
    if api.call("GET", f"/hosts/{HOST}").status_code == 404:
        api.ok("PUT", f"/hosts/{HOST}", {"mode": mode})
    vms = [{"vm": one["vm"], "cpu_share": 0.2, "run_delay_share": 0, "weight": 100, "mode": mode} for one in statuses]
    history = [tick_of(-second, mode=mode, vms=vms) for second in range(1, ticks + 1)]
    api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(mode=mode, **changes), vms=list(statuses), ticks=history))


def test_release_puts_back_what_is_ours_and_not_as_it_was(shop: Api) -> None:
    kept = [knob("100", "100"), knob("5", "100", owned=False, external=True), knob("7", None)]
    ran(shop, "enforce", status("web-1"), status("db-1", knobs=kept), status("gone", knobs=[knob("9", "100")]))
    for mode in ("released", "observe"):
        found = preview(shop, f"?mode={mode}")
        assert plain(found) == [WEIGHT | {"vm": "gone", "current": "9"}, WEIGHT, PIN]
        assert (found["mode"], found["kind"], found["notes"]) == (mode, "exact", [])


def test_what_is_so_already_changes_nothing(shop: Api) -> None:
    ran(shop, "enforce", status("web-1"))
    assert preview(shop) == preview(shop, "?mode=enforce&policy=priority")
    assert preview(shop) == {
        "host": HOST,
        "mode": "enforce",
        "policy": "priority",
        "kind": "exact",
        "changes": [],
        "notes": [],
    }


def test_what_an_observing_agent_would_do_is_what_enforcing_does(shop: Api) -> None:
    wanted = {"knob": "weight", "index": 0, "current": "100", "planned": "10000", "reason": "priority: critical VM"}
    steered = {"knob": "irq_affinity", "index": 40, "current": "0-3", "planned": "0", "reason": "steered"}
    shop.ok("PUT", f"/hosts/{HOST}", {"mode": "observe", "placement": {"irqs": "reserved", "reserved_cpus": "0"}})
    seen = status("web-1", knobs=[knob("100", None)], mode="observe", observed=[wanted])
    ran(shop, "observe", seen, observed=[steered])
    found = preview(shop, "?mode=enforce")
    assert (found["kind"], found["notes"]) == ("observed", [])
    assert found["changes"] == [{**steered, "vm": None}, {**wanted, "vm": "web-1"}]
    assert preview(shop, "?mode=observe")["changes"] == []


@pytest.mark.parametrize(("before", "query"), [("released", "?mode=enforce"), ("enforce", "?policy=equal")])
def test_what_nobody_decided_yet_is_estimated(shop: Api, before: str, query: str) -> None:
    weight, then = ("100", "10000") if before == "released" else ("10000", "100")
    original = None if before == "released" else "100"
    others = [status(vm, knobs=[knob(then, "100")], mode=before) for vm in ("db-1",)]
    ran(shop, before, status("web-1", knobs=[knob(weight, original)], mode=before), *others)
    found = preview(shop, query)
    assert found["kind"] == "estimated"
    assert plain(found) == [WEIGHT | {"current": weight, "planned": then}]
    assert "20 ticks of the last 20 s" in found["notes"][0]
    assert "weights alone" in found["notes"][0]


def test_an_estimate_sees_response_times_and_says_what_it_cannot_tell(shop: Api) -> None:
    ran(shop, "released", status("web-1", knobs=[knob("100", None)], mode="released"))
    late = status("web-2", knobs=[knob("100", None)], mode="released")
    shop.ok("POST", f"/hosts/{HOST}/report", report(windows=[window(end=0)], vms=[late]))
    found = preview(shop, "?mode=enforce")
    assert plain(found) == []
    assert "no tick holds them: web-2" in found["notes"][-1]


def test_without_ticks_nothing_is_estimated(shop: Api) -> None:
    ran(shop, "released", status("web-1", mode="released"), ticks=0)
    found = preview(shop, "?mode=enforce")
    assert (found["kind"], found["changes"]) == ("estimated", [])
    assert "has no ticks of the last 5 minutes" in found["notes"][0]


def test_an_agent_that_fell_silent_is_told_of(shop: Api) -> None:
    shop.ok("PUT", f"/hosts/{HOST}", {})
    assert preview(shop)["notes"] == [f"the agent of {HOST} never reported"]
    ran(shop, "enforce", status("web-1"))
    shop.clock.now_s += 100
    assert preview(shop)["notes"] == [], "nobody has found it silent yet"
    notice_silence(shop)
    assert preview(shop)["notes"] == [f"the agent of {HOST} last reported 100 s ago"]


def test_a_vm_is_previewed_alone(shop: Api) -> None:
    ran(shop, "enforce", status("web-1"), status("db-1"))
    found = preview(shop, "?mode=released", "/vms/web-1")
    assert (found["host"], found["mode"], found["kind"]) == (HOST, "released", "exact")
    assert plain(found) == [WEIGHT, PIN]
    assert preview(shop, path="/vms/web-1")["changes"] == []
    shop.ok("PATCH", "/vms/web-1", {"mode": "released"})
    ran(shop, "enforce", status("web-1", knobs=[knob("100", None)], mode="released"))
    enforced = preview(shop, path="/vms/web-1")
    assert (enforced["mode"], enforced["kind"]) == ("enforce", "estimated")
    assert plain(enforced) == [WEIGHT | {"current": "100", "planned": "10000"}]


def test_the_most_cautious_mode_holds(shop: Api) -> None:
    shop.ok("PATCH", "/applications/shop", {"mode": "observe"})
    ran(shop, "enforce", status("web-1", knobs=[knob("100", None)], mode="observe"))
    found = preview(shop, "?mode=enforce", "/vms/web-1")
    assert (found["mode"], found["changes"]) == ("observe", [])
    assert found["notes"] == ["observe holds, of its host or application: the most cautious mode does"]


def test_an_application_is_previewed_on_all_hosts_where_its_vms_run(shop: Api) -> None:
    shop.ok("PATCH", "/applications/shop", {"mode": "observe"})
    weight = {"knob": "weight", "index": 0, "current": "100", "planned": "10000", "reason": "critical"}
    ran(shop, "enforce", status("web-1", knobs=[knob("100", None)], mode="observe", observed=[weight]))
    found = preview(shop, "?mode=enforce", "/applications/shop")
    assert (found["host"], found["mode"], found["kind"], found["notes"]) == (HOST, "enforce", "observed", [])
    assert found["changes"] == [{"vm": "web-1", **weight}]
    assert preview(shop, "?mode=observe", "/applications/shop")["changes"] == []
    elsewhere = report(vms=[status("db-1", mode="enforce")], tick=tick())
    shop.ok("POST", "/hosts/kvm2/report", elsewhere, role="other host")
    both = preview(shop, "?mode=released", "/applications/shop")
    assert (both["host"], both["kind"]) == (None, "exact")
    assert plain(both) == [WEIGHT | {"vm": "db-1"}, PIN | {"vm": "db-1"}]


def test_the_longest_notes_of_several_hosts_are_shortened(api: Api) -> None:
    """A VM that no tick holds is named in a note."""
    names = {host: [f"{host}-{'v' * 50}-{number:02}" for number in range(40)] for host in (HOST, "kvm2")}
    for host, vms in names.items():
        for vm in vms:
            api.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": host})
        statuses = [status(vm, mode="observe") for vm in vms]
        body = report(vms=statuses, tick=tick(mode="released"), ticks=[tick_of(-1, mode="released", vms=[])])
        api.ok("POST", f"/hosts/{host}/report", body)
    every = [vm for vms in names.values() for vm in vms]
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": every}], "mode": "observe"})
    api.ok("PATCH", f"/hosts/{HOST}", {"policy": "equal"})
    api.ok("PATCH", "/hosts/kvm2", {"policy": "equal"})
    notes = preview(api, "?mode=enforce", "/applications/shop")["notes"]
    unseen = [note for note in notes if "no tick holds them" in note]
    assert [note.partition(":")[0] for note in unseen] == [HOST, "kvm2"]
    assert {len(note) for note in unseen} == {2000}


PARTS = [{"domain": 0, "ways": 4, "mask": "f"}, {"domain": 1, "ways": 8, "mask": "ff0"}]
CACHE = {
    "resource": "L3",
    "ways": 12,
    "shareable": "c00",
    "groups": [
        {"name": "", "applications": [], "vms": [], "parts": PARTS, "external": False},
        {"name": "equipoise-shop", "applications": ["shop"], "vms": ["web-1"], "parts": PARTS, "external": False},
        {"name": "equipoise-bar", "applications": ["bar"], "vms": ["db-1"], "parts": PARTS, "external": True},
    ],
    "groups_of_others": 0,
    "notes": [],
}
REMOVED = {"vm": None, "knob": "cache_ways", "index": 0, "current": "equipoise-shop L3:0=f;1=ff0", "planned": ""}
LEFT = {"vm": "web-1", "knob": "cache_group", "index": 0, "current": "equipoise-shop", "planned": ""}


def test_groups_of_the_cache_that_are_ours_go_with_the_mode(shop: Api) -> None:
    ran(shop, "enforce", status("web-1", knobs=[]), status("db-1", knobs=[]), cache=CACHE)
    found = preview(shop, "?mode=released")
    assert (plain(found), found["kind"]) == ([REMOVED, LEFT], "exact")
    assert {one["reason"] for one in found["changes"]} == {"mode released"}
    assert found["notes"] == ["what the default group of the cache had before is restored, too"]
    assert plain(preview(shop, "?mode=observe", "/vms/web-1")) == [LEFT]
    assert plain(preview(shop, "?mode=observe", "/vms/db-1")) == [], "given up"
    assert plain(preview(shop, "?mode=released", "/applications/shop")) == [LEFT]
    assert preview(shop, "?mode=enforce")["changes"] == []


def test_what_an_observing_agent_would_do_about_the_cache_is_shown(shop: Api) -> None:
    written = {
        "knob": "cache_ways",
        "index": 0,
        "current": "",
        "planned": "equipoise-shop L3:0=f",
        "reason": "for shop",
    }
    moved = {"knob": "cache_group", "index": 0, "current": "", "planned": "equipoise-shop", "reason": "for shop"}
    shop.ok("PUT", f"/hosts/{HOST}", {"mode": "observe", "cache": "on"})
    seen = status("web-1", knobs=[], mode="observe", observed=[moved])
    ran(shop, "observe", seen, observed=[written], cache=CACHE | {"groups": []})
    found = preview(shop, "?mode=enforce")
    assert (found["kind"], found["notes"]) == ("observed", [])
    assert found["changes"] == [{**written, "vm": None}, {**moved, "vm": "web-1"}]
    shop.ok("PATCH", f"/hosts/{HOST}", {"cache": "off"})
    assert preview(shop, "?mode=enforce")["changes"] == []


def test_a_cache_of_which_nobody_decided_yet_is_told_of(shop: Api) -> None:
    shop.ok("PUT", f"/hosts/{HOST}", {"mode": "released", "cache": "on"})
    ran(shop, "released", status("web-1", knobs=[knob("100", None)], mode="released"))
    notes = preview(shop, "?mode=enforce")["notes"]
    assert "the cache is divided, too; mode observe shows how, and so does `equipoise plan`" in notes


def test_an_applications_mode_is_no_bolder_than_its_hosts(shop: Api) -> None:
    ran(shop, "observe", status("web-1", knobs=[knob("100", None)], mode="observe"))
    found = preview(shop, "?mode=enforce", "/applications/shop")
    assert (found["mode"], found["changes"]) == ("observe", [])
    assert found["notes"] == [f"observe holds, of host {HOST}: the most cautious mode does"]


def test_an_application_that_nobody_sees_run_has_nothing_to_change(shop: Api) -> None:
    found = preview(shop, "?mode=enforce", "/applications/shop")
    assert (found["host"], found["changes"]) == (None, [])
    assert "no agent sees" in found["notes"][0]
    shop.refused(404, "GET", "/applications/ghost/preview")


def test_a_vm_that_does_not_run_has_nothing_to_change(shop: Api) -> None:
    found = preview(shop, "?mode=released", "/vms/web-1")
    assert (found["host"], found["changes"]) == (None, [])
    assert "no agent sees web-1 run" in found["notes"][0]
    shop.refused(404, "GET", "/vms/ghost/preview")


@pytest.mark.parametrize(("query", "field"), [("?mode=off", "mode"), ("?policy=none", "policy"), ("?x=1", "x")])
def test_a_preview_of_what_cannot_be_is_refused(sqlite_api: Api, query: str, field: str) -> None:
    sqlite_api.ok("PUT", f"/hosts/{HOST}", {})
    assert sqlite_api.refused(422, "GET", f"/hosts/{HOST}/preview{query}")["field"] == field
