"""APScheduler on the monotonic clock, so that changes of the wall clock move no job.

APScheduler compares due times with ``datetime.now(timezone)``. It gets a time zone whose "now" is the monotonic time
since a fixed moment, and triggers that answer in that zone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, tzinfo

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
    """Fires every ``period_s`` seconds of steady time: first after one period, or ``at_once``."""

    def __init__(self, period_s: float, *, at_once: bool = False) -> None:
        """``period_s`` is above 0."""
        self._period = timedelta(seconds=period_s)
        self._at_once = at_once

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The next time, never in the past by more than a period."""
        if previous_fire_time is None:
            return now if self._at_once else now + self._period
        left_out = max((now - previous_fire_time) // self._period, 0)
        return previous_fire_time + max(left_out, 1) * self._period


def due_after_boundary_s(
    previous_s: float | None, steady_s: float, wall_s: float, period_s: float, after_s: float
) -> float:
    """The steady time that is ``after_s`` after the next multiple of ``period_s`` of the wall clock, seconds.

    ``previous_s`` is when that was last. Wherever the wall clock jumps, the next time is 0.25 to 1.25 periods away.
    """
    due_s = steady_s + next_boundary_s(wall_s, period_s, after_s) - wall_s
    return due_s + period_s if previous_s is not None and due_s - previous_s < _SOON * period_s else due_s


def next_boundary_s(wall_s: float, period_s: float, after_s: float) -> float:
    """The first time after ``wall_s`` that is ``after_s`` after a multiple of ``period_s``; seconds since the epoch."""
    return (math.floor((wall_s - after_s) / period_s) + 1) * period_s + after_s


class SteadyScheduler:
    """Jobs in pools of threads; none runs beside itself, and one that is late runs once, however often it was due."""

    def __init__(
        self,
        threads: Mapping[str, int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``threads`` of each pool."""
        self._zone = SteadyZone(clock)
        self._scheduler = BackgroundScheduler(
            timezone=self._zone,
            executors={name: ThreadPoolExecutor(count) for name, count in threads.items()},
            # With a grace time the library would judge lateness by the wall clock.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    @property
    def running(self) -> bool:
        """Whether it is started."""
        return bool(self._scheduler.running)

    def add(self, name: str, job: Callable[..., object], trigger: BaseTrigger, pool: str) -> None:
        """Run ``job`` at the times of ``trigger``."""
        # Computed here: the library would only when it starts.
        begin = trigger.get_next_fire_time(None, self._zone.now())
        self._scheduler.add_job(job, trigger, next_run_time=begin, id=name, name=name, executor=pool)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """End when running jobs have ended; nothing if not started."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
