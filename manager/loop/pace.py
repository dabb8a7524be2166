"""How often an agent reports: as the manager asks for, and at once where something cannot wait.

Agents begin their turns at different times, by the names of their hosts: the managers of a fleet get as many reports in
each moment, also after an hour in which there was none of them. Then each host says first that it is there, at its own
time within two intervals, and what waits for the managers comes at its own time within the minute.
"""

from __future__ import annotations

import math
from zlib import crc32

from manager.protocol.assignment import Cadence

_PAUSE = 5.0
"""A host whose part of history took long waits so many times as long before it sends the next one: the busier managers
are, the less they are asked to do."""


class Pace:
    """When one host's agent reports. Times are monotonic, in seconds.

    ``cadence``: what the manager asked for last; None: all in each interval. ``phase``: 0 .. 1, this host's own.
    """

    def __init__(self, host: str) -> None:
        self.phase = crc32(host.encode()) / 2**32
        self.cadence: Cadence | None = None
        self._live = self._history = -1
        self._failed_s: float | None = None
        self._retried = self._late = False
        self._rest_at_s = math.inf

    def asks(self, now_s: float) -> bool:
        """Whether the manager may be asked: one that did not answer twice is, once in each turn for live reports."""
        return self.cadence is None or not self._retried or self._turns(now_s, self.cadence)[0] != self._live

    def live_due(self, now_s: float) -> bool:
        """Whether the manager is to hear that this host is there."""
        return self.cadence is None or self._turns(now_s, self.cadence)[0] != self._live

    def history_due(self, now_s: float, *, urgent: bool = False) -> bool:
        """Whether the manager is to get what waits for it; ``urgent``: at once, except after it was away for long."""
        if self.cadence is None:
            return True
        if self._late:
            return self._failed_s is None and self._turns(now_s, self.cadence)[1] != self._history
        return urgent or now_s >= self._rest_at_s or self._turns(now_s, self.cadence)[1] != self._history

    def failed(self, now_s: float) -> None:
        """The manager did not answer at that time."""
        if self.cadence is None:
            return
        if self._failed_s is None:
            self._failed_s = now_s  # once it is asked again at once: another process or machine may answer
            return
        self._retried, self._live = True, self._turns(now_s, self.cadence)[0]
        self._late = self._late or now_s - self._failed_s >= self.cadence.live_s

    def reported(
        self, now_s: float, cadence: Cadence | None, *, history: bool, slow_part_s: float | None = None
    ) -> None:
        """The manager took a report at that time, and asked for this cadence; ``history``: with what waited.

        ``slow_part_s``: how long it took for the last part of that, where the rest still waits; None: nothing does.
        """
        if history:
            self._rest_at_s = math.inf
        if cadence is not None and slow_part_s is not None:
            self._rest_at_s = now_s + min(_PAUSE * slow_part_s, cadence.history_s)
        if cadence is not None:
            self._live, number = self._turns(now_s, cadence)
            back = self._late and self._failed_s is not None
            self._history = number if history or back else self._history
        self._failed_s, self._retried = None, False
        self._late = self._late and not history
        self.cadence = cadence

    def _turns(self, now_s: float, cadence: Cadence) -> tuple[int, int]:
        """The numbers of the turns for live reports and for history; one with history takes the place of a live one."""
        at_s = now_s + self.phase * cadence.history_s
        return math.floor(at_s / cadence.live_s), math.floor(at_s / cadence.history_s)
