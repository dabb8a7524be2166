"""Signing in and out, and one's own account."""

from __future__ import annotations

from datetime import datetime

import pytest

from manager.api.auth import COOKIE
from manager.store.sign_in_throttle import FAILURES, FIRST_WAIT
from manager.store.tokens import Role
from tests.web.desk import Browser, Desk
from webui.sign_in_pages import local_path

pytestmark = pytest.mark.usefixtures("quick_passwords")

PASSWORD = "correct horse battery"


@pytest.fixture
def ada(desk: Desk) -> Browser:
    """A browser of user ``ada``, an operator, who is not signed in."""
    desk.api.ok("POST", "/users", {"name": "ada", "role": "operator", "password": PASSWORD})
    return desk.browser(None)


def sign_in(browser: Browser, password: str = PASSWORD, name: str = "ada", **fields: str) -> str:
    """Send the form; answers where it leads."""
    page = browser.post("/sign-in", {"name": name, "password": password, **fields})
    assert page.status == 303
    location = page.response.location
    account = browser.get("/account")
    assert account.status == 200
    [meta] = account.all("meta", name="csrf-token")
    browser.csrf_token = meta["content"]
    return location


def test_a_user_signs_in_and_out(ada: Browser) -> None:
    assert "Sign in" in ada.get("/sign-in").text
    assert sign_in(ada) == "/"
    cookie = ada.client.get_cookie(COOKIE)
    assert cookie is not None
    assert cookie.http_only
    assert cookie.same_site == "Lax"
    assert ada.get("/sign-in").status == 303, "who is signed in needs no form"
    assert ada.post("/sign-out", csrf_token="wrong").status == 403
    assert ada.post("/sign-out").response.location == "/sign-in"
    assert ada.client.get_cookie(COOKIE) is None
    ada.client.set_cookie(COOKIE, cookie.value)
    assert ada.get("/account").status == 303, "the session itself has ended"


def test_a_wrong_password_is_refused_as_an_unknown_name_is_and_the_name_is_kept(ada: Browser) -> None:
    wrong = ada.post("/sign-in", {"name": "ada", "password": "wrong"})
    unknown = ada.post("/sign-in", {"name": "eve", "password": "wrong"})
    assert (wrong.status, unknown.status) == (401, 401)
    assert wrong.text == unknown.text
    assert wrong.by_id("name")["value"] == "ada"
    assert "value" not in wrong.by_id("password").attributes
    assert ada.client.get_cookie(COOKIE) is None


def test_too_many_tries_are_told_until_when(desk: Desk, ada: Browser) -> None:
    for _ in range(FAILURES):
        ada.post("/sign-in", {"name": "ada", "password": "wrong"})
    page = ada.post("/sign-in", {"name": "ada", "password": PASSWORD})
    assert page.status == 429
    wait_s = FIRST_WAIT.total_seconds()
    assert page.response.headers["Retry-After"] == f"{wait_s:.0f}"
    [until] = page.all("time")
    assert datetime.fromisoformat(until["datetime"]).timestamp() == desk.api.clock.now_s + wait_s
    desk.api.clock.now_s += wait_s
    assert sign_in(ada) == "/"


def test_a_token_signs_in_by_its_name_and_secret_but_an_agents_does_not(desk: Desk) -> None:
    browser = desk.browser(None)
    secrets = desk.api.secrets
    assert browser.post("/sign-in", {"name": "the-host", "password": secrets["host"]}).status == 401
    sign_in(browser, secrets["viewer"], "the-viewer")
    page = browser.get("/account")
    assert "signed in with the token the-viewer" in page.text
    assert not page.all("input", type="password")


@pytest.mark.parametrize(
    ("target", "safe"),
    [
        ("/", "/"),
        ("/hosts/kvm7?range=1h", "/hosts/kvm7?range=1h"),
        ("/decisions?since=2026-01-31T14:00:00Z", "/decisions?since=2026-01-31T14:00:00Z"),
        ("", ""),
        ("hosts", ""),
        ("//evil.example", ""),
        ("///evil.example", ""),
        ("/\\evil.example", ""),
        ("\\\\evil.example", ""),
        ("/\t/evil.example", ""),
        ("/\n/evil.example", ""),
        (" //evil.example", ""),
        ("https://evil.example", ""),
        ("javascript:alert(1)", ""),
        ("/ä", ""),
    ],
)
def test_only_paths_of_this_site_are_gone_to_after_signing_in(target: str, safe: str) -> None:
    assert local_path(target) == safe


def test_the_form_leads_to_where_the_reader_wanted_to_go(ada: Browser) -> None:
    asked = ada.get("/registered?search=a")
    form = ada.get(asked.response.location)
    [field] = form.all("input", name="next")
    assert field["value"] == "/registered?search=a"
    assert sign_in(ada, next=field["value"]) == "/registered?search=a"


@pytest.mark.parametrize(
    ("path", "shown", "leads"),
    [
        ("/sign-out", None, "/sign-in"),
        ("/proposals/1/approve", None, "/sign-in"),
        ("/registered/new/vms", None, "/sign-in?next=%2Fregistered%2Fnew%2Fvms"),
        (
            "/forms/check/vms?field=host",
            "http://localhost/account?a=b",
            "/sign-in?next=%2Faccount%3Fa%3Db",
        ),
        ("/forms/check/vms?field=host", "http://[", "/sign-in"),
    ],
)
def test_a_button_pressed_after_the_session_leads_to_a_page(
    ada: Browser, path: str, shown: str | None, leads: str
) -> None:
    if shown is None:
        assert ada.post(path).response.location == leads
    else:
        page = ada.post(path, HX_Request="true", HX_Current_URL=shown)
        assert page.response.headers["HX-Redirect"] == leads


def test_names_asked_for_by_a_field_after_the_session_lead_to_its_page(ada: Browser) -> None:
    asked = {"HX_Request": "true", "HX_Current_URL": "http://localhost/what-if?host=a#b"}
    page = ada.get("/forms/suggest/hosts?field=host&host=a", **asked)
    assert page.response.headers["HX-Redirect"] == "/sign-in?next=%2Fwhat-if%3Fhost%3Da"


def test_the_form_leads_to_no_other_site(ada: Browser) -> None:
    assert sign_in(ada, next="//evil.example/x") == "/"


@pytest.mark.parametrize(
    "headers", [{"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
)
def test_another_site_cannot_sign_its_reader_in(ada: Browser, headers: dict[str, str]) -> None:
    page = ada.post("/sign-in", {"name": "ada", "password": PASSWORD}, **headers)
    assert page.status == 403
    assert ada.client.get_cookie(COOKIE) is None


def test_this_site_can(ada: Browser) -> None:
    headers = {"Sec_Fetch_Site": "same-origin", "Origin": "http://localhost"}
    assert ada.post("/sign-in", {"name": "ada", "password": PASSWORD}, **headers).status == 303


def test_the_account_shows_where_one_is_signed_in(ada: Browser) -> None:
    sign_in(ada)
    page = ada.get("/account")
    assert "127.0.0.1" in page.text
    assert len(page.all("tr")) == 2


def test_a_new_password_ends_all_sessions_but_goes_on_in_this_browser(desk: Desk, ada: Browser) -> None:
    elsewhere = desk.browser(None)
    for browser in (ada, elsewhere):
        sign_in(browser)
    changed = ada.post("/account", {"current_password": PASSWORD, "password": "a new long password"})
    assert changed.status == 303
    assert "Password changed" in ada.get(changed.response.location).text
    assert elsewhere.get("/account").status == 303
    assert desk.browser(None).post("/sign-in", {"name": "ada", "password": PASSWORD}).status == 401


@pytest.mark.parametrize(
    ("present", "new", "field", "message"),
    [
        (PASSWORD, "tooshort", "password", "allowed: 10 to 200 characters"),
        ("wrong", "a new long password", "current_password", "not the current password"),
        ("", "a new long password", "current_password", "is required"),
    ],
)
def test_a_password_that_cannot_be_is_refused_at_its_field(
    ada: Browser, present: str, new: str, field: str, message: str
) -> None:
    sign_in(ada)
    page = ada.post("/account", {"current_password": present, "password": new})
    assert page.status == 422
    assert message in page.message_at(field)
    assert new not in page.source
    assert ada.get("/account").status == 200


def test_every_role_has_an_account(desk: Desk) -> None:
    assert desk.browser(Role.VIEWER).get("/account").status == 200


def test_the_form_of_a_password_asks_for_the_present_one_first(ada: Browser) -> None:
    sign_in(ada)
    page = ada.get("/account")
    assert [one.text for one in page.all("label")] == ["Current password", "New password"]
    secrets = [(one["name"], one["autocomplete"]) for one in page.all("input", type="password")]
    assert secrets == [("current_password", "current-password"), ("password", "new-password")]
    assert all("required" in one.attributes for one in page.all("input", type="password"))
