"""Users, tokens, and the audit in the dashboard."""

from __future__ import annotations

import pytest

from manager.store.tokens import Role
from tests.web.desk import Browser, Desk

pytestmark = pytest.mark.usefixtures("quick_passwords")

PASSWORD = "correct horse battery"
PAGES = ("/people", "/people/new-user", "/people/new-token", "/people/users/ada", "/people/tokens/the-viewer/revoke")


@pytest.fixture
def admin(desk: Desk) -> Browser:
    """A browser of an administrator, where there is a user ``ada`` besides."""
    desk.api.ok("POST", "/users", {"name": "ada", "role": "operator", "password": PASSWORD})
    return desk.browser(Role.ADMIN)


@pytest.mark.parametrize("path", PAGES)
def test_people_are_for_administrators(desk: Desk, admin: Browser, path: str) -> None:
    operator = desk.browser(Role.OPERATOR)
    assert admin.get(path).status == 200
    assert operator.get(path).status == 403
    assert not operator.get("/registered").all("a", href="/people")


def test_a_user_is_made_and_can_sign_in(desk: Desk, admin: Browser) -> None:
    given = admin.get("/people/new-user").filled({"name": "bob", "role": "viewer", "password": PASSWORD})
    made = admin.post("/people/new-user", given)
    assert made.status == 303
    page = admin.get(made.response.location)
    assert "User created" in page.text
    assert page.all("a", href="/people/users/bob")
    assert desk.browser(None).post("/sign-in", {"name": "bob", "password": PASSWORD}).status == 303


def test_what_is_wrong_with_a_new_user_stands_at_its_fields(desk: Desk, admin: Browser) -> None:
    page = admin.post("/people/new-user", {"name": "b b", "role": "", "password": "tooshort"})
    assert page.status == 422
    assert "is refused" in page.message_at("name")
    assert "is required" in page.message_at("role")
    assert "10 to 200 characters" in page.message_at("password")
    assert "tooshort" not in page.source
    taken = admin.post("/people/new-user", {"name": "ada", "role": "viewer", "password": PASSWORD})
    assert taken.status == 409
    assert "already" in taken.by_id("problems").text
    assert taken.by_id("f-name")["value"] == "ada"
    assert len(desk.api.ok("GET", "/users")["items"]) == 1


def test_a_role_is_changed(desk: Desk, admin: Browser) -> None:
    path = "/people/users/ada"
    assert admin.post(path, {"form": "role", "role": "king"}).status == 422
    assert admin.post(path, {"form": "role", "role": "viewer"}).status == 303
    assert desk.api.ok("GET", "/users/ada")["role"] == "viewer"


def test_a_password_is_set_anew(desk: Desk, admin: Browser) -> None:
    path = "/people/users/ada"
    assert "current_password" not in admin.get(path).fields()
    refused = admin.post(path, {"form": "password", "password": "short"})
    assert "10 to 200 characters" in refused.message_at("password")
    assert admin.post(path, {"form": "password", "password": "another long one"}).status == 303
    assert desk.browser(None).post("/sign-in", {"name": "ada", "password": "another long one"}).status == 303


def test_a_user_is_removed(desk: Desk, admin: Browser) -> None:
    assert admin.post("/people/users/ada", {"form": "delete"}).status == 303
    assert desk.api.call("GET", "/users/ada").status_code == 404
    assert admin.get("/people/users/ada").status == 404


def test_a_tokens_secret_is_shown_once(desk: Desk, admin: Browser) -> None:
    page = admin.post("/people/new-token", {"name": "grafana", "role": "viewer", "host": ""})
    assert page.status == 201
    secret = page.by_id("secret")["value"]
    desk.api.secrets["grafana"] = secret
    assert desk.api.call("GET", "/hosts", role="grafana").status_code == 200
    assert page.response.headers["Cache-Control"] == "no-store"
    assert secret not in admin.get("/people").source


def test_what_is_wrong_with_a_new_token_stands_at_its_field(admin: Browser) -> None:
    page = admin.post("/people/new-token", {"name": "agent-7", "role": "host", "host": ""})
    assert page.status == 422
    assert "names the host" in page.message_at("host")
    assert page.by_id("f-name")["value"] == "agent-7"


def test_revoking_a_token_asks_first(desk: Desk, admin: Browser) -> None:
    path = "/people/tokens/the-viewer/revoke"
    assert "Revoke token the-viewer?" in admin.get(path).text
    assert desk.api.call("GET", "/hosts", role="viewer").status_code == 200
    assert admin.post(path).status == 303
    assert desk.api.call("GET", "/hosts", role="viewer").status_code == 401
    assert admin.get(path).status == 404


def test_the_audit_tells_who_changed_what(desk: Desk, admin: Browser) -> None:
    operator = desk.browser(Role.OPERATOR)
    operator.post("/registered/new/vms", {"name": "cache", "class": "batch"})
    given = operator.get("/registered/vms/cache").filled({"weight": "300"})
    operator.post("/registered/vms/cache", given)
    rows = [" ".join(row.text.split()) for row in operator.get("/audit").all("tr")]
    assert "operator-who-looks" in rows[1]
    assert "vm.put" in rows[1]
    assert "Weight: – → 300" in rows[1]
    assert len(operator.get("/audit?object=cache").all("tr")) == 3
    assert "No matching entries" in operator.get("/audit?object=none").text
    assert len(operator.get("/audit?actor=operator-who-looks&object_kind=vm").all("tr")) == 3
    assert "No matching entries" in operator.get("/audit?since=2100-01-01T00:00").text
    assert admin.get("/audit").status == 200


def test_a_filter_that_cannot_be_is_refused_at_its_field(admin: Browser) -> None:
    page = admin.get("/audit?since=yesterday")
    assert page.status == 422
    assert "should look like" in page.by_id("e-since").text
    assert page.by_id("since")["value"] == "yesterday"


def test_the_audit_goes_on_where_a_page_ends(desk: Desk, admin: Browser) -> None:
    for number in range(51):
        desk.api.ok("PUT", f"/vms/vm-{number}", {"class": "batch"})
    first = admin.get("/audit?object_kind=vm")
    [older] = [link for link in first.all("a") if link.text == "Older"]
    second = admin.get(older["href"])
    assert len(first.all("tr")) == 51
    assert len(second.all("tr")) == 2
    assert "vm-0" in second.text


@pytest.mark.parametrize("form", ["role", "delete"])
def test_the_last_administrator_stays(desk: Desk, admin: Browser, form: str) -> None:
    desk.api.ok("PUT", "/users/ada", {"role": "admin"})
    page = admin.post("/people/users/ada", {"form": form, "role": "viewer"})
    assert page.status == 409
    assert "'ada' is the last administrator" in page.by_id("problems").text
    assert desk.api.ok("GET", "/users/ada")["role"] == "admin"


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("2026-01-31T12:00", "2026-01-31T12:00"),
        ("2026-01-31T12:00:05", "2026-01-31T12:00:05"),
        ("2026-01-31T12:00:00%2B02:00", "2026-01-31T10:00"),
    ],
)
def test_a_time_that_was_filtered_by_stays_in_its_field(admin: Browser, given: str, held: str) -> None:
    page = admin.get(f"/audit?since={given}&until={given}")
    assert page.status == 200
    assert (page.by_id("since")["value"], page.by_id("until")["value"]) == (held, held)
