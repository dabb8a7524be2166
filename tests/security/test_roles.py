"""Schemathesis in the name of each role: no server error, no undocumented answer, nothing done that is not allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.conftest import Api
from tests.api.test_auth import ROUTES
from tests.api.test_schemathesis import NAMES, prepare, schema

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
MAY = {route.rule: route.roles for route in ROUTES}
# Those that may do least first: an administrator's requests remove users and tokens.
ROLES = ("", "other source", "source", "other host", "host", "viewer", "operator", "admin")
OPERATIONS = [one.ok() for one in schema.get_all_operations()]


@pytest.fixture(scope="module")
def prepared(get_api: Callable[[str], Api]) -> Api:
    """An interface on PostgreSQL with an object of each kind."""
    api = get_api("postgresql")
    prepare(api)
    return api


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role or "nobody")
def test_a_role_does_what_it_may_and_nothing_else(role: str, prepared: Api, pytestconfig: pytest.Config) -> None:
    limits = settings(
        max_examples=pytestconfig.getoption("--examples"),
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    headers = {"Authorization": f"Bearer {prepared.secrets[role]}"} if role else {}
    refused = 403 if role else 401
    before = prepared.call("GET", "/audit?limit=1000").get_json()
    for operation in OPERATIONS:
        rule = operation.path.replace("{", "<").replace("}", ">")
        allowed = MAY[f"{operation.method.upper()} {rule}"]
        _try(operation, limits, headers, None if allowed is None or role in allowed else refused)
    if role not in {"operator", "admin"}:
        assert prepared.call("GET", "/audit?limit=1000").get_json() == before, "it has changed nothing"


def _try(
    operation: schemathesis.schemas.APIOperation, limits: settings, headers: dict[str, str], refused: int | None
) -> None:
    """Requests for one route. ``refused``: the status of a role that may not use it; None: it may."""
    kind = operation.path.split("/")[3]
    named = {"path_parameters": {"name": NAMES[kind]}} if "{name}" in operation.path and kind in NAMES else {}

    @limits
    @given(operation.as_strategy(**named))
    def check(case: schemathesis.Case) -> None:
        response = case.call(headers=headers)
        case.validate_response(response, checks=CHECKS)
        # A name that cannot be in a path leads to no route, or to another one.
        assert refused is None or response.status_code in {refused, 404, 405}, case.as_curl_command()

    check()
