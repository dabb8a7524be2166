"""Response times are not to be trusted: whose they are, how many, and how large they may be.

What an agent decides from is what it measured itself and what the manager tells it in its assignment: so an application
whose part of that stays what it was has the weights that it had.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.model.histogram import LAST_BUCKET
from manager.model.source import NginxSyslog, SourceKind
from manager.model.window import MAX_COUNT
from manager.rate_limit import BURST_S, RateLimit
from manager.store.tokens import PrincipalKind
from manager.telemetry.feed import Feed
from manager.telemetry.push import MetricsPage, PushPages, PushRoute
from manager.telemetry.store import WindowStore
from manager.telemetry.syslog import Routes, SyslogReceiver, SyslogRoute
from tests.api.conftest import Api, moment, report

PER_S = 100
FULL = int(PER_S * BURST_S)


@pytest.fixture
def two(sqlite_api: Api) -> Api:
    """Applications ``shop`` on host ``kvm1`` and ``blog`` on ``kvm2``, which both have response times."""
    limited = ManagerContext(
        sqlite_api.database, {}, 30, 20, clock=sqlite_api.clock, samples=RateLimit(PER_S, sqlite_api.clock)
    )
    api = replace(sqlite_api, app=create_app(limited))
    for name, host in (("shop", "kvm1"), ("blog", "kvm2")):
        api.ok("PUT", f"/vms/{name}-1", {"class": "critical", "host": host})
        tiers = [{"name": "web", "vms": [f"{name}-1"]}]
        api.ok("PUT", f"/applications/{name}", {"tiers": tiers, "sla": {"response_time_ms": 10}})
        api.ok("POST", f"/applications/{name}/samples", {"times_ms": [5.0] * 40})
    for host, role in (("kvm1", "host"), ("kvm2", "other host")):
        api.ok("POST", f"/hosts/{host}/report", report(), role=role)
    return api


def told_of_blog(api: Api) -> Any:
    """All that the agent of its host is told of ``blog``."""
    assignment = api.ok("GET", "/hosts/kvm2/assignment", role="other host")
    return [one for one in assignment["applications"] if one["name"] == "blog"]


def post(api: Api, body: Any, application: str = "shop", role: str = "source") -> int:
    return api.call("POST", f"/applications/{application}/samples", body, role).status_code


def test_a_flood_of_one_source_is_refused_and_that_of_others_is_taken(two: Api) -> None:
    before = told_of_blog(two)
    flood = {"times_ms": [9_000.0] * 500}
    statuses = [post(two, flood) for _ in range(20)]
    taken = statuses.count(200)
    assert set(statuses) == {200, 429}
    assert FULL <= taken * 500 <= FULL + 2 * 500, "what a burst may be, and the request that went beyond it"
    problem = two.call("POST", "/applications/shop/samples", flood, "source")
    assert 1 <= int(problem.headers["Retry-After"]) <= 10
    assert "too many response times" in problem.get_json()["detail"]
    assert told_of_blog(two) == before
    assert post(two, {"times_ms": [5.0]}, "blog", "other source") == 200
    two.clock.now_s += int(problem.headers["Retry-After"])
    assert post(two, flood) == 200, "it may go on once it has waited"


def test_who_may_send_for_both_has_a_part_for_each(two: Api) -> None:
    while post(two, {"times_ms": [1.0] * 500}, role="operator") == 200:
        pass
    assert post(two, {"times_ms": [1.0] * 500}, "blog", role="operator") == 200


def test_a_large_limit_is_written_without_a_power_of_ten(sqlite_api: Api) -> None:
    samples, requests = RateLimit(1e6, sqlite_api.clock), RateLimit(1e6, sqlite_api.clock)
    limited = ManagerContext(
        sqlite_api.database, {}, 30, 20, clock=sqlite_api.clock, samples=samples, requests=requests
    )
    api = replace(sqlite_api, app=create_app(limited))
    samples.take(("shop", PrincipalKind.TOKEN, "the-source"), 1e9)
    requests.take((PrincipalKind.TOKEN, "the-viewer"), 1e9)
    flood = api.call("POST", "/applications/shop/samples", {"times_ms": [5.0]}, "source").get_json()
    assert "allowed: 1,000,000 per second and source" in flood["detail"]
    feed = Feed("shop", "push", SourceKind.PUSH, WindowStore(lambda: 0.0), lambda: 0.0)
    feed.flooded(1e6)
    assert feed.status().detail.startswith("more than 1,000,000 response times per second")
    asked = api.call("GET", "/vms", role="viewer").get_json()
    assert "exceeds the rate limit of 1,000,000 req/s" in asked["detail"]


def test_what_cannot_be_used_counts_by_its_size(two: Api) -> None:
    rubbish = {"nonsense": "x" * 64 * FULL}
    assert [post(two, rubbish) for _ in range(3)] == [422, 422, 429]


@pytest.mark.parametrize(
    ("role", "application"),
    [
        ("source", "blog"),
        ("other source", "shop"),
        ("host", "blog"),
        ("other host", "shop"),
        ("viewer", "blog"),
        ("", "blog"),
    ],
)
def test_response_times_of_others_cannot_be_forged(two: Api, role: str, application: str) -> None:
    before = [two.ok("GET", f"/applications/{name}/windows?buckets=true") for name in ("shop", "blog")]
    assert post(two, {"times_ms": [9_000.0] * 50}, application, role) in {401, 403}
    assert [two.ok("GET", f"/applications/{name}/windows?buckets=true") for name in ("shop", "blog")] == before


@pytest.mark.parametrize(
    "body",
    [
        {"times_ms": [1e300]},
        {"times_ms": [-1]},
        {"times_ms": [5.0], "requests": 1e300},
        {"buckets": {str(LAST_BUCKET + 1): 1}},
        {"buckets": {str(LAST_BUCKET): 2**60}},
        {"buckets": {str(LAST_BUCKET): MAX_COUNT}},
        {"times_ms": [5.0], "end": moment(3600)},
        {"times_ms": [5.0], "end": "9999-01-01T00:00:00Z"},
    ],
)
def test_absurd_values_are_refused_as_a_whole(two: Api, body: Any) -> None:
    before = [two.ok("GET", f"/applications/{name}/windows?buckets=true") for name in ("shop", "blog")]
    assert post(two, body) == 422
    assert [two.ok("GET", f"/applications/{name}/windows?buckets=true") for name in ("shop", "blog")] == before


def test_a_host_cannot_report_of_applications_that_are_not_there(two: Api) -> None:
    before = told_of_blog(two)
    forged = {"application": "blog", "start": moment(-5), "end": moment(0), "buckets": {"900": 1000}, "requests": 1000}
    answer = two.ok("POST", "/hosts/kvm1/report", report(windows=[forged]), role="host")
    assert answer["stored_windows"] == 0
    assert told_of_blog(two) == before


def test_requests_of_one_token_are_bounded_and_those_of_others_are_not_concerned(sqlite_api: Api) -> None:
    context = ManagerContext(
        sqlite_api.database, {}, 30, 20, clock=sqlite_api.clock, requests=RateLimit(2, sqlite_api.clock)
    )
    api = replace(sqlite_api, app=create_app(context))
    statuses = [api.call("GET", "/vms", role="viewer").status_code for _ in range(25)]
    assert statuses == [200] * 21 + [429] * 4
    refused = api.call("GET", "/vms", role="viewer")
    assert refused.headers["Retry-After"] == "1"
    assert "token 'the-viewer' exceeds the rate limit" in refused.get_json()["detail"]
    assert api.call("GET", "/vms", role="operator").status_code == 200
    assert api.call("GET", "/health", role="").status_code == 200
    wrong = [api.call("GET", "/vms", role="", Authorization="Bearer no").status_code for _ in range(25)]
    assert wrong == [401] * 21 + [429] * 4
    assert api.call("GET", "/vms", role="operator").status_code == 200, "from the same address, with a token"
    api.clock.now_s += 1
    assert api.call("GET", "/vms", role="viewer").status_code == 200


def test_refused_tokens_are_counted_of_all_addresses_that_a_subscriber_has(sqlite_api: Api) -> None:
    context = ManagerContext(
        sqlite_api.database, {}, 30, 20, clock=sqlite_api.clock, requests=RateLimit(2, sqlite_api.clock)
    )
    client = create_app(context).test_client()

    def asked(address: str) -> int:
        headers = {"Authorization": "Bearer no"}
        return client.get("/api/v1/vms", headers=headers, environ_base={"REMOTE_ADDR": address}).status_code

    assert [asked(f"2001:db8::{number:x}") for number in range(25)] == [401] * 21 + [429] * 4
    assert [asked(address) for address in ("2001:db8:0:1::1", "10.0.0.1")] == [401, 401]


def test_an_agent_takes_of_each_address_what_it_may_send() -> None:
    now_s = 1_700_000_000.0
    store = WindowStore(lambda: now_s)
    feed = Feed("shop", "push", SourceKind.PUSH, store, lambda: now_s, steady=lambda: now_s)
    pages = PushPages(samples=RateLimit(PER_S, lambda: now_s))
    pages.routes = {"shop": (PushRoute(feed, frozenset({"10.0.0.1", "10.0.0.2"}), ()),)}

    def send(sender: str) -> tuple[str, dict[str, str]]:
        return call(pages, sender, b'{"times_ms": [' + b",".join([b"5"] * 500) + b"]}")

    statuses = [send("10.0.0.1") for _ in range(6)]
    assert [status[:3] for status, _ in statuses] == ["200"] * 2 + ["429"] * 4
    assert int(statuses[-1][1]["Retry-After"]) > 0
    assert send("10.0.0.2")[0] == "200 OK"
    assert feed.status().refused == 4
    assert "came from one address" in feed.status().detail


def test_an_agent_looks_at_no_more_packets_of_an_address_than_it_may_send() -> None:
    now_s = 1_700_000_000.0
    store = WindowStore(lambda: now_s)
    feeds = [
        Feed(name, "log", SourceKind.NGINX_SYSLOG, store, lambda: now_s, steady=lambda: now_s)
        for name in ("shop", "blog")
    ]
    senders = ("10.0.0.1", "10.0.0.2")
    asked: list[str] = []
    receiver = SyslogReceiver(asked.append, RateLimit(PER_S / 10, lambda: now_s))
    receiver.routes = Routes.of(
        [
            SyslogRoute(NginxSyslog("log"), feed, frozenset({sender}))
            for feed, sender in zip(feeds, senders, strict=True)
        ]
    )
    for _ in range(5000):
        receiver.packet(b"<190>Mar  1 12:00:00 web nginx: request_time=9.000", "10.0.0.1")
        receiver.packet(b"<190>Mar  1 12:00:00 web nginx: request_time=9.000", "10.6.6.6")
    receiver.packet(b"<190>Mar  1 12:00:00 web nginx: request_time=0.005", "10.0.0.2")
    flooded, other = (feed.status() for feed in feeds)
    burst = PER_S / 10 * BURST_S + 1
    # Refused are what is too much, and what of the stranger's could have been for it.
    assert (flooded.accepted, flooded.refused) == (burst, 5000 - burst + burst)
    assert "came from one address" in flooded.detail
    assert (other.accepted, len(asked)) == (1, burst)


def test_what_an_agent_answers_is_neither_kept_nor_guessed_at() -> None:
    def metrics(_environ: object, start: Callable[..., object]) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [b""]

    pages, page = PushPages(), MetricsPage(metrics)
    asked = ((page, "/metrics", "GET"), (page, "/nowhere", "GET"), (pages, "/samples/shop", "POST"))
    for application, path, method in asked:
        told: list[dict[str, str]] = []
        environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": "127.0.0.1"}
        list(application(environ, lambda _status, headers, into=told: into.append(dict(headers))))
        [headers] = told
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


def call(pages: PushPages, sender: str, body: bytes) -> tuple[str, dict[str, str]]:
    """Status and headers of an answer of the agent."""
    told: list[tuple[str, dict[str, str]]] = []
    environ = {
        "PATH_INFO": "/samples/shop",
        "REQUEST_METHOD": "POST",
        "REMOTE_ADDR": sender,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    list(pages(environ, lambda status, headers: told.append((status, dict(headers)))))
    return told[0]
