"""What is watched beside ticks, in threads that these do not hold up: the ticks themselves, the clock and the host."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from manager.clocks import Times, jump_between, read_times
from manager.errors import HostError
from manager.loop.observer import system_clock
from manager.model.finding import Finding, Findings
from manager.model.records import Severity

STALLED_INTERVALS = 3
LEAST_S = 1.0
"""With intervals of a fraction of a second a loop counts as stalled after this: a busy machine delays it by less."""
_CLOCK_S = 3.0
"""A clock that jumps is seen within so long a time."""
EVERY_S = 3600.0

log = logging.getLogger(__name__)


class Background(ABC):
    """Work in a thread of its own. Nothing runs before ``start``."""

    def __init__(self, name: str) -> None:
        """``name`` is the thread's."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after what is under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does, until ``_stopping`` is set."""


class Oversight(Background):
    """Reports a loop that stands still and a clock that jumps.

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
        super().__init__("oversight")
        self._bound_s = max(STALLED_INTERVALS * interval_s, LEAST_S)
        self._least_s = min(interval_s, LEAST_S)
        self.say = say
        self._jumped = jumped
        self._read = read
        self._before = read()
        self._ticked_s = self._before.monotonic_s
        self._gap_s = 0.0  # that a tick ended, and was not reported yet
        self._stalled = False

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
        """Look when ticks may stall next, and often while they do."""
        while not self._stopping.wait(min(max(self._bound_s - self.age_s, self._least_s), _CLOCK_S)):
            self.look()


class Examiner(Protocol):
    """Looks at a host: a real one with the doctor's checks."""

    def look(self) -> tuple[Finding, ...]:
        """What is found; may take seconds. Raises HostError."""
        ...

    def close(self) -> None:
        """End a look that is under way, which then fails, from another thread."""
        ...


class FindingsWatch(Background):
    """Looks at start and then every ``every_s``, in a thread of its own: no tick or exchange waits for it."""

    def __init__(self, examiner: Examiner, every_s: float = EVERY_S) -> None:
        """Nothing is looked at before ``start``."""
        super().__init__("findings")
        self._examiner = examiner
        self._every_s = every_s
        self.latest: Findings | None = None  # None: nothing was looked at yet

    def stop(self) -> None:
        """Look no more; a look that is under way is ended."""
        self._stopping.set()
        self._examiner.close()
        super().stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.latest = Findings(system_clock().epoch_s, self._examiner.look())
            except HostError as error:
                if not self._stopping.is_set():
                    log.warning("this host cannot be examined: %s", error)
            self._stopping.wait(self._every_s)
