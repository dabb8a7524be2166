"""The parsers of what comes from outside, each with examples and what it promises."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

from flask import Request
from pydantic import ValidationError
from werkzeug.exceptions import BadRequest
from werkzeug.http import parse_etags

from manager.api.auth import COOKIE, credentials
from manager.api.paging import NAME, RECORD, TIME, read_cursor
from manager.api.queries import PageQuery
from manager.api.validation import read_json, read_lines
from manager.errors import InvalidRequest
from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET, Histogram
from manager.model.reach import DEFAULT_REACH
from manager.model.source import NginxSyslog, SourceKind, TimeField
from manager.protocol.samples import SampleLine, SamplesIn
from manager.store.tokens import hash_secret
from manager.telemetry.connect import Names
from manager.telemetry.feed import Feed, SourceError
from manager.telemetry.follow import MAX_LINE, Follower
from manager.telemetry.memcached import OwnGets, RequestCounter, TextConnection
from manager.telemetry.nginx import take_line
from manager.telemetry.prometheus import BucketCounter, QueryError, one_number, read_buckets, read_series
from manager.telemetry.push import PushPages, PushRoute
from manager.telemetry.store import WindowStore
from manager.telemetry.syslog import Routes, SyslogReceiver, SyslogRoute
from tests.security.fuzz import Target
from webui.sign_in_pages import local_path

NOW_S = 1_700_000_000.0
SENDER = "192.168.122.10"
MOST = 2**53


class Counted:
    """A feed, whose slots must stay what can be reported. Its clock goes on, and back from time to time."""

    def __init__(self, kind: SourceKind) -> None:
        self._taken = 0
        self._store = WindowStore(self.clock)
        self.feed = Feed("shop", "web", kind, self._store, self.clock, steady=self.clock)

    def clock(self) -> float:
        return NOW_S + self._taken % 400 / 10

    def check(self) -> None:
        """One more input was taken."""
        self._taken += 1
        if self._taken % 50 == 0:
            for slots in self._store.slots().values():
                for slot in slots:
                    sound(slot.histogram.buckets)
            self._store.closed()


def sound(buckets: dict[int, int] | Any) -> None:
    """Raises AssertionError for what is no histogram, or one of more than can be reported."""
    for bucket, count in buckets.items():
        if not (FIRST_BUCKET <= bucket <= LAST_BUCKET and isinstance(count, int) and 0 <= count <= MOST):
            raise AssertionError(f"bucket {bucket} holds {count}")
    time_us = Histogram(buckets).percentile_us(95)
    if time_us is not None and not (math.isfinite(time_us) and time_us > 0):
        raise AssertionError(f"the 95th percentile is {time_us}")


LINES = (
    b'192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" status=200 request_time=0.012'
    b" upstream_response_time=0.010, 0.002 : - msec=1699999999.123",
    b"request_time=0.000 upstream_response_time=- status=499",
    b"upstream_response_time=1.5 : 0.25 request_time=9999999999.999999999 msec=0 status=503",
)
PACKETS = (
    *(b"<190>Mar  1 12:00:00 web-1 nginx: " + line for line in LINES),
    b"<13>Nov 22 01:02:03 shop_1: " + LINES[0] + b"\n",
)


def syslog() -> Callable[[bytes], None]:
    counted = Counted(SourceKind.NGINX_SYSLOG)
    receiver = SyslogReceiver(lambda _address: None)
    spec = NginxSyslog("web", tag=None, time=TimeField.UPSTREAM)
    receiver.routes = Routes.of([SyslogRoute(spec, counted.feed, frozenset({SENDER}))])

    def take(data: bytes) -> None:
        receiver.packet(data, SENDER)
        counted.check()

    return take


def log_line() -> Callable[[bytes], None]:
    counted = Counted(SourceKind.NGINX_FILE)

    def take(data: bytes) -> None:
        for time in TimeField:
            take_line(counted.feed, data.decode("utf-8", "replace"), time)
        counted.check()

    return take


def push(kind: str) -> Callable[[bytes], None]:
    """The agent's route for posts, without its server."""
    counted = Counted(SourceKind.PUSH)
    pages = PushPages()
    pages.routes = {"shop": (PushRoute(counted.feed, frozenset({SENDER}), ()),)}
    told: list[str] = []

    def take(data: bytes) -> None:
        environ = {
            "PATH_INFO": "/samples/shop",
            "REQUEST_METHOD": "POST",
            "REMOTE_ADDR": SENDER,
            "CONTENT_TYPE": kind,
            "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": io.BytesIO(data),
        }
        told.clear()
        [answer] = pages(environ, lambda status, _headers: told.append(status))
        if told[0][:3] not in {"200", "400", "422"} or not isinstance(json.loads(answer), dict):
            raise AssertionError(f"the agent answers {told[0]}")
        counted.check()

    return take


def samples(data: bytes) -> None:
    """A body as the manager reads it."""
    try:
        body = read_json(SamplesIn, data)
    except (BadRequest, InvalidRequest):
        return
    sound(Histogram.of(time_ms * 1000 for time_ms in body.times_ms).buckets)
    sound(body.buckets)


def lines(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        sound(Histogram.of(one.time_ms * 1000 for one in read_lines(SampleLine, data, 1000)).buckets)


def histogram(data: bytes) -> None:
    """Counts by bucket alone, which are most of what hosts report."""
    try:
        body = SamplesIn.model_validate_json(b'{"buckets":' + data + b"}", strict=True)
    except ValidationError:
        return
    sound(body.buckets)


def prometheus() -> Callable[[bytes], None]:
    counter = BucketCounter()
    now_s = NOW_S

    def take(data: bytes) -> None:
        nonlocal now_s
        now_s += 1.0
        try:
            series = read_series(200, data)
        except QueryError:
            return
        with contextlib.suppress(QueryError):
            one_number(series)
        with contextlib.suppress(QueryError):
            sound(counter.update(read_buckets(series), now_s))

    return take


class NoLoop(asyncio.AbstractEventLoop):
    """For a reader that never waits."""

    def get_debug(self) -> bool:
        return False


class Said(TextConnection):
    """A memcached whose answer is there already."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(Names(DEFAULT_REACH), "", 0, OwnGets())
        self._reader = reader

    async def send(self, command: str) -> asyncio.StreamReader:
        return self._reader


def memcached() -> Callable[[bytes], None]:
    counter = RequestCounter()

    def said(data: bytes) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(loop=NoLoop())
        reader.feed_data(data)
        reader.feed_eof()
        return reader

    def take(data: bytes) -> None:
        with contextlib.suppress(SourceError):
            finished(Said(said(data)).request())
        try:
            stats = finished(Said(said(data)).stats())
            since = counter.update(stats, 0, 0, NOW_S)
        except SourceError:
            return
        if since is not None and not 0 <= float(since[2]) < 2**70:
            raise AssertionError(f"{since[2]} requests")

    return take


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine answers that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("it waits for more than the end of the connection")


def headers(data: bytes) -> None:
    """What comes with a request besides its body: cookie, credentials, conditions, cursor, where to go after sign-in.

    In headers the server takes no line breaks, and the interface refuses queries that are no UTF-8.
    """
    text = data.decode("utf-8", "replace").replace("\r", " ").replace("\n", " ").encode().decode("latin-1")
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/",
        "QUERY_STRING": text,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        "HTTP_COOKIE": f"{COOKIE}={text}",
        "HTTP_AUTHORIZATION": text,
        "HTTP_ACCEPT_ENCODING": text,
    }
    request = Request(environ)
    given = credentials(request)
    secrets = [request.cookies.get(COOKIE), given.token if given else None, given.get("password") if given else None]
    for secret in secrets:
        if secret:
            hash_secret(secret)
    request.accept_encodings.quality("gzip")
    parse_etags(text).contains_weak("a")
    target = local_path(request.args.get("next", text))
    if target and (not target.startswith("/") or target.startswith(("//", "/\\"))):
        raise AssertionError(f"leads elsewhere: {target!r}")
    for places in (NAME, TIME, RECORD):
        with contextlib.suppress(InvalidRequest):
            read_cursor(PageQuery.model_construct(cursor=request.args.get("cursor", text), limit=1), places)


def follow(folder: str) -> Callable[[bytes], None]:
    """Chunks that are appended to a log file, read through rotations and truncations."""
    path = f"{folder}/access.log"
    follower = Follower(path, [folder])
    number = 0

    def take(data: bytes) -> None:
        nonlocal number
        number += 1
        with open(path, "wb" if number % 50 == 0 else "ab") as file:
            file.write(data)
        for line in follower.read():
            if line is not None and (b"\n" in line or len(line) > MAX_LINE):
                raise AssertionError("what is no line")

    return take


BATCHES = (
    b'{"end": "2023-11-14T22:13:20Z", "times_ms": [0.8, 1.1, 250], "buckets": {"350": 12}, "requests": null}',
    b'{"times_ms": [0, 1000000, 1e-9]}',
    b'{"start": "2023-11-14T22:13:15.5+01:00", "end": null, "buckets": {"300": 1, "921": 9007199254740992}}',
)
NDJSON = (b'{"time_ms": 0.8, "end": "2023-11-14T22:13:19.1Z"}\n{"time_ms": 1.1}\n\n{"time_ms": 1000000}\r\n',)
VECTOR = json.dumps(
    {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [
                {"metric": {"le": bound, "job": "web"}, "value": [1700000000.123, count]}
                for bound, count in (("0.1", "10"), ("1", "20"), ("1.0", "5"), ("+Inf", "25"))
            ],
        },
    }
).encode()
SCALAR = b'{"status":"success","data":{"resultType":"scalar","result":[1700000000,"0.25"]}}'
STATS = b"STAT pid 4711\r\nSTAT cmd_get 120\r\nSTAT cmd_set 7\r\nSTAT incr_hits 1\r\nSTAT version 1.6.18\r\nEND\r\n"
REQUESTS = (
    b"Bearer eqp_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG",
    b"Basic YW55OmVxcF9zZWNyZXQ=",
    b'Digest username="a", realm="b", nonce="c"',
    b'W/"abc", "def", *',
    b"gzip;q=0.5, br;q=1.0, *;q=0",
    b"next=/hosts/kvm7%3Frange=1h&cursor=MjAyNi0wMy0wMVQxMjowMDowMCswMDowMCA3",
    b'a=1; equipoise_session=s3cret; __Host-equipoise_session="quoted\\054"; b',
)


def targets(folder: str) -> tuple[Target, ...]:
    """All of them; ``folder`` is for files."""
    return (
        Target("syslog", PACKETS, syslog(), 0.22),
        Target("log_line", LINES, log_line(), 0.2),
        Target("histogram", (b'{"350": 12, "351": 1}', b'{"117":9007199254740992}', b"{}"), histogram, 0.14),
        Target("json", BATCHES, samples, 0.07),
        Target("ndjson", NDJSON, lines, 0.06),
        Target("push_json", BATCHES, push("application/json"), 0.05),
        Target("push_ndjson", NDJSON, push("application/x-ndjson"), 0.05),
        Target("prometheus", (VECTOR, SCALAR), prometheus(), 0.08),
        Target("memcached", (STATS, b"VALUE equipoise:probe 0 5\r\nhello\r\nEND\r\n", b"END\r\n"), memcached(), 0.06),
        Target("headers", REQUESTS, headers, 0.05),
        Target("follow", tuple(line + b"\n" for line in LINES), follow(folder), 0.02),
    )
