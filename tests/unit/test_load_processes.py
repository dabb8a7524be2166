"""Loads made by processes of their own: they run together, measure as one does, and end when they are told to."""

from __future__ import annotations

import threading
import time

import pytest
from click.testing import CliRunner

from manager.cli.load_command import load
from manager.cli.load_processes import arguments, made_load, run_loads
from manager.cli.options import Failure
from manager.control.load_search import OwnDelay
from manager.load import HttpOptions, LoadSpec, MemcachedOptions, Phase

from .test_load_failures import memcached
from .test_load_run import LONG_S, OK, Handler, Server, answering, serving


def spec_of(
    port: int, protocol: HttpOptions | MemcachedOptions, rate_rps: float = 100, seconds: float = 0.5
) -> LoadSpec:
    phases = (Phase(seconds, rate_rps),)
    return LoadSpec("127.0.0.1", port, protocol, phases, connections=4, timeout_s=LONG_S, connect_timeout_s=LONG_S)


def test_two_at_once() -> None:
    """Each server answers only once the other was asked, too."""
    web_asked, cache_asked = threading.Event(), threading.Event()

    def answer(handler: Handler, _number: int) -> None:
        web_asked.set()
        assert cache_asked.wait(LONG_S)
        time.sleep(0.02)
        handler.write(OK)

    def answer_memcached(handler: Handler, server: Server) -> bool:
        cache_asked.set()
        assert web_asked.wait(LONG_S)
        return memcached(handler, server)

    with serving(answering(answer)) as web, serving(answer_memcached) as cache:
        specs = [
            spec_of(web.port, HttpOptions(), 50, 1.0),
            spec_of(cache.port, MemcachedOptions(keys=10), 100, 1.0),
        ]
        first, second = run_loads(specs, threading.Event())
    p50_us = first.histogram.percentile_us(50)
    assert p50_us is not None
    assert p50_us >= 19_000
    assert first.answered == first.sent > 20
    assert second.answered == second.sent > 50


def test_they_end_when_asked_to() -> None:
    stop = threading.Event()

    def answer(handler: Handler, number: int) -> None:
        if number >= 20:
            stop.set()
        handler.write(OK)

    with serving(answering(answer)) as server:
        [made] = run_loads([spec_of(server.port, HttpOptions(), 100, 300)], stop)
    assert 0 < made.answered < 20_000


def test_nobody_there() -> None:
    spec = LoadSpec("127.0.0.1", 1, HttpOptions(), (Phase(1, 1),), connect_timeout_s=0.2)
    with pytest.raises(Failure, match=r"^cannot connect to 127\.0\.0\.1:1 within 0\.2 s"):
        run_loads([spec], threading.Event())


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(80, HttpOptions("/{key}", (("Accept", "a/b"),), keys=7, zipf=0.5)),
        spec_of(80, HttpOptions("/")),
        spec_of(80, HttpOptions("/{key}", keys=1)),
        LoadSpec(
            "h", 9, MemcachedOptions(5, "10-20", 0.25, 0.99), (Phase(3, 0),), 1.5, 3, 9, closed_loop=True, pipeline=2
        ),
    ],
)
def test_the_options_describe_the_load(spec: LoadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LoadSpec] = []

    class EndError(Exception):
        """Enough is known."""

    def watch(given: LoadSpec) -> None:
        seen.append(given)
        raise EndError

    monkeypatch.setattr("manager.cli.load_command._watched", watch)
    result = CliRunner().invoke(load, arguments(spec))
    assert isinstance(result.exception, EndError), result.output
    assert seen == [spec]


def test_requests_without_a_good_answer_are_a_shortfall() -> None:
    body = {
        "rate_rps": 5.0,
        "sent": 100,
        "answered": 90,
        "histogram": {"buckets": {"3": 90}},
        "shortfall": "",
        "client_limited": False,
        "cpu_share": 0.9,
        "lateness": {"p99_us": 70.0},
        "client_limits": [],
    }
    made = made_load(body)
    assert (made.shortfall, made.why, made.histogram.count) == (True, "many requests had no good answer", 90)
    assert made.own == OwnDelay(busy=True)
    assert made_load(body | {"client_limited": True, "cpu_share": 0.5}).own == OwnDelay(late_ms=0.07)
