"""Everything that people do in forms, with good and with bad input, and that the interface then knows it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from manager.errors import ManagerUnavailable
from tests.e2e.browser import Visits, sign_in
from tests.e2e.service import Service
from tests.e2e.test_every_page import check, too_wide

REFUSED = "status of 4(09|12|22)"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An agent reports, and nothing is registered."""
    service = Service(tmp_path_factory.mktemp("fresh"), "flapping", speed=10)
    service.prepare(registered=False)
    service.add_users()
    service.start("agent")
    yield service
    service.close()


def problems(page: Page) -> Locator:
    """The summary of what is wrong with a form."""
    return page.get_by_role("alert")


def save(page: Page, name: str = "Save") -> None:
    page.get_by_role("main").get_by_role("button", name=name, exact=True).last.click()


def done(page: Page) -> Locator:
    """The message that tells what was done; the connection's state is outside of it."""
    return page.get_by_role("main").get_by_role("status")


def test_a_vm_and_an_application_are_registered_and_deleted(visits: Visits, own: Service) -> None:
    page = visits.page(own, "operator")
    page.goto("/registered")
    page.get_by_role("link", name="Register by name").click()
    page.get_by_label("Name", exact=False).first.fill("cart-web")
    page.get_by_label("Class").select_option("critical")
    save(page)
    expect(done(page)).to_contain_text("cart-web")
    assert own.ask("GET", "/vms/cart-web")["class"] == "critical"

    page.get_by_role("link", name="Register an application").click()
    page.get_by_label("Name", exact=False).first.fill("cart")
    page.get_by_label("Response time (ms)").fill("250")
    page.get_by_role("group", name="Tier 1").get_by_label("Name").fill("web")
    page.get_by_role("group", name="Tier 1").get_by_label("cart-web").check()
    page.get_by_role("button", name="Add memcached probe").click()
    source = page.get_by_role("group", name="memcached probe")
    source.get_by_label("Name").fill("probe")
    source.get_by_label("Address").fill("192.0.2.7")
    expect(page.get_by_label("Response time (ms)")).to_have_value("250")  # adding rows lost nothing
    save(page)
    expect(done(page)).to_contain_text("cart")
    made = own.ask("GET", "/applications/cart")
    assert (made["tiers"], made["sla"]["response_time_ms"]) == ([{"name": "web", "vms": ["cart-web"]}], 250)
    assert [(one["type"], one["address"], one["port"]) for one in made["sources"]] == [
        ("memcached_probe", "192.0.2.7", 11211)
    ]

    for kind, name in (("application", "cart"), ("VM", "cart-web")):
        page.get_by_role("link", name=f"Delete {name}", exact=True).click()
        page.get_by_role("button", name=f"Delete {name}").last.click()
        expect(done(page)).to_contain_text(f"{kind} {name}")
        with pytest.raises(ManagerUnavailable, match="there is no"):
            own.ask("GET", f"/{'vms' if kind == 'VM' else 'applications'}/{name}")


def test_a_field_is_judged_when_it_is_left(visits: Visits, own: Service) -> None:
    page = visits.page(own, "operator")
    page.goto("/registered/new/applications")
    field = page.get_by_label("Response time (ms)")
    field.fill("-5")
    field.blur()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(re.compile("greater than|more than"))
    field.fill("120")
    field.blur()
    expect(field).not_to_have_attribute("aria-invalid", "true")
    name = page.get_by_label("Name", exact=False).first
    name.fill("two words")
    name.blur()
    expect(name).to_have_attribute("aria-invalid", "true")


def test_bad_input_is_told_at_its_fields_and_kept(visits: Visits, own: Service) -> None:
    visits.tolerated.append(REFUSED)
    page = visits.page(own, "operator")
    page.goto("/registered/new/applications")
    page.get_by_label("Name", exact=False).first.fill("cart")
    page.get_by_label("Response time (ms)").fill("soon")
    save(page)
    expect(problems(page)).to_be_focused()
    expect(page.get_by_label("Response time (ms)")).to_have_value("soon")
    expect(page.get_by_label("Response time (ms)")).to_have_attribute("aria-invalid", "true")
    problems(page).get_by_role("link", name="Response time (ms)").click()
    expect(page.get_by_label("Response time (ms)")).to_be_focused()
    # What only the interface can know is told in the same way.
    page.get_by_label("Response time (ms)").fill("100")
    page.get_by_label("Name", exact=False).first.fill("tick")
    page.get_by_role("button", name="Remove Tier 1").click()
    save(page)
    expect(problems(page)).to_contain_text("tick")
    assert own.ask("GET", "/applications/tick")["sla"]["response_time_ms"] == 150


def test_a_change_by_somebody_else_meanwhile_is_shown(visits: Visits, own: Service) -> None:
    visits.tolerated.append(REFUSED)
    page = visits.page(own, "operator")
    page.goto("/registered/applications/tock")
    page.get_by_label("Response time (ms)").fill("160")
    own.ask("PATCH", "/applications/tock", {"sla": {"response_time_ms": 175}})
    save(page)
    expect(problems(page)).to_contain_text("meanwhile")
    theirs = page.get_by_role("table", name=re.compile("Differences"))
    expect(theirs).to_contain_text("160")
    expect(theirs).to_contain_text("175")
    save(page)
    expect(done(page)).to_contain_text("tock")
    assert own.ask("GET", "/applications/tock")["sla"]["response_time_ms"] == 160


def test_a_host_is_released_after_its_plan_was_shown(visits: Visits, own: Service) -> None:
    page = visits.page(own, "operator")
    page.goto(f"/control/hosts/{own.host}")
    page.get_by_label("Mode").select_option("released")
    page.get_by_role("button", name="Preview").click()
    plan = page.get_by_role("table", name=re.compile("would change"))
    expect(plan.get_by_role("row").filter(has_text="tick-web")).to_contain_text("weight")
    assert own.ask("GET", f"/hosts/{own.host}")["mode"] == "enforce"
    save(page, "Release")
    expect(done(page)).to_contain_text("Saved")
    assert own.ask("GET", f"/hosts/{own.host}")["mode"] == "released"
    own.until(lambda client: client.get(f"/hosts/{own.host}")["tick"]["owned_knobs"] == 0)
    page.reload()
    page.get_by_label("Mode").select_option("enforce")
    page.get_by_label("Policy").select_option("priority")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("main")).to_contain_text("estimated", ignore_case=True)
    expect(plan.get_by_role("row").filter(has_text="tick-web")).to_contain_text("10000")
    save(page, "Confirm")
    expect(done(page)).to_contain_text("Saved")
    host = own.ask("GET", f"/hosts/{own.host}")
    assert (host["mode"], host["policy"]) == ("enforce", "priority")


def test_a_vm_is_observed_and_enforced(visits: Visits, own: Service) -> None:
    page = visits.page(own, "operator")
    for mode, button in (("observe", "Confirm"), ("enforce", "Confirm"), ("released", "Release")):
        page.goto("/control/vms/batch-1")
        page.get_by_label("Mode").select_option(mode)
        page.get_by_role("button", name="Preview").click()
        save(page, button)
        expect(done(page)).to_contain_text("Saved")
        assert own.ask("GET", "/vms/batch-1")["mode"] == mode
    own.ask("PATCH", "/vms/batch-1", {"mode": None})


def test_a_users_life(visits: Visits, own: Service) -> None:
    visits.tolerated += [REFUSED, "status of 40[13]"]
    admin = visits.page(own, "admin")
    admin.goto("/people")
    admin.get_by_role("link", name="Create a user").click()
    admin.get_by_label("Name").fill("grace")
    admin.get_by_role("combobox", name="Role").select_option("operator")
    admin.get_by_label("Password").fill("short")
    save(admin, "Create the user")
    expect(problems(admin)).to_contain_text("10")
    admin.get_by_label("Password").fill("long enough for all")
    save(admin, "Create the user")
    expect(done(admin)).to_contain_text("created")

    grace = visits.page(own, None)
    grace.goto("/account")
    sign_in(grace, "grace", "long enough for all")
    grace.get_by_label(re.compile("^(New p|P)assword")).fill("even longer than that")
    grace.get_by_label("Current password").fill("not the present one")
    save(grace, "Change the password")
    expect(problems(grace)).to_be_visible()
    grace.get_by_label(re.compile("^(New p|P)assword")).fill("even longer than that")
    grace.get_by_label("Current password").fill("long enough for all")
    save(grace, "Change the password")
    expect(done(grace)).to_contain_text("changed")
    expect(grace.get_by_role("link", name="Inventory", exact=True)).to_be_visible()

    admin.goto("/people/users/grace")
    admin.get_by_role("combobox", name="Role").select_option("viewer")
    save(admin, "Change the role")
    expect(done(admin)).to_contain_text("Role")
    grace.goto("/hosts")
    expect(grace).to_have_url(re.compile("/sign-in"))  # another role ends the sessions
    sign_in(grace, "grace", "even longer than that")
    expect(grace.get_by_role("link", name="Hosts", exact=True)).to_be_visible()
    expect(grace.get_by_role("link", name="Inventory", exact=True)).to_have_count(0)

    admin.goto("/people/users/grace")
    admin.get_by_text("Remove user grace").click()
    admin.get_by_role("button", name="Yes, remove grace").click()
    expect(done(admin)).to_contain_text("User removed")
    expect(grace).to_have_url(re.compile("/sign-in"))  # by itself: the page follows what happens

    admin.get_by_role("link", name="Audit").last.click()
    admin.get_by_label("Name of the object").fill("grace")
    admin.get_by_role("button", name="Filter").click()
    for action in ("user.create", "user.password", "user.put", "user.delete"):
        row = admin.get_by_role("row").filter(has_text=action).first
        expect(row).to_contain_text("ada" if action != "user.password" else "grace")
    expect(admin.get_by_role("main")).not_to_contain_text("long enough for all")


def test_a_tokens_secret_is_shown_once_and_works_until_it_is_revoked(visits: Visits, own: Service) -> None:
    visits.tolerated.append(REFUSED)
    page = visits.page(own, "admin")
    page.goto("/people/new-token")
    page.get_by_label("Name").fill("agent-of-kvm9")
    page.get_by_role("combobox", name="Role").select_option("host")
    save(page, "Create the token")
    expect(problems(page)).to_contain_text(re.compile("host", re.I))
    page.get_by_label(re.compile("^Host")).fill("kvm9")
    save(page, "Create the token")
    secret = page.get_by_label("Secret").input_value()
    path = "/hosts/kvm9/assignment"
    with pytest.raises(ManagerUnavailable, match="there is no host"):  # known, and let in
        own.ask("GET", path, token=secret)
    page.get_by_role("link", name="Done").click()
    expect(page.get_by_role("main")).not_to_contain_text(secret)
    page.get_by_role("link", name="Revoke agent-of-kvm9").click()
    page.get_by_role("button", name="Revoke agent-of-kvm9").click()
    expect(done(page)).to_contain_text("Token revoked")
    with pytest.raises(ManagerUnavailable, match="unknown, revoked or expired"):
        own.ask("GET", path, token=secret)


def test_first_steps_lead_from_an_agent_to_an_sla(visits: Visits, fresh: Service) -> None:
    visits.tolerated.append(REFUSED)
    page = visits.page(fresh, "operator")
    fresh.until(lambda client: client.items("/domains", registered="false"))
    page.goto("/")
    page.get_by_role("link", name="Register the first application").click()
    page.get_by_role("link", name="Register running VMs").click()
    save(page, "Register selected VMs")
    expect(problems(page)).to_contain_text("Select at least one VM")
    for name, vm_class in (("tick-web", "critical"), ("batch-1", "batch")):
        page.get_by_label(f"Pick {name} on").check()
        page.get_by_label(f"Class of {name} on").select_option(vm_class)
    save(page, "Register selected VMs")
    expect(page.get_by_role("heading", name="An application has an SLA")).to_be_visible()
    page.get_by_label("Name", exact=False).first.fill("tick")
    save(page, "Save the application")
    expect(problems(page)).to_contain_text("Response time")
    page.get_by_label("Response time (ms)").fill("150")
    save(page, "Save the application")
    expect(page.get_by_role("heading", name=re.compile("Response times arrive|Observe or enforce"))).to_be_visible()
    page.goto("/first?step=mode")
    page.get_by_role("link", name="Preview and enforce").click()
    save(page, "Confirm")
    expect(done(page)).to_contain_text("Saved")
    page.goto("/")
    expect(page.get_by_role("row").filter(has_text="tick")).to_contain_text(re.compile("met|at risk|violated"))
    assert {vm["name"]: vm["class"] for vm in fresh.ask("GET", "/vms")["items"]} == {
        "tick-web": "critical",
        "batch-1": "batch",
    }


@pytest.fixture
def unwatched(tmp_path: Path) -> Iterator[Service]:
    """An agent reports, and nothing is registered."""
    service = Service(tmp_path, "flapping", speed=10)
    service.prepare(registered=False)
    service.add_users()
    service.start("agent")
    yield service
    service.close()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_service_is_watched_within_a_minute_without_configuration(
    unwatched: Service, visits: Visits, scripts: bool
) -> None:
    """From an agent that reports to an SLA that is evaluated, by what was seen of the VMs alone."""
    page = visits.page(unwatched, "operator", java_script=scripts)
    unwatched.until(lambda client: client.items("/domains", registered="false"))
    begun_s = time.monotonic()
    page.goto("/")
    page.get_by_role("link", name="Register the first application").click()
    page.get_by_role("link", name="Register running VMs").click()
    for name, vm_class in (("tick-web", "critical"), ("batch-1", "batch")):
        page.get_by_label(f"Pick {name} on").check()
        page.get_by_label(f"Class of {name} on").select_option(vm_class)
    save(page, "Register selected VMs")
    watch = page.get_by_role("link", name="Watch tick-web, port 80")
    if scripts:
        expect(watch).to_be_visible(timeout=30_000)  # the page is live
    else:
        unwatched.until(lambda client: client.items(f"/hosts/{unwatched.host}/services"))
        page.reload()
    assert page.get_by_role("link", name=re.compile("Watch")).count() == 1, "tock-web is not registered"
    if scripts:
        check(page)
    watch.click()
    expect(page.get_by_text("Suggested target")).to_be_visible()
    expect(page.get_by_text("Its response times are simulated")).to_be_visible()
    expect(page.get_by_label("Port")).to_have_value("80")
    if scripts:
        check(page)
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert too_wide(page) == []
    save(page, "Save the application")
    expect(page.get_by_role("heading", name="Observe or enforce")).to_be_visible()
    made = unwatched.ask("GET", "/applications/tick")
    assert [(one["type"], one["port"]) for one in made["sources"]] == [("tap", 80)]
    assert (made["tiers"], made["mode"]) == ([{"name": "web", "vms": ["tick-web"]}], "observe")
    unwatched.until(lambda client: client.get("/applications/tick")["sla_state"] != "no_data")
    assert time.monotonic() - begun_s < 60
    page.goto(f"/hosts/{unwatched.host}")
    services = page.get_by_role("table", name=re.compile("Ports of VMs"))
    expect(services.get_by_role("row").filter(has_text="tick-web")).to_contain_text("http")
    expect(page.get_by_role("region", name=re.compile("Services"))).to_contain_text("simulated")


def test_a_button_stays_where_it_is_pressed(visits: Visits, own: Service) -> None:
    """Though the field that was left by that is right now, and its message goes."""
    visits.tolerated += [REFUSED]
    admin = visits.page(own, "admin")
    admin.goto("/people")
    admin.get_by_role("link", name="Create a user").click()
    admin.get_by_label("Name").fill("linus")
    admin.get_by_role("combobox", name="Role").select_option("viewer")
    admin.get_by_label("Password").fill("short")
    save(admin, "Create the user")
    message = admin.locator("#e-f-password")
    expect(message).to_contain_text("10")
    admin.get_by_label("Password").fill("long enough for all")
    admin.get_by_role("button", name="Create the user").hover()
    with admin.expect_response(lambda answer: "field=password" in answer.url):
        admin.mouse.down()
    admin.wait_for_timeout(200)
    expect(message).to_contain_text("10")
    admin.mouse.up()
    expect(done(admin)).to_contain_text("created")


def test_a_button_that_copies_says_so_and_then_is_as_before(visits: Visits, empty: Service) -> None:
    page = visits.page(empty, "admin")
    page.goto("/first")
    button = page.locator("[data-copy]").first
    before = button.inner_html()
    for _ in range(2):  # the second press comes while it says so
        button.click()
        expect(button).to_have_text(re.compile("^(Copied|Marked)"))
    page.wait_for_timeout(3500)
    assert button.inner_html() == before
