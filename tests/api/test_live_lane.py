"""A live report is answered past the web framework as the framework would answer it; all else is left to that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import request_started
from werkzeug.test import TestResponse

from manager.errors import DatabaseUnavailable
from manager.rate_limit import RateLimit
from manager.store.database import Database
from tests.api.conftest import HOST, Api, report, tick, tick_of, window
from tests.api.test_live_reports import AGENT, live, make_fleet, rows, send

REPORT = f"/hosts/{HOST}/report"


@contextmanager
def framework_requests(api: Api) -> Iterator[list[str]]:
    """The paths of requests that the web framework is given."""
    paths: list[str] = []

    def note(_app: object, **_given: object) -> None:
        paths.append("asked")

    with request_started.connected_to(note, api.app):
        yield paths


Both = Callable[[Callable[[Api], Any]], tuple[Any, Any]]
"""What an act comes to at a manager that has the framework answer, and at one that answers as agents are answered."""


@pytest.fixture
def both(migrated: Callable[[str], Database]) -> Both:
    def act_twice(act: Callable[[Api], Any]) -> tuple[Any, Any]:
        outcomes = []
        for served in (False, True):
            api = make_fleet(migrated("sqlite"), served=served, requests=RateLimit(2.0, clock=lambda: 0.0))
            outcomes.append(act(api))
        return outcomes[0], outcomes[1]

    return act_twice


def told(answer: TestResponse) -> tuple[int, dict[str, str], Any]:
    """An answer but for what is of one request alone."""
    own = {"X-Request-Id": "one", "Equipoise-Revision": "a number"}
    headers = {name: own.get(name, value) for name, value in answer.headers.items()}
    body = answer.get_json() if answer.data else None
    if answer.status_code >= 400:
        body.pop("request_id", None)
        headers.pop("Content-Length")
    return answer.status_code, headers, body


def counts(api: Api) -> list[str]:
    """What the manager's metrics say of requests and what they brought, but for how long they took."""
    page = api.call("GET", "//metrics", role="").get_data(as_text=True)
    lines = re.findall(r"^equipoise_(?:api|windows|records|report)_.*", page, re.MULTILINE)
    return [line for line in lines if "_sum" not in line and "_bucket" not in line and "_created" not in line]


def test_a_live_report_does_without_the_framework(both: Both) -> None:
    def act(api: Api) -> list[str]:
        send(api, live())
        with framework_requests(api) as paths:
            send(api, live())
        return paths

    assert both(act) == (["asked"], [])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_answer_headers_and_counts_are_those_of_the_framework(both: Both, scheme: str) -> None:
    def act(api: Api) -> tuple[Any, ...]:
        bodies = live(windows=[window(count=2), window(end=-5)]), live(windows=[]), live()
        answers = [told(api.call("POST", REPORT, body, "host", scheme=scheme, **AGENT)) for body in bodies]
        return answers, counts(api), rows(api)

    framework, lane = both(act)
    assert framework == lane
    assert [status for status, _, _ in lane[0]] == [200, 200, 200]


OTHERS = [
    pytest.param(live(), {"role": "admin"}, id="another role"),
    pytest.param(live(), {"role": "other host"}, id="another host's token"),
    pytest.param(live(), {"role": ""}, id="no token"),
    pytest.param(live(), {"role": "host", "Authorization": "Bearer nobody's"}, id="unknown token"),
    pytest.param(live(), {"role": "host", "Authorization": "Basic eDp5"}, id="basic"),
    pytest.param(live(), {"role": "host", "Equipoise_Protocol": "9"}, id="another protocol"),
    pytest.param(live(), {"role": "host", "Content_Type": "text/plain"}, id="no JSON by its type"),
    pytest.param(live(agent_version=7), {"role": "host"}, id="invalid field"),
    pytest.param(live(tick=tick(duration_ms=-1)), {"role": "host"}, id="invalid part"),
    pytest.param(live(windows=[window(end=3600)]), {"role": "host"}, id="a window of the future"),
    pytest.param(live(windows=[window("unknown")]), {"role": "host"}, id="unknown application"),
    pytest.param(report(ticks=[tick_of(0)], live=True), {"role": "host"}, id="more than live"),
    pytest.param([{"live": True}], {"role": "host"}, id="no object"),
    pytest.param(live(), {"role": "host", "Equipoise_Instance": "agent-2", "Equipoise_Boot": "b"}, id="second agent"),
    pytest.param(live(), {"role": "host", "Equipoise_Clock_Ahead": "7.5"}, id="clock off"),
    pytest.param(live(), {"role": "host", "Equipoise_Clock_Ahead": "?"}, id="clock unknown"),
]


@pytest.mark.parametrize(("body", "headers"), OTHERS)
def test_all_else_is_answered_once_and_the_same(both: Both, body: Any, headers: dict[str, str]) -> None:
    def act(api: Api) -> tuple[Any, ...]:
        send(api, live())
        given = AGENT | {name: value for name, value in headers.items() if name != "role"}
        return told(api.call("POST", REPORT, body, headers["role"], **given)), counts(api), rows(api)

    framework, lane = both(act)
    assert framework == lane


def test_an_administrator_reports_by_the_lane_too(both: Both) -> None:
    def act(api: Api) -> tuple[Any, list[str]]:
        api.call("POST", REPORT, live(), "admin", **AGENT)
        with framework_requests(api) as paths:
            answer = told(api.call("POST", REPORT, live(), "admin", **AGENT))
        return answer, paths

    framework, lane = both(act)
    assert framework[0] == lane[0]
    assert lane[1] == []


def test_a_token_above_its_rate_is_refused(both: Both) -> None:
    def act(api: Api) -> list[int]:
        return [api.call("POST", REPORT, live(), "host", **AGENT).status_code for _ in range(30)]

    framework, lane = both(act)
    assert framework == lane
    assert set(lane) == {200, 429}, "each counts once"


def test_what_failed_is_not_tried_again(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(api: Api) -> tuple[Any, int]:
        tries = 0

        def fail(*_given: object) -> int:
            nonlocal tries
            tries += 1
            raise DatabaseUnavailable("gone")

        send(api, live())
        with monkeypatch.context() as patched:
            patched.setattr(type(api.database), "change", fail)
            return told(api.call("POST", REPORT, live(), "host", **AGENT)), tries

    framework, lane = both(act)
    assert framework == lane
    assert (lane[0][0], lane[1]) == (503, 1)
