"""Joining: a host exchanges a single-use join token for a token of its own."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.errors import Conflict, InvalidRequest, JoinRefused
from manager.store.access_models import TokenRow
from manager.store.agent_tenure import forget_agent
from manager.store.audit import Actor, record
from manager.store.database import Database
from manager.store.host_models import JoinTokenRow
from manager.store.models import HostRow, Json
from manager.store.registrations import find, refuse_bad_host, refuse_bad_name, touch
from manager.store.tokens import (
    Role,
    create_token,
    described_token,
    free_name,
    has_expired,
    hash_secret,
    host_tokens,
    revoke_token,
)

JOIN = "join"
"""The role of a join token in the audit."""

KEEP = timedelta(days=30)
"""How long after its end a join token is kept, so that a refusal can give the reason."""

_PREFIX = "eqj_"
_SECRET_BYTES = 32
_LONGEST = timedelta(days=30)


def create_join_token(
    session: Session, name: str, host: str | None, now: datetime, expires_at: datetime, *, replace: bool = False
) -> tuple[JoinTokenRow, str]:
    """Create a join token; the second result is its secret. Call it in ``Database.exclusively``.

    ``host`` None: for any host. Only ``replace``, which needs ``host``, admits a host that has joined already, and
    replaces its tokens. Raises InvalidRequest, Conflict.
    """
    refuse_bad_name("name", name)
    if host is not None:
        refuse_bad_host("host", host)
    elif replace:
        raise InvalidRequest("replace", "true is refused; only a join token that names its host replaces its tokens")
    if not now < expires_at <= now + _LONGEST:
        text = f"{expires_at} is refused; allowed: after now, {now}, and at most {_LONGEST.days} days later"
        raise InvalidRequest("expires_at", text)
    if find(session, JoinTokenRow, name) is not None:
        raise Conflict(f"there is a join token named {name!r} already: delete it first, or use another name")
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    times = {"created_at": now, "updated_at": now, "expires_at": expires_at.astimezone(UTC)}
    row = JoinTokenRow(name=name, host=host, replace=replace, version=1, **times, secret_hash=hash_secret(secret))
    session.add(row)
    return row, secret


def join(database: Database, secret: str, host: str, address: str, now: datetime) -> tuple[TokenRow, str]:
    """Exchange a join token for a token of role host; the second result is its secret. Both are audited.

    If the host has a valid token already, only a join token with ``replace`` is accepted, and all tokens of the host
    are revoked. Raises JoinRefused with the reason, InvalidRequest for an invalid name.
    """
    refuse_bad_host("name", host)
    with database.reading() as session:  # attempts without a valid token write nothing
        _usable(session, secret, host, now)
    with database.exclusively() as session:
        token = _usable(session, secret, host, now)
        replaced = host_tokens(session, host)
        live = [old.name for old in replaced if not has_expired(old, now)]
        if live and not token.replace:
            raise JoinRefused(
                f"host {host!r} is served already, with token {', '.join(map(repr, live))}: revoke that first, or join"
                f" with a token made by `equipoise token create --join --host {host} --replace`"
            )
        token.used_at, token.used_by = now, host
        touch(token, now)
        actor = Actor("token", token.name, JOIN, address)
        for old in replaced:
            record(session, actor, "token.delete", old.name, now, described_token(session, old), None)
            revoke_token(session, old.name)
        served = find(session, HostRow, host)
        if served is not None:
            forget_agent(session, served)  # the agent with the new token serves it
        session.flush()
        row, host_secret = create_token(session, free_name(session, f"agent-{host}"), Role.HOST, host, now)
        record(session, actor, "token.create", row.name, now, None, described_token(session, row))
    return row, host_secret


def _usable(session: Session, secret: str, host: str, now: datetime) -> JoinTokenRow:
    """The join token of a secret. Raises JoinRefused with the reason why it does not admit the host."""
    query = select(JoinTokenRow).where(JoinTokenRow.secret_hash == hash_secret(secret))
    token = session.scalars(query).one_or_none()
    if token is None:
        raise JoinRefused("this join token is unknown or was deleted: ask an administrator for a new one")
    if token.used_at is not None:
        raise JoinRefused(f"join token {token.name!r} was used at {token.used_at} by host {token.used_by!r}")
    if token.expires_at <= now:
        raise JoinRefused(f"join token {token.name!r} expired at {token.expires_at}")
    if token.host not in {None, host}:
        raise JoinRefused(f"join token {token.name!r} is for host {token.host!r}, not {host!r}")
    return token


def described_join_token(_session: Session, row: JoinTokenRow) -> Json:
    """A join token as the audit shows it."""
    return {"host": row.host, "expires_at": row.expires_at.isoformat(), "replace": row.replace}
