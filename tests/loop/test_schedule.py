"""When ticks are due, whatever becomes of the clocks; and the loop that makes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from manager.loop.agent_metrics import AgentMetrics
from manager.loop.observer import Clock
from manager.loop.schedule import Recurring, Schedule

HANGS_S = 30.0
DAY_S = 86_400.0


def job(begin: Clock) -> Recurring:
    """Due a hundredth of a second after each whole second."""
    made = Recurring("tick", lambda: None, 1.0, 0.01)
    made.begin(begin)
    return made


@pytest.mark.parametrize(
    ("began_s", "ended_s", "left_out", "due_s"),
    [
        (50.01, 50.02, 0, 51.01),
        (50.01, 51.0, 0, 51.01),
        (50.01, 51.02, 1, 52.01),
        (50.01, 53.5, 3, 54.01),
        (53.3, 53.5, 0, 54.01),  # the process was stopped, and was not late by itself
        (53.3, 54.5, 1, 55.01),
    ],
)
def test_what_is_due_while_it_runs_is_left_out(began_s: float, ended_s: float, left_out: int, due_s: float) -> None:
    made = job(Clock(1049.5, 49.5))
    assert made.due_s == pytest.approx(50.01)
    assert made.proceed(began_s, Clock(ended_s + 1000, ended_s)) == left_out
    assert made.due_s == pytest.approx(due_s)


@pytest.mark.parametrize("jump_s", [-2 * DAY_S, 2 * DAY_S + 0.3, -0.4, 0.4, 0.02])
def test_wherever_the_clock_jumps_it_is_due_soon(jump_s: float) -> None:
    made = job(Clock(1049.5, 49.5))
    assert made.proceed(50.01, Clock(1050.02 + jump_s, 50.02)) == 0
    assert 0.25 <= made.due_s - 50.01 <= 1.25


@pytest.fixture
def metrics() -> AgentMetrics:
    return AgentMetrics()


@pytest.fixture
def running(metrics: AgentMetrics) -> Iterator[Callable[..., Schedule]]:
    """Starts schedules with a tick every 20 ms, and stops them."""
    made: list[Schedule] = []

    def start(tick: Callable[[], None], watch: Callable[[], None] | None = None) -> Schedule:
        made.append(Schedule(tick, 0.02, metrics))
        made[-1].start(watch)
        return made[-1]

    yield start
    for schedule in made:
        schedule.stop()


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.005)


def test_ticks_and_looks_go_on_although_some_fail(
    running: Callable[..., Schedule], metrics: AgentMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[int] = []
    looks: list[int] = []

    def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 2:
            raise ZeroDivisionError("a mistake")

    running(tick, lambda: looks.append(1))
    until(lambda: len(ticks) > 4 and looks)
    assert metrics.registry.get_sample_value("equipoise_agent_errors_total", {"kind": "bug"}) == 1
    assert "tick failed: ZeroDivisionError('a mistake')" in caplog.text


def test_a_long_tick_is_counted_and_told(
    running: Callable[..., Schedule], metrics: AgentMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    long = [0.05]

    def tick() -> None:
        threading.Event().wait(long.pop() if long else 0.0)

    schedule = running(tick)
    until(lambda: schedule.overruns)
    assert metrics.registry.get_sample_value("equipoise_agent_tick_overruns_total") == schedule.overruns >= 1
    assert "a tick took longer than the interval of 0.02 s" in caplog.text


def test_once_stopped_there_is_no_tick_and_nobody_waits_for_one(running: Callable[..., Schedule]) -> None:
    ticks: list[int] = []
    schedule = running(lambda: ticks.append(1))
    assert schedule.tick_now().wait(HANGS_S)
    schedule.stop()
    count = len(ticks)
    assert schedule.tick_now().wait(HANGS_S)
    assert len(ticks) == count >= 1
