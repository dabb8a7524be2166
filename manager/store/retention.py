"""Forgetting: what is kept for so long and not longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from manager.store import audit, joining
from manager.store.access_models import SessionRow, SignInFailureRow
from manager.store.database import Database
from manager.store.host_models import JoinTokenRow, TickRollupRow
from manager.store.models import DecisionRow, EventRow, PastApplicationRow, RollupRow, TickRow, WindowRow
from manager.store.throttle import KEEP

Prunable = TypeVar(
    "Prunable",
    DecisionRow,
    EventRow,
    JoinTokenRow,
    PastApplicationRow,
    RollupRow,
    SessionRow,
    SignInFailureRow,
    TickRollupRow,
    TickRow,
    WindowRow,
)

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long windows and ticks are kept as they were reported, and rolled up by minute and by hour."""

    raw: timedelta
    minutes: timedelta
    hours: timedelta


def prune(database: Database, older_than: datetime, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete decisions and events from before ``older_than``, and tell how many.

    In batches, each a transaction of its own, so that agents are not kept waiting; ``stopped`` is asked before each.
    Raises DatabaseUnavailable.
    """
    return remove(database, DecisionRow, DecisionRow.at < older_than, stopped) + remove(
        database, EventRow, EventRow.at < older_than, stopped
    )


def prune_access(
    database: Database, now: datetime, audit_before: datetime, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Delete audit entries from before ``audit_before``, sessions that ended, and failures to sign in that no longer
    count as of ``now``; tell how many. Otherwise as ``prune``.
    """
    return (
        _in_batches(database, lambda session: audit.forget(session, audit_before, _BATCH), stopped)
        + remove(database, SessionRow, SessionRow.expires_at <= now, stopped)
        + remove(database, JoinTokenRow, JoinTokenRow.expires_at <= now - joining.KEEP, stopped)
        + remove(database, SignInFailureRow, SignInFailureRow.at <= now - KEEP, stopped)
    )


def remove(
    database: Database, kind: type[Prunable], condition: ColumnElement[bool], stopped: Callable[[], bool]
) -> int:
    """Delete the rows of a kind that meet a condition, and tell how many. Otherwise as ``prune``."""
    some = select(kind.id).where(condition).limit(_BATCH)
    statement = delete(kind).where(kind.id.in_(some)).returning(kind.id)
    return _in_batches(database, lambda session: len(session.execute(statement).all()), stopped)


def _in_batches(database: Database, some: Callable[[Session], int], stopped: Callable[[], bool]) -> int:
    total = 0
    while not stopped():
        with database.writing() as session:
            gone = some(session)
        total += gone
        if gone < _BATCH:
            break
    return total
