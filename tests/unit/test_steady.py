"""Schedules that the time of day cannot move: triggers, the zone the library counts in, and the library with both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from manager.steady import AfterBoundaries, Every, SteadyScheduler, SteadyZone, next_boundary_s

JUMPS_S = [-2 * 3600.0, 2 * 3600.0, -365 * 86_400.0, 365 * 86_400.0, -0.4, 0.4]


class Clocks:
    """A monotonic time, and a time of day that may be set."""

    def __init__(self, wall_s: float = 1.8e9) -> None:
        self.steady_s = 5000.0
        self.offset_s = wall_s - self.steady_s

    def steady(self) -> float:
        return self.steady_s

    def wall(self) -> float:
        return self.steady_s + self.offset_s


def test_now_in_the_zone_is_steady_whatever_the_time_of_day() -> None:
    clocks = Clocks()
    zone = SteadyZone(clocks.steady)
    before = datetime.now(zone)
    clocks.steady_s += 7.5
    after = datetime.now(zone)
    assert after - before == timedelta(seconds=7.5)
    assert after.timestamp() - before.timestamp() == 7.5
    assert after.astimezone(UTC) - before.astimezone(UTC) == timedelta(seconds=7.5)
    assert before.astimezone(zone) == before, "the library converts what is in it already"


@pytest.mark.parametrize(
    ("wall_s", "period_s", "due_s"),
    [
        (100.0, 5.0, 100.03),
        (100.02, 5.0, 100.03),
        (100.03, 5.0, 105.03),
        (104.9, 5.0, 105.03),
        (1e9 + 0.1, 0.2, 1e9 + 0.23),
        (0.0, 5.0, 0.03),
        (4e9 + 1, 5.0, 4e9 + 5.03),
    ],
)
def test_boundaries_are_multiples_of_the_period(wall_s: float, period_s: float, due_s: float) -> None:
    assert next_boundary_s(wall_s, period_s, 0.03) == pytest.approx(due_s, abs=1e-6)


def fired(trigger: AfterBoundaries, clocks: Clocks, zone: SteadyZone) -> Iterator[float]:
    """Waits in steady seconds, each for the next time that the trigger fires."""
    last: datetime | None = None
    while True:
        due = trigger.get_next_fire_time(last, zone.now())
        wait_s = (due - zone.now()).total_seconds()
        clocks.steady_s += wait_s
        last = due
        yield wait_s


@pytest.mark.parametrize("jump_s", JUMPS_S)
@pytest.mark.parametrize("interval_s", [0.05, 0.2, 5.0])
def test_wherever_the_clock_jumps_the_next_boundary_is_near(jump_s: float, interval_s: float) -> None:
    clocks = Clocks()
    zone = SteadyZone(clocks.steady)
    waits = fired(AfterBoundaries(interval_s, 0.03, clocks.wall), clocks, zone)
    for jump in (0.0, 0.0, jump_s, 0.0, -jump_s, 0.0):
        clocks.offset_s += jump
        assert 0 < next(waits) <= 1.25 * interval_s
    phase_s = (clocks.wall() - 0.03) % interval_s
    assert min(phase_s, interval_s - phase_s) < 1e-3, "and is one again"


@pytest.mark.parametrize("slew", [-5e-4, 5e-4])
def test_a_clock_that_is_slewed_makes_no_boundary_count_twice(slew: float) -> None:
    """NTP moves a clock by up to 500 us a second, so the steady wait ends a little before or after the boundary."""
    clocks = Clocks()
    zone = SteadyZone(clocks.steady)
    waits = fired(AfterBoundaries(5.0, 0.03, clocks.wall), clocks, zone)
    next(waits)
    for _ in range(50):
        clocks.offset_s += slew * 5.0
        assert next(waits) == pytest.approx(5.0, abs=0.01)


def test_every_period_counts_from_the_one_before_and_leaves_out_what_is_long_over() -> None:
    clocks = Clocks()
    zone = SteadyZone(clocks.steady)
    begin = zone.now()
    trigger = Every(10.0)
    assert trigger.get_next_fire_time(None, begin) == begin + timedelta(seconds=10)
    assert Every(10.0, at_once=True).get_next_fire_time(None, begin) == begin
    late = begin + timedelta(seconds=12)
    assert trigger.get_next_fire_time(begin + timedelta(seconds=10), late) == begin + timedelta(seconds=20)
    assert trigger.get_next_fire_time(begin, begin + timedelta(seconds=47)) == begin + timedelta(seconds=40)


def test_what_begins_together_takes_turns() -> None:
    begin = SteadyZone(Clocks().steady).now()
    trigger = Every(10.0, at_once=True, turn_s=4.0)
    first = trigger.get_next_fire_time(None, begin)
    second = trigger.get_next_fire_time(first, first)
    third = trigger.get_next_fire_time(second, second)
    assert [time - begin for time in (first, second, third)] == [timedelta(seconds=part) for part in (0, 14, 24)]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.005)


@pytest.mark.parametrize("jump_s", JUMPS_S[:4])
def test_the_library_runs_jobs_on_while_the_time_of_day_jumps(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    offset_s = [0.0]
    real = time.time

    class Jumping(datetime):
        """The class that the library asks for the time."""

        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            moment = datetime.fromtimestamp(real() + offset_s[0], UTC)
            return tz.fromutc(moment.replace(tzinfo=tz)) if isinstance(tz, SteadyZone) else moment

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Jumping)
    ran: list[str] = []
    crashes: list[tuple[str, str]] = []
    scheduler = SteadyScheduler({"one": 1}, on_crash=lambda name, error: crashes.append((name, str(error))))
    scheduler.add("slots", lambda: ran.append("slots"), AfterBoundaries(0.05, 0.0, lambda: real() + offset_s[0]), "one")
    scheduler.add("every", lambda: ran.append("every"), Every(0.05, at_once=True), "one")
    scheduler.start()
    until(lambda: {"slots", "every"} <= set(ran))
    offset_s[0] = jump_s
    for name in ("slots", "every"):
        count = ran.count(name)
        until(lambda name=name, count=count: ran.count(name) > count + 2)  # type: ignore[misc]
    scheduler.soon(ran.append, ("soon",), "one")
    until(lambda: "soon" in ran)

    def fail() -> None:
        raise ZeroDivisionError("a mistake")

    scheduler.add("broken", fail, Every(0.05), "one")
    until(lambda: len(crashes) > 1)
    assert set(crashes) == {("broken", "a mistake")}
    scheduler.stop()
    assert not scheduler.running


def test_what_is_due_while_it_runs_is_left_out_and_told() -> None:
    overruns: list[str] = []
    release = threading.Event()
    scheduler = SteadyScheduler({"one": 1}, on_overrun=overruns.append)
    scheduler.add("slow", lambda: release.wait(120), Every(0.02, at_once=True), "one")
    scheduler.start()
    until(lambda: len(overruns) > 2)
    release.set()
    scheduler.stop()
    assert set(overruns) == {"slow"}
