"""Failed sign-ins, counted in the database, so that several managers count together; what the audit says of them.

After ``FAILURES`` within ``WINDOW``, for one name or from one network, further attempts are refused for
``FIRST_WAIT * 2 ** (failures - FAILURES)`` after the last, at most for ``WINDOW``. What is dated further ahead than the
clocks of several managers may differ was noted by a wrong clock: it counts for nothing and is removed. A network is an
IPv4 address, or the 64 bits of an IPv6 address that one subscriber has.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from manager.errors import SignInThrottled
from manager.rate_limit import network
from manager.store.access_models import AuditRow, SignInFailureRow
from manager.store.audit import UNKNOWN, Actor, record
from manager.store.database import Database
from manager.store.tokens import hash_secret

FAILURES = 5
WINDOW = timedelta(minutes=15)
FIRST_WAIT = timedelta(seconds=30)
MOST_ROWS = 10_000
"""Failures that are kept, of all names and networks; beyond them the oldest are removed.

Passwords are checked one at a time, about ten a second: filling the table takes longer than ``WINDOW``.
"""
KEEP = 2 * WINDOW
"""How long a failure may count: for a window before a later one, which makes others wait as long again at most.

It is also the time that one summary in the audit covers: none is lost while attempts go on.
"""
AHEAD = timedelta(minutes=1)
"""How far ahead a failure may be dated."""
REFUSE = "session.refuse"
DAY = timedelta(days=1)
MOST_A_DAY = 100
"""Rows of the audit for each name, and for all unknown names together; a name may fail about as often."""


def refuse_try(database: Database, name: str, address: str, now: datetime) -> None:
    """Raises SignInThrottled as ``count_try`` does, but writes nothing, so that a flood of attempts costs little."""
    with database.reading() as session:
        _refuse(session, name, address, now)


def count_try(database: Database, name: str, address: str, now: datetime) -> None:
    """Count an attempt as failed before its password is checked: of many at the same time none gets past the limit.

    Raises SignInThrottled; such an attempt does not count. ``forgive`` removes it after success.
    """
    with database.exclusively() as session:
        session.execute(delete(SignInFailureRow).where(SignInFailureRow.at > now + AHEAD))
        _refuse(session, name, address, now)
        excess = (session.scalar(select(func.count(SignInFailureRow.id))) or 0) - MOST_ROWS + 1
        if excess > 0:
            oldest = select(SignInFailureRow.id).order_by(SignInFailureRow.id).limit(excess)
            session.execute(delete(SignInFailureRow).where(SignInFailureRow.id.in_(oldest)))
        session.add(SignInFailureRow(at=now, name_hash=hash_secret(name), network=network(address)))


def _refuse(session: Session, name: str, address: str, now: datetime) -> None:
    same = SignInFailureRow.name_hash == hash_secret(name), SignInFailureRow.network == network(address)
    wait = max(_wait(session, condition, now) for condition in same)
    if wait > timedelta(0):
        raise SignInThrottled(math.ceil(wait.total_seconds()))


def forgive(session: Session, name: str) -> None:
    """Remove all failures of a name: its owner signed in, or an administrator gave it a new password."""
    session.execute(delete(SignInFailureRow).where(SignInFailureRow.name_hash == hash_secret(name)))


def counts_no_more(now: datetime) -> ColumnElement[bool]:
    """Which failures count for nothing: those of long ago, and those of a clock that was ahead."""
    return (SignInFailureRow.at <= now - KEEP) | (SignInFailureRow.at > now + AHEAD)


def _wait(session: Session, condition: ColumnElement[bool], now: datetime) -> timedelta:
    times = session.scalars(select(SignInFailureRow.at).where(condition, ~counts_no_more(now))).all()
    last: datetime = max(times, default=now)
    failures = sum(last - at < WINDOW for at in times)
    if failures < FAILURES:
        return timedelta(0)
    return min(last + min(FIRST_WAIT * (1 << (failures - FAILURES)), WINDOW) - now, WINDOW)


def record_refusal(session: Session, name: str, address: str, now: datetime) -> None:
    """Add a failed sign-in to the audit, as long as there were few for that name within a day.

    Beyond that, a row for each ``KEEP`` says how many failed in that time, of all names. ``name`` is empty for an
    unknown one. Call it in ``Database.exclusively``.
    """
    rows = select(func.count(AuditRow.id)).where(
        AuditRow.actor == name, AuditRow.at <= now + AHEAD, AuditRow.action == REFUSE
    )
    after = None
    if (session.scalar(rows.where(AuditRow.at > now - DAY)) or 0) >= MOST_A_DAY:
        since = now - KEEP
        if session.scalar(rows.where(AuditRow.at > since, AuditRow.after.is_not(None))):
            return
        failed = select(func.count(SignInFailureRow.id)).where(SignInFailureRow.at > since, SignInFailureRow.at <= now)
        after = {"failures": session.scalar(failed) or 0, "since": since.isoformat()}
    record(session, Actor(UNKNOWN, name, "", address), REFUSE, name, now, after=after)
