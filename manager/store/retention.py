"""Forgetting: decisions, events, windows, ticks and the audit are kept for so long and not longer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, delete, select

from manager.errors import DatabaseUnavailable
from manager.store.access_models import AuditRow, SessionRow, SignInFailureRow
from manager.store.database import Database
from manager.store.models import DecisionRow, EventRow, RollupRow, TickRow, WindowRow
from manager.store.throttle import KEEP

Prunable = TypeVar(
    "Prunable", AuditRow, DecisionRow, EventRow, RollupRow, SessionRow, SignInFailureRow, TickRow, WindowRow
)

_BATCH = 10_000
_PERIOD_S = 3600.0

log = logging.getLogger(__name__)


def prune(database: Database, older_than: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete decisions, events, windows and ticks from before ``older_than``, and tell how many.

    In batches, each a transaction of its own, so that agents are not kept waiting; ``stopped`` is asked before each.
    Raises DatabaseUnavailable.
    """
    return (
        remove(database, DecisionRow, DecisionRow.at < older_than, stopped)
        + remove(database, EventRow, EventRow.at < older_than, stopped)
        + remove(database, WindowRow, WindowRow.slot < older_than, stopped)
        + remove(database, TickRow, TickRow.at < older_than, stopped)
    )


def prune_access(
    database: Database, now: datetime, audit_before: datetime, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Delete audit entries from before ``audit_before``, sessions that ended, and failures to sign in that no longer
    count as of ``now``; tell how many. Otherwise as ``prune``.
    """
    return (
        remove(database, AuditRow, AuditRow.at < audit_before, stopped)
        + remove(database, SessionRow, SessionRow.expires_at <= now, stopped)
        + remove(database, SignInFailureRow, SignInFailureRow.at <= now - KEEP, stopped)
    )


def remove(
    database: Database, kind: type[Prunable], condition: ColumnElement[bool], stopped: Callable[[], bool]
) -> int:
    """Delete the rows of a kind that meet a condition, and tell how many. Otherwise as ``prune``."""
    total = 0
    some = select(kind.id).where(condition).limit(_BATCH)
    while not stopped():
        with database.writing() as session:
            gone = len(session.execute(delete(kind).where(kind.id.in_(some)).returning(kind.id)).all())
        total += gone
        if gone < _BATCH:
            break
    return total


class Retention:
    """Prunes in the background, at once and then every hour. Several managers may do so at the same time."""

    def __init__(
        self,
        database: Database,
        keep: timedelta,
        clock: Callable[[], float],
        keep_audit: timedelta = timedelta(days=400),
    ) -> None:
        self._database = database
        self._keep = keep
        self._clock = clock
        self._keep_audit = keep_audit
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
                now = datetime.fromtimestamp(self._clock(), UTC)
                before = now - self._keep
                gone = prune(self._database, before, self._stop.is_set)
                gone += prune_access(self._database, now, now - self._keep_audit, self._stop.is_set)
                log.info("retention: %d rows from before %s removed", gone, before)
            except DatabaseUnavailable as error:
                log.warning("retention is put off: %s", error)
            self._stop.wait(_PERIOD_S)
