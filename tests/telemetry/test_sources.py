"""All sources together: what is started and stopped, and what a failure of one does to the others."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manager.model.source import HttpProbe, MemcachedProbe, NginxFile, Push, SourceKind, SourceState
from manager.telemetry import source_thread as module
from manager.telemetry.feed import SILENT_S, Feed, SourceError, reason_of
from manager.telemetry.source_thread import Sources
from manager.telemetry.store import Fate
from manager.telemetry.telemetry_port import Telemetry
from tests.telemetry.conftest import DEADLINE_S, LOOPBACK, NOW_S, Fed, Running, free_port, shop, until

CRASHED = "it failed (ZeroDivisionError)"


def test_it_is_what_the_agent_asks_for(running: Running) -> None:
    telemetry: Telemetry = running.sources
    assert telemetry.slots() == {}
    assert telemetry.recent() == telemetry.closed() == telemetry.statuses() == ()


def test_only_what_changed_is_started_anew(running: Running, web) -> None:
    server = web(lambda path: (200, b""))
    stays, changes = HttpProbe("stays", server.url, 100), HttpProbe("changes", server.url + "/old", 100)
    running.configure(shop(stays, changes), shop(HttpProbe("own", server.url, 100), name="other", vm="other-web"))
    names = ("stays", "changes")
    until(lambda: all(running.status(name).accepted >= 5 for name in names), "both work")
    before = running.status("stays").accepted
    running.configure(shop(stays, HttpProbe("changes", server.url + "/new", 100)))
    assert running.status("stays").accepted >= before, "its counters go on"
    assert running.status("changes").accepted < 5, "its counters begin anew"
    assert [(one.application, one.source) for one in running.sources.statuses()] == [
        ("shop", "changes"),
        ("shop", "stays"),
    ]
    until(lambda: "/new" in server.paths, "the changed one asks for its new URL")
    asked = server.paths.count("/old")
    until(lambda: server.paths.count("/new") >= 20, "it does so for a while")
    assert server.paths.count("/old") <= asked + 3, "and not for the old one"


def test_sources_of_the_same_name_in_two_applications_are_two(running: Running) -> None:
    running.configure(shop(Push("app")), shop(Push("app"), name="blog", vm="blog-web"))
    assert [(one.application, one.source, one.kind) for one in running.sources.statuses()] == [
        ("blog", "app", SourceKind.PUSH),
        ("shop", "app", SourceKind.PUSH),
    ]


def test_a_source_that_crashes_is_told_started_again_and_harms_nobody(
    running: Running, web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_S", (0.01, 0.02))
    crashes: list[int] = []
    real: Callable[..., Any] = module.follow_file

    async def crash(*arguments: Any) -> None:
        crashes.append(1)
        if len(crashes) <= 5:
            raise ZeroDivisionError("a bug")
        await real(*arguments)

    monkeypatch.setattr(module, "follow_file", crash)
    log = tmp_path / "access.log"
    log.touch()
    server = web(lambda path: (200, b""))
    running.configure(shop(NginxFile("log", str(log)), HttpProbe("probe", server.url, 200)))
    until(lambda: running.status("log").detail == CRASHED or len(crashes) > 5, "the crash is told")
    until(lambda: len(crashes) == 6, "it is started again and again")
    until(lambda: running.status("log").state is not SourceState.FAILING, "it works again")
    accepted = running.status("probe").accepted
    until(lambda: running.status("probe").accepted > accepted, "the other one was never disturbed")
    assert running.status("probe").errors == 0


def test_a_source_that_fails_at_the_moment_it_is_stopped_stays_stopped(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[float] = []
    failed = threading.Event()

    async def fails_when_stopped() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError as error:
            failed.set()
            raise ConnectionError("gone at that moment") from error

    async def work(*_arguments: object) -> None:
        started.append(time.monotonic())
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_when_stopped())

    monkeypatch.setattr(module, "probe_memcached", work)
    monkeypatch.setattr(module, "_BACKOFF_S", (0.01,))
    running.configure(shop(MemcachedProbe("probe", "127.0.0.1", free_port(), 10)))
    until(lambda: started, "it runs")
    running.configure(shop())
    assert failed.wait(DEADLINE_S)
    time.sleep(0.2)
    assert len(started) == 1


def test_configuring_the_same_again_does_nothing(running: Running) -> None:
    running.configure(shop(Push("app")), shop_web="192.168.122.10")
    routes = running.sources.pages.routes
    running.configure(shop(Push("app")), shop_web="192.168.122.10")
    assert running.sources.pages.routes is routes
    running.configure(shop(Push("app")), shop_web="192.168.122.11")
    assert running.sources.pages.routes["shop"][0].addresses == {"192.168.122.11"}


def test_the_thread_has_a_higher_priority_where_that_is_permitted(running: Running) -> None:
    [thread] = [one for one in threading.enumerate() if one.name == "telemetry"]
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: raising a priority needs root")
    until(lambda: os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == -15, "its priority is raised")
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == 0, "only its own"


def test_without_the_permission_it_works_all_the_same(web, monkeypatch, caplog) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.os, "setpriority", deny)
    sources = Sources("127.0.0.1", free_port(), reach=LOOPBACK)
    sources.start()
    server = web(lambda path: (200, b""))
    sources.configure([shop(HttpProbe("probe", server.url, 100))], 5.0, {})
    until(lambda: sources.statuses()[0].accepted, "it works")
    sources.close()
    assert "may not raise its priority: Permission denied" in caplog.text


def test_it_can_be_closed_before_it_was_started_and_after_it_was_closed() -> None:
    sources = Sources("127.0.0.1", 0)
    sources.close()
    sources.close()


def test_states_of_a_source(fed: Fed) -> None:
    assert fed.status.state is SourceState.STARTING
    fed.clock.now_s += SILENT_S + 1
    assert fed.status.state is SourceState.SILENT
    fed.feed.take(fed.clock(), (1000.0,))
    assert (fed.status.state, fed.status.last_sample_s) == (SourceState.OK, fed.clock())
    fed.feed.failing("no such thing")
    fed.feed.malformed("a bad line")
    assert (fed.status.state, fed.status.detail) == (SourceState.FAILING, "no such thing; a bad line")
    fed.feed.working()
    assert (fed.status.state, fed.status.detail) == (SourceState.OK, "a bad line")
    fed.clock.now_s += SILENT_S + 1
    assert fed.status.state is SourceState.SILENT
    fed.clock.now_s += 60
    assert fed.status.detail == "", "old news are no news"
    fed.feed.explain("3 packets dropped")
    assert fed.status.detail == "3 packets dropped"


def test_counters_of_a_source(fed: Fed) -> None:
    assert fed.feed.take(NOW_S, (1.0, 2.0), buckets={300: 3}, requests=5) is Fate.TAKEN
    assert fed.feed.take(NOW_S - 100, (1.0, 2.0)) is Fate.LATE
    assert fed.feed.take(NOW_S + 100, (1.0,)) is Fate.EARLY
    fed.feed.malformed("bad")
    fed.feed.refused("10.0.0.1")
    fed.feed.error("late")
    status = fed.status
    counts = (status.accepted, status.malformed, status.refused, status.late, status.errors)
    assert counts == (5, 1 + 1, 1, 2, 1)


def test_counters_are_right_with_many_threads(fed: Fed) -> None:
    def work(feed: Feed) -> None:
        for _ in range(2000):
            feed.take(NOW_S, (1000.0,), requests=1)

    threads = [threading.Thread(target=work, args=(fed.feed,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fed.count == fed.requests == fed.status.accepted == 8000


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError("Multiple exceptions: a, b"), "it failed (OSError)"),
        (ValueError("what somebody sent"), "it failed (ValueError)"),
        (SourceError("ours"), "ours"),
        (ZeroDivisionError(), "it failed (ZeroDivisionError)"),
    ],
)
def test_reasons_are_readable(error: Exception, text: str) -> None:
    assert reason_of(error) == text
