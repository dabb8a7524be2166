"""Forgetting: decisions, events, windows and ticks are kept for so long and not longer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select

from manager.errors import DatabaseUnavailable
from manager.store.database import Database
from manager.store.models import DecisionRow, EventRow, TickRow, WindowRow

_BATCH = 10_000
_PERIOD_S = 3600.0

log = logging.getLogger(__name__)


def prune(database: Database, older_than: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete decisions, events, windows and ticks from before ``older_than``, and tell how many.

    In batches, each a transaction of its own, so that agents are not kept waiting; ``stopped`` is asked before each.
    Raises DatabaseUnavailable.
    """
    times = ((DecisionRow, DecisionRow.at), (EventRow, EventRow.at), (WindowRow, WindowRow.slot), (TickRow, TickRow.at))
    total = 0
    for kind, time in times:
        old = select(kind.id).where(time < older_than).limit(_BATCH)
        while not stopped():
            with database.writing() as session:
                gone = len(session.execute(delete(kind).where(kind.id.in_(old)).returning(kind.id)).all())
            total += gone
            if gone < _BATCH:
                break
    return total


class Retention:
    """Prunes in the background, at once and then every hour. Several managers may do so at the same time."""

    def __init__(self, database: Database, keep: timedelta, clock: Callable[[], float]) -> None:
        self._database = database
        self._keep = keep
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, after the batch at hand."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                before = datetime.fromtimestamp(self._clock(), UTC) - self._keep
                gone = prune(self._database, before, self._stop.is_set)
                log.info("retention: %d rows from before %s removed", gone, before)
            except DatabaseUnavailable as error:
                log.warning("retention is put off: %s", error)
            self._stop.wait(_PERIOD_S)
