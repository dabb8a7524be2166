"""Requests that a session authorises: its cookie, its CSRF token, and callers within the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from flask import Flask, Response, jsonify, request
from werkzeug.test import TestResponse

from manager.api.app import create_app
from manager.api.auth import OPEN, allow, cookie_arguments
from manager.api.context import ManagerContext
from manager.serving.server import HttpServer, Lanes
from manager.store.database import Database
from manager.store.sessions import DEFAULT_LIMITS, SignedIn, sign_in, sign_out
from manager.store.tokens import Principal, PrincipalKind, Role
from tests.api.conftest import HOST, START, Api, report

pytestmark = pytest.mark.usefixtures("quick_passwords")

WRITE = ("PUT", "/vms/a", {"class": "batch"})


def signed_in_as(api: Api, role: str) -> SignedIn:
    """A session of the token of a role."""
    return sign_in(api.database, f"the-{role}", api.secrets[role], "192.0.2.7", START, DEFAULT_LIMITS)


def ask(
    api: Api,
    signed_in: SignedIn,
    method: str,
    path: str,
    body: Any = None,
    cookie: str = "equipoise_session",
    **more: Any,
) -> TestResponse:
    client = api.app.test_client()
    client.set_cookie(cookie, signed_in.secret, secure=cookie.startswith("__Host-"))
    return client.open(f"/api/v1{path}", method=method, json=body, buffered=True, **more)


def with_token(signed_in: SignedIn) -> dict[str, str]:
    return {"X-CSRF-Token": signed_in.csrf_token}


def test_a_session_reads_and_with_its_csrf_token_writes(api: Api) -> None:
    signed_in = signed_in_as(api, "operator")
    assert ask(api, signed_in, "GET", "/vms").status_code == 200
    response = ask(api, signed_in, *WRITE, headers=with_token(signed_in))
    assert response.status_code == 201, response.get_data(as_text=True)
    assert ask(api, signed_in, "GET", "/vms/a").status_code == 200


def test_a_write_without_the_token_or_with_that_of_another_session_is_refused(sqlite_api: Api) -> None:
    signed_in, other = signed_in_as(sqlite_api, "operator"), signed_in_as(sqlite_api, "operator")
    for token in ("", "ü", other.csrf_token, signed_in.csrf_token[:-1], signed_in.secret):
        response = ask(sqlite_api, signed_in, *WRITE, headers={"X-CSRF-Token": token})
        assert response.status_code == 403
        assert "X-CSRF-Token" in response.get_json()["detail"]
    for method in ("POST", "DELETE"):
        assert ask(sqlite_api, signed_in, method, "/vms/a").status_code in {403, 405}
    sqlite_api.refused(404, "GET", "/vms/a")


def test_a_form_may_carry_the_token(sqlite_api: Api) -> None:
    """Past the check of the token; what the route wants is JSON."""
    signed_in = signed_in_as(sqlite_api, "operator")
    for token, status in ((signed_in.csrf_token, 415), ("wrong", 403)):
        response = ask(sqlite_api, signed_in, "PUT", "/vms/a", data={"csrf_token": token})
        assert response.status_code == status


def test_roles_are_those_of_tokens(sqlite_api: Api) -> None:
    signed_in = signed_in_as(sqlite_api, "viewer")
    response = ask(sqlite_api, signed_in, *WRITE, headers=with_token(signed_in))
    assert response.status_code == 403
    assert response.get_json()["detail"] == "token 'the-viewer' has role viewer; this needs role operator"


def test_what_agents_do_needs_a_token(sqlite_api: Api) -> None:
    signed_in = signed_in_as(sqlite_api, "admin")
    response = ask(sqlite_api, signed_in, "POST", f"/hosts/{HOST}/report", report(), headers=with_token(signed_in))
    assert response.status_code == 401


def test_a_token_counts_before_a_session(sqlite_api: Api) -> None:
    signed_in = signed_in_as(sqlite_api, "viewer")
    headers = {"Authorization": f"Bearer {sqlite_api.secrets['operator']}"}
    assert ask(sqlite_api, signed_in, *WRITE, headers=headers).status_code == 201
    wrong = {"Authorization": "Bearer wrong"}
    assert ask(sqlite_api, signed_in, "GET", "/vms", headers=wrong).status_code == 401


def test_a_session_that_ended_is_said_so(sqlite_api: Api) -> None:
    signed_in = signed_in_as(sqlite_api, "viewer")
    sqlite_api.clock.now_s += 2 * 3600
    assert ask(sqlite_api, signed_in, "GET", "/vms").get_json()["detail"] == "the session has ended"
    sqlite_api.clock.now_s -= 2 * 3600
    assert ask(sqlite_api, signed_in, "GET", "/vms").status_code == 200
    sign_out(sqlite_api.database, signed_in.secret, "", START)
    assert ask(sqlite_api, signed_in, "GET", "/vms").status_code == 401


def test_by_https_only_the_cookie_that_no_other_site_can_set_counts(sqlite_api: Api) -> None:
    signed_in = signed_in_as(sqlite_api, "viewer")
    for scheme, cookie, status in (
        ("http", "equipoise_session", 200),
        ("http", "__Host-equipoise_session", 401),
        ("https", "equipoise_session", 401),
        ("https", "__Host-equipoise_session", 200),
    ):
        response = ask(sqlite_api, signed_in, "GET", "/vms", cookie=cookie, base_url=f"{scheme}://localhost")
        assert response.status_code == status, (scheme, cookie)


def test_a_caller_within_the_process_says_who_asks(sqlite_api: Api) -> None:
    client = sqlite_api.app.test_client()
    alice = Principal("alice", Role.OPERATOR, None, PrincipalKind.USER)

    def put(principal: object, **headers: str) -> TestResponse:
        environ = {"equipoise.principal": principal, "REMOTE_ADDR": "192.0.2.9"}
        return client.put("/api/v1/vms/a", json={"class": "batch"}, environ_overrides=environ, headers=headers)

    assert put(alice).status_code == 201
    [row] = sqlite_api.ok("GET", "/audit")["items"]
    assert (row["actor_kind"], row["actor"], row["role"], row["address"]) == ("user", "alice", "operator", "192.0.2.9")
    assert put(replace(alice, role=Role.VIEWER)).status_code == 403
    assert put("alice").status_code == 401
    assert put(None, **{"equipoise.principal": "alice", "Equipoise-Principal": "alice"}).status_code == 401


def test_the_own_sessions_are_listed(sqlite_api: Api) -> None:
    signed_in = signed_in_as(sqlite_api, "viewer")
    signed_in_as(sqlite_api, "admin")
    [one] = ask(sqlite_api, signed_in, "GET", "/sessions").get_json()["items"]
    assert one == {
        "created_at": "2026-03-01T12:00:00Z",
        "last_seen_at": "2026-03-01T12:00:00Z",
        "expires_at": "2026-03-02T00:00:00Z",
        "address": "192.0.2.7",
    }


def test_sessions_come_page_by_page_the_newest_first(api: Api) -> None:
    for minute in (0, 1, 1):
        now = START + timedelta(minutes=minute)
        signed_in = sign_in(api.database, "the-viewer", api.secrets["viewer"], "192.0.2.7", now, DEFAULT_LIMITS)
    pages, cursor = [], ""
    while cursor is not None:
        page = ask(api, signed_in, "GET", f"/sessions?limit=1{cursor and f'&cursor={cursor}'}").get_json()
        pages.append([one["created_at"] for one in page["items"]])
        cursor = page["next"]
    assert pages == [["2026-03-01T12:01:00Z"], ["2026-03-01T12:01:00Z"], ["2026-03-01T12:00:00Z"]]


@pytest.fixture
def behind_proxy(migrated: Callable[[str], Database]) -> Callable[[str, dict[str, str]], dict[str, Any]]:
    """What a request with these headers comes to, by the setting ``trusted_proxy``."""
    context = ManagerContext(migrated("sqlite"), {}, stale_s=30, min_samples=20)
    app = Flask("shown")

    @app.get("/")
    @allow(OPEN)
    def shown() -> Response:
        return jsonify({**cookie_arguments(context), "address": request.remote_addr})

    def get(trusted_proxy: str, headers: dict[str, str]) -> dict[str, Any]:
        server = HttpServer(app, "127.0.0.1", 0, Lanes(1), trusted_proxy)
        server.start()
        try:
            found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{server.addresses[0][1]}/", headers=headers).json()
            return found
        finally:
            server.close()

    return get


FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.9"}


@pytest.mark.parametrize(
    ("trusted", "headers", "secure", "address"),
    [
        ("127.0.0.1", FORWARDED, True, "192.0.2.9"),
        ("127.0.0.1", {}, False, "127.0.0.1"),
        ("", FORWARDED, False, "127.0.0.1"),
        ("192.0.2.1", FORWARDED, False, "127.0.0.1"),
    ],
)
def test_only_the_trusted_proxy_is_believed(
    behind_proxy: Callable[[str, dict[str, str]], dict[str, Any]],
    trusted: str,
    headers: dict[str, str],
    secure: bool,
    address: str,
) -> None:
    assert behind_proxy(trusted, headers) == {
        "key": "__Host-equipoise_session" if secure else "equipoise_session",
        "path": "/",
        "secure": secure,
        "httponly": True,
        "samesite": "Lax",
        "address": address,
    }


def test_cookies_can_be_secure_however_requests_come(sqlite_api: Api) -> None:
    context = ManagerContext(sqlite_api.database, {}, 30, 20, secure_cookies=True)
    with create_app(context).test_request_context("/"):
        arguments = cookie_arguments(context)
        assert (arguments["key"], arguments["secure"]) == ("__Host-equipoise_session", True)
        response = Response()
        response.set_cookie(value="x", **arguments)
        assert "Secure; HttpOnly; Path=/; SameSite=Lax" in response.headers["Set-Cookie"]
        response.delete_cookie(**arguments)
