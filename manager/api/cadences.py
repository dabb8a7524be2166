"""How often agents report: all in each interval where somebody looks or hosts are few, else history once a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.protocol.assignment import Cadence
from manager.store.models import HostRow
from manager.store.watched_hosts import is_watched

_HISTORY_S = 60.0
_LIVE_INTERVALS = 2
"""A page that is opened has live data so many intervals later."""
_COUNTED_S = 60.0
"""Hosts are counted so often."""


class Cadences:
    """What the agents of a fleet are asked for. Thread-safe."""

    def __init__(self, context: ManagerContext, steady: Callable[[], float] = time.monotonic) -> None:
        """``steady`` returns seconds that only grow."""
        self._small_fleet, slot_s = context.small_fleet, context.report_s
        # A host that misses one report and repeats it an interval later is not silent.
        most = (context.silent.total_seconds() / slot_s - 1) // 2
        live_s = slot_s * max(1, min(_LIVE_INTERVALS, most))
        self._sparing = Cadence(live_s=live_s, history_s=max(_HISTORY_S, live_s))
        self._steady = steady
        self._counted: tuple[float, bool] | None = None
        self._lock = threading.Lock()

    def of(self, session: Session, host: HostRow, now: datetime) -> Cadence | None:
        """That of a host; None: all in each interval."""
        return None if is_watched(host, now) or self._is_small(session) else self._sparing

    def known(self) -> Cadence | None:
        """That of a host which nobody looks at, in a fleet that is not small; None also where that is to be counted."""
        with self._lock:
            counted, now_s = self._counted, self._steady()
        fresh = counted is not None and now_s - counted[0] <= _COUNTED_S
        return self._sparing if counted is not None and fresh and not counted[1] else None

    def _is_small(self, session: Session) -> bool:
        with self._lock:
            counted, now_s = self._counted, self._steady()
        if counted is None or now_s - counted[0] > _COUNTED_S:
            some = select(HostRow.id).limit(self._small_fleet + 1).subquery()
            counted = now_s, (session.scalar(select(func.count()).select_from(some)) or 0) <= self._small_fleet
            with self._lock:
                self._counted = counted
        return counted[1]
