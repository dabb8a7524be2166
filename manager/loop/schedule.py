"""When an agent ticks: just after multiples of the interval, and at once where it must.

Garbage is collected between ticks and never within one. A full collection walks all that a process holds: with 200 VMs
that is 35 ms, which a tick would be late. Reference counts free nearly everything anyway; only cycles wait for the next
collection.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable

from manager.loop.agent_metrics import AgentMetrics
from manager.steady import AfterBoundaries, Every, SteadyScheduler

TICK, TIDY, WATCH = "tick", "tidy", "watch"
AFTER_SLOT_S = 0.03
"""A tick comes so long after a slot of response times has ended: what ended in it has been counted by then."""
COLLECT_S = 300.0
"""So often cycles are collected: there are few, and looking for them costs as much as ten ticks."""
_WATCH_S = 0.5
"""Where there may be our sched_ext scheduler, it is looked at so often whether it still decides."""

log = logging.getLogger(__name__)


class Schedule:
    """Ticks, one at a time, every ``interval_s``, and garbage collected between them."""

    def __init__(self, tick: Callable[[], None], interval_s: float, metrics: AgentMetrics) -> None:
        """Nothing runs before ``start``."""
        self._tick = tick
        self._interval_s = interval_s
        self._metrics = metrics
        self._stopping = False
        self._scheduler = SteadyScheduler({TICK: 1}, on_overrun=self._overran, on_crash=self.crashed)
        self.overruns = 0

    def start(self, watch: Callable[[], None] | None) -> None:
        """Begin; ``watch`` is called twice a second, never during a tick."""
        self._scheduler.add(TICK, self._tick, AfterBoundaries(self._interval_s, AFTER_SLOT_S), TICK)
        between_s = AFTER_SLOT_S + self._interval_s / 2
        self._scheduler.add(TIDY, _collect, AfterBoundaries(COLLECT_S, between_s), TICK)
        if watch is not None:
            self._scheduler.add(WATCH, watch, Every(_WATCH_S), TICK)
        postpone_garbage()
        self._scheduler.start()

    def stop(self) -> None:
        """End, after a tick that is under way."""
        self._stopping = True
        if self._scheduler.running:
            self._scheduler.stop()
            collect_as_usual()

    def tick_now(self) -> threading.Event:
        """Do not wait for the next interval. Set once such a tick has ended, or none will be made."""
        ended = threading.Event()
        if self._stopping:
            ended.set()
        else:
            self._scheduler.soon(self._tick_for, (ended,), TICK)
        return ended

    def _tick_for(self, ended: threading.Event) -> None:
        try:
            self._tick()
        finally:
            ended.set()

    def _overran(self, name: str) -> None:
        if name == TICK:
            self.overruns += 1
            self._metrics.overruns.inc()
            log.warning("a tick took longer than the interval of %g s; the next one is left out", self._interval_s)

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
    """Collect by itself again. What existed before is still not walked: some of it may have been left out by others."""
    gc.enable()


def _collect() -> None:
    gc.collect()
