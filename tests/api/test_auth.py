"""Who may do what: every route with every role, and what a refusal says."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask

from tests.api.conftest import Api, report

VIEWER = {"viewer", "operator", "admin"}
OPERATOR = {"operator", "admin"}
ADMIN = {"admin"}
HOST = {"host"}  # the token of the host in the path
ANY_HOST = {"host", "other host"}
SOURCE = {"source"}  # the token of the application in the path
ROLES = ("", "viewer", "operator", "admin", "host", "other host", "source", "other source")


@dataclass(frozen=True)
class Route:
    """A route, an example of it, and who may use it; ``roles`` None: everybody, without a token, too."""

    rule: str
    roles: set[str] | None
    path: str
    body: Any = None

    @property
    def method(self) -> str:
        return self.rule.split(" ")[0]


ROUTES = [
    Route("GET /api/v1/hosts", VIEWER, "/hosts"),
    Route("GET /api/v1/hosts/<name>", VIEWER | HOST, "/hosts/kvm1"),
    Route("PUT /api/v1/hosts/<name>", OPERATOR, "/hosts/kvm1", {}),
    Route("DELETE /api/v1/hosts/<name>", OPERATOR, "/hosts/kvm1"),
    Route("POST /api/v1/hosts/<name>/adopt", OPERATOR, "/hosts/kvm1/adopt"),
    Route("POST /api/v1/hosts/<name>/replace-agent", OPERATOR, "/hosts/kvm1/replace-agent"),
    Route("GET /api/v1/hosts/<name>/capabilities", VIEWER | HOST, "/hosts/kvm1/capabilities"),
    Route("GET /api/v1/capabilities", VIEWER, "/capabilities"),
    Route("PATCH /api/v1/hosts/<name>", OPERATOR, "/hosts/kvm1", {"mode": "observe"}),
    Route("GET /api/v1/hosts/<name>/domains", VIEWER | HOST, "/hosts/kvm1/domains"),
    Route("GET /api/v1/hosts/<name>/findings", VIEWER | HOST, "/hosts/kvm1/findings"),
    Route("GET /api/v1/hosts/<name>/services", VIEWER | HOST, "/hosts/kvm1/services"),
    Route("GET /api/v1/hosts/<name>/preview", VIEWER, "/hosts/kvm1/preview"),
    Route("GET /api/v1/domains", VIEWER, "/domains"),
    Route("PATCH /api/v1/vms/<name>", OPERATOR, "/vms/a", {"mode": "observe"}),
    Route("GET /api/v1/vms/<name>/preview", VIEWER, "/vms/a/preview"),
    Route("GET /api/v1/applications/<name>/preview", VIEWER, "/applications/shop/preview"),
    Route("PATCH /api/v1/applications/<name>", OPERATOR, "/applications/shop", {"mode": "observe"}),
    Route("POST /api/v1/hosts/<name>/report", ADMIN | HOST, "/hosts/kvm1/report", report()),
    Route("GET /api/v1/hosts/<name>/assignment", VIEWER | HOST, "/hosts/kvm1/assignment"),
    Route("GET /api/v1/hosts/<name>/slots", VIEWER | HOST, "/hosts/kvm1/slots"),
    Route("GET /api/v1/hosts/<name>/ticks", VIEWER, "/hosts/kvm1/ticks"),
    Route("GET /api/v1/vms", VIEWER, "/vms"),
    Route("GET /api/v1/vms/<name>", VIEWER, "/vms/a"),
    Route("PUT /api/v1/vms/<name>", OPERATOR, "/vms/a", {"class": "batch"}),
    Route("POST /api/v1/vms/<name>/adopt", OPERATOR, "/vms/a/adopt"),
    Route("DELETE /api/v1/vms/<name>", OPERATOR, "/vms/a"),
    Route("GET /api/v1/applications", VIEWER, "/applications"),
    Route("GET /api/v1/applications/<name>", VIEWER, "/applications/shop"),
    Route("PUT /api/v1/applications/<name>", OPERATOR, "/applications/shop", {}),
    Route("DELETE /api/v1/applications/<name>", OPERATOR, "/applications/shop"),
    Route("POST /api/v1/applications/<name>/samples", OPERATOR | ANY_HOST | SOURCE, "/applications/shop/samples", {}),
    Route("GET /api/v1/applications/<name>/windows", VIEWER, "/applications/shop/windows"),
    Route("GET /api/v1/applications/<name>/sources", VIEWER, "/applications/shop/sources"),
    Route("GET /api/v1/applications/<name>/history", VIEWER, "/applications/shop/history"),
    Route("GET /api/v1/applications/<name>/tiers-history", VIEWER, "/applications/shop/tiers-history"),
    Route("GET /api/v1/applications/<name>/budget", VIEWER, "/applications/shop/budget"),
    Route("GET /api/v1/applications/<name>/evidence", VIEWER, "/applications/shop/evidence"),
    Route("GET /api/v1/applications/<name>/interference", VIEWER, "/applications/shop/interference"),
    Route("GET /api/v1/hosts/<name>/history", VIEWER, "/hosts/kvm1/history"),
    Route("POST /api/v1/hosts/<name>/admission", VIEWER, "/hosts/kvm1/admission", {"class": "batch", "vcpus": 1}),
    Route("GET /api/v1/proposals", VIEWER, "/proposals"),
    Route("GET /api/v1/proposals/<number>", VIEWER, "/proposals/1"),
    Route("POST /api/v1/proposals/<number>/approve", OPERATOR, "/proposals/1/approve"),
    Route("POST /api/v1/proposals/<number>/dismiss", OPERATOR, "/proposals/1/dismiss"),
    Route("GET /api/v1/hosts/<name>/what-if", VIEWER, "/hosts/kvm1/what-if?policy=equal"),
    Route("GET /api/v1/fleet", VIEWER, "/fleet"),
    Route("GET /api/v1/fleet/groups", VIEWER, "/fleet/groups?group=state"),
    Route("GET /api/v1/fleet/hosts", VIEWER, "/fleet/hosts"),
    Route("GET /api/v1/decisions/story", VIEWER, "/decisions/story"),
    Route("GET /api/v1/policies", VIEWER, "/policies"),
    Route("GET /api/v1/policies/<name>", VIEWER, "/policies/equal"),
    Route("GET /api/v1/decisions", VIEWER, "/decisions"),
    Route("GET /api/v1/events", VIEWER, "/events"),
    Route("GET /api/v1/join-tokens", ADMIN, "/join-tokens"),
    Route("POST /api/v1/join-tokens", ADMIN, "/join-tokens", {"name": "new"}),
    Route("DELETE /api/v1/join-tokens/<name>", ADMIN, "/join-tokens/new"),
    Route("POST /api/v1/hosts/<name>/join", None, "/hosts/kvm9/join", {"token": "x"}),
    Route("GET /api/v1/tokens", ADMIN, "/tokens"),
    Route("POST /api/v1/tokens", ADMIN, "/tokens", {"name": "new", "role": "viewer"}),
    Route("DELETE /api/v1/tokens/<name>", ADMIN, "/tokens/the-viewer"),
    Route("GET /api/v1/users", ADMIN, "/users"),
    Route("POST /api/v1/users", ADMIN, "/users", {"name": "bob", "role": "viewer", "password": "correct horse"}),
    Route("GET /api/v1/users/<name>", ADMIN, "/users/alice"),
    Route("PUT /api/v1/users/<name>", ADMIN, "/users/alice", {"role": "viewer"}),
    Route("PUT /api/v1/users/<name>/password", ADMIN, "/users/alice/password", {"password": "battery staple"}),
    Route("DELETE /api/v1/users/<name>", ADMIN, "/users/alice"),
    Route("GET /api/v1/sessions", VIEWER, "/sessions"),
    Route("GET /api/v1/audit", OPERATOR, "/audit"),
    Route("GET /api/v1/health", None, "/health"),
    Route("GET /metrics", None, "//metrics"),
    Route("GET /healthz", None, "//healthz"),
    Route("GET /readyz", None, "//readyz"),
    Route("GET /api/v1/openapi.json", VIEWER, "/openapi.json"),
    Route("GET /api/v1/docs", VIEWER, "/docs"),
    Route("GET /api/v1/docs/start.js", VIEWER, "/docs/start.js"),
    Route("GET /api/v1/docs/<path:file>", VIEWER, "/docs/css/swagger-ui.css"),
]


def routes_of(app: Flask) -> set[str]:
    implied = {"HEAD", "OPTIONS"}
    return {
        f"{method} {rule.rule}" for rule in app.url_map.iter_rules() for method in (rule.methods or set()) - implied
    }


def test_the_table_has_every_route(sqlite_api: Api) -> None:
    assert {route.rule for route in ROUTES} == routes_of(sqlite_api.app)
    assert len(ROUTES) == len({route.rule for route in ROUTES})


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.rule)
def test_each_role_may_do_what_the_table_says_and_nothing_else(sqlite_api: Api, route: Route) -> None:
    for role in ROLES:
        response = sqlite_api.call(route.method, route.path, route.body, role)
        text = response.get_data(as_text=True)
        if route.roles is None or role in route.roles:
            assert response.status_code not in {401, 403, 500}, (role, text)
        elif role == "":
            assert response.status_code == 401, (role, text)
            assert response.headers.getlist("WWW-Authenticate")[0] == 'Bearer realm="Equipoise manager"'
        else:
            assert response.status_code == 403, (role, text)
            least = "viewer" if "viewer" in route.roles else "operator" if "operator" in route.roles else "admin"
            assert f"this needs role {least}" in response.get_json()["detail"]


def test_options_and_head_need_a_token_too(sqlite_api: Api) -> None:
    for method in ("OPTIONS", "HEAD"):
        assert sqlite_api.call(method, "/vms", role="").status_code == 401
        assert sqlite_api.call(method, "/vms", role="viewer").status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic dXNlcjpwYXNz", "Token x", "Bearer \x00", "Bearer ü", "Digest a=b"],
)
def test_other_credentials_are_no_token(api: Api, header: str) -> None:
    problem = api.refused(401, "GET", "/vms", role="", Authorization=header)
    assert "token" in problem["detail"]


def test_nobody_is_told_whether_an_object_exists_without_a_token(sqlite_api: Api) -> None:
    for path in ("/vms/no-such", "/vms/!", "/vms?limit=x"):
        sqlite_api.refused(401, "GET", path, role="")
    sqlite_api.refused(401, "PUT", "/vms/a", {"class": "nonsense"}, role="")


def test_a_refusal_names_token_role_and_what_is_needed(sqlite_api: Api) -> None:
    problem = sqlite_api.refused(403, "PUT", "/vms/a", {"class": "batch"}, role="viewer")
    assert problem["detail"] == "token 'the-viewer' has role viewer; this needs role operator"
    problem = sqlite_api.refused(403, "POST", "/hosts/kvm1/report", report(), role="other host")
    assert "host with a token for this host (not kvm2)" in problem["detail"]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs/js/swagger-ui-bundle.js"])
def test_a_browser_may_give_the_token_as_a_password_for_the_documentation(sqlite_api: Api, path: str) -> None:
    response = sqlite_api.call("GET", path, role="")
    assert 'Basic realm="Equipoise manager"' in response.headers.getlist("WWW-Authenticate")
    credentials = base64.b64encode(f"any:{sqlite_api.secrets['viewer']}".encode()).decode()
    assert sqlite_api.call("GET", path, role="", Authorization=f"Basic {credentials}").status_code == 200
    sqlite_api.refused(401, "GET", "/vms", role="", Authorization=f"Basic {credentials}")


def test_a_revoked_token_is_refused_at_once(sqlite_api: Api) -> None:
    sqlite_api.ok("GET", "/vms", role="viewer")
    sqlite_api.ok("DELETE", "/tokens/the-viewer")
    assert "revoked" in sqlite_api.refused(401, "GET", "/vms", role="viewer")["detail"]


@pytest.mark.parametrize(
    ("path", "body"), [("/tokens", {"name": "wall", "role": "viewer"}), ("/join-tokens", {"name": "wall"})]
)
def test_a_token_that_was_replaced_is_not_deleted_in_place_of_the_one_before(
    sqlite_api: Api, path: str, body: dict[str, str]
) -> None:
    before = sqlite_api.call("POST", path, body).headers["ETag"]
    sqlite_api.ok("DELETE", f"{path}/wall", If_Match=before)
    now = sqlite_api.call("POST", path, body).headers["ETag"]
    sqlite_api.refused(412, "DELETE", f"{path}/wall", If_Match=before)
    assert "wall" in str(sqlite_api.ok("GET", path))
    sqlite_api.ok("DELETE", f"{path}/wall", If_Match=now)


def test_a_new_token_is_shown_once_and_works(api: Api) -> None:
    made = api.ok("POST", "/tokens", {"name": "kvm9", "role": "host", "host": "kvm9"})
    api.secrets["kvm9"] = made["token"]
    api.ok("POST", "/hosts/kvm9/report", report(), role="kvm9")
    listed = api.ok("GET", "/tokens")["items"]
    assert made["token"] not in str(listed)
    assert [one["last_used_at"] for one in listed if one["name"] == "kvm9"] == ["2026-03-01T12:00:00Z"]
    api.refused(409, "POST", "/tokens", {"name": "kvm9", "role": "viewer"})
    api.ok("DELETE", "/tokens/kvm9")
    api.refused(404, "DELETE", "/tokens/kvm9")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "role": "host"}, "host"),
        ({"name": "x", "role": "viewer", "host": "h"}, "host"),
        ({"name": "x", "role": "root"}, "role"),
        ({"role": "viewer"}, "name"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(sqlite_api: Api, body: Any, field: str) -> None:
    assert sqlite_api.refused(422, "POST", "/tokens", body)["field"] == field
