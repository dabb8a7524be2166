"""The agent's HTTP pages: response times posted to /samples/APPLICATION, and /metrics at a listener of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from manager.model.window import MAX_COUNT
from manager.protocol.samples import ProblemDetails, SampleLine, SamplesIn, SamplesOut
from manager.rate_limit import RateLimit
from manager.serving.exchange import EXCHANGE, UNIX, Exchange, WsgiApp
from manager.telemetry.feed import Feed
from manager.telemetry.store import SKEW_S, Fate
from manager.telemetry.trust import Network, is_own_address, is_trusted, plain_address

PREFIX = "/samples/"
MOST_BYTES = 1024 * 1024
"""Of one body: enough for as many response times as it may hold, in microseconds."""
JSON, NDJSON = "application/json", "application/x-ndjson"
_MAX_VALUE = 80
_BYTES_A_TIME = 64
_FIELDS = frozenset({*SamplesIn.model_fields, *SampleLine.model_fields})

_SCRAPES_PER_S = 10.0
_HARDENING = [("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
"""Of every answer."""

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class PushRoute:
    """A push source, and who may post to it: the addresses of its application's VMs, and networks."""

    feed: Feed
    addresses: frozenset[str]
    networks: tuple[Network, ...]


class Refusal(Exception):
    """A request that is answered with an error. ``field`` is a path such as ``times_ms[3]``."""

    def __init__(
        self, status: HTTPStatus, detail: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = headers or {}


class PushPages:
    """A WSGI application, served at a Unix socket and, optionally, by TCP. Called by many threads.

    Senders that reach the socket or have the token are trusted. By TCP addresses are trusted, too, but none of this
    machine itself, where any user could post.
    """

    def __init__(
        self,
        on_unknown: Callable[[str], None] = lambda _address: None,
        samples: RateLimit | None = None,
        token: str = "",
        is_own: Callable[[str], bool] = is_own_address,
    ) -> None:
        """``on_unknown`` is called with each untrusted sender's address, ``is_own`` tells this machine's own ones.

        ``samples`` bounds the response times that each address posts of an application; None: nothing does. ``token``
        empty: there is none.
        """
        self.routes: Mapping[str, tuple[PushRoute, ...]] = {}
        self._token = token
        self._is_own = is_own
        self._on_unknown = on_unknown
        self._samples = samples or RateLimit(0)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        try:
            _check(environ, path.startswith(PREFIX), "/samples/APPLICATION", "POST")
            answer = self._post(path.removeprefix(PREFIX), environ)
        except Refusal as refusal:
            return _refuse(refusal, start_response)
        return _answer(start_response, HTTPStatus.OK, answer, JSON)

    def _post(self, application: str, environ: Environ) -> SamplesOut:
        routes = self.routes.get(application)
        if routes is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "no application with that name has a push source on this host")
        address = environ["REMOTE_ADDR"]
        address = address if address == UNIX else plain_address(address)
        feed = self._trusted(address, environ.get("HTTP_AUTHORIZATION", ""), routes)
        if feed is None:
            self._on_unknown(address)
            for route in routes:
                route.feed.refused(address)
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                f"response times of this application are not trusted from {address}: on the host itself post to the"
                " agent's Unix socket, or send its token",
            )
        source = (application, address)
        wait_s = self._samples.wait_s(source)
        if wait_s:
            feed.flooded(self._samples.per_s)
            raise _too_often(f"too many response times, try again in {math.ceil(wait_s)} s", wait_s)
        try:
            return self._take(feed, source, environ)
        except Refusal as refusal:
            feed.malformed(_what_is_bad(refusal.field))
            raise

    def _trusted(self, address: str, authorization: str, routes: tuple[PushRoute, ...]) -> Feed | None:
        """The source that takes what comes from there; None: it is not trusted."""
        kind, _, token = authorization.partition(" ")
        has_token = self._token and kind.lower() == "bearer" and compare_digest(token.encode(), self._token.encode())
        if has_token or address == UNIX:
            return routes[0].feed
        for route in routes:
            if is_trusted(address, route.addresses, route.networks):
                return None if self._is_own(address) else route.feed
        return None

    def _take(self, feed: Feed, source: tuple[str, str], environ: Environ) -> SamplesOut:
        kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        if kind not in {JSON, NDJSON}:
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body's type should be {JSON} or {NDJSON}")
        length = int(environ.get("CONTENT_LENGTH") or 0)  # the server has checked it
        if length > MOST_BYTES:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of more than {MOST_BYTES} bytes is refused")
        exchange: Exchange | None = environ.get(EXCHANGE)
        if exchange is not None and exchange.undecided:
            exchange.limit_bytes = MOST_BYTES
            return SamplesOut(accepted=0, late=0)
        body: bytes = environ["wsgi.input"].read(length)
        self._samples.take(source, len(body) // _BYTES_A_TIME)  # reading what cannot be used takes time, too
        return self._lines(feed, source, body) if kind == NDJSON else self._batch(feed, source, body)

    def _batch(self, feed: Feed, source: tuple[str, str], body: bytes) -> SamplesOut:
        samples = _read(SamplesIn, body, "")
        self._samples.take(source, len(samples.times_ms) + len(samples.buckets))
        end_s = _end_s(feed, samples.end, "end")
        sent_s = samples.end.timestamp() if samples.end else end_s
        if samples.start is not None and samples.start.timestamp() > sent_s:
            raise _bad("start", "should not be after end")
        count = len(samples.times_ms) + sum(samples.buckets.values())
        if count > MAX_COUNT:
            raise _bad("buckets", f"{count} response times are refused; allowed: {MAX_COUNT} in all")
        requests = float(count) if samples.requests is None else samples.requests
        times_us = [time_ms * 1000 for time_ms in samples.times_ms]
        fate = feed.take(end_s, times_us, buckets=samples.buckets, requests=requests)
        if fate is Fate.FULL:
            raise _bad("buckets", f"a slot counts at most {MAX_COUNT} response times, and as many requests")
        return SamplesOut(accepted=0, late=count) if fate is Fate.LATE else SamplesOut(accepted=count, late=0)

    def _lines(self, feed: Feed, source: tuple[str, str], body: bytes) -> SamplesOut:
        ends: dict[float, list[float]] = {}
        now_s = feed.clock()
        for number, text in enumerate(body.splitlines(), 1):
            if text.strip():
                line = _read(SampleLine, text, f"line {number}")
                end_s = _end_s(feed, line.end, f"line {number}: end") if line.end else now_s
                ends.setdefault(end_s, []).append(line.time_ms * 1000)
        self._samples.take(source, sum(map(len, ends.values())))
        counts = dict.fromkeys(Fate, 0)
        for end_s, times_us in ends.items():
            counts[feed.take(end_s, times_us, requests=len(times_us))] += len(times_us)
        return SamplesOut(accepted=counts[Fate.TAKEN], late=counts[Fate.LATE])


def _end_s(feed: Feed, end: datetime | None, field: str) -> float:
    now_s = feed.clock()
    end_s = feed.store.local_s(end.timestamp()) if end else now_s
    if end_s > now_s + SKEW_S:
        raise _bad(field, f"is {end_s - now_s:.1f} s in the future; allowed: up to {SKEW_S:g} s")
    return end_s


def _bad(field: str, problem: str) -> Refusal:
    return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{field}: {problem}", field)


def _what_is_bad(field: str | None) -> str:
    """For viewers, who need not see what names a sender made up."""
    named = [name for name in re.findall("[a-z_]+", field or "") if name in _FIELDS]
    return f"a bad {named[0]}" if named else "a request whose body cannot be used"


def _read(model: type[Model], text: bytes, where: str) -> Model:
    """Raises Refusal naming the field."""
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            detail = ": ".join(filter(None, (where, f"is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")))
            raise Refusal(HTTPStatus.BAD_REQUEST, detail, where or "body") from None
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
        field = ": ".join(filter(None, (where, path or "body")))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] not in {"missing", "extra_forbidden", "too_long"}:
            message = f"{str(first['input'])[:_MAX_VALUE]!r} is refused: {message}"
        raise _bad(field, f"{message}; nothing was taken") from None


class MetricsPage:
    """A WSGI application: GET /metrics, apart from posts, whose senders need not see all VMs' names. Thread-safe."""

    def __init__(self, metrics: WsgiApp) -> None:
        self._metrics = metrics
        self._requests = RateLimit(_SCRAPES_PER_S)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        try:
            _check(environ, environ["PATH_INFO"] == "/metrics", "/metrics", "GET", "HEAD")
            wait_s = self._requests.ask(environ["REMOTE_ADDR"])
            if wait_s:
                raise _too_often("metrics are requested too often", wait_s)
        except Refusal as refusal:
            return _refuse(refusal, start_response)

        def hardened(status: str, headers: list[tuple[str, str]]) -> object:
            return start_response(status, [*headers, *_HARDENING])

        return self._metrics(environ | {"REQUEST_METHOD": "GET"}, hardened)


def _check(environ: Environ, is_here: bool, path: str, *methods: str) -> None:
    if not is_here:
        raise Refusal(HTTPStatus.NOT_FOUND, f"there is {path} here")
    method = environ["REQUEST_METHOD"]
    if method not in methods:
        detail = f"{method} is not possible here"
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, headers={"Allow": ", ".join(methods)})


def _too_often(detail: str, wait_s: float) -> Refusal:
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS, detail, headers={"Retry-After": str(math.ceil(wait_s))})


def _refuse(refusal: Refusal, start_response: StartResponse) -> Iterable[bytes]:
    status, field = refusal.status, refusal.field
    errors = [{"field": field, "message": refusal.detail}] if field else []
    body = ProblemDetails(title=status.phrase, status=status, detail=refusal.detail, field=field, errors=errors)
    return _answer(start_response, status, body, "application/problem+json", refusal.headers)


def _answer(
    start_response: StartResponse,
    status: HTTPStatus,
    body: BaseModel,
    kind: str,
    headers: Mapping[str, str] | None = None,
) -> Iterable[bytes]:
    answer = body.model_dump_json().encode()
    more = [("Content-Type", kind), ("Content-Length", str(len(answer))), *_HARDENING]
    start_response(f"{status.value} {status.phrase}", [*(headers or {}).items(), *more])
    return [answer]
