"""Who may do what on the dashboard, what every answer says to browsers, and that no form can be forged.

The table of the interface's own routes is in tests/api/test_auth.py; here it is completed by the pages'.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from werkzeug.test import TestResponse

from manager.api.auth import COOKIE
from manager.store.tokens import Role
from tests.api.test_auth import ROUTES as INTERFACE
from tests.api.test_auth import routes_of
from tests.web.desk import Browser, Desk

OPEN = frozenset({None, Role.VIEWER, Role.OPERATOR, Role.ADMIN})
VIEWER = frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMIN})
OPERATOR = frozenset({Role.OPERATOR, Role.ADMIN})
ADMIN = frozenset({Role.ADMIN})
KINDS = "<any(vms, applications, hosts):kind>"


@dataclass(frozen=True)
class Route:
    """A page or a form, an example of it, and whose sessions may use it; None: nobody's, too."""

    rule: str
    roles: frozenset[Role | None]
    path: str

    @property
    def method(self) -> str:
        return self.rule.split(" ")[0]


def both(rule: str, roles: frozenset[Role | None], path: str) -> list[Route]:
    """A form and what it is sent to."""
    return [Route(f"GET {rule}", roles, path), Route(f"POST {rule}", roles, path)]


ROUTES = [
    Route("GET /", VIEWER, "/"),
    Route("GET /static/<mark>/<path:filename>", OPEN, "/static/x/style.css"),
    *both("/sign-in", OPEN, "/sign-in"),
    Route("POST /sign-out", VIEWER, "/sign-out"),
    *both("/account", VIEWER, "/account"),
    Route("GET /applications/<name>", VIEWER, "/applications/shop"),
    Route("GET /applications/<name>/times.csv", VIEWER, "/applications/shop/times.csv"),
    Route("GET /applications/<name>/tiers.csv", VIEWER, "/applications/shop/tiers.csv"),
    Route("GET /applications/<name>/report", VIEWER, "/applications/shop/report"),
    Route("GET /hosts", VIEWER, "/hosts"),
    Route("GET /hosts/<name>", VIEWER, "/hosts/kvm1"),
    Route("GET /hosts/<name>/admission", VIEWER, "/hosts/kvm1/admission"),
    Route("GET /hosts/<name>/history.csv", VIEWER, "/hosts/kvm1/history.csv"),
    Route("GET /proposals", VIEWER, "/proposals"),
    Route("POST /proposals/<int:number>/<any(approve, dismiss):decision>", OPERATOR, "/proposals/1/dismiss"),
    Route("GET /live", VIEWER, "/live?topic=nonsense"),
    Route("GET /savings", VIEWER, "/savings"),
    Route("GET /savings.csv", VIEWER, "/savings.csv"),
    Route("GET /what-if", VIEWER, "/what-if"),
    Route("GET /decisions", VIEWER, "/decisions"),
    Route("GET /decisions/cause", VIEWER, "/decisions/cause?application=shop"),
    Route("GET /events", VIEWER, "/events"),
    Route("GET /audit", OPERATOR, "/audit"),
    Route("GET /registered", OPERATOR, "/registered"),
    *both("/registered/pick", OPERATOR, "/registered/pick"),
    *both(f"/registered/new/{KINDS}", OPERATOR, "/registered/new/vms"),
    *both(f"/registered/{KINDS}/<name>", OPERATOR, "/registered/vms/web-1"),
    *both(f"/registered/{KINDS}/<name>/delete", OPERATOR, "/registered/vms/web-1/delete"),
    *both("/first", OPERATOR, "/first"),
    Route("POST /forms/check/<shape>", OPERATOR, "/forms/check/vms"),
    Route("POST /forms/pick", OPERATOR, "/forms/pick?field=tiers.0.vms"),
    Route("GET /forms/suggest/<any(vms, hosts):kind>", VIEWER, "/forms/suggest/vms?field=vm&vm=web"),
    *both(f"/control/{KINDS}/<name>", OPERATOR, "/control/hosts/kvm1"),
    Route("POST /control/<any(vms, hosts):kind>/<name>/adopt", OPERATOR, "/control/hosts/kvm1/adopt"),
    Route("GET /people", ADMIN, "/people"),
    *both("/people/new-user", ADMIN, "/people/new-user"),
    *both("/people/new-token", ADMIN, "/people/new-token"),
    *both("/people/users/<name>", ADMIN, "/people/users/ada"),
    *both("/people/tokens/<name>/revoke", ADMIN, "/people/tokens/the-viewer/revoke"),
]
FORMS = [route for route in ROUTES if route.method == "POST" and route.path != "/sign-in"]


def ask(browser: Browser, route: Route, csrf_token: str | None = None) -> TestResponse:
    """A request as a browser sends it, with the session's CSRF token unless another is given."""
    if route.method == "GET":
        return browser.client.get(route.path)
    return browser.client.post(
        route.path, data={"csrf_token": browser.csrf_token if csrf_token is None else csrf_token}
    )


def test_the_table_has_every_route(desk: Desk) -> None:
    named = [route.rule for route in (*ROUTES, *INTERFACE)]
    assert set(named) == routes_of(desk.api.app)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.rule)
def test_each_role_may_do_what_the_table_says_and_nothing_else(shop_desk: Desk, route: Route) -> None:
    for role in (None, Role.VIEWER, Role.OPERATOR, Role.ADMIN):
        response = ask(shop_desk.browser(role), route)
        text = response.get_data(as_text=True)
        if role in route.roles:
            refused = set() if route.path == "/sign-in" else {401}  # the form that was sent is empty
            assert response.status_code not in {403, 500} | refused, (role, text)
            assert not response.headers.get("Location", "").startswith("/sign-in") or route.path == "/sign-out"
        elif role is None:
            assert response.status_code == 303, (role, text)
            assert response.headers["Location"].startswith("/sign-in" if route.method == "POST" else "/sign-in?next=")
        else:
            assert response.status_code == 403, (role, text)
        response.close()


@pytest.mark.parametrize("route", FORMS, ids=lambda route: route.rule)
def test_no_form_is_taken_without_the_sessions_token(shop_desk: Desk, route: Route) -> None:
    browser, other = shop_desk.browser(Role.ADMIN), shop_desk.browser(Role.VIEWER)
    before = shop_desk.api.call("GET", "/audit").get_data()
    for token in ("", "wrong", other.csrf_token, browser.csrf_token[:-1]):
        assert ask(browser, route, token).status_code == 403
    assert shop_desk.api.call("GET", "/audit").get_data() == before, "and nothing has changed"


def test_who_signs_in_is_not_brought_there_by_another_site(desk: Desk) -> None:
    form = {"name": "the-viewer", "password": desk.api.secrets["viewer"]}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert desk.browser(None).client.post("/sign-in", data=form, headers=headers).status_code == 403


ANSWERS = ("/", "/sign-in", "/people", "/nowhere", "/static/x/style.css", "/metrics", "/api/v1/health", "/api/v1/vms",
           "/api/v1/nowhere", "/api/v1/vms/%21", "/api/v1/docs", "/live?topic=nonsense")  # fmt: skip


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("path", ANSWERS)
def test_every_answer_says_what_browsers_may_make_of_it(desk: Desk, path: str, scheme: str) -> None:
    for browser in (desk.browser(Role.ADMIN), desk.browser(None)):
        response = browser.client.get(path, base_url=f"{scheme}://localhost")
        found = response.headers
        assert found["X-Content-Type-Options"] == "nosniff"
        assert found["X-Frame-Options"] == "DENY"
        assert found["Referrer-Policy"] == "same-origin"
        assert found["Cross-Origin-Opener-Policy"] == "same-origin"
        assert found["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "camera=()" in found["Permissions-Policy"]
        policy = dict(part.strip().split(" ", 1) for part in found["Content-Security-Policy"].split(";"))
        assert policy["frame-ancestors"] == "'none'"
        assert policy["default-src"] in {"'none'", "'self'"}
        assert "'unsafe-inline'" not in policy.get("script-src", policy["default-src"])
        assert ("immutable" in found["Cache-Control"]) is False
        assert found["Cache-Control"] == "no-store"
        assert ("Strict-Transport-Security" in found) is (scheme == "https")
        assert "Server" not in found
        response.close()


@pytest.mark.parametrize(
    ("scheme", "name", "flags"),
    [
        ("http", COOKIE, {"HttpOnly", "SameSite=Lax"}),
        ("https", f"__Host-{COOKIE}", {"HttpOnly", "SameSite=Lax", "Secure"}),
    ],
)
def test_the_sessions_cookie_is_for_this_site_alone(desk: Desk, scheme: str, name: str, flags: set[str]) -> None:
    form = {"name": "the-viewer", "password": desk.api.secrets["viewer"]}
    response = desk.browser(None).client.post("/sign-in", data=form, base_url=f"{scheme}://localhost")
    [cookie] = response.headers.getlist("Set-Cookie")
    value, *found = cookie.split("; ")
    assert value.startswith(f"{name}=")
    assert flags <= set(found)
    assert ("Secure" in found) is (scheme == "https")
    assert "Path=/" in found
    assert not any(one.startswith("Domain=") for one in found)
