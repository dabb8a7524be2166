"""Whether ticks go on and whether the clock was set, seen by a thread that neither ticks nor the scheduler hold up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from manager.clocks import Times, jump_between, read_times
from manager.model.records import Severity

STALLED_INTERVALS = 3
LEAST_S = 1.0
"""With intervals of a fraction of a second a loop counts as stalled after this: a busy machine delays it by less."""

log = logging.getLogger(__name__)


class Oversight:
    """Tells the operator, and whoever asks, of a loop that stands still and of a clock that jumps.

    ``say`` takes severity, kind and message of an event; ``jumped`` is called for each jump. Both are called from this
    thread alone.
    """

    def __init__(
        self,
        interval_s: float,
        say: Callable[[Severity, str, str], None],
        jumped: Callable[[], None] = lambda: None,
        read: Callable[[], Times] = read_times,
    ) -> None:
        """``interval_s`` is the time between two ticks. Nothing is watched before ``start``."""
        self._bound_s = max(STALLED_INTERVALS * interval_s, LEAST_S)
        self._every_s = min(interval_s, LEAST_S)
        self.say = say
        self._jumped = jumped
        self._read = read
        self._before = read()
        self._ticked_s = self._before.monotonic_s
        self._gap_s = 0.0  # that a tick ended, and was not told of yet
        self._stalled = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oversight", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End. Nothing, where it was not started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def ticked(self) -> None:
        """A tick has ended."""
        now_s = self._read().monotonic_s
        gap_s, self._ticked_s = now_s - self._ticked_s, now_s
        if gap_s > self._bound_s:  # perhaps this thread did not run meanwhile, either
            self._gap_s = gap_s

    @property
    def age_s(self) -> float:
        """How long ago the last tick ended; before the first one, since when it is waited for."""
        return self._read().monotonic_s - self._ticked_s

    @property
    def stalled_s(self) -> float | None:
        """For how long no tick has ended, where that is three intervals or more; None: they go on."""
        age_s = self.age_s
        return age_s if age_s > self._bound_s else None

    def look(self) -> None:
        """Look once."""
        now = self._read()
        jump, self._before = jump_between(self._before, now), now
        if jump is not None:
            self._jumped()
            log.warning("%s", jump.text)
            self.say(Severity.WARNING, "clock-jumped", f"{jump.text}; control goes on")
        standing_s, gap_s, self._gap_s = now.monotonic_s - self._ticked_s, self._gap_s, 0.0
        if not self._stalled and max(standing_s, gap_s) > self._bound_s:
            self._stalled = True
            text = f"no tick has ended for {max(standing_s, gap_s):.1f} s"
            log.error("%s: nothing is controlled until one does", text)
            self.say(Severity.ERROR, "loop-stalled", f"{text}: nothing is controlled until one does")
        if self._stalled and standing_s <= self._bound_s:
            self._stalled = False
            text = f"ticks go on; there was none for {gap_s:.1f} s"
            log.warning("%s", text)
            self.say(Severity.INFO, "loop-resumed", text)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self.look()
