"""What servers that restart, hang, move or pause make of response times."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.model.fields import adapter_of, fields_of
from manager.model.histogram import Histogram
from manager.model.reach import DEFAULT_REACH
from manager.model.source import HttpProbe, MemcachedProbe, PrometheusQuery, Tap
from manager.model.window import MAX_COUNT, Ready, Window
from manager.telemetry.connect import Names
from manager.telemetry.prometheus import BucketCounter
from manager.telemetry.store import Fate
from manager.telemetry.tap_reader import TapRoute
from tests.telemetry.conftest import Fed, Running, shop, until
from tests.telemetry.test_memcached import GOOD_STATS, Misbehaving
from tests.telemetry.test_prometheus import INF, Server, buckets, vector


class Impatient(Misbehaving):
    """Closes connections that are idle for a while, as memcached does with ``-o idle_timeout``, and proxies."""

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(0.05)
        with contextlib.suppress(OSError):
            super()._serve(client)


@pytest.fixture
def impatient() -> Iterator[Impatient]:
    server = Impatient(lambda line: b"END\r\n" if line.startswith(b"get") else GOOD_STATS)
    yield server
    server.close()


def test_a_connection_that_the_server_closed_while_it_was_idle_is_no_failed_request(
    running: Running, impatient: Impatient
) -> None:
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", impatient.port, 2, 5)))
    until(lambda: running.status("probe").accepted >= 8, "eight requests, half a second apart")
    assert (running.status("probe").errors, running.status("probe").detail) == (0, "")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_tls_handshake_that_hangs_leaves_no_socket_behind(running: Running) -> None:
    """The agent collects cycles every five minutes only."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        gc.collect()
        gc.disable()
        before = open_files()
        try:
            running.configure(shop(HttpProbe("probe", f"https://127.0.0.1:{silent.getsockname()[1]}/", 100, 0.1)))
            until(lambda: running.status("probe").errors >= 100, "a hundred requests timed out")
            assert open_files() - before < 60, "at most 32 connections, and some that begin"
        finally:
            gc.enable()


def test_an_address_that_swallows_packets_does_not_hide_the_next_one() -> None:
    async def two(_host: str) -> list[str]:
        return ["2001:db8::1", "192.0.2.1"]

    async def connect(address: str) -> str:
        if address == "2001:db8::1":
            await asyncio.sleep(3600)  # a SYN that nobody answers
        return address

    async def ask() -> list[str]:
        names = Names(DEFAULT_REACH, two)
        async with asyncio.timeout(1):
            return [await names.connect("shop.example", connect, closed) for _ in range(10)]

    assert asyncio.run(ask()) == ["192.0.2.1"] * 10


async def closed(_opened: object) -> None:
    """There is nothing to be closed."""


@pytest.mark.parametrize("order", [["192.0.2.1", "2001:db8::1"], ["2001:db8::1", "192.0.2.1"]])
def test_an_address_that_is_slow_is_waited_for_where_the_other_one_refuses(order: list[str]) -> None:
    """A guest that waits for pCPUs takes a while for a SYN, and serves one of the addresses of its name alone."""

    async def two(_host: str) -> list[str]:
        return order

    async def connect(address: str) -> str:
        if address == "2001:db8::1":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        await asyncio.sleep(0.4)
        return address

    async def ask() -> list[str]:
        names = Names(DEFAULT_REACH, two)
        async with asyncio.timeout(5):
            return [await names.connect("shop.example", connect, closed) for _ in range(2)]

    assert asyncio.run(ask()) == ["192.0.2.1"] * 2


@pytest.mark.parametrize("ends", ["late", "at once", "cancelled"])
def test_only_one_of_several_connections_stays(ends: str) -> None:
    opened: list[str] = []
    ended: list[str] = []

    async def two(_host: str) -> list[str]:
        return ["192.0.2.1", "192.0.2.2"]

    async def connect(address: str) -> str:
        try:
            await asyncio.sleep(0.3 if address == "192.0.2.1" else 0.05 if ends == "at once" else 10)
        except asyncio.CancelledError:
            ended.append(address)
            raise
        opened.append(address)
        return address

    async def close(address: str) -> None:
        ended.append(address)

    async def ask() -> str:
        async with asyncio.timeout(0.28 if ends == "cancelled" else 5):
            return await Names(DEFAULT_REACH, two).connect("shop.example", connect, close)

    if ends == "cancelled":
        with pytest.raises(TimeoutError):
            asyncio.run(ask())
        assert sorted(ended) == ["192.0.2.1", "192.0.2.2"]
        return
    found = asyncio.run(ask())
    assert sorted([found, *ended]) == ["192.0.2.1", "192.0.2.2"]


def test_an_older_reading_is_no_reset() -> None:
    """Of two Prometheus servers behind one address each reads the counters at times of its own."""
    series = frozenset({("pod", "a")})
    counter = BucketCounter()
    assert counter.update({series: {0.1: 900_000.0, INF: 1_000_000.0}}, 0) == {}
    assert counter.update({series: {0.1: 899_950.0, INF: 999_940.0}}, 5) == {}
    assert sum(counter.update({series: {0.1: 900_100.0, INF: 1_000_100.0}}, 10).values()) == 100


def test_a_sum_that_is_less_since_an_instance_ended_goes_on() -> None:
    """One of twenty instances ends, of which the query sums the counters; each has had a million requests."""
    series = frozenset({("app", "shop")})
    counter = BucketCounter()
    counter.update({series: {0.1: 19_000_000.0, INF: 20_000_000.0}}, 0)
    counted = 0
    for poll in range(1, 41):  # 10 minutes at 100 req/s
        total = 19_000_000.0 + 1500 * poll
        counted += sum(counter.update({series: {0.1: 0.95 * total, INF: total}}, 15.0 * poll).values())
    assert 45_000 <= counted <= 60_000, "what was observed meanwhile, but for a minute or so"


def test_readings_that_are_older_now_and_then_never_count_twice() -> None:
    """Of two servers, one half a minute behind the other, each answers some of the polls for twenty minutes."""
    series = frozenset({("pod", "a")})
    counter = BucketCounter()
    counter.update({series: {INF: 1_000_000.0}}, 0)
    counted = 0
    for poll in range(1, 81):
        behind_s = 30 if poll % 4 else 0
        total = 1_000_000.0 + 10 * max(15 * poll - behind_s, 0)
        counted += sum(counter.update({series: {INF: total}}, 15.0 * poll).values())
    assert counted == 12_000


def test_what_was_observed_while_the_server_could_not_be_asked_for_long_is_not_of_now(fed: Fed) -> None:
    server = Server(fed, PrometheusQuery("prom", "http://p", "x_bucket", every_s=5))
    server.poll(buckets(0, 0, 0))
    server.poll(buckets(50, 50, 50))
    assert fed.count == 50
    server.poll(buckets(50, 36_050, 36_050), after_s=3600)  # an hour of slow answers that is over
    server.poll(buckets(100, 36_100, 36_100))
    newest = fed.store.slots()["shop"][-1]
    assert newest.histogram.count == 50
    assert newest.percentile_ms(95) == pytest.approx(95, rel=0.03)
    assert fed.count == 50


def test_requests_after_a_pause_are_of_the_poll_that_saw_them(fed: Fed) -> None:
    server = Server(fed, PrometheusQuery("prom", "http://p", "x_bucket", every_s=15))
    server.poll(buckets(10, 10, 10))
    for _ in range(40):  # ten minutes
        server.poll(buckets(10, 10, 10))
    server.poll(buckets(1510, 1510, 1510))
    assert fed.count == 1500
    assert fed.requests == pytest.approx(1500)


@pytest.mark.parametrize("rate", ["9e15", "1e308"])
def test_a_rate_that_no_server_has_leaves_the_window_to_be_reported(fed: Fed, rate: str) -> None:
    """A query for something else, or garbage: the interface takes no such window, so all in it was lost."""
    spec = PrometheusQuery("prom", "http://p", "quantile", percentile=95, rate_query="bytes", every_s=5)
    Server(fed, spec).poll(vector(({}, "0.08")), vector(({}, rate)))
    [window] = fed.store.slots()["shop"]
    assert (window.ready, window.requests) == (Ready(95, 80.0), None)
    assert "more requests than can be counted" in fed.status.detail


def test_requests_that_are_posted_leave_the_window_to_be_reported(fed: Fed) -> None:
    now_s = fed.clock()
    assert fed.feed.take(now_s, [1000.0], requests=1) is Fate.TAKEN
    for _ in range(3):
        fed.feed.take(now_s, [1000.0], requests=1e15)
    for _ in range(3):
        fed.feed.take_requests(now_s - 1, now_s, 9e11)
    [window] = fed.store.slots()["shop"]
    adapter_of(Window).validate_python(fields_of(Window, window) | {"histogram": {}})
    assert (window.histogram.count, window.requests) == (1, MAX_COUNT)
    assert fed.status.malformed == 3


def test_series_with_other_bounds_are_spread_between_their_own() -> None:
    fine, coarse = frozenset({("version", "1")}), frozenset({("version", "2")})
    counter = BucketCounter()
    counter.update({fine: {0.1: 0.0, 1.0: 0.0, INF: 0.0}, coarse: {10.0: 0.0, INF: 0.0}}, 0)
    of_fine = Histogram(counter.update({fine: {0.1: 0.0, 1.0: 0.0, INF: 100.0}, coarse: {10.0: 0.0, INF: 0.0}}, 5))
    assert of_fine.percentile_us(50) == pytest.approx(1e6, rel=0.02), "above its highest finite bound"


@pytest.mark.parametrize("slot_s", [1.5, 2.5, 7.5])
def test_each_window_has_a_last_reading(slot_s: float) -> None:
    route = TapRoute(Tap("wire", 80), None, frozenset(), None, slot_s)  # type: ignore[arg-type]
    readings = [1000.0 + second for second in range(1, 61)]
    windows = {-(-at_s // slot_s) for at_s in readings}
    ended = [-(-at_s // slot_s) for at_s in readings if route.ends_slot(at_s, 1.0)]
    assert ended == sorted(windows)[: len(ended)]
    assert len(ended) >= len(windows) - 1
