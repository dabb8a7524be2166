"""What the audit tells of those who could not sign in: so much a day, however often they try."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from manager.store.access_models import AuditRow
from manager.store.audit import UNKNOWN, Actor, record
from manager.store.sign_in_throttle import AHEAD, KEEP, count_failures

REFUSE = "session.refuse"
DAY = timedelta(days=1)
MOST_A_DAY = 100
"""Rows for each name, and for all names together that nobody has; ``throttle`` lets a name fail about as often."""
SUMMARY_EVERY = KEEP
"""How long a failure is counted: a row for each such time loses none while tries go on."""


def record_refusal(session: Session, name: str, address: str, now: datetime) -> None:
    """Add a row for somebody who could not sign in, as long as there were few for that name within a day.

    Beyond that, a row for each ``SUMMARY_EVERY`` tells how many tries failed in that time, of all names. ``name`` is
    empty for one that nobody has. Call it in ``Database.registering``.
    """
    rows = _rows(session, name, now - DAY, now)
    after = None
    if rows >= MOST_A_DAY:
        since = now - SUMMARY_EVERY
        if _rows(session, name, since, now, summaries=True):
            return
        after = {"failures": count_failures(session, since, now), "since": since.isoformat()}
    record(session, Actor(UNKNOWN, name, "", address), REFUSE, name, now, after=after)


def _rows(session: Session, name: str, since: datetime, now: datetime, *, summaries: bool = False) -> int:
    """How many rows of such a name there are, or how many of those are summaries."""
    query = select(func.count(AuditRow.id)).where(
        AuditRow.actor == name, AuditRow.at > since, AuditRow.at <= now + AHEAD, AuditRow.action == REFUSE
    )
    if summaries:
        query = query.where(AuditRow.after.is_not(None))
    return session.scalar(query) or 0
