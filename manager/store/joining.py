"""How hosts join: a token that works once is exchanged for one of the host's own."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.errors import Conflict, InvalidRequest, JoinRefused
from manager.store.access_models import TokenRow
from manager.store.audit import Actor, record
from manager.store.database import Database
from manager.store.host_models import JoinTokenRow
from manager.store.models import Json
from manager.store.registered import find, refuse_bad_name, touch
from manager.store.tokens import Role, create_token, described_token, hash_secret, revoke_token

JOIN = "join"
"""What the audit calls the role of such a token."""

KEEP = timedelta(days=30)
"""So long after its end a token is still known, so that its use can be refused with the reason."""

_PREFIX = "eqj_"
_SECRET_BYTES = 32
_LONGEST = timedelta(days=30)


def create_join_token(
    session: Session, name: str, host: str | None, now: datetime, expires_at: datetime
) -> tuple[JoinTokenRow, str]:
    """Make a token to join with; the second answer is its secret. Call it in ``Database.registering``.

    ``host`` None: any host may use it that has no token of its own yet. Raises InvalidRequest, Conflict.
    """
    refuse_bad_name("name", name)
    if host is not None:
        refuse_bad_name("host", host)
    if not now < expires_at <= now + _LONGEST:
        text = f"{expires_at} is refused; allowed: after now, {now}, and at most {_LONGEST.days} days later"
        raise InvalidRequest("expires_at", text)
    if find(session, JoinTokenRow, name) is not None:
        raise Conflict(f"there is a join token named {name!r} already: delete it first, or use another name")
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    about = {"name": name, "host": host, "version": 1, "created_at": now, "updated_at": now, "expires_at": expires_at}
    row = JoinTokenRow(**about, secret_hash=hash_secret(secret))
    session.add(row)
    return row, secret


def join(database: Database, secret: str, host: str, address: str, now: datetime) -> tuple[TokenRow, str]:
    """Exchange a join token for a token of role host, and tell its secret. Both are in the audit.

    A token that names the host replaces the one it has. Raises JoinRefused saying why, InvalidRequest for a bad name.
    """
    refuse_bad_name("name", host)
    with database.registering() as session:
        query = select(JoinTokenRow).where(JoinTokenRow.secret_hash == hash_secret(secret))
        token = session.scalars(query).one_or_none()
        name = token_name(host)
        known = find(session, TokenRow, name)
        if token is None:
            raise JoinRefused("this join token is unknown or was deleted: have an administrator make another one")
        if token.used_at is not None:
            raise JoinRefused(f"join token {token.name!r} was used at {token.used_at} by host {token.used_by!r}")
        if token.expires_at <= now:
            raise JoinRefused(f"join token {token.name!r} expired at {token.expires_at}")
        if token.host not in {None, host}:
            raise JoinRefused(f"join token {token.name!r} is for host {token.host!r}, not {host!r}")
        if known is not None and token.host is None:
            raise JoinRefused(
                f"host {host!r} has joined already: a join token made for this very host replaces its token"
            )
        token.used_at, token.used_by = now, host
        touch(token, now)
        before = None
        if known is not None:
            before = described_token(session, known)
            revoke_token(session, name)
            session.flush()
        row, own = create_token(session, name, Role.HOST, host, now)
        actor = Actor("token", token.name, JOIN, address)
        record(session, actor, "token.create", name, now, before, described_token(session, row))
    return row, own


def token_name(host: str) -> str:
    """What the token that a host has of joining is called."""
    return f"agent-{host}"[:63]


def described_join_token(_session: Session, row: JoinTokenRow) -> Json:
    """A join token as the audit shows it."""
    return {"host": row.host, "expires_at": row.expires_at.isoformat()}
