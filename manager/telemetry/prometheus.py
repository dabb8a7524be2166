"""Response times from the operator's Prometheus server, by its HTTP API."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from manager.model.reach import DEFAULT_REACH, Reach
from manager.model.source import PrometheusQuery
from manager.model.window import Ready
from manager.telemetry.buckets import BucketCounter, Series
from manager.telemetry.credentials import Carried
from manager.telemetry.feed import Feed, SourceError, reason_of
from manager.telemetry.http_client import HttpClient, http_client

MOST_BYTES = 2 * 1024 * 1024
MOST_SERIES = 10_000
_CONNECTIONS = 2
_ERROR_TYPES = frozenset(
    {"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable"}
)
"""Those of Prometheus' web/api/v1/api.go."""
_RESULT_TYPES = frozenset({"matrix", "string"})
_MAX_TIME_S = 1e6
_IDLE_AFTER_S = 60.0
"""Counters move with each scrape only: not before this long without a change do they tell that there is no request."""
_MOST = 2.0**53
"""Above it a float is no exact count any more."""
_NO_SERIES = "the query answers no series"


class QueryError(SourceError):
    """The server refuses the query, or answers what cannot be used."""


def query_url(base: str, query: str) -> str:
    """Where a query is asked of the server at ``base``. Raises QueryError for a base that has more than a path."""
    if "?" in base or "#" in base:
        raise QueryError("the server's URL has a query or a fragment; allowed: http(s)://HOST:PORT and a path")
    return f"{base.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"


class PrometheusClient:
    """Instant queries on one server."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self._client = client
        self._url = url

    async def query(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        """As ``read_series``. Raises SourceError, OSError."""
        answer = await self._client.get(query_url(self._url, query))
        return read_series(answer.status, answer.body)


class PrometheusSource:
    """One query, asked again and again."""

    def __init__(
        self,
        spec: PrometheusQuery,
        feed: Feed,
        clock: Callable[[], float],
        reach: Reach = DEFAULT_REACH,
        steady: Callable[[], float] = time.monotonic,
        headers: Carried = dict,
    ) -> None:
        """``clock`` tells seconds since the epoch, ``steady`` seconds that only grow.

        ``headers`` tells what requests carry, and raises CredentialError.
        """
        self._spec = spec
        self._reach = reach
        self._headers = headers
        self._feed = feed
        self._clock = clock
        self._steady = steady
        self._counter = BucketCounter()
        self._changed_s: float | None = None  # steady

    async def run(self) -> None:
        """Ask until cancelled. Raises CredentialError."""
        spec = self._spec
        async with http_client(self._reach, MOST_BYTES, _CONNECTIONS, self._headers()) as http:
            client = PrometheusClient(http, spec.url)
            while True:
                await self._poll(client)
                # Aligned, so that all agents and sources see the same state of the server.
                now_s = self._clock()
                await asyncio.sleep((math.floor(now_s / spec.every_s) + 1) * spec.every_s - now_s)

    async def _poll(self, client: PrometheusClient) -> None:
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                if self._spec.percentile is None:
                    self._take_buckets(await client.query(self._spec.query))
                else:
                    await self._take_percentile(client, self._spec.percentile)
        except TimeoutError:
            self._fail(f"no answer within {self._spec.timeout_s:g} s")
        except (SourceError, OSError) as error:
            self._fail(reason_of(error))
        else:
            self._feed.working()

    def _fail(self, reason: str) -> None:
        self._feed.explain("")
        self._feed.error(reason)
        self._feed.failing(reason)

    def _take_buckets(self, answer: list[tuple[Mapping[str, str], float]]) -> None:
        if not answer:
            raise QueryError(_NO_SERIES)
        now_s, steady_s = self._clock(), self._steady()
        buckets = self._counter.update(read_buckets(answer), steady_s)
        count = sum(buckets.values())
        if self._changed_s is None:
            self._changed_s = steady_s
        elif count:
            self._feed.take(now_s, buckets=buckets)
            self._feed.take_requests(now_s - (steady_s - self._changed_s), now_s, count)
            self._changed_s = steady_s
        elif steady_s - self._changed_s > _IDLE_AFTER_S:
            self._feed.take_requests(now_s - self._spec.every_s, now_s, 0.0)

    async def _take_percentile(self, client: PrometheusClient, percentile: float) -> None:
        time_s = one_number(await client.query(self._spec.query))
        rate_rps = one_number(await client.query(self._spec.rate_query)) if self._spec.rate_query else None
        now_s = self._clock()
        # No failure: a rate() has none before its second scrape. But a misspelt query would be silent without a reason.
        self._feed.explain(_NO_SERIES if time_s is None else "")
        if time_s is not None and math.isnan(time_s):  # nothing was observed
            rate_rps = 0.0
        elif time_s is not None:
            if not 0 <= time_s <= _MAX_TIME_S:
                raise QueryError(f"the query answers {time_s:g}; use one for seconds, 0 to {_MAX_TIME_S:g}")
            self._feed.take(now_s, ready=Ready(percentile, time_s * 1000))
        if rate_rps is not None and math.isfinite(rate_rps) and rate_rps >= 0:
            self._feed.take_requests(now_s - self._spec.every_s, now_s, rate_rps * self._spec.every_s)


def read_series(status: int, body: bytes) -> list[tuple[Mapping[str, str], float]]:
    """Labels and value of each series of an answer; a scalar has no labels. Raises QueryError, whatever the body is."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise QueryError(f"the server answers status {status} and no JSON") from None
    if not isinstance(answer, dict) or answer.get("status") != "success":
        kind = answer.get("errorType") if isinstance(answer, dict) else None
        refused = f"the server refuses the query: {kind}, " if isinstance(kind, str) and kind in _ERROR_TYPES else ""
        raise QueryError(f"{refused}status {status}" if refused else f"the server answers status {status}")
    data: Any = answer.get("data")
    try:
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        if data["resultType"] != "vector":
            kind = data["resultType"] if data["resultType"] in _RESULT_TYPES else "result of another type"
            raise QueryError(f"the query answers a {kind}, not an instant vector")
        if len(data["result"]) > MOST_SERIES:
            raise QueryError(f"the query answers more than {MOST_SERIES} series; aggregate it")
        if any("histogram" in series for series in data["result"]):
            raise QueryError("the query answers native histograms; ask for a classic one's _bucket series")
        return [
            ({str(name): str(value) for name, value in series["metric"].items()}, float(series["value"][1]))
            for series in data["result"]
        ]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise QueryError("the server does not answer as Prometheus does") from error


def read_buckets(answer: list[tuple[Mapping[str, str], float]]) -> dict[Series, dict[float, float]]:
    """Cumulative buckets by series. Raises QueryError for series without a usable ``le``, and for a rate.

    Client libraries write bounds in different ways (``1``, ``1.0``), which ``sum by (le)`` keeps apart. Buckets with
    the same bound are added, as in histogram_quantile (coalesceBuckets of Prometheus' promql/quantile.go).
    """
    histograms: dict[Series, dict[float, float]] = {}
    for labels, value in answer:
        try:
            bound_s = float(labels["le"])
        except (KeyError, ValueError):
            raise QueryError("the query answers series without a label le; ask for _bucket series by le") from None
        if math.isnan(bound_s) or not math.isfinite(value):
            raise QueryError("the query answers buckets that are no numbers")
        if not 0 <= value <= _MOST:
            raise QueryError(f"the query answers {value:g} observations; use one for counts, 0 to 2^53")
        if not value.is_integer():
            raise QueryError("the query answers fractions; ask for the _bucket series, not for their rate()")
        buckets = histograms.setdefault(frozenset((name, text) for name, text in labels.items() if name != "le"), {})
        buckets[bound_s] = buckets.get(bound_s, 0.0) + value
    return histograms


def one_number(answer: list[tuple[Mapping[str, str], float]]) -> float | None:
    """The only value, None where there is no series. Raises QueryError for several."""
    if len(answer) > 1:
        raise QueryError(f"the query answers {len(answer)} series; it should answer one number")
    return answer[0][1] if answer else None
