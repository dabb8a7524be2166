"""Removing what was kept for its time.

That is both by its date and since it arrived, see ``manager.control.uptime``: a clock that is wrong for a while removes
nothing that would not have been removed soon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.store import audit, joining
from manager.store.access_models import AuditRow, SessionRow, SignInFailureRow
from manager.store.arrivals import Arrived
from manager.store.database import Database
from manager.store.day_partitions import DECISIONS, CutByDay, OldRows, drop_days
from manager.store.host_models import JoinTokenRow, ProposalRow
from manager.store.models import EventRow
from manager.store.pack_models import DecidedVmRow, DecisionPackRow
from manager.store.sign_in_throttle import counts_no_more

_BATCH = 10_000
_DAY = timedelta(days=1)
_SESSIONS = _DAY
_LATE = 0.02
"""Of the time that something is kept: what arrived in time is known to have by then, see ``manager.control.uptime``."""


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long windows and ticks are kept as they were reported, and rolled up by minute and by hour."""

    raw: timedelta
    minutes: timedelta
    hours: timedelta


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Removes rows as of ``now``, in batches, each a transaction of its own, so that agents are not kept waiting.

    ``stopped`` is asked before each. All methods return the number of removed rows, and raise DatabaseUnavailable.
    """

    database: Database
    now: datetime
    arrived: Arrived
    stopped: Callable[[], bool] = lambda: False

    def remove(
        self,
        number: InstrumentedAttribute[int],
        condition: ColumnElement[bool],
        place: ColumnElement[bool] | None = None,
    ) -> int:
        """Remove the rows of a table, given by its column of numbers, that meet a condition.

        ``place`` follows from it: by that partitions without such rows are left out, which numbers do not tell.
        """
        some = select(number).where(condition).limit(_BATCH)
        where = number.in_(some) if place is None else number.in_(some) & place
        statement = delete(number.class_).where(where).returning(number)
        return self.in_batches(lambda session: len(session.execute(statement).all()))

    def remove_old(
        self,
        kept: str,
        number: InstrumentedAttribute[int],
        date: InstrumentedAttribute[datetime],
        keep: timedelta,
        condition: ColumnElement[Any] | None = None,
        cut: CutByDay | None = None,
    ) -> int:
        """Remove rows that meet a condition and were kept for ``keep`` by date and since they arrived as ``kept``.

        Those of a table that is ``cut`` by day go with their day, where it has a partition, and are kept for a day or
        more.
        """
        before, arrived = self.now - keep, self.arrived(kept, number, keep)
        old = (date < before) & (number <= arrived) & (true() if condition is None else condition)
        if cut is None or keep < _DAY or self.database.file is not None or self.stopped():
            return self.remove(number, old)
        rows = OldRows(number, old, before, arrived, before - max(_DAY, keep * _LATE))
        gone, elsewhere = drop_days(self.database, cut, rows)
        return gone + self.remove(number, old & elsewhere, elsewhere)

    def in_batches(self, some: Callable[[Session], int]) -> int:
        """Call ``some``, which removes at most one batch of rows, until there are no more."""
        total = 0
        while not self.stopped():
            with self.database.writing() as session:
                gone = some(session)
            total += gone
            if gone < _BATCH:
                break
        return total


def prune(cleanup: Cleanup, keep: timedelta) -> int:
    """Remove decisions, events and proposals kept for ``keep``; returns how many. Raises DatabaseUnavailable."""
    row = DecisionPackRow
    gone = cleanup.remove_old("decisions", row.id, row.last_at, keep, cut=DECISIONS)
    # Its row is as old as the first decision of its day.
    gone += cleanup.remove_old("decided-vms", DecidedVmRow.id, DecidedVmRow.day, keep + _DAY)
    gone += cleanup.remove_old("proposals", ProposalRow.id, ProposalRow.at, keep)
    return gone + cleanup.remove_old("events", EventRow.id, EventRow.at, keep)


def prune_access(cleanup: Cleanup, audit_keep: timedelta) -> int:
    """Remove audit rows that were kept for ``audit_keep``, sessions that ended, and expired sign-in failures.

    What ended stays for a while after it began, in case it ended by a wrong clock. Returns how many were removed.
    Raises DatabaseUnavailable.
    """
    now, arrived = cleanup.now, cleanup.arrived
    audited = arrived("audit", AuditRow.id, audit_keep)
    sessions = (SessionRow.expires_at <= now) & (SessionRow.id <= arrived("sessions", SessionRow.id, _SESSIONS))
    tokens = JoinTokenRow.expires_at <= now - joining.KEEP
    tokens &= JoinTokenRow.id <= arrived("join-tokens", JoinTokenRow.id, joining.KEEP)
    return (
        cleanup.in_batches(lambda session: audit.forget(session, now - audit_keep, audited, _BATCH))
        + cleanup.remove(SessionRow.id, sessions)
        + cleanup.remove(JoinTokenRow.id, tokens)
        + cleanup.remove(SignInFailureRow.id, counts_no_more(now))
    )
