"""APScheduler on steady time: its jobs run by the monotonic clock, so that a change of the time of day moves none.

APScheduler compares when a job is due with ``datetime.now(timezone)``, so it follows the wall clock whatever its
triggers are. It is therefore given a time zone in which "now" is the monotonic time, counted from a fixed moment, and
triggers that answer in that zone: nothing of the library is replaced. Such moments mean nothing outside and are never
shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

_SOON = 0.25
"""Of a period: a moment that is nearer than this to the last one counts as that one. A clock that is slewed reaches a
boundary a little after the steady wait for it was over, and no job is to run twice for one boundary."""


class SteadyZone(tzinfo):
    """A zone in which it is now as late as the monotonic clock says, in seconds since the zone's beginning.

    Its moments are compared and subtracted as others are. Only "now" may be asked for in it: no other time converts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` answers seconds that only grow."""
        self._clock = clock
        self._begin = datetime(2000, 1, 1, tzinfo=self)

    def now(self) -> datetime:
        """The steady time."""
        return self._begin + timedelta(seconds=self._clock())

    def fromutc(self, _moment: datetime) -> datetime:
        """The steady time: ``datetime.now(zone)`` comes here with the time of day."""
        return self.now()

    def utcoffset(self, _moment: datetime | None) -> timedelta:
        """None: a moment of this zone that is asked for in UTC keeps its figures."""
        return timedelta(0)

    def dst(self, _moment: datetime | None) -> timedelta:
        """None."""
        return timedelta(0)

    def tzname(self, _moment: datetime | None) -> str:
        """Its name in the library's log."""
        return "steady"


class Every(BaseTrigger):  # type: ignore[misc] # the library has no types
    """Fires every ``period_s`` seconds of steady time: first after one period, or ``at_once``."""

    def __init__(self, period_s: float, *, at_once: bool = False) -> None:
        """``period_s`` is above 0."""
        self._period = timedelta(seconds=period_s)
        self._at_once = at_once

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """What is due after ``previous_fire_time``: never in the past by more than a period."""
        if previous_fire_time is None:
            return now if self._at_once else now + self._period
        left_out = max((now - previous_fire_time) // self._period, 0)
        return previous_fire_time + max(left_out, 1) * self._period


class AfterBoundaries(BaseTrigger):  # type: ignore[misc] # the library has no types
    """Fires ``after_s`` after each multiple of ``period_s`` of the wall clock, and waits for it in steady time.

    How long is worked out anew each time, so that wherever the wall clock jumps the next time is never further than
    1.25 periods, nor nearer than 0.25.
    """

    def __init__(self, period_s: float, after_s: float, wall: Callable[[], float] = time.time) -> None:
        """``wall`` answers seconds since the epoch."""
        self._period_s = period_s
        self._after_s = after_s
        self._wall = wall

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The next boundary's, which is always after ``now``."""
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
    """Jobs in threads of their own, each never beside itself. What is late is done once, however often it was due."""

    def __init__(
        self,
        threads: Mapping[str, int],
        *,
        on_overrun: Callable[[str], None] = lambda _name: None,
        on_crash: Callable[[str, BaseException], None] = lambda _name, _error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``threads``: how many each pool has. ``on_overrun`` is called with a job that was due while it still ran,
        ``on_crash`` of one that raised.
        """
        self._zone = SteadyZone(clock)
        self._scheduler = BackgroundScheduler(
            timezone=self._zone,
            executors={name: ThreadPoolExecutor(count) for name, count in threads.items()},
            # Without a grace time the library never asks how late a job is, for which it would use the wall clock.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

        def overrun(event: JobExecutionEvent) -> None:
            on_overrun(event.job_id)

        def crash(event: JobExecutionEvent) -> None:
            on_crash(event.job_id, event.exception)

        self._scheduler.add_listener(overrun, EVENT_JOB_MAX_INSTANCES)
        self._scheduler.add_listener(crash, EVENT_JOB_ERROR)

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return bool(self._scheduler.running)

    def add(self, name: str, job: Callable[..., object], trigger: BaseTrigger, pool: str) -> None:
        """Run ``job`` whenever ``trigger`` says so."""
        # Computed here: the library would only when it starts.
        begin = trigger.get_next_fire_time(None, self._zone.now())
        self._scheduler.add_job(job, trigger, next_run_time=begin, id=name, name=name, executor=pool)

    def soon(self, job: Callable[..., object], arguments: Sequence[object], pool: str) -> None:
        """Run ``job`` once, as soon as a thread of the pool is free."""
        self._scheduler.add_job(job, args=arguments, executor=pool)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """End, after what runs has ended. Nothing, where it was not started."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
