"""When an agent ticks: just after multiples of the interval, and at once where it must.

Garbage is collected between ticks and never within one. A full collection walks all that a process holds: with 200 VMs
that is 35 ms, which a tick would be late. Reference counts free nearly everything anyway; only cycles wait for the next
collection.

Ticks have a loop of their own: a job of a scheduler takes a tenth of a tick with 50 VMs, and wakes another thread.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from manager.loop.agent_metrics import AgentMetrics
from manager.loop.observer import Clock, system_clock
from manager.steady import due_after_boundary_s

TICK, TIDY, WATCH = "tick", "tidy", "watch"
AFTER_SLOT_S = 0.03
"""A tick comes so long after a slot of response times has ended: what ended in it has been counted by then."""
COLLECT_S = 300.0
"""So often cycles are collected: there are few, and looking for them costs as much as ten ticks."""
_WATCH_S = 0.5
"""Where there may be our sched_ext scheduler, it is looked at so often whether it still decides."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recurring:
    """What is due ``after_s`` after each multiple of ``period_s`` of the wall clock, next at ``due_s``, monotonic."""

    name: str
    run: Callable[[], None]
    period_s: float
    after_s: float
    due_s: float = field(init=False)

    def begin(self, now: Clock) -> None:
        """Find out when it is due first."""
        self.due_s = due_after_boundary_s(None, now.monotonic_s, now.epoch_s, self.period_s, self.after_s)

    def proceed(self, began_s: float, now: Clock) -> int:
        """It ran from ``began_s``, monotonic, until now: find out when it is due next.

        Returns how often it was due meanwhile, which is left out.
        """
        late, passed = (math.floor((at_s - self.due_s) / self.period_s) for at_s in (began_s, now.monotonic_s))
        last_s = self.due_s + passed * self.period_s
        self.due_s = due_after_boundary_s(last_s, now.monotonic_s, now.epoch_s, self.period_s, self.after_s)
        return passed - late


class Schedule:
    """Ticks, one at a time, every ``interval_s``, and garbage collected between them."""

    def __init__(
        self,
        tick: Callable[[], None],
        interval_s: float,
        metrics: AgentMetrics,
        clock: Callable[[], Clock] = system_clock,
    ) -> None:
        """Nothing runs before ``start``."""
        self._tick = tick
        self._metrics = metrics
        self._clock = clock
        self._jobs = [
            Recurring(TICK, tick, interval_s, AFTER_SLOT_S),
            Recurring(TIDY, _collect, COLLECT_S, AFTER_SLOT_S + interval_s / 2),
        ]
        self._asked: deque[threading.Event] = deque()  # of ticks that are not to wait
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ticks", daemon=True)
        self.overruns = 0

    def start(self, watch: Callable[[], None] | None) -> None:
        """Begin; ``watch`` is called twice a second, never during a tick."""
        if watch is not None:
            self._jobs.append(Recurring(WATCH, watch, _WATCH_S, 0.0))
        postpone_garbage()
        for job in self._jobs:
            job.begin(self._clock())
        self._thread.start()

    def stop(self) -> None:
        """End, after a tick that is under way."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
            collect_as_usual()
        self._leave_out_asked()

    def tick_now(self) -> threading.Event:
        """Do not wait for the next interval. Set once such a tick has ended, or none will be made."""
        ended = threading.Event()
        self._asked.append(ended)
        self._wake.set()
        if self._stopping:
            self._leave_out_asked()
        return ended

    def _leave_out_asked(self) -> None:
        while (ended := self._next_asked()) is not None:
            ended.set()

    def _next_asked(self) -> threading.Event | None:
        try:
            return self._asked.popleft()
        except IndexError:
            return None

    def _run(self) -> None:
        """What is due, one after the other, until it is stopped."""
        while not self._stopping:
            next_s = min(job.due_s for job in self._jobs)
            self._wake.wait(max(next_s - self._clock().monotonic_s, 0.0))
            self._wake.clear()
            while not self._stopping and (ended := self._next_asked()) is not None:
                self._guarded(TICK, self._tick)
                ended.set()
            for job in self._jobs:
                began_s = self._clock().monotonic_s
                if job.due_s <= began_s and not self._stopping:
                    self._guarded(job.name, job.run)
                    left_out = job.proceed(began_s, self._clock())
                    if left_out and job.name == TICK:
                        self._overran(left_out, job.period_s)

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - a mistake must not end the ticks
            self.crashed(name, error)

    def _overran(self, left_out: int, interval_s: float) -> None:
        self.overruns += left_out
        self._metrics.overruns.inc(left_out)
        log.warning("a tick took longer than the interval of %g s; the next %d are left out", interval_s, left_out)

    def crashed(self, what: str, error: BaseException) -> None:
        """Count and log a mistake of ours, which must end nothing."""
        self._metrics.errors.labels("bug").inc()
        log.error("%s failed: %r", what, error, exc_info=error)


def postpone_garbage() -> None:
    """Collect no more by itself. What exists now is taken to stay until the end, and not walked any more."""
    gc.collect()
    gc.freeze()
    gc.disable()


def collect_as_usual() -> None:
    """Undo ``postpone_garbage``."""
    gc.enable()
    gc.unfreeze()


def _collect() -> None:
    gc.collect()
