"""The open loop in virtual time: arrivals do not wait, a stall is seen by all that it would have hit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from manager.model.source import SourceState
from manager.telemetry.probe import OpenLoop, ProbeError, ProbeReport
from tests.telemetry.conftest import Fed, run_virtually


def even(rate_rps: float) -> float:
    return 1 / rate_rps


class Server:
    """Answers in ``service_s``, but nothing during stalls: intervals of virtual time since the start."""

    def __init__(self, service_s: float = 0.001, stalls: tuple[tuple[float, float], ...] = ()) -> None:
        self.service_s = service_s
        self.stalls = stalls
        self.made = self.closed = self.busy = self.most_busy = self.served = 0
        self.fail: Callable[[int], Exception | None] = lambda _number: None
        self.began_s: float | None = None

    def connect(self) -> Connection:
        self.made += 1
        return Connection(self)


class Connection:
    def __init__(self, server: Server) -> None:
        self.server = server

    async def request(self) -> None:
        server, loop = self.server, asyncio.get_running_loop()
        server.began_s = loop.time() if server.began_s is None else server.began_s
        server.served += 1
        error = server.fail(server.served)
        server.busy += 1
        server.most_busy = max(server.busy, server.most_busy)
        try:
            if error is not None:
                raise error
            await asyncio.sleep(server.service_s)
            for begin_s, end_s in server.stalls:
                if begin_s <= loop.time() - server.began_s < end_s:
                    await asyncio.sleep(server.began_s + end_s - loop.time())
        finally:
            server.busy -= 1

    def close(self) -> None:
        self.server.closed += 1


def probe(server: Server, for_s: float, timeout_s: float = 5, **options) -> list[tuple[float, str]]:
    results: list[tuple[float, str]] = []
    loop = OpenLoop(50, timeout_s, server.connect, lambda *one: results.append(one), gap_s=even, **options)
    run_virtually(loop.run, for_s)
    return results


def test_a_server_that_answers_at_once_needs_one_connection() -> None:
    server = Server()
    results = probe(server, 10.01)
    assert len(results) == 500
    assert all(time_s == pytest.approx(0.001) and not problem for time_s, problem in results)
    assert (server.made, server.closed) == (1, 1)


@pytest.mark.parametrize("max_sessions", [1, 4, 1000])
def test_a_stall_of_two_seconds_is_seen_by_every_request_that_it_would_have_hit(max_sessions: int) -> None:
    server = Server(stalls=((3.0, 5.0),))
    results = probe(server, 10.5, max_sessions=max_sessions)
    slow = sorted(time_s for time_s, problem in results if time_s > 0.05)
    assert 90 <= len(slow) <= 110, "50 a second for 2 s, whatever the number of connections"
    assert slow[-1] == pytest.approx(2, abs=0.05)
    assert slow[len(slow) // 2] == pytest.approx(1, abs=0.1)
    assert not [problem for _, problem in results if problem]
    assert server.most_busy <= max_sessions


def test_a_dead_server_gives_a_timeout_for_each_request_and_no_backlog() -> None:
    server = Server(stalls=((0.0, 1e9),))
    results = probe(server, 20, timeout_s=2, max_sessions=4)
    assert {time_s for time_s, _ in results} == {2}
    assert {problem for _, problem in results} == {"no answer within 2 s"}
    assert len(results) == pytest.approx(18 * 50, abs=4), "those due at least 2 s before the end"
    assert server.closed >= server.made, "connections that did not answer are not used again"


def test_a_failure_counts_as_a_timeout_and_the_connection_is_closed() -> None:
    server = Server()
    server.fail = {3: ConnectionRefusedError(111, "Connection refused"), 5: ProbeError("status 503")}.get
    results = probe(server, 0.21)
    assert [time_s for time_s, _ in results[:6]] == [pytest.approx(one) for one in (0.001, 0.001, 5, 0.001, 5, 0.001)]
    assert [problem for _, problem in results if problem] == ["Connection refused", "status 503"]
    assert server.closed == 2 + 1


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    results: list[tuple[float, str]] = []
    run_virtually(OpenLoop(100, 5, Server().connect, lambda *one: results.append(one)).run, 100)
    assert len(results) == pytest.approx(10_000, rel=0.06), "6 standard deviations"


def test_time_that_was_slept_through_is_not_made_up_for() -> None:
    server, gaps = Server(), itertools.chain([0.1, 0.1], itertools.repeat(0.02))

    async def suspended() -> None:
        loop = asyncio.get_running_loop()
        open_loop = OpenLoop(50, 5, server.connect, lambda *_: None, gap_s=lambda _rate: next(gaps))
        task = asyncio.create_task(open_loop.run())
        await asyncio.sleep(0.05)
        loop.now_s += 600  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        task.cancel()

    run_virtually(suspended, 2000)
    assert 40 < server.served < 60


def test_three_failures_in_a_row_are_failing_and_a_success_ends_that(fed: Fed) -> None:
    report = ProbeReport(fed.feed)
    states = []
    for problem in ("", "refused", "refused", "refused", ""):
        report(5.0 if problem else 0.001, problem)
        states.append(fed.status.state)
    assert states == [SourceState.OK, SourceState.OK, SourceState.OK, SourceState.FAILING, SourceState.OK]
    assert (fed.status.accepted, fed.status.errors, fed.count, fed.requests) == (5, 3, 5, None)
    assert "refused" in fed.status.detail
