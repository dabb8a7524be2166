"""One shape for every error, whatever goes wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from werkzeug.test import TestResponse

from manager.api.app import MAX_BODY_BYTES
from manager.errors import DatabaseUnavailable
from manager.protocol.samples import ProblemDetails
from manager.store.database import open_database
from tests.api.conftest import Api, make_api


def send(api: Api, data: bytes, content_type: str | None = "application/json") -> TestResponse:
    headers = {"Authorization": f"Bearer {api.secrets['admin']}"}
    if content_type is not None:
        headers["Content-Type"] = content_type
    return api.app.test_client().put("/api/v1/vms/a", data=data, headers=headers)


def problem(response: TestResponse, code: int) -> dict[str, Any]:
    assert response.status_code == code, response.get_data(as_text=True)
    assert response.mimetype == "application/problem+json"
    body: dict[str, Any] = response.get_json()
    ProblemDetails.model_validate(body)
    assert (body["status"], body["type"]) == (code, "about:blank")
    assert body["title"]
    return body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"class": "batch"} x',
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 100_000,
        b'{"class":' * 5000 + b"1" + b"}" * 5000,
        b'{"weight": ' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_not_json_is_a_bad_request(sqlite_api: Api, data: bytes) -> None:
    body = problem(send(sqlite_api, data), 400)
    assert "not JSON" in body["detail"]
    assert "line 1 column" in body["detail"]


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application"])
def test_another_media_type_is_refused(sqlite_api: Api, content_type: str | None) -> None:
    assert "application/json" in problem(send(sqlite_api, b'{"class": "batch"}', content_type), 415)["detail"]


def test_a_body_that_is_too_large_is_refused(sqlite_api: Api) -> None:
    problem(send(sqlite_api, b" " * (MAX_BODY_BYTES + 1)), 413)
    assert send(sqlite_api, b'{"class": "batch"}'.ljust(MAX_BODY_BYTES)).status_code == 201


def test_an_unknown_route_and_method(sqlite_api: Api) -> None:
    problem(sqlite_api.call("GET", "/nowhere"), 404)
    problem(sqlite_api.call("GET", "//"), 404)
    response = sqlite_api.call("POST", "/vms/a")
    problem(response, 405)
    assert {"GET", "PUT", "PATCH", "DELETE"} <= set(response.headers["Allow"].split(", "))


@pytest.mark.parametrize("name", ["!", "a%00", "a" * 64, "%ff", "a%0a", ".a", "ü"])
def test_names_that_cannot_be_are_refused(api: Api, name: str) -> None:
    for path in (f"/vms/{name}", f"/hosts/{name}", f"/applications/{name}/windows"):
        body = problem(api.call("GET", path), 422)
        assert body["field"] == "name"
        assert "1 to 63 letters" in body["errors"][0]["message"]


@pytest.mark.parametrize("query", ["search=%ff", "%c3%28=1", "host=kvm1&search=a%e2%82"])
def test_a_query_that_is_no_utf_8_is_a_bad_request(sqlite_api: Api, query: str) -> None:
    assert "not UTF-8" in problem(sqlite_api.call("GET", f"/vms?{query}"), 400)["detail"]
    sqlite_api.ok("GET", "/vms?search=%c3%bc")


def test_many_errors_are_cut_short(sqlite_api: Api) -> None:
    tiers = [{"name": "?"} for _ in range(50)]
    assert len(sqlite_api.refused(422, "PUT", "/applications/a", {"tiers": tiers})["errors"]) == 20


def test_a_long_value_is_shortened(sqlite_api: Api) -> None:
    [error] = sqlite_api.refused(422, "PUT", "/vms/a", {"class": "x" * 10_000})["errors"]
    assert len(error["message"]) < 300


def test_a_database_that_is_away_is_said_so(sqlite_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_self: object) -> None:
        raise DatabaseUnavailable("database x cannot be read: gone")

    monkeypatch.setattr(type(sqlite_api.database), "ping", away)
    response = sqlite_api.call("GET", "/health", role="")
    assert "gone" not in problem(response, 503)["detail"]
    assert response.headers["Retry-After"] == "5"


def test_a_database_without_tables_is_said_so(database_url: str) -> None:
    database = open_database(database_url)
    api = make_api(database)
    problem(api.call("GET", "/vms", role="", Authorization="Bearer x"), 503)
    assert "equipoise_database_up 0.0" in api.call("GET", "//metrics", role="").get_data(as_text=True)
    database.close()


def test_a_bug_is_logged_and_not_shown(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(_self: object) -> None:
        raise ZeroDivisionError("the secret reason")

    monkeypatch.setattr(type(sqlite_api.database), "ping", bug)
    response = sqlite_api.call("GET", "/health")
    assert "secret" not in json.dumps(problem(response, 500))
    assert "the secret reason" in caplog.text


def test_nothing_is_cached_or_guessed(sqlite_api: Api) -> None:
    for path in ("/vms", "/nowhere", "/docs"):
        headers = sqlite_api.call("GET", path).headers
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
