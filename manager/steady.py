"""APScheduler on the monotonic clock, so that changes of the wall clock move no job.

APScheduler compares due times with ``datetime.now(timezone)``. It gets a time zone whose "now" is the monotonic time
since a fixed moment, and triggers that answer in that zone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

_SOON = 0.25
"""Of a period: a nearer boundary counts as the last one, which a slewed clock reaches a little late."""


class SteadyZone(tzinfo):
    """A zone whose "now" is the monotonic clock, in seconds since its beginning. No other time converts to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._begin = datetime(2000, 1, 1, tzinfo=self)

    def now(self) -> datetime:
        """The steady time."""
        return self._begin + timedelta(seconds=self._clock())

    def fromutc(self, _moment: datetime) -> datetime:
        """The steady time, for ``datetime.now(zone)``."""
        return self.now()

    def utcoffset(self, _moment: datetime | None) -> timedelta:
        """None."""
        return timedelta(0)

    def dst(self, _moment: datetime | None) -> timedelta:
        """None."""
        return timedelta(0)

    def tzname(self, _moment: datetime | None) -> str:
        """In the library's log."""
        return "steady"


class Every(BaseTrigger):  # type: ignore[misc] # the library has no types
    """Fires every ``period_s`` seconds of steady time: first after one period, or ``at_once``.

    Once only, after the first time, it waits ``turn_s`` longer, so that what begins together takes turns from then on.
    """

    def __init__(self, period_s: float, *, at_once: bool = False, turn_s: float = 0.0) -> None:
        """``period_s`` is above 0."""
        self._period, self._turn = timedelta(seconds=period_s), timedelta(seconds=turn_s)
        self._at_once = at_once
        self._first: datetime | None = None

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The next time, never in the past by more than a period."""
        if previous_fire_time is None:
            self._first = now if self._at_once else now + self._period
            return self._first
        left_out = max((now - previous_fire_time) // self._period, 0)
        due = previous_fire_time + max(left_out, 1) * self._period
        return due + self._turn if previous_fire_time == self._first else due


class AfterBoundaries(BaseTrigger):  # type: ignore[misc] # the library has no types
    """Fires ``after_s`` after each multiple of ``period_s`` of the wall clock, waiting in steady time.

    Wherever the wall clock jumps, the next time is 0.25 to 1.25 periods away.
    """

    def __init__(self, period_s: float, after_s: float, wall: Callable[[], float] = time.time) -> None:
        """``wall``: seconds since the epoch."""
        self._period_s = period_s
        self._after_s = after_s
        self._wall = wall

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The time of the next boundary, after ``now``."""
        wall_s = self._wall()
        due = now + timedelta(seconds=next_boundary_s(wall_s, self._period_s, self._after_s) - wall_s)
        period = timedelta(seconds=self._period_s)
        if previous_fire_time is not None and due - previous_fire_time < _SOON * period:
            due += period
        return due


def next_boundary_s(wall_s: float, period_s: float, after_s: float) -> float:
    """The first time after ``wall_s`` that is ``after_s`` after a multiple of ``period_s``; seconds since the epoch."""
    return (math.floor((wall_s - after_s) / period_s) + 1) * period_s + after_s


class SteadyScheduler:
    """Jobs in pools of threads; none runs beside itself, and one that is late runs once, however often it was due."""

    def __init__(
        self,
        threads: Mapping[str, int],
        *,
        on_overrun: Callable[[str], None] = lambda _name: None,
        on_crash: Callable[[str, BaseException], None] = lambda _name, _error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``threads`` of each pool. ``on_overrun`` gets jobs that were due while they ran, ``on_crash`` failed ones."""
        self._zone = SteadyZone(clock)
        self._scheduler = BackgroundScheduler(
            timezone=self._zone,
            executors={name: ThreadPoolExecutor(count) for name, count in threads.items()},
            # With a grace time the library would judge lateness by the wall clock.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

        self._scheduler.add_listener(lambda event: on_overrun(event.job_id), EVENT_JOB_MAX_INSTANCES)
        self._scheduler.add_listener(lambda event: on_crash(event.job_id, event.exception), EVENT_JOB_ERROR)

    @property
    def running(self) -> bool:
        """Whether it is started."""
        return bool(self._scheduler.running)

    def add(self, name: str, job: Callable[..., object], trigger: BaseTrigger, pool: str) -> None:
        """Run ``job`` at the times of ``trigger``."""
        # Computed here: the library would only when it starts.
        begin = trigger.get_next_fire_time(None, self._zone.now())
        self._scheduler.add_job(job, trigger, next_run_time=begin, id=name, name=name, executor=pool)

    def soon(self, job: Callable[..., object], arguments: Sequence[object], pool: str) -> None:
        """Run ``job`` once, when a thread of the pool is free."""
        self._scheduler.add_job(job, args=arguments, executor=pool)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """End when running jobs have ended; nothing if not started."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
