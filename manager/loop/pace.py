"""How often an agent reports: as the manager asks for, and at once where something cannot wait.

Agents begin their turns at different times, by the names of their hosts: the managers of a fleet get as many reports in
each moment, also after an hour in which there was none of them.
"""

from __future__ import annotations

import math
from zlib import crc32

from manager.protocol.assignment import Cadence


class Pace:
    """When one host's agent reports. Times are monotonic, in seconds.

    ``cadence``: what the manager asked for last; None: all in each interval. ``phase``: 0 .. 1, this host's own.
    """

    def __init__(self, host: str) -> None:
        self.phase = crc32(host.encode()) / 2**32
        self.cadence: Cadence | None = None
        self._live = self._history = -1

    def live_due(self, now_s: float) -> bool:
        """Whether the manager is to hear that this host is there."""
        return self.cadence is None or self._turns(now_s, self.cadence)[0] != self._live

    def history_due(self, now_s: float) -> bool:
        """Whether the manager is to get what waits for it."""
        return self.cadence is None or self._turns(now_s, self.cadence)[1] != self._history

    def reported(self, now_s: float, cadence: Cadence | None, *, history: bool) -> None:
        """The manager took a report at that time, and asked for this cadence; ``history``: with all that waited."""
        if cadence is not None:
            self._live, number = self._turns(now_s, cadence)
            self._history = number if history else self._history
        self.cadence = cadence

    def _turns(self, now_s: float, cadence: Cadence) -> tuple[int, int]:
        """The numbers of the turns for live reports and for history; one with history takes the place of a live one."""
        at_s = now_s + self.phase * cadence.history_s
        return math.floor(at_s / cadence.live_s), math.floor(at_s / cadence.history_s)
