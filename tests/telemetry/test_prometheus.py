"""Prometheus: arithmetic on buckets, answers of all kinds, and polls over a real connection."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.histogram import Histogram
from manager.model.source import PrometheusQuery, SourceState
from manager.model.window import Ready
from manager.telemetry.connect import HttpAnswer, HttpClient
from manager.telemetry.prometheus import (
    BucketCounter,
    PrometheusSource,
    QueryError,
    increase,
    one_number,
    read_buckets,
    to_histogram,
)
from manager.telemetry.prometheus import ask as ask_server
from tests.telemetry.conftest import Fed, Running, shop, until

INF = math.inf


@pytest.mark.parametrize(
    ("before", "now", "increases"),
    [
        ({0.1: 5, 1.0: 8, INF: 9}, {0.1: 7, 1.0: 11, INF: 12}, {0.1: 2, 1.0: 1, INF: 0}),
        ({0.1: 5, INF: 9}, {0.1: 5, INF: 9}, {0.1: 0, INF: 0}),
        ({0.1: 5, INF: 9}, {0.1: 2, INF: 3}, {0.1: 2, INF: 1}),
        ({0.1: 5, INF: 9}, {0.1: 9, INF: 8}, {0.1: 9, INF: 0}),
        ({INF: 9}, {0.5: 4, INF: 13}, {0.5: 4, INF: 0}),
        ({}, {}, {}),
    ],
    ids=["grown", "still", "reset", "reset of a part", "a new bound", "nothing"],
)
def test_what_was_added_to_a_series(before: dict, now: dict, increases: dict) -> None:
    assert increase(before, now) == increases


@pytest.mark.parametrize(
    ("increases", "percentile", "time_ms"),
    [
        ({0.1: 100, INF: 0}, 50, 50),
        ({0.1: 0, 0.2: 100, INF: 0}, 95, 195),
        ({0.1: 9000, 0.5: 1000, INF: 0}, 95, 300),
        ({0.1: 0, 0.5: 0, INF: 7}, 50, 500),
        ({0.1: 1_000_000, INF: 0}, 95, 95),
        ({0.2: 1, INF: 0}, 95, 100),
    ],
)
def test_a_bucket_is_spread_as_histogram_quantile_does(increases: dict, percentile: float, time_ms: float) -> None:
    histogram = Histogram(to_histogram(increases))
    assert histogram.count == sum(increases.values())
    assert histogram.percentile_us(percentile) / 1000 == pytest.approx(time_ms, rel=0.02)


@given(st.dictionaries(st.floats(0.001, 100), st.integers(0, 5000), max_size=12), st.integers(0, 50))
def test_no_observation_is_lost(finite: dict[float, int], above: int) -> None:
    assert sum(to_histogram(finite | {INF: above}).values()) == sum(finite.values()) + above


def test_series_are_counted_apart_and_then_together() -> None:
    a, b, c = (frozenset({("pod", name)}) for name in "abc")
    counter = BucketCounter()
    assert counter.update({a: {0.1: 100.0}, b: {0.1: 10.0}}, 0) == {}
    # a goes on, b was started anew, c is seen for the first time
    assert sum(counter.update({a: {0.1: 103.0}, b: {0.1: 2.0}, c: {0.1: 50.0}}, 5).values()) == 5
    assert sum(counter.update({a: {0.1: 104.0}, c: {0.1: 51.0}}, 10).values()) == 2
    assert sum(counter.update({a: {0.1: 104.0}, b: {0.1: 6.0}, c: {0.1: 51.0}}, 15).values()) == 4
    assert counter.update({}, 400) == {}
    assert counter.update({a: {0.1: 200.0}}, 405) == {}, "too long ago"


def vector(*series: tuple[dict[str, str], str]) -> dict[str, Any]:
    result = [{"metric": metric, "value": [1700000000.0, value]} for metric, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def buckets(*counts: int, bounds: tuple[str, ...] = ("0.1", "0.5", "+Inf")) -> dict[str, Any]:
    return vector(*(({"le": bound, "app": "shop"}, str(count)) for bound, count in zip(bounds, counts, strict=True)))


class Said(HttpClient):
    """Answers what it was told to, whatever it is asked for."""

    def __init__(self, status: int, bodies: list[bytes]) -> None:
        self._answers = [HttpAnswer(status, body) for body in bodies]

    async def get(self, url: str, *, keep_body: bool = True) -> HttpAnswer:
        return self._answers.pop(0)


def ask(status: int, body: object) -> list[Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(ask_server(Said(status, [content]), "http://prometheus.example.org/", "up"))


def test_vectors_and_scalars_are_read() -> None:
    assert ask(200, vector(({"le": "0.1"}, "7"))) == [({"le": "0.1"}, 7)]
    assert ask(200, {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "2.5"]}}) == [({}, 2.5)]
    assert ask(200, vector()) == []


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "invalid parameter \"query\": 1:1: parse error"},
         "refuses the query: bad_data, status 400"),
        (422, {"status": "error", "errorType": "execution", "error": "query timed out"}, "execution, status 422"),
        (400, {"status": "error", "errorType": "<b>", "error": "<script>"}, "the server answers status 400"),
        (503, b"upstream is down", "status 503 and no JSON"),
        (401, {"message": "who are you"}, "status 401"),
        (200, [1, 2], "status 200"),
        (200, {"status": "success"}, "does not answer as Prometheus does"),
        (200, {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}, "not answer as"),
        (200, {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "histogram": []}]}},
         "native histograms"),
        (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}, "answers a matrix"),
        (200, {"status": "success", "data": {"resultType": "<b>", "result": []}}, "a result of another type"),
        (200, vector(*[({"le": "1"}, "1")] * 10_001), "more than 10000 series"),
    ],
)  # fmt: skip
def test_errors_are_told_in_our_words(status: int, body: object, reason: str) -> None:
    with pytest.raises(QueryError, match=re.escape(reason)):
        ask(status, body)


@pytest.mark.parametrize(
    "answer", [[({}, 1.0)], [({"le": "many"}, 1.0)], [({"le": "NaN"}, 1.0)], [({"le": "0.1"}, math.nan)]]
)
def test_what_is_no_histogram_is_refused(answer: list) -> None:
    with pytest.raises(QueryError, match="the query answers"):
        read_buckets(answer)


def test_one_number_is_one() -> None:
    assert one_number([]) is None
    assert one_number([({}, 3.0)]) == 3
    with pytest.raises(QueryError, match="2 series"):
        one_number([({}, 1.0), ({}, 2.0)])


class Server:
    """Answers polls of a source, one after the other, each ``every_s`` later."""

    def __init__(self, fed: Fed, spec: PrometheusQuery) -> None:
        self.fed = fed
        self.source = PrometheusSource(spec, fed.feed)
        self.every_s = spec.every_s

    def poll(self, *answers: dict[str, Any], after_s: float | None = None) -> None:
        self.fed.clock.now_s += self.every_s if after_s is None else after_s
        said = Said(200, [json.dumps(answer).encode() for answer in answers])
        asyncio.run(self.source._poll(said))


def test_a_histogram_becomes_response_times_and_requests(fed: Fed) -> None:
    server = Server(fed, PrometheusQuery("prom", "http://p", "x_bucket", every_s=5))
    server.poll(buckets(1000, 1100, 1100))
    assert (fed.count, fed.requests) == (0, None)
    server.poll(buckets(1900, 2100, 2100))
    assert (fed.count, fed.requests, fed.status.accepted) == (1000, 1000, 1000)
    [slot] = fed.store.slots()["shop"]
    assert slot.percentile_ms(50) == pytest.approx(56, rel=0.03)
    assert slot.percentile_ms(95) == pytest.approx(300, rel=0.03)
    server.poll(buckets(90, 100, 100))
    assert (fed.count, fed.requests) == (1100, 1100), "counters that were reset begin from 0"


def test_counters_that_stand_still_between_scrapes_do_not_mean_idle(fed: Fed) -> None:
    server = Server(fed, PrometheusQuery("prom", "http://p", "x_bucket", every_s=5))
    server.poll(buckets(10, 10, 10))
    for _ in range(2):
        server.poll(buckets(10, 10, 10))
    assert fed.requests is None
    server.poll(buckets(40, 40, 40))
    assert [slot.requests for slot in fed.store.slots()["shop"]] == [10, 10, 10]
    for _ in range(12):
        server.poll(buckets(40, 40, 40))
    assert fed.requests == 30
    before = len(fed.store.slots()["shop"])
    server.poll(buckets(40, 40, 40))
    slots = fed.store.slots()["shop"]
    assert len(slots) == before + 1, "after a minute it is known that there are no requests"
    assert (slots[-1].requests, slots[-1].histogram.count) == (0, 0)
    assert fed.status.state is SourceState.SILENT


def test_a_ready_percentile_and_its_rate(fed: Fed) -> None:
    spec = PrometheusQuery("prom", "http://p", "q", percentile=95, rate_query="r", every_s=5)
    server = Server(fed, spec)
    server.poll(vector(({}, "0.0125")), vector(({}, "40")))
    [slot] = fed.store.slots()["shop"]
    assert (slot.ready, slot.requests, slot.rate_rps) == (Ready(95, 12.5), 200, 40)
    assert slot.percentile_ms(95) == 12.5
    server.poll(vector(({}, "NaN")), vector())
    [_, slot] = fed.store.slots()["shop"]
    assert (slot.ready, slot.requests) == (None, 0)
    server.poll(vector(), vector())
    assert len(fed.store.slots()["shop"]) == 2, "no series: nothing is known"
    assert fed.status.state is SourceState.OK


@pytest.mark.parametrize("value", ["-1", "+Inf", "1e9"])
def test_a_percentile_that_is_no_time_is_refused(fed: Fed, value: str) -> None:
    Server(fed, PrometheusQuery("prom", "http://p", "q", percentile=95)).poll(vector(({}, value)))
    assert (fed.status.state, fed.count) == (SourceState.FAILING, 0)
    assert "use one for seconds" in fed.status.detail


def test_no_series_at_all_is_failing(fed: Fed) -> None:
    server = Server(fed, PrometheusQuery("prom", "http://p", "typo_bucket"))
    server.poll(vector())
    assert (fed.status.state, fed.status.detail) == (SourceState.FAILING, "the query answers no series")
    server.poll(buckets(1, 1, 1))
    assert fed.status.state is SourceState.STARTING


def test_a_server_is_asked_again_and_again(running: Running, web: Callable[..., Any]) -> None:
    counts = iter(range(0, 10**6, 10))
    broken: list[bool] = []

    def answer(path: str) -> tuple[int, bytes]:
        if broken:
            return 422, b'{"status": "error", "errorType": "execution", "error": "too many samples"}'
        count = next(counts)
        return 200, json.dumps(buckets(count, count, count)).encode()

    server = web(answer)
    running.configure(shop(PrometheusQuery("prom", server.url, 'x_bucket{app="a b"}', every_s=0.05)))
    until(lambda: running.status("prom").accepted >= 30, "increases arrive")
    assert running.status("prom").state is SourceState.OK
    assert server.paths[0] == "/api/v1/query?query=x_bucket%7Bapp%3D%22a+b%22%7D"
    broken.append(True)
    until(lambda: running.status("prom").state is SourceState.FAILING, "the refusal is told")
    assert running.status("prom").detail == "the server refuses the query: execution, status 422"
    broken.clear()
    until(lambda: running.status("prom").state is SourceState.OK, "it works again")
