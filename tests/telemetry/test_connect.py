"""What sources connect to, what those who are asked can do to the agent, and that none of their words is shown."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from pydantic import ValidationError

from manager.model.fields import adapter_of
from manager.model.reach import DEFAULT_REACH, parse_reach
from manager.model.source import HttpProbe, MemcachedProbe, PrometheusQuery, Source, SourceState
from manager.telemetry.connect import Names, NoAnswer, TooMuch, Unreachable, http_client
from manager.telemetry.feed import os_reason
from manager.telemetry.probe import MOST_BYTES
from manager.telemetry.prometheus import MOST_KEPT, BucketCounter, QueryError, query_url
from manager.telemetry.source_thread import Sources
from tests.telemetry.conftest import LOOPBACK, Running, free_port, shop, until

SECRET = "s3cr3t-w0rds"


class Hostile:
    """A server that sends each client parts for as long as there are some, whatever it says."""

    def __init__(self, parts: Callable[[], Iterator[bytes]]) -> None:
        self.connections = 0
        self.sent = 0
        self._parts = parts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while client.recv(65536):
                for part in self._parts():
                    client.sendall(part)
                    self.sent += len(part)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def hostile() -> Iterator[Callable[[Callable[[], Iterator[bytes]]], Hostile]]:
    started: list[Hostile] = []

    def start(parts: Callable[[], Iterator[bytes]]) -> Hostile:
        started.append(Hostile(parts))
        return started[-1]

    yield start
    for one in started:
        one.close()


def sources_for(server: Hostile, host: str = "127.0.0.1") -> list[Source]:
    return [
        HttpProbe("http", f"http://{host}:{server.port}/", 20, 0.5),
        MemcachedProbe("memcached", host, server.port, 20, 0.5),
        PrometheusQuery("prom", f"http://{host}:{server.port}", "up", every_s=0.2, timeout_s=0.5),
    ]


@pytest.fixture
def careful() -> Iterator[Sources]:
    """Sources with the settings' defaults."""
    made = Sources("127.0.0.1", free_port(socket.SOCK_DGRAM))
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
def test_loopback_is_not_connected_to_unless_it_was_said(careful: Sources, hostile, host: str) -> None:
    server = hostile(lambda: iter(()))
    found = sources_for(server, host)
    applications = [shop(one, name=one.name, vm=one.name) for one in found]
    careful.configure(applications, 5.0, {})

    def failing() -> bool:
        statuses = careful.statuses()
        return all(one.state is SourceState.FAILING or "stats" in one.detail for one in statuses)

    until(failing, "all of them fail")
    for status in careful.statuses():
        assert "loopback, which is not said in this agent's setting probe_networks" in status.detail, status
    assert server.connections == 0


@pytest.mark.parametrize(
    "host", ["[::ffff:127.0.0.1]", "[::1]", "[fe80::1]", "169.254.169.254", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]"]
)
def test_no_form_of_a_refused_address_is_connected_to(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def never(*_: object) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr(socket.socket, "connect", never)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", never)

    async def ask() -> None:
        async with http_client(DEFAULT_REACH, MOST_BYTES, 1, {}) as client:
            await client.get(f"http://{host}/latest/meta-data")

    with pytest.raises(Unreachable, match="probe_networks"):
        asyncio.run(ask())


def test_a_name_that_comes_to_mean_another_address_is_checked_again_before_it_is_connected_to() -> None:
    meanings = [["192.0.2.1"], ["127.0.0.1", "192.0.2.2"], ["169.254.169.254"]]

    async def look_up(_host: str) -> list[str]:
        return meanings.pop(0)

    async def ask(times: int) -> list[list[str]]:
        names = Names(DEFAULT_REACH, look_up)
        found = []
        for _ in range(times):
            found.append(await names.addresses("rebind.example"))
            assert await names.addresses("rebind.example") == found[-1], "it is not looked up for each request"
            names._results.clear()
        return found

    assert asyncio.run(ask(2)) == [["192.0.2.1"], ["192.0.2.2"]]
    with pytest.raises(Unreachable, match="link-local"):
        asyncio.run(ask(1))


def test_a_look_up_that_hangs_is_made_once_whoever_gives_up_waiting_for_it() -> None:
    asked: list[str] = []

    async def hang(host: str) -> list[str]:
        asked.append(host)
        await asyncio.sleep(3600)
        return []

    async def ask() -> None:
        names = Names(DEFAULT_REACH, hang)
        for _ in range(50):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await names.addresses("slow.example")

    asyncio.run(ask())
    assert asked == ["slow.example"]


def test_a_name_that_means_nothing_is_looked_up_once_a_second() -> None:
    asked: list[str] = []

    async def nothing(host: str) -> list[str]:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, SECRET)

    async def ask() -> None:
        names = Names(DEFAULT_REACH, nothing)
        for _ in range(50):
            with pytest.raises(Unreachable, match="the host name cannot be resolved"):
                await names.addresses("missing.example")

    asyncio.run(ask())
    assert len(asked) <= 2


def test_of_several_addresses_the_next_is_tried(hostile) -> None:
    server = hostile(lambda: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]))

    async def ask(monkeypatch: pytest.MonkeyPatch) -> int:
        async def two(_host: str) -> list[str]:
            return ["127.0.0.9", "127.0.0.1"]  # the server listens at the second one

        monkeypatch.setattr("manager.telemetry.connect.look_up", two)
        monkeypatch.setattr(Names.__init__, "__defaults__", (two,))
        async with http_client(LOOPBACK, MOST_BYTES, 1, {}) as client:
            return (await client.get(f"http://shop.example:{server.port}/")).status

    with pytest.MonkeyPatch.context() as patch:
        assert asyncio.run(ask(patch)) == 200


HEAD = b"HTTP/1.1 200 OK\r\n"


def forever(part: bytes, first: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def parts() -> Iterator[bytes]:
        yield first
        while True:
            yield part

    return parts


def trickle(part: bytes, first: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def parts() -> Iterator[bytes]:
        yield first
        while True:
            time.sleep(0.01)
            yield part

    return parts


ENDLESS = {
    "body": forever(b"x" * 65536, HEAD + b"\r\n"),
    "length": forever(b"x" * 65536, HEAD + b"Content-Length: 99999999999\r\n\r\n"),
    "headers": forever(b"X-Header: " + b"x" * 1000 + b"\r\n", HEAD),
    "one header": forever(b"x" * 65536, HEAD + b"X-Header: "),
    "status line": forever(b"x" * 65536, b"HTTP/1.1 200 "),
    "interim answers": forever(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100),
    "small chunks": forever(b"1\r\nx\r\n" * 5000, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
    "trailers": forever(b"X: y\r\n" * 100, HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_without_an_end_is_given_up(hostile, kind: str) -> None:
    server = hostile(ENDLESS[kind])

    async def ask() -> None:
        async with http_client(LOOPBACK, MOST_BYTES, 1, {}) as client, asyncio.timeout(30):
            await client.get(server.url)

    tracemalloc.start()
    try:
        with pytest.raises((TooMuch, NoAnswer)):
            asyncio.run(ask())
        assert tracemalloc.get_traced_memory()[1] < 16 * MOST_BYTES
    finally:
        tracemalloc.stop()
    assert server.sent < 16 * 2**20, "what the socket holds, and not what it could send"


def test_an_answer_in_drops_ends_with_the_time_it_has(running: Running, hostile) -> None:
    for name, parts in (("body", trickle(b"x", HEAD + b"\r\n")), ("headers", trickle(b"X: y\r\n", HEAD))):
        server = hostile(parts)
        running.configure(shop(HttpProbe("http", server.url, 20, 0.3), name=name, vm=name))
        until(lambda name=name: running.status("http", name).state is SourceState.FAILING, "it is given up")
        assert running.status("http", name).detail.startswith("no answer within 0.3 s")


def test_a_compressed_answer_is_not_unpacked(running: Running, hostile) -> None:
    bomb = gzip.compress(b" " * (64 * 2**20), 9)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    server = hostile(lambda: iter([head + bomb]))
    tracemalloc.start()
    try:
        running.configure(shop(PrometheusQuery("prom", server.url, "up", every_s=0.1)))
        until(lambda: running.status("prom").state is SourceState.FAILING, "it is refused")
        assert running.status("prom").detail == "the server answers status 200 and no JSON"
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20, "64 MiB were packed"
    finally:
        tracemalloc.stop()


MEMCACHED = {
    "values": forever(b"VALUE equipoise:probe 0 60000\r\n" + b"x" * 60_000 + b"\r\n"),
    "a large value": forever(b"x" * 65536, b"VALUE equipoise:probe 0 1048576\r\n"),
    "a line": forever(b"x" * 65536),
    "statistics": forever(b"STAT cmd_get 1\r\n" + b"STAT x " + b"y" * 4000 + b"\r\n"),
}


@pytest.mark.parametrize("kind", MEMCACHED)
def test_a_memcached_that_answers_without_an_end_is_given_up(running: Running, hostile, kind: str) -> None:
    server = hostile(MEMCACHED[kind])
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", server.port, 100, 2.0)))
    until(lambda: running.status("probe").errors, "traced from when it works")
    tracemalloc.start()
    try:
        errors = running.status("probe").errors
        until(lambda: running.status("probe").errors >= errors + 1, "it is given up again")
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    assert "no answer within" not in running.status("probe").detail, "not only when its time is over"


def words(text: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([text.replace(b"SECRET", SECRET.encode())])


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return (
        b"HTTP/1.1 "
        + status
        + b"\r\nX: SECRET\r\nContent-Length: %d\r\n\r\n" % (len(body.replace(b"SECRET", SECRET.encode())))
        + body
    )


TEXTS = [
    b"SECRET\r\n",
    b"HTTP/1.1 SECRET\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nSECRET\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n",
    b"SERVER_ERROR SECRET\r\n",
    b"VALUE SECRET\r\n",
    b"VALUE equipoise:probe 0 99999999SECRET\r\n",
    b"STAT pid SECRET\r\nSTAT cmd_get SECRET\r\nEND\r\n",
    http(b"SECRET", b"500 SECRET"),
    http(b'{"status": "error", "errorType": "SECRET", "error": "SECRET"}', b"400 SECRET"),
    http(b'{"status": "error", "errorType": "bad_data", "error": "SECRET"}', b"400 SECRET"),
    http(b'{"status": "success", "data": {"resultType": "SECRET", "result": "SECRET"}}'),
    http(b'{"status": "success", "data": {"resultType": ["SECRET"], "result": "SECRET"}}'),
    http(b'{"status": "success", "data": {"resultType": "vector", "result": [{"SECRET": 1}]}}'),
    http(b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"le": "SECRET"}, '
         b'"value": [0, "1"]}]}}'),
    http(b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"le": "1"}, '
         b'"value": [0, "SECRET"]}]}}'),
    b"HTTP/1.1 302 SECRET\r\nLocation: http://SECRET/\r\nContent-Length: 0\r\n\r\n",
]  # fmt: skip


def test_no_word_of_a_server_is_shown(running: Running, hostile, caplog) -> None:
    applications = []
    for number, text in enumerate(TEXTS):
        server = hostile(words(text))
        applications += [
            shop(one, name=f"{one.name}-{number}", vm=f"{one.name}-{number}") for one in sources_for(server)
        ]
    running.configure(*applications)

    def asked() -> bool:
        return all(status.errors + status.accepted >= 3 for status in running.sources.statuses())

    until(asked, "all of them were answered")
    for status in running.sources.statuses():
        assert SECRET not in repr(status).lower()
    assert SECRET not in caplog.text.lower()


def test_what_tls_says_is_not_shown() -> None:
    assert os_reason(ssl.SSLCertVerificationError(1, SECRET)) == "the server's certificate is not trusted"
    assert os_reason(ssl.SSLError(1, SECRET)) == "no TLS connection"


@pytest.mark.parametrize("base", ["http://p:9090/?x=", "http://p/#", "http://p/prom?", "http://p?query=1"])
def test_the_path_of_the_interface_is_never_swallowed(base: str) -> None:
    with pytest.raises(QueryError, match="query or a fragment"):
        query_url(base, "up")
    with pytest.raises(ValidationError, match="query or a fragment"):
        adapter_of(PrometheusQuery).validate_python({"name": "prom", "type": "prometheus", "url": base, "query": "up"})


@pytest.mark.parametrize("base", ["http://p:9090", "http://p:9090/", "http://p/prom/", "http://p/a b"])
def test_the_path_of_the_interface_comes_behind_the_servers(base: str) -> None:
    assert query_url(base, "a b&c").startswith(base.rstrip("/") + "/api/v1/query?query=a+b%26c")


def test_series_whose_names_change_all_the_time_are_not_kept_for_ever() -> None:
    counter = BucketCounter()
    tracemalloc.start()
    try:
        for turn in range(12):
            reading = {
                frozenset({("pod", f"{turn}-{number}-" + "x" * 100)}): {0.1: 1.0, 1.0: 2.0} for number in range(2000)
            }
            counter.update(reading, float(turn))
            del reading
        assert sum(len(one.cumulative) for one in counter._before.values()) <= MOST_KEPT + 2 * 4000
        assert tracemalloc.get_traced_memory()[0] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_networks_that_were_said_are_reached(running: Running, hostile) -> None:
    server = hostile(lambda: iter([http(b"")]))
    assert not parse_reach("127.0.0.0/8").refusal("127.0.0.1")
    running.configure(shop(HttpProbe("http", server.url, 50)))
    until(lambda: running.status("http").accepted >= 3 and not running.status("http").errors, "it answers")
