"""Forgetting: what is kept for so long and not longer.

So long both by its date and since it arrived, see ``manager.control.uptime``: no clock that is wrong for a while has
anything forgotten that would not have been soon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from manager.store import audit, joining
from manager.store.access_models import AuditRow, SessionRow, SignInFailureRow
from manager.store.arrivals import Arrived
from manager.store.database import Database
from manager.store.host_models import JoinTokenRow, TickRollupRow
from manager.store.models import DecisionRow, EventRow, PastApplicationRow, RollupRow, TickRow, WindowRow
from manager.store.sign_in_throttle import counts_no_more

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
_SESSIONS = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long windows and ticks are kept as they were reported, and rolled up by minute and by hour."""

    raw: timedelta
    minutes: timedelta
    hours: timedelta


def prune(
    database: Database, now: datetime, keep: timedelta, arrived: Arrived, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Delete decisions and events that were kept for ``keep``, and tell how many.

    In batches, each a transaction of its own, so that agents are not kept waiting; ``stopped`` is asked before each.
    Raises DatabaseUnavailable.
    """
    before = now - keep
    decisions = (DecisionRow.at < before) & (DecisionRow.id <= arrived("decisions", DecisionRow.id, keep))
    events = (EventRow.at < before) & (EventRow.id <= arrived("events", EventRow.id, keep))
    return remove(database, DecisionRow, decisions, stopped) + remove(database, EventRow, events, stopped)


def prune_access(
    database: Database,
    now: datetime,
    audit_keep: timedelta,
    arrived: Arrived,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Delete audit entries that were kept for ``audit_keep``, sessions that ended, and failures to sign in that no
    longer count as of ``now``; tell how many. Otherwise as ``prune``.

    What ended stays for a while after it began, should a clock that is wrong be why it ended.
    """
    audited = arrived("audit", AuditRow.id, audit_keep)
    sessions = (SessionRow.expires_at <= now) & (SessionRow.id <= arrived("sessions", SessionRow.id, _SESSIONS))
    ended = JoinTokenRow.expires_at <= now - joining.KEEP
    tokens = ended & (JoinTokenRow.id <= arrived("join-tokens", JoinTokenRow.id, joining.KEEP))
    return (
        _in_batches(database, lambda session: audit.forget(session, now - audit_keep, audited, _BATCH), stopped)
        + remove(database, SessionRow, sessions, stopped)
        + remove(database, JoinTokenRow, tokens, stopped)
        + remove(database, SignInFailureRow, counts_no_more(now), stopped)
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
