"""Response times from the operator's Prometheus server, by its HTTP API."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlencode

from manager.model.histogram import Histogram, bucket_of
from manager.model.reach import Reach
from manager.model.source import PrometheusQuery
from manager.model.window import Ready
from manager.telemetry.connect import HttpClient, http_client
from manager.telemetry.credentials import ReadHeaders
from manager.telemetry.feed import Feed, SourceError, reason_of, until_next_s

MOST_BYTES = 2 * 1024 * 1024
MOST_SERIES = 10_000
MOST_KEPT = 20_000
"""So many buckets of series are remembered, besides those of the last reading: their names may change all the time."""
KEEP_S = 300.0
_CONNECTIONS = 2
_ERROR_TYPES = frozenset(
    {"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable"}
)
"""Those of Prometheus' web/api/v1/api.go."""
_RESULT_TYPES = frozenset({"matrix", "string"})
_MAX_TIME_S = 1e6
_IDLE_AFTER_S = 60.0
"""Counters move with each scrape only: not before this long without a change do they mean that there is no request."""
_MOST = 2.0**53
"""Above it a float is no exact count any more."""
_NO_SERIES = "the query answers no series"
_POSITIONS = 200
_OLDER = 0.9
"""Counters that go back to no less than this part are an older reading, as of another of several servers."""
_CATCHES_UP_S = 60.0
"""Such a server is a scrape behind: what stays less is less, as a sum of which one of many instances ended."""

Series = frozenset[tuple[str, str]]
"""The labels of a series, without ``le``."""
Cumulative = Mapping[float, float]
"""Observations at or below each bound, in seconds; ``inf`` holds all."""


class QueryError(SourceError):
    """The server refuses the query, or answers what cannot be used."""


def query_url(base: str, query: str) -> str:
    """Where a query is asked of the server at ``base``. Raises QueryError for a base that has more than a path."""
    if "?" in base or "#" in base:
        raise QueryError("the server's URL has a query or a fragment; allowed: http(s)://HOST:PORT and a path")
    return f"{base.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"


async def ask(client: HttpClient, base: str, query: str) -> list[tuple[Mapping[str, str], float]]:
    """The answer to an instant query, as ``read_series``. Raises SourceError, OSError."""
    answer = await client.get(query_url(base, query))
    return read_series(answer.status, answer.body)


class PrometheusSource:
    """One query, asked periodically."""

    def __init__(self, spec: PrometheusQuery, feed: Feed) -> None:
        self._spec = spec
        self._feed = feed
        self._counter = BucketCounter()
        # By the steady clock: when it was read last, when counters moved, and up to when requests are counted.
        self._read_s = self._counted_s = 0.0
        self._changed_s: float | None = None

    async def run(self, reach: Reach, headers: ReadHeaders) -> None:
        """Ask until cancelled. Raises CredentialError."""
        async with http_client(reach, MOST_BYTES, _CONNECTIONS, headers()) as client:
            while True:
                await self._poll(client)
                # Aligned, so that all agents and sources see the same state of the server.
                await asyncio.sleep(until_next_s(self._feed.clock(), self._spec.every_s))

    async def _poll(self, client: HttpClient) -> None:
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                if self._spec.percentile is None:
                    self._take_buckets(await ask(client, self._spec.url, self._spec.query))
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
        feed, now_s, steady_s = self._feed, self._feed.clock(), self._feed.steady()
        reading = read_buckets(answer)
        if steady_s - self._read_s > max(KEEP_S, 2 * self._spec.every_s):  # what was observed since is not of now
            self._counter, self._changed_s = BucketCounter(), None
        self._read_s = steady_s
        buckets = self._counter.update(reading, steady_s)
        count = sum(buckets.values())
        if self._changed_s is None:
            self._changed_s = self._counted_s = steady_s
        elif count:
            feed.take(now_s, buckets=buckets)
            feed.take_requests(now_s - (steady_s - self._counted_s), now_s, count)
            self._changed_s = self._counted_s = steady_s
        elif steady_s - self._changed_s > _IDLE_AFTER_S:
            feed.take_requests(now_s - self._spec.every_s, now_s, 0.0)
            self._counted_s = steady_s

    async def _take_percentile(self, client: HttpClient, percentile: float) -> None:
        spec = self._spec
        time_s = one_number(await ask(client, spec.url, spec.query))
        rate_rps = one_number(await ask(client, spec.url, spec.rate_query)) if spec.rate_query else None
        now_s = self._feed.clock()
        # No failure: a rate() has none before its second scrape. But a misspelt query would be silent without a reason.
        self._feed.explain(_NO_SERIES if time_s is None else "")
        if time_s is not None and math.isnan(time_s):  # nothing was observed
            rate_rps = 0.0
        elif time_s is not None:
            if not 0 <= time_s <= _MAX_TIME_S:
                raise QueryError(f"the query answers {time_s:g}; use one for seconds, 0 to {_MAX_TIME_S:g}")
            self._feed.take(now_s, ready=Ready(percentile, time_s * 1000))
        if rate_rps is not None and math.isfinite(rate_rps) and rate_rps >= 0:
            self._feed.take_requests(now_s - spec.every_s, now_s, rate_rps * spec.every_s)


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


def increase(before: Cumulative, now: Cumulative) -> dict[float, float]:
    """Observations per bucket (by its upper bound) between two readings of one series.

    A counter that went down was reset, and began from 0. Bounds that were not there before count from 0 too.
    """
    reset = any(count < before.get(bound, 0.0) for bound, count in now.items())
    since = {bound: count - (0.0 if reset else before.get(bound, 0.0)) for bound, count in now.items()}
    bounds = sorted(since)
    counts = {bounds[0]: since[bounds[0]]} if bounds else {}
    for low, high in pairwise(bounds):
        counts[high] = max(0.0, since[high] - since[low])  # not below 0: buckets are not read at one instant
    return counts


def is_older(now: Cumulative, before: Cumulative) -> bool:
    """Whether a reading of a series was made before another one: all counters are a little less, or as they were."""
    both = [(now[bound], count) for bound, count in before.items() if bound in now]
    went_back = any(now_count < count for now_count, count in both)
    return went_back and all(_OLDER * count <= now_count <= count for now_count, count in both)


def to_histogram(increases: Mapping[float, float]) -> dict[int, int]:
    """Counts by our buckets: each of Prometheus' evenly spread between its bounds, as in histogram_quantile.

    What is above the highest finite bound counts at that bound.
    """
    buckets: dict[int, int] = {}
    low_s = 0.0
    for high_s in sorted(increases):
        count = round(increases[high_s])
        finite_s = low_s if math.isinf(high_s) else high_s
        places = min(count, _POSITIONS)
        for place in range(places):
            time_s = low_s + (finite_s - low_s) * (place + 0.5) / places
            bucket = bucket_of(time_s * 1e6)
            # The counts of all places together are the bucket's.
            share = count * (place + 1) // places - count * place // places
            buckets[bucket] = buckets.get(bucket, 0) + share
        low_s = finite_s
    return buckets


class _Before(NamedTuple):
    """A series at its newest reading, when it was seen last, and since when readings are older; None: they are not."""

    seen_s: float
    cumulative: Cumulative
    older_s: float | None = None


class BucketCounter:
    """Turns readings of all series of a query into what was observed since the reading before.

    Series are distinguished by a hash of their labels, as these may be long.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Before] = {}  # the one that was not seen for longest first

    def update(self, reading: Mapping[Series, Cumulative], now_s: float) -> dict[int, int]:
        """Counts by our buckets. A series counts from its second reading on.

        Series that are missing for up to ``KEEP_S``, as after a failed scrape, go on where they were.
        """
        totals: dict[frozenset[float], dict[float, float]] = {}  # by bounds, between which buckets are spread
        for series, now in reading.items():
            key = hash(series)
            before = self._before.pop(key, None)
            if before is not None and is_older(now, before.cumulative):
                older_s = now_s if before.older_s is None else before.older_s
                if now_s - older_s <= _CATCHES_UP_S:
                    self._before[key] = before._replace(seen_s=now_s, older_s=older_s)
                    continue
                before = None
            if before is not None:
                total = totals.setdefault(frozenset(now), {})
                for bound, count in increase(before.cumulative, now).items():
                    total[bound] = total.get(bound, 0.0) + count
            self._before[key] = _Before(now_s, now)
        beyond = sum(len(held.cumulative) for held in self._before.values()) - sum(map(len, reading.values()))
        for key, held in list(self._before.items())[: len(self._before) - len(reading)]:
            if held.seen_s < now_s - KEEP_S or beyond > MOST_KEPT:
                del self._before[key]
                beyond -= len(held.cumulative)
        merged = Histogram().merge(*(Histogram(to_histogram(total)) for total in totals.values()))
        return dict(merged.buckets)
