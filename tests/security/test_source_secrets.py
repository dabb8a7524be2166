"""Secrets in sources: refused with what to use instead, and shown to nobody where an earlier version took them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from tests.api.conftest import HOST, Api, report

MARK = "mArKeD"
BARE = "https://prom.example.org/base?x=1"
URLS = (
    f"https://me:{MARK}@prom.example.org/base",
    f"https://me:p@{MARK}@prom.example.org/base",
    f"https://{MARK}@prom.example.org/base",
    f"https://prom.example.org/base?x=1&token={MARK}",
    f"https://prom.example.org/base?API_key={MARK}",
)


def application(url: str, kind: str, **more: Any) -> dict[str, Any]:
    query = {"query": "up"} if kind == "prometheus" else {}
    return {"tiers": [], "sources": [{"name": "one", "type": kind, "url": url, **query, **more}]}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("kind", ["prometheus", "http_probe"])
def test_a_url_holds_none(sqlite_api: Api, caplog: pytest.LogCaptureFixture, url: str, kind: str) -> None:
    response = sqlite_api.call("PUT", "/applications/shop", application(url, kind))
    assert response.status_code == 422
    [error] = response.get_json()["errors"]
    assert error["field"] == "sources[0].url"
    assert "name a `credential` instead" in error["message"]
    seen = (
        response.text + caplog.text + sqlite_api.call("GET", "/audit").text + sqlite_api.call("GET", "//metrics").text
    )
    assert MARK not in seen


def test_a_credential_is_named(sqlite_api: Api) -> None:
    sqlite_api.ok("PUT", "/applications/shop", application("https://prom.example.org", "prometheus", credential="main"))
    [source] = sqlite_api.ok("GET", "/applications/shop", role="viewer")["sources"]
    assert source["credential"] == "main"
    for bad in ("../main", "a/b", "", ".", "a b"):
        body = application("https://prom.example.org", "prometheus", credential=bad)
        assert sqlite_api.call("PUT", "/applications/shop", body).status_code == 422


def test_a_stored_source_that_would_be_refused_is_left_out(sqlite_api: Api, caplog: pytest.LogCaptureFixture) -> None:
    sqlite_api.ok("POST", f"/hosts/{HOST}/report", report(), role="host")
    wanted = application(BARE, "http_probe", host=HOST)
    wanted["sources"].append({"name": "two", "type": "http_probe", "url": "https://two.example.org", "host": HOST})
    sqlite_api.ok("PUT", "/applications/shop", wanted)
    stored = json.dumps(wanted["sources"]).replace(BARE, f"https://me:p@{MARK}@prom.example.org/base?x=1&token={MARK}")
    with sqlite_api.database.writing() as session:
        session.execute(text("UPDATE applications SET sources = :stored"), {"stored": stored})
    for path, role in (
        ("/applications", "viewer"),
        ("/applications/shop", "viewer"),
        (f"/hosts/{HOST}/assignment", "host"),
    ):
        seen = sqlite_api.call("GET", path, role=role)
        assert seen.status_code == 200, seen.text
        assert "two.example.org" in seen.text, path
        assert MARK not in seen.text + caplog.text, path
    assert "application shop: source 'one' is left out: url:" in caplog.text
    sqlite_api.ok("PATCH", "/applications/shop", {"mode": "observe"})
    with sqlite_api.database.reading() as session:
        after = session.execute(text("SELECT after FROM audit ORDER BY id DESC LIMIT 1")).scalar()
    assert MARK not in str(after)
