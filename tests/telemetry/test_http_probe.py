"""Probing a URL."""

from __future__ import annotations

import threading

import pytest

from manager.model.source import HttpProbe, SourceState
from tests.telemetry.conftest import Running, free_port, shop, until


def test_answers_are_response_times_and_the_rate_is_unknown(running: Running, web) -> None:
    server = web(lambda path: (404, b"x" * 100_000))
    running.configure(shop(HttpProbe("probe", f"{server.url}/health?deep=1", 100)))
    until(lambda: running.status("probe").accepted >= 20, "it is answered")
    status = running.status("probe")
    assert (status.state, status.errors) == (SourceState.OK, 0), "any answer below 500 is one"
    assert set(server.paths) == {"/health?deep=1"}
    assert {slot.requests for slot in running.sources.slots()["shop"]} == {None}


@pytest.mark.parametrize(
    ("answer", "detail"), [(lambda: (503, b""), "status 503"), (None, "no answer within 0.3 s")], ids=["503", "stalled"]
)
def test_errors_count_as_timeouts(running: Running, web, answer, detail: str) -> None:
    released = threading.Event()
    server = web(lambda path: answer() if answer else (released.wait(30) and (200, b"")))
    running.configure(shop(HttpProbe("probe", server.url, 50, 0.3)))
    until(lambda: running.status("probe").state is SourceState.FAILING, "it is failing")
    released.set()
    assert detail in running.status("probe").detail
    assert running.status("probe").errors >= 3
    [slot, *_] = running.sources.slots()["shop"]
    assert slot.percentile_ms(50) == pytest.approx(300, rel=0.01)
    running.configure()


def test_nobody_there(running: Running) -> None:
    running.configure(shop(HttpProbe("probe", f"http://127.0.0.1:{free_port()}/", 50, 0.5)))
    until(lambda: running.status("probe").state is SourceState.FAILING, "it is failing")
    assert "connection" in running.status("probe").detail.lower()


@pytest.mark.parametrize("url", ["http://[::1/", "ftp://127.0.0.1/", "http://"])
def test_a_url_that_cannot_be_used_is_failing_and_disturbs_nobody(running: Running, web, url: str) -> None:
    server = web(lambda path: (200, b"ok"))
    running.configure(shop(HttpProbe("bad", url, 50, 0.5), HttpProbe("good", server.url, 50)))
    until(lambda: running.status("bad").state is SourceState.FAILING, "it is failing")
    until(lambda: running.status("good").accepted >= 3, "the other one works")
    assert running.status("bad").detail
