"""The whole interface against its OpenAPI document: whatever is sent, no server error and no undocumented answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
import schemathesis
from flask_openapi3.openapi import OpenAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.store.database import open_database
from tests.api.conftest import HOST, Api, event, record, report, status, tick
from tests.conftest import SLOW_MACHINE

NAMES = {
    "hosts": HOST,
    "vms": "web-1",
    "applications": "shop",
    "policies": "equal",
    "tokens": "the-viewer",
    "join-tokens": "rack-4",
    "users": "alice",
}
CONFIG = {
    # A valid document may still ask for what cannot be (422), or set a condition that does not hold (412).
    "checks": {
        "positive_data_acceptance": {"expected-statuses": ["2xx", "304", "404", "409", "412", "422"]},
        # Too many of something may be more than a body may hold.
        "negative_data_rejection": {"expected-statuses": ["400", "401", "404", "409", "412", "413", "415", "422"]},
    },
    "seed": 4,
}


WITHOUT_TOKEN = 5
"""So many cases of an operation are also sent without a token and with a wrong one, which triples what they cost: who
asks is looked at before all else of a request.
"""


@schemathesis.serializer("application/x-ndjson")
def lines(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """A list's items one a line; anything else as what no line may be."""
    items = value if isinstance(value, list) else [[value]]
    return b"\n".join(json.dumps(item).encode() for item in items)


class Stand:
    """Stands for the application until a fixture has made it: tests are made when this file is collected."""

    app: OpenAPI

    def __init__(self) -> None:
        self._asked = Counter[str]()

    def judge(self, case: schemathesis.Case, headers: dict[str, str], *excluded: Any) -> None:
        """Send a case, and have all checks but these look at the answer."""
        self._asked[case.operation.label] += 1
        known = [ignored_auth] if self._asked[case.operation.label] > WITHOUT_TOKEN else []
        case.call_and_validate(headers=headers, excluded_checks=[*excluded, *known])

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self.app(environ, start_response)


stand = Stand()
unopened = open_database("sqlite:///never-opened.db")
described = create_app(ManagerContext(unopened, {}, stale_s=30, min_samples=20))
get_document: Any = described.view_functions["docs.get_document"]
document = get_document().get_json()
schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(CONFIG))
schema.app = stand
about_one_object = [one.ok() for one in schema.get_all_operations() if "{name}" in one.ok().path]
REPORT = "/api/v1/hosts/{name}/report"
limits = settings(
    max_examples=8 if SLOW_MACHINE else 20,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def headers(get_api: Callable[[str], Api]) -> dict[str, str]:
    """What every request carries. The database is PostgreSQL, the stricter one, with an object of each kind."""
    api = get_api("postgresql")
    prepare(api)
    return {"Authorization": f"Bearer {api.secrets['admin']}"}


def prepare(api: Api) -> None:
    """Let requests reach an interface, and register an object of each kind there."""
    stand.app = api.app
    api.ok("PUT", "/vms/web-1", {"class": "critical"})
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": {"response_time_ms": 9}})
    api.ok("POST", "/applications/shop/samples", {"times_ms": [1, 2, 3]})
    api.ok("POST", "/users", {"name": "alice", "role": "viewer", "password": "correct horse"})
    body = report(tick=tick(), vms=[status("web-1")], decisions=[record(1), record(2)], events=[event(1), event(2)])
    api.ok("POST", f"/hosts/{HOST}/report", body)


@schema.exclude(path=REPORT).parametrize()
@limits
def test_any_request_is_answered_as_documented(case: schemathesis.Case, headers: dict[str, str]) -> None:
    stand.judge(case, headers)


@schema.include(path=REPORT).parametrize()
@settings(limits, max_examples=2 if SLOW_MACHINE else 4)  # as large as all the others' bodies together
def test_any_report_is_answered_as_documented(case: schemathesis.Case, headers: dict[str, str]) -> None:
    # Agents of a later version may report fields that are not documented here: they are passed over.
    stand.judge(case, headers, negative_data_rejection)


@pytest.mark.parametrize("operation", about_one_object, ids=lambda one: one.label)
def test_any_request_about_what_exists_is_answered_as_documented(
    operation: schemathesis.schemas.APIOperation, headers: dict[str, str]
) -> None:
    name = {"name": NAMES[operation.path.split("/")[3]]}
    cases = [operation.as_strategy(generation_mode=mode, path_parameters=name) for mode in GenerationMode]

    @limits
    @given(st.one_of(cases))
    def check(case: schemathesis.Case) -> None:
        # A report is judged item by item: it is taken, and names in its answer what was not.
        stand.judge(case, headers, *([negative_data_rejection] if operation.path == REPORT else []))

    check()
