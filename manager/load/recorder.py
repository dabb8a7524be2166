"""Counts what happens to each request, interval by interval. Plain dicts while running, values at the end."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from manager.load.result import IntervalResult, LoadResult
from manager.load.spec import LoadSpec
from manager.model.histogram import Histogram, bucket_of


class Recorder:
    """Takes times of ``time.monotonic()``. Nothing is counted before ``begin``, nor of requests due before then.

    ``on_interval`` is called with each interval as it ends.
    """

    def __init__(self, spec: LoadSpec, on_interval: Callable[[IntervalResult], None] | None) -> None:
        self._spec = spec
        self._on_interval = on_interval
        self._start_s = math.inf
        self.next_close_s = math.inf
        self._intervals: list[IntervalResult] = []
        self._interval_start_s = 0.0  # this and the next: seconds since start_s
        self._last_answer_s = 0.0
        self._last_sent_s = 0.0
        self._waiting = 0
        self._sum_us = 0.0
        self._max_us = 0.0
        self._lateness_max_us = 0.0
        self._begin_interval()

    def begin(self, start_s: float) -> None:
        """The schedule, and with it the first interval, begins at ``start_s``."""
        self._start_s = start_s
        self.next_close_s = start_s + self._planned_end_s(1)

    def due(self, intended_s: float, now_s: float) -> None:
        """A request fell due at ``intended_s`` and is handed over only now."""
        if intended_s < self._start_s:
            return
        late_us = (now_s - intended_s) * 1e6
        self._lateness_max_us = max(self._lateness_max_us, late_us)
        bucket = bucket_of(late_us)
        self._lateness[bucket] = self._lateness.get(bucket, 0) + 1
        self._sent += 1

    def dequeued(self, now_s: float) -> None:
        """A request that had waited for a connection is sent."""
        self._last_sent_s = now_s - self._start_s

    def answered(self, intended_s: float, now_s: float) -> None:
        """A good answer is complete."""
        if intended_s < self._start_s:
            return
        self._answered += 1
        self._last_answer_s = now_s - self._start_s
        self._time((now_s - intended_s) * 1e6)

    def failed(self, intended_s: float, kind: str, after_s: float | None = None) -> None:
        """A request ended in an error; ``after_s`` is the response time it counts as, if any."""
        if intended_s < self._start_s:
            return
        self._errors[kind] += 1
        if after_s is not None:
            self._time(after_s * 1e6)

    def left_waiting(self, intended_s: Iterable[float]) -> None:
        """Requests that still waited for a connection when the run was stopped."""
        self._waiting += sum(due_s >= self._start_s for due_s in intended_s)

    def _time(self, time_us: float) -> None:
        self._sum_us += time_us
        self._max_us = max(self._max_us, time_us)
        bucket = bucket_of(time_us)
        self._times[bucket] = self._times.get(bucket, 0) + 1

    def close_until(self, now_s: float) -> None:
        """Close every interval that has ended."""
        while self.next_close_s <= now_s:
            self._close(self.next_close_s - self._start_s)
            self.next_close_s = self._start_s + self._planned_end_s(len(self._intervals) + 1)

    def finish(self, now_s: float, cpu_s: float, cpu_share: float, events: Mapping[str, int]) -> LoadResult:
        """Close the last interval at ``now_s`` and sum up."""
        self.close_until(now_s)
        elapsed_s = max(0.0, now_s - self._start_s)
        if elapsed_s > self._interval_start_s:
            self._close(elapsed_s)
        intervals = tuple(self._intervals)
        histogram = Histogram().merge(*(interval.histogram for interval in intervals))
        lateness = Histogram().merge(*(interval.lateness for interval in intervals))
        errors: Counter[str] = Counter()
        for interval in intervals:
            errors.update(interval.errors)
        return LoadResult(
            spec=self._spec,
            sent=sum(interval.sent for interval in intervals),
            answered=sum(interval.answered for interval in intervals),
            errors=dict(errors),
            events=dict(events),
            duration_s=max(min(elapsed_s, self._spec.schedule_s), self._last_answer_s),
            sending_s=max(min(elapsed_s, self._spec.schedule_s), self._last_sent_s),
            histogram=histogram,
            mean_us=self._sum_us / histogram.count if histogram.count else None,
            max_us=self._max_us if histogram.count else None,
            lateness=lateness,
            lateness_max_us=self._lateness_max_us if lateness.count else None,
            intervals=intervals,
            cpu_s=cpu_s,
            cpu_share=cpu_share,
            waiting=self._waiting,
        )

    def _planned_end_s(self, number: int) -> float:
        # Answers that come just after the schedule's end belong to its last interval, not to a sliver behind it: an
        # interval that would end there stays open for one more interval's length, or until the last answer.
        end_s = number * self._spec.interval_s
        return end_s if end_s < self._spec.schedule_s - 1e-6 else end_s + self._spec.interval_s

    def _begin_interval(self) -> None:
        self._sent = 0
        self._answered = 0
        self._errors: Counter[str] = Counter()
        self._times: dict[int, int] = {}
        self._lateness: dict[int, int] = {}

    def _close(self, end_s: float) -> None:
        interval = IntervalResult(
            start_s=self._interval_start_s,
            end_s=end_s,
            end_epoch_s=time.time() - time.monotonic() + self._start_s + end_s,
            sent=self._sent,
            answered=self._answered,
            errors=dict(self._errors),
            histogram=Histogram(self._times),
            lateness=Histogram(self._lateness),
        )
        self._intervals.append(interval)
        self._interval_start_s = end_s
        self._begin_interval()
        if self._on_interval is not None:
            self._on_interval(interval)
