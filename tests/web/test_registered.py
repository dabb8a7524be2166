"""Registering in the dashboard: lists, forms, what is refused, and what somebody else changed meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.datastructures import MultiDict

from manager.store.tokens import Role
from tests.api.conftest import HOST, report, tick
from tests.web.desk import Browser, Desk
from webui import editing_pages, rest
from webui.inventory_pages import candidates

DOMAIN_FIELDS = ("libvirt_uuid", "libvirt_name")
FORMS = (
    "/registered",
    "/registered/pick",
    "/registered/new/vms",
    "/registered/new/applications",
    "/registered/new/hosts",
    "/registered/vms/web-1",
    "/registered/vms/web-1/delete",
    "/control/vms/web-1",
    "/first",
    "/audit",
)


@pytest.fixture
def operator(desk: Desk) -> Browser:
    return desk.browser(Role.OPERATOR)


def register_shop(desk: Desk, **changes: Any) -> None:
    """Two VMs, and an application that one of them serves."""
    for name in ("web-1", "web-2"):
        desk.api.ok("PUT", f"/vms/{name}", {"class": "critical"})
    body = {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": {"response_time_ms": 10}, **changes}
    desk.api.ok("PUT", "/applications/shop", body)


@pytest.mark.parametrize("path", FORMS)
def test_a_viewer_gets_no_form_and_nobody_signs_in_first(desk: Desk, path: str) -> None:
    register_shop(desk)
    assert desk.browser(Role.VIEWER).get(path).status == 403
    stranger = desk.browser(None).get(path)
    assert stranger.status == 303
    assert stranger.response.location.startswith("/sign-in?next=%2F")


def test_a_form_without_the_sessions_token_changes_nothing(desk: Desk, operator: Browser) -> None:
    given = {"name": "web-1", "class": "critical"}
    assert operator.post("/registered/new/vms", given, csrf_token="wrong").status == 403
    assert operator.post("/registered/new/vms", given, csrf_token="").status == 403
    assert desk.api.ok("GET", "/vms")["items"] == []


def test_an_empty_system_leads_to_the_first_steps(operator: Browser) -> None:
    page = operator.get("/registered")
    assert page.status == 200
    assert page.all("a", href="/first")


def test_everything_registered_is_listed_and_can_be_searched(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    desk.api.ok("PUT", "/hosts/kvm7", {"policy": "fair"})
    page = operator.get("/registered")
    assert "p95 ≤ 10 ms" in page.text
    for link in ("/registered/vms/web-2", "/control/hosts/kvm7", "/registered/applications/shop/delete"):
        assert page.all("a", href=link)
    found = operator.get("/registered?search=WEB-2")
    assert found.all("a", href="/registered/vms/web-2")
    assert not found.all("a", href="/registered/vms/web-1")
    assert "No application has “WEB-2” in its name" in found.text


def test_what_is_registered_comes_in_parts(desk: Desk, operator: Browser) -> None:
    for number in range(101):
        desk.api.ok("PUT", f"/vms/vm{number:03}", {"class": "batch"})
    first = operator.get("/registered")
    assert first.all("a", href="/registered/vms/vm099")
    assert not first.all("a", href="/registered/vms/vm100")
    [following] = first.all("a", rel="next")
    second = operator.get(following["href"])
    assert [link.text for link in second.all("a", href="/registered/vms/vm100")] == ["Edit vm100"]
    assert not second.all("a", rel="next")


def test_a_vm_is_registered_with_what_was_filled_in(desk: Desk, operator: Browser) -> None:
    given = operator.get("/registered/new/vms").filled(
        {"name": "cache", "class": "batch", "weight": "300", "pin": "false", "host": "kvm7"}
    )
    saved = operator.post("/registered/new/vms", given)
    assert saved.status == 303
    vm = desk.api.ok("GET", "/vms/cache")
    assert (vm["class"], vm["weight"], vm["pin"], vm["host"]) == ("batch", 300, False, "kvm7")
    assert "VM cache is saved" in operator.get(saved.response.location).text


def test_a_link_cannot_claim_what_is_not_so(operator: Browser) -> None:
    assert "is saved" not in operator.get("/registered?saved=vms&name=none").text
    assert "is saved" not in operator.get("/registered?saved=vms&name=.").text
    assert "is deleted" not in operator.get("/registered?deleted=nonsense&name=none").text


def test_what_the_shape_refuses_stands_at_its_fields_and_in_a_summary_that_leads_there(
    desk: Desk, operator: Browser
) -> None:
    given = operator.get("/registered/new/vms").filled(
        {"name": "no spaces please", "weight": "<b>", "libvirt_uuid": "x"}
    )
    page = operator.post("/registered/new/vms", given)
    assert page.status == 422
    assert "is required" in page.message_at("class")
    assert '"<b>" is refused' in page.message_at("weight")
    allowed = "1 to 63 letters, digits, dots, dashes, underscores"
    assert page.message_at("name") == f'"no spaces please" is refused; allowed: {allowed}'
    assert page.message_at("host") == ""
    assert page.by_id("f-weight")["value"] == "<b>"
    assert page.by_id("f-name")["value"] == "no spaces please"
    links = [link["href"] for link in page.all("a") if link["href"].startswith("#f-")]
    assert links == ["#f-name", "#f-class", "#f-libvirt_uuid", "#f-weight"]
    assert "autofocus" in page.by_id("problems").attributes
    assert "open" in page.by_id("f-more").attributes
    assert desk.api.ok("GET", "/vms")["items"] == []


def test_what_only_the_interface_can_refuse_stands_at_its_field(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    given = operator.get("/registered/new/applications").filled(
        {"name": "other", "tiers[0].name": "web", "sla.response_time_ms": "5"}
    )
    given.setlist("tiers[0].vms", ["web-2", "web-1"])
    page = operator.post("/registered/new/applications", given)
    assert page.status >= 400
    assert "web-1" in page.by_id("problems").text
    assert page.by_id("f-sla-response_time_ms")["value"] == "5"
    assert "checked" in page.all("input", name="tiers[0].vms", value="web-2")[0].attributes
    given.setlist("tiers[0].vms", ["web-2"])
    assert operator.post("/registered/new/applications", given).status == 303
    assert desk.api.ok("GET", "/applications/other")["tiers"] == [{"name": "web", "vms": ["web-2"]}]


def test_vms_of_other_applications_cannot_be_picked(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    offered = [box["value"] for box in operator.get("/registered/new/applications").all("input", type="checkbox")]
    assert offered == ["web-2"]
    page = operator.get("/registered/applications/shop")
    assert [box["value"] for box in page.all("input", type="checkbox")] == ["web-1", "web-2"]
    assert page.fields().getlist("tiers[0].vms") == ["web-1"]


def test_rows_are_added_and_removed_by_buttons_without_saving(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    path = "/registered/applications/shop"
    given = operator.get(path).filled({"sla.response_time_ms": "7", "do": "add sources http_probe"})
    page = operator.post(path, given)
    assert page.status == 200
    assert page.by_id("f-sla-response_time_ms")["value"] == "7"
    assert "autofocus" in page.by_id("f-sources-0-name").attributes
    assert page.by_id("f-sources-0-rate_rps")["value"] == "5"
    given = page.filled({"sources[0].name": "probe", "sources[0].url": "nowhere"})
    page = operator.post(path, given)
    assert page.status == 422
    assert "http://" in page.message_at("sources[0].url")
    given = page.filled({"sources[0].url": "http://10.0.0.1/"})
    assert operator.post(path, given).status == 303
    now = desk.api.ok("GET", "/applications/shop")
    assert now["sla"]["response_time_ms"] == 7
    assert now["sources"][0]["url"] == "http://10.0.0.1/"
    given = operator.get(path).fields()
    given["do"] = "remove sources[0]"
    removed = operator.post(path, given)
    assert operator.post(path, removed.fields()).status == 303
    assert desk.api.ok("GET", "/applications/shop")["sources"] == []


def test_the_first_button_of_a_form_saves_because_enter_presses_it(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    buttons = operator.get("/registered/applications/shop").all("button", type="submit")
    outside = [button for button in buttons if "Sign out" not in button.text]
    assert "name" not in outside[0].attributes


def test_a_name_that_is_taken_is_told_and_nothing_is_replaced(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    page = operator.post("/registered/new/vms", {"name": "web-1", "class": "batch"})
    assert page.status == 412
    assert "already" in page.message_at("name")
    assert desk.api.ok("GET", "/vms/web-1")["class"] == "critical"


@pytest.mark.parametrize(
    ("entered", "kept"), [(None, " web 1 "), ("web 1", " web 1 "), ("web 2 ", "web 2"), ("", "web-1")]
)
def test_spaces_at_the_ends_of_a_libvirt_name_that_was_picked_stay(
    desk: Desk, operator: Browser, entered: str | None, kept: str
) -> None:
    desk.api.ok("PUT", "/vms/web-1", {"class": "critical", "libvirt_name": " web 1 "})
    given = operator.get("/registered/vms/web-1").fields()
    given["weight"] = "300"
    if entered is not None:
        given["libvirt_name"] = entered
    assert operator.post("/registered/vms/web-1", given).status == 303
    vm = desk.api.ok("GET", "/vms/web-1")
    assert (vm["weight"], vm["libvirt_name"]) == (300, kept)


def test_what_somebody_else_changed_meanwhile_is_shown_and_nothing_is_lost(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    given = operator.get("/registered/vms/web-1").fields()
    desk.api.ok("PUT", "/vms/web-1", {"class": "critical", "weight": 700})
    given["max_pcpus"] = "2"
    page = operator.post("/registered/vms/web-1", given)
    assert page.status == 412
    assert "This VM was changed meanwhile" in page.text
    assert [cell.text for row in page.all("tr")[1:] for cell in (row,)] == ["Weight–700", "CPU limit (pCPUs)2–"]
    assert page.by_id("f-max_pcpus")["value"] == "2"
    assert desk.api.ok("GET", "/vms/web-1")["max_pcpus"] is None
    assert operator.post("/registered/vms/web-1", page.fields()).status == 303  # now by choice
    vm = desk.api.ok("GET", "/vms/web-1")
    assert (vm["max_pcpus"], vm["weight"]) == (2, None)


def test_what_somebody_deleted_meanwhile_can_be_registered_anew(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    given = operator.get("/registered/vms/web-2").fields()
    desk.api.ok("DELETE", "/vms/web-2")
    page = operator.post("/registered/vms/web-2", given)
    assert page.status == 412
    assert "This VM was deleted meanwhile" in page.text
    assert operator.post("/registered/vms/web-2", page.fields()).status == 303
    assert desk.api.ok("GET", "/vms/web-2")["class"] == "critical"


def test_a_host_keeps_what_its_form_does_not_change(desk: Desk, operator: Browser) -> None:
    settings = {
        "mode": "observe",
        "policy": "fair",
        "pinning": False,
        "batch_idle": True,
        "law": {"gain": 1.5},
        "placement": {"batch": "fence", "reserved_cpus": "0-1"},
    }
    desk.api.ok("PUT", "/hosts/kvm7", settings)
    before = desk.api.call("GET", "/hosts/kvm7").headers["ETag"]
    given = operator.get("/registered/hosts/kvm7").fields()
    assert operator.post("/registered/hosts/kvm7", given).status == 303
    assert desk.api.call("GET", "/hosts/kvm7").headers["ETag"] == before
    given = operator.get("/registered/hosts/kvm7").fields()
    given["pinning"] = "true"
    given["law.gain"] = "9"
    page = operator.post("/registered/hosts/kvm7", given)
    assert "at most 5" in page.message_at("law.gain")
    assert "open" in page.by_id("f-law").attributes
    assert "open" not in page.by_id("f-placement").attributes
    given["law.gain"] = "3"
    assert operator.post("/registered/hosts/kvm7", given).status == 303
    host = desk.api.ok("GET", "/hosts/kvm7")
    assert (host["law"]["gain"], host["pinning"], host["placement"]["reserved_cpus"]) == (3, True, "0-1")


SWITCHES = (
    *("memory.protect", "memory.ceilings", "memory.steps"),
    *("disk.weights", "disk.ceilings", "disk.steps"),
    *("network.shares", "network.steps"),
)


def test_a_hosts_memory_disk_and_network_are_switched_in_its_form(desk: Desk, operator: Browser) -> None:
    desk.api.ok("PUT", "/hosts/kvm7", {})
    path = "/registered/hosts/kvm7"
    for switch in SWITCHES:
        given = operator.get(path).fields()
        assert switch not in given
        given[switch] = "true"
        assert operator.post(path, given).status == 303
        group, _, name = switch.partition(".")
        assert desk.api.ok("GET", "/hosts/kvm7")[group][name] is True
    given = operator.get(path).fields()
    for switch in SWITCHES:
        del given[switch]
    assert operator.post(path, given).status == 303
    host = desk.api.ok("GET", "/hosts/kvm7")
    assert [host[group][name] for group, name in (switch.split(".") for switch in SWITCHES)] == [False] * len(SWITCHES)


def test_a_hosts_power_controls_are_set_in_its_form(desk: Desk, operator: Browser) -> None:
    desk.api.ok("PUT", "/hosts/kvm7", {})
    path = "/registered/hosts/kvm7"
    for latency, governor, wanted in (("20", "true", (20, True)), ("0", None, (0, False)), ("", None, (None, False))):
        given = operator.get(path).fields()
        given["placement.resume_latency_us"] = latency
        if governor:
            given["placement.performance_governor"] = governor
        else:
            given.pop("placement.performance_governor", None)
        assert operator.post(path, given).status == 303
        placement = desk.api.ok("GET", "/hosts/kvm7")["placement"]
        assert (placement["resume_latency_us"], placement["performance_governor"]) == wanted


def test_uplinks_of_a_host_are_added_and_removed_in_its_form(desk: Desk, operator: Browser) -> None:
    desk.api.ok("PUT", "/hosts/kvm7", {})
    path, given = "/registered/hosts/kvm7", operator.get("/registered/hosts/kvm7").fields()
    for name, rate_mbit in (("eth0", ""), ("bond0", "900")):
        given["do"] = "add network.uplinks"
        page = operator.post(path, given)
        assert "open" in page.by_id("f-network").attributes
        row = "network.uplinks[1]" if rate_mbit else "network.uplinks[0]"
        given = page.filled({f"{row}.interface": name, f"{row}.rate_mbit": rate_mbit})
    assert [button["value"] for button in page.all("button", name="do")][:1] == ["remove network.uplinks[0]"]
    assert operator.post(path, given).status == 303
    uplinks = [{"interface": "eth0", "rate_mbit": None}, {"interface": "bond0", "rate_mbit": 900}]
    assert desk.api.ok("GET", "/hosts/kvm7")["network"]["uplinks"] == uplinks
    given = operator.get(path).fields()
    given["do"] = "remove network.uplinks[0]"
    assert operator.post(path, operator.post(path, given).fields()).status == 303
    assert desk.api.ok("GET", "/hosts/kvm7")["network"]["uplinks"] == uplinks[1:]


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("placement.resume_latency_us", "-1", "at least 0"),
        ("memory.most_protected", "0.95", "at most 0.9"),
        ("memory.headroom", "0.01", "at least 0.02"),
        ("disk.batch_weight", "0", "at least 1"),
        ("network.batch_floor", "a tenth", "at least 0.05 and at most 1"),
        ("network.batch_tap_mbit", "0", "at least 1"),
        ("network.uplinks[0].interface", "", "is required"),
        ("network.uplinks[0].rate_mbit", "0", "at least 1"),
    ],
)
def test_what_is_wrong_with_a_hosts_settings_stands_at_its_field(
    desk: Desk, operator: Browser, field: str, given: str, message: str
) -> None:
    desk.api.ok("PUT", "/hosts/kvm7", {"network": {"uplinks": [{"interface": "eth0"}]}})
    page = operator.post("/registered/hosts/kvm7", operator.get("/registered/hosts/kvm7").filled({field: given}))
    assert page.status == 422
    assert message in page.message_at(field)
    assert "open" in page.by_id(f"f-{field.partition('.')[0]}").attributes
    assert desk.api.ok("GET", "/hosts/kvm7")["network"]["uplinks"] == [{"interface": "eth0", "rate_mbit": None}]


@pytest.mark.parametrize(
    ("shape", "field", "given", "message"),
    [
        ("vms", "weight", {"weight": "0"}, "at least 1"),
        ("vms", "weight", {"weight": "5"}, ""),
        ("vms", "class", {"weight": "0"}, "is required"),
        ("vms", "name", {"name": "-"}, "is refused"),
        ("vms", "name", {"name": "web"}, ""),
        (
            "applications",
            "sources[0].allow",
            {"sources[0].type": "push", "sources[0].allow": "10.0.0.1/8"},
            "host bits",
        ),
        ("applications", "sla.response_time_ms", {"sla.max_rate_rps": "5"}, "is required"),
        ("hosts", "placement.reserved_cpus", {"placement.reserved_cpus": "a"}, "is refused"),
        ("hosts", "network.uplinks[0].interface", {"network.uplinks[0].interface": "a/b"}, "is refused"),
        ("tokens", "role", {"role": "king"}, "is refused"),
    ],
)
def test_a_field_is_checked_alone_while_it_is_filled_in(
    operator: Browser, shape: str, field: str, given: dict[str, str], message: str
) -> None:
    answer = operator.client.post(
        f"/forms/check/{shape}",
        query_string={"field": field},
        data=given,
        headers={"X-CSRF-Token": operator.csrf_token},
    )
    assert answer.status_code == 200
    text = answer.get_data(as_text=True)
    assert message in text if message else text == ""


def test_a_checked_field_is_answered_as_text_not_as_markup(operator: Browser) -> None:
    answer = operator.post("/forms/check/vms?field=weight", {"weight": "<img src=x>"})
    assert "&lt;img src=x&gt;" in answer.source
    assert "<img" not in answer.source
    assert operator.post("/forms/check/secrets?field=a").status == 404


def test_deleting_asks_first(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    page = operator.get("/registered/vms/web-1/delete")
    assert "serves application shop" in page.text
    refused = operator.post("/registered/vms/web-1/delete", page.fields())
    assert refused.status == 409
    assert "Nothing was deleted" in refused.text
    gone = operator.post("/registered/vms/web-2/delete", operator.get("/registered/vms/web-2/delete").fields())
    assert gone.status == 303
    assert desk.api.call("GET", "/vms/web-2").status_code == 404
    assert "VM web-2 is deleted" in operator.get(gone.response.location).text


def test_what_changed_since_the_question_is_not_deleted(desk: Desk, operator: Browser) -> None:
    register_shop(desk)
    asked = operator.get("/registered/vms/web-2/delete").fields()
    desk.api.ok("PUT", "/vms/web-2", {"class": "batch"})
    assert operator.post("/registered/vms/web-2/delete", asked).status == 412
    assert desk.api.ok("GET", "/vms/web-2")["class"] == "batch"
    asked["etag"] = "\n"
    assert operator.post("/registered/vms/web-2/delete", asked).status == 400


@pytest.mark.parametrize("path", ["/registered/vms/none", "/registered/vms/none/delete", "/registered/tokens/x"])
def test_what_is_not_there_is_not_found(operator: Browser, path: str) -> None:
    assert operator.get(path).status == 404


def domain(name: str, host: str = "kvm7", number: int = 1) -> dict[str, Any]:
    uuid = f"6f1f5b0e-0000-4b62-9d2b-{number:012d}"
    return {"libvirt_name": name, "libvirt_uuid": uuid, "host": host, "name_shared": False}


def test_domains_become_vms_of_their_names_where_that_may_be() -> None:
    [plain, spaced] = candidates([domain("web"), domain("über shop", number=2)])
    assert (plain.name, plain.body()["libvirt_name"], plain.body()["libvirt_uuid"]) == ("web", None, None)
    assert (spaced.name, spaced.body()["libvirt_name"]) == ("ber-shop", "über shop")


def test_domains_of_one_name_on_several_hosts_are_told_apart_by_uuid() -> None:
    same = [domain("web", "kvm7", 1), domain("web", "kvm8", 2)]
    found = candidates([one | {"name_shared": True} for one in same])
    assert [one.name for one in found] == ["web-kvm7", "web-kvm8"]
    assert [one.body()["libvirt_uuid"][-1] for one in found] == ["1", "2"]
    assert {one.body()["libvirt_name"] for one in found} == {None}


def test_names_that_are_taken_get_a_number() -> None:
    names = [one.name for one in candidates([domain("web shop"), domain("web-shop", number=2)])]
    assert names == ["web-shop", "web-shop-2"]


def test_running_vms_come_in_parts_and_can_be_searched(
    desk: Desk, operator: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains = [{name: domain(f"vm{one:03}", number=one)[name] for name in DOMAIN_FIELDS} for one in range(150)]
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=domains, tick=tick()), role="host")
    read: list[int] = []
    call = rest.call

    def counted(method: str, path: str, **given: Any) -> rest.ApiAnswer:
        answer = call(method, path, **given)
        read.append(len(answer.body["items"]))
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(rest, "call", counted)
        page = operator.get("/registered/pick")
    assert len(page.all("input", type="checkbox")) == 100
    assert read == [100], "no more is read than is shown"
    [following] = page.all("a", rel="next")
    second = operator.get(following["href"])
    assert len(second.all("input", type="checkbox")) == 50
    key = f"{HOST}/{domains[120]['libvirt_uuid']}"
    given = second.filled({f"pick {key}": "on", f"class {key}": "batch"})
    assert operator.post(following["href"], given).status == 303
    assert [vm["name"] for vm in desk.api.ok("GET", "/vms")["items"]] == ["vm120"]
    found = operator.get("/registered/pick?search=VM14")
    assert len(found.all("input", type="checkbox")) == 10
    assert "No unregistered VM has “vm120” in its name" in operator.get("/registered/pick?search=vm120").text


def test_one_that_started_meanwhile_moves_no_other(desk: Desk, operator: Browser) -> None:
    domains = [{name: domain(f"vm{one:03}", number=one)[name] for name in DOMAIN_FIELDS} for one in range(1, 101)]
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=domains, tick=tick()), role="host")
    key = f"{HOST}/{domains[-1]['libvirt_uuid']}"
    given = operator.get("/registered/pick").filled({f"pick {key}": "on", f"class {key}": "batch"})
    new = {name: domain("new", number=0)[name] for name in DOMAIN_FIELDS}
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[new, *domains], tick=tick()), role="host")
    assert operator.post("/registered/pick", given).status == 303
    assert [vm["name"] for vm in desk.api.ok("GET", "/vms")["items"]] == ["vm100"]


def test_a_name_that_a_vm_has_gets_the_hosts(desk: Desk, operator: Browser) -> None:
    desk.api.ok("PUT", "/vms/web", {"class": "critical", "host": "kvm9"})
    body = {name: domain("web")[name] for name in DOMAIN_FIELDS}
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(domains=[body], tick=tick()), role="host")
    [name] = [
        one["value"]
        for one in operator.get("/registered/pick").all("input")
        if one.attributes.get("name", "").startswith("name ")
    ]
    assert name == f"web-{HOST}"


def test_all_that_was_picked_stays_however_much_it_is(
    desk: Desk, operator: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing_pages, "PICKED_VMS", 2)
    for number in range(6):
        desk.api.ok("PUT", f"/vms/web-{number}", {"class": "critical"})
    picked = [f"web-{number}" for number in range(2, 6)]
    given = MultiDict([("find tiers[0].vms", "web-0"), *(("tiers[0].vms", name) for name in picked)])
    page = operator.post("/forms/pick?field=tiers%5B0%5D.vms", given)
    assert page.fields().getlist("tiers[0].vms") == picked


@pytest.mark.parametrize(("path", "most"), [("/registered", rest.LONGEST_SEARCH), ("/registered/pick?search=a", 255)])
def test_a_search_takes_no_more_than_names_have(operator: Browser, path: str, most: int) -> None:
    assert operator.get(path).by_id("search")["maxlength"] == str(most)


def test_an_operator_finds_the_audit(operator: Browser) -> None:
    assert operator.get("/registered").all("a", href="/audit")


def test_a_query_of_several_lines_is_not_changed_by_saving(desk: Desk, operator: Browser) -> None:
    query = "sum(a)\n/ sum(b)"
    source = {"name": "prom", "type": "prometheus", "url": "http://prometheus/", "query": query}
    desk.api.ok("PUT", "/applications/shop", {"sources": [source]})
    given = operator.get("/registered/applications/shop").fields()
    given["sources[0].query"] = given["sources[0].query"].replace("\n", "\r\n")  # as browsers send it
    assert operator.post("/registered/applications/shop", given).status == 303
    assert desk.api.ok("GET", "/applications/shop")["sources"][0]["query"] == query
