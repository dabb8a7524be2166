"""The load generator against a real memcached and NGINX, and beside generators that everybody knows.

Both are sent to a server whose response times are fixed: then rates and percentiles of a closed loop are known as well,
and what a generator costs matters little. A busy machine only makes them slower, one or the other: the best of some
attempts of each must agree.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import pytest

from manager.load import HttpOptions, LoadResult, LoadSpec, MemcachedOptions, Phase, run
from tests.telemetry.conftest import Nginx, free_port
from tests.unit.test_load_failures import memcached as answer_memcached
from tests.unit.test_load_run import Handler, Server, answering, once, serving

CONNECTIONS = 4
KEPT_ALIVE = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a generator says of a closed loop."""

    rate_rps: float = 0.0
    p50_ms: float = math.inf
    p90_ms: float = math.inf

    def best(self, other: Seen) -> Seen:
        """The better of two runs in each."""
        return Seen(max(self.rate_rps, other.rate_rps), min(self.p50_ms, other.p50_ms), min(self.p90_ms, other.p90_ms))


def closed(port: int, protocol: HttpOptions | MemcachedOptions, pipeline: int = 1) -> LoadResult:
    spec = LoadSpec(
        "127.0.0.1", port, protocol, (Phase(1, 0),), connections=CONNECTIONS, pipeline=pipeline, closed_loop=True
    )
    return run(spec)


def seen(result: LoadResult) -> Seen:
    p50_us, p90_us = result.histogram.percentile_us(50), result.histogram.percentile_us(90)
    assert p50_us is not None
    assert p90_us is not None
    return Seen(result.rate_rps, p50_us / 1000, p90_us / 1000)


def output(program: str, *arguments: str) -> str:
    if shutil.which(program) is None:
        package = {"ab": "apache2-utils", "memcslap": "libmemcached-tools"}.get(program, program)
        pytest.skip(f"NOT COMPARED: {program} is not installed (Debian's package {package})")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def found(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    assert match is not None, text
    return float(match[1])


def of_wrk(port: int) -> Seen:
    text = output("wrk", "-t1", f"-c{CONNECTIONS}", "-d1s", "--latency", f"http://127.0.0.1:{port}/")
    p50, p90 = (found(rf"{percent}%\s+([\d.]+)ms", text) for percent in (50, 90))
    return Seen(found(r"Requests/sec:\s+([\d.]+)", text), p50, p90)


def of_ab(port: int) -> Seen:
    text = output("ab", "-k", "-q", "-c", str(CONNECTIONS), "-n", "250", f"http://127.0.0.1:{port}/")
    p50, p90 = (found(rf"{percent}%\s+(\d+)", text) for percent in (50, 90))
    return Seen(found(r"Requests per second:\s+([\d.]+)", text), p50, p90)


@pytest.mark.parametrize("known", [of_wrk, of_ab])
def test_http_is_measured_as_others_do(known: Callable[[int], Seen]) -> None:
    def answer(handler: Handler, number: int) -> None:
        time.sleep(0.03 if number % 5 == 0 else 0.01)
        handler.write(KEPT_ALIVE)

    ours = theirs = Seen()

    def check() -> bool:
        nonlocal ours, theirs
        with serving(answering(answer)) as server:
            ours, theirs = ours.best(seen(closed(server.port, HttpOptions()))), theirs.best(known(server.port))
        return (
            ours.rate_rps == pytest.approx(theirs.rate_rps, rel=0.1)
            and ours.p50_ms == pytest.approx(theirs.p50_ms, rel=0.2)
            and ours.p90_ms == pytest.approx(theirs.p90_ms, rel=0.2)
        )

    once(check)


def test_memcached_is_measured_as_memcslap_does() -> None:
    """By how many of the connections' requests the server had at a time: on a busy machine each takes it longer."""
    took_s: list[float] = []

    def answer(handler: Handler, server: Server) -> bool:
        begun_s = time.monotonic()
        time.sleep(0.02)
        took_s.append(time.monotonic() - begun_s)
        try:
            return answer_memcached(handler, server)
        except IndexError:  # "quit"
            return False

    requests = 50
    ours = theirs = 0.0

    def check() -> bool:
        nonlocal ours, theirs
        with serving(answer) as server:
            took_s.clear()
            rate_rps = closed(server.port, MemcachedOptions(keys=20, set_share=0)).rate_rps
            ours = max(ours, rate_rps * fmean(took_s))
            took_s.clear()
            options = (
                f"--servers=127.0.0.1:{server.port}",
                f"--concurrency={CONNECTIONS}",
                f"--execute-number={requests}",
            )
            text = output("memcslap", *options, "--test=get")
        taken_s = found(rf"get\s+{CONNECTIONS * requests} keys by\s+{CONNECTIONS} threads:\s+([\d.]+) seconds", text)
        theirs = max(theirs, CONNECTIONS * requests / taken_s * fmean(took_s))
        return ours == pytest.approx(theirs, rel=0.1)

    once(check)


def test_a_real_memcached(memcached: Callable[..., subprocess.Popen[bytes]]) -> None:
    port = free_port()
    memcached(port)
    options = MemcachedOptions(keys=2000, value_bytes="etc", zipf=0.99)

    def check() -> bool:
        spec = LoadSpec("127.0.0.1", port, options, (Phase(1, 800),), connections=8)
        result = run(spec)
        assert not result.errors
        assert not result.events.get("misses")
        return result.rate_rps == pytest.approx(800, rel=0.15)

    once(check)
    single, pipelined = closed(port, options), closed(port, options, pipeline=8)
    assert not single.errors
    assert not pipelined.errors
    assert pipelined.answered > 0.5 * single.answered


def test_a_real_nginx(nginx: Callable[..., Nginx]) -> None:
    port = nginx(free_port()).port

    def check() -> bool:
        result = run(LoadSpec("127.0.0.1", port, HttpOptions("/{key}", keys=10), (Phase(1, 400),), connections=8))
        assert not result.errors
        return result.rate_rps == pytest.approx(400, rel=0.2)

    once(check)
    # It closes a connection after 1,000 requests, and with it those behind.
    assert closed(port, HttpOptions(), pipeline=8).errors.keys() <= {"closed"}
    assert not closed(port, HttpOptions()).errors
