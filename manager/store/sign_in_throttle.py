"""Failed tries to sign in, counted in the database, so that several managers count together.

After ``FAILURES`` of them within ``WINDOW``, for one name or from one network, further tries are refused for
``FIRST_WAIT * 2 ** (failures - FAILURES)`` after the last, at most for ``WINDOW``. What is dated further ahead than the
clocks of several managers may differ was noted by a clock that was wrong: it counts for nothing and is removed. A
network is an address of IPv4, or the 64 bits of an IPv6 address that one subscriber has.
"""

from __future__ import annotations

import ipaddress
import math
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from manager.errors import SignInThrottled
from manager.store.access_models import SignInFailureRow
from manager.store.database import Database
from manager.store.tokens import hash_secret

FAILURES = 5
WINDOW = timedelta(minutes=15)
FIRST_WAIT = timedelta(seconds=30)
MOST_ROWS = 10_000
"""Failures that are kept, of all names and networks; beyond them the oldest are forgotten.

One password is looked at at a time, about ten a second: filling the table takes longer than ``WINDOW``.
"""
KEEP = 2 * WINDOW
"""How long a failure may count: for a window before a later one, which has others wait as long again at most."""
AHEAD = timedelta(minutes=1)
"""How far ahead a failure may be dated."""


def refuse_try(database: Database, name: str, address: str, now: datetime) -> None:
    """Raises SignInThrottled as ``count_try`` does, but writes nothing, so that a flood of tries costs little."""
    with database.reading() as session:
        _refuse(session, SignInFailureRow(at=now, name_hash=hash_secret(name), network=network(address)), now)


def count_try(database: Database, name: str, address: str, now: datetime) -> None:
    """Count a try as failed before its password is looked at: of many at the same time none gets past the limit.

    Raises SignInThrottled; such a try does not count. ``forgive`` takes it back after success.
    """
    row = SignInFailureRow(at=now, name_hash=hash_secret(name), network=network(address))
    with database.registering() as session:
        session.execute(delete(SignInFailureRow).where(SignInFailureRow.at > now + AHEAD))
        _refuse(session, row, now)
        _make_room(session)
        session.add(row)


def _refuse(session: Session, row: SignInFailureRow, now: datetime) -> None:
    waits = [
        _wait(session, SignInFailureRow.name_hash == row.name_hash, now),
        _wait(session, SignInFailureRow.network == row.network, now),
    ]
    if max(waits) > timedelta(0):
        raise SignInThrottled(math.ceil(max(waits).total_seconds()))


def _make_room(session: Session) -> None:
    excess = (session.scalar(select(func.count(SignInFailureRow.id))) or 0) - MOST_ROWS + 1
    if excess > 0:
        oldest = select(SignInFailureRow.id).order_by(SignInFailureRow.id).limit(excess)
        session.execute(delete(SignInFailureRow).where(SignInFailureRow.id.in_(oldest)))


def count_failures(session: Session, since: datetime, until: datetime) -> int:
    """Failures after a time and up to another, as far as they are kept."""
    between = (SignInFailureRow.at > since) & (SignInFailureRow.at <= until)
    return session.scalar(select(func.count(SignInFailureRow.id)).where(between)) or 0


def forgive(session: Session, name: str) -> None:
    """Forget all failures of a name: somebody proved to be its owner, or an administrator vouches for it."""
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


def network(address: str, v4_bits: int = 32, v6_bits: int = 64) -> str:
    """What one subscriber has, or, of fewer bits, a neighbourhood of them."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address  # none, as with a Unix socket
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((parsed, v6_bits), strict=False))
    v4 = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else parsed
    return str(v4) if v4_bits == 32 else str(ipaddress.IPv4Network((str(v4), v4_bits), strict=False))
