"""The OpenAPI document and its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from manager.api.auth import COOKIE, CSRF_HEADER
from tests.api.conftest import Api

GOLDEN = Path(__file__).parent / "routes.txt"
OPEN = {"GET /api/v1/health", "POST /api/v1/hosts/{name}/join"}


@pytest.fixture
def document(sqlite_api: Api) -> dict[str, Any]:
    found: dict[str, Any] = sqlite_api.ok("GET", "/openapi.json", role="viewer")
    return found


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def test_it_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["title"] == "Equipoise"


def test_its_routes_are_those_agreed_on(document: dict[str, Any]) -> None:
    """A change of this list is a change of the contract: agents and scripts of others depend on it."""
    found = {name: ",".join(sorted(one["responses"])) for name, one in operations(document).items()}
    assert [f"{name} {found[name]}" for name in sorted(found)] == GOLDEN.read_text().splitlines()


def test_every_operation_says_what_it_does_and_what_it_needs(document: dict[str, Any]) -> None:
    found = operations(document)
    ids = [operation["operationId"] for operation in found.values()]
    assert len(set(ids)) == len(ids)
    for name, operation in found.items():
        assert operation["summary"].endswith("."), name
        assert "security" in operation or name in OPEN, name
        assert set(re.findall(r"{(\w+)}", name)) == {
            parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"
        }


def test_every_reference_leads_somewhere_and_every_schema_is_used(document: dict[str, Any]) -> None:
    known = set(document["components"]["schemas"])
    assert set(re.findall(r"#/components/schemas/(\w+)", str(document))) == known
    assert {"VmIn", "VmOut", "ProblemDetails", "SamplesIn"} <= known
    assert not {"Schema", "Page"} & known


def test_every_list_has_the_same_envelope(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    lists = [schema for name, schema in schemas.items() if name.startswith("Page_")]
    assert len(lists) == 18
    for schema in lists:
        assert schema["properties"].keys() == {"items", "next"}


def test_the_page_needs_nothing_from_elsewhere(sqlite_api: Api) -> None:
    page = sqlite_api.call("GET", "/docs")
    assert page.mimetype == "text/html"
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    text = page.get_data(as_text=True)
    assert "://" not in text
    files = re.findall(r'(?:src|href)="(docs/[^"]+)"', text)
    assert len(files) == 4
    kinds = [sqlite_api.call("GET", f"/{file}").mimetype for file in files]
    assert kinds == ["image/svg+xml", "text/css", "text/javascript", "text/javascript"]
    assert "openapi.json" in sqlite_api.call("GET", "/docs/start.js").get_data(as_text=True)


@pytest.mark.parametrize("file", ["nothing.js", "../__init__.py", "..%2f..%2fplugins.py", "", "%00"])
def test_no_other_file_is_served(sqlite_api: Api, file: str) -> None:
    sqlite_api.refused(404, "GET", f"/docs/{file}")


def test_operations_say_which_tokens_and_sessions_may_use_them(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"] == {"type": "http", "scheme": "bearer"}
    assert (schemes["session"]["in"], schemes["session"]["name"]) == ("cookie", COOKIE)
    assert (schemes["csrf"]["in"], schemes["csrf"]["name"]) == ("header", CSRF_HEADER)
    found = {name: operation.get("security") for name, operation in operations(document).items()}
    bearer: dict[str, list[str]] = {"bearer": []}
    assert found["GET /api/v1/vms/{name}"] == [bearer, {"session": []}]
    assert found["DELETE /api/v1/vms/{name}"] == [bearer, {"session": [], "csrf": []}]
    assert found["POST /api/v1/hosts/{name}/report"] == [bearer], "for agents, who have no sessions"
    assert found["GET /api/v1/health"] is None
