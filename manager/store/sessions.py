"""Sessions of the dashboard: who signed in, known by a random secret that a cookie holds."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, literal, select, tuple_, update
from sqlalchemy.orm import Session

from manager.errors import DatabaseUnavailable, SignInRefused
from manager.model.fields import NAME_PATTERN
from manager.rate_limit import Turns, network
from manager.store.access_models import SessionRow, TokenRow, UserRow
from manager.store.audit import actor_of, record
from manager.store.database import Database
from manager.store.event_records import Position
from manager.store.registrations import find
from manager.store.sign_in_throttle import count_try, forgive, record_refusal, refuse_try
from manager.store.tokens import MACHINES, Principal, PrincipalKind, Role, has_expired, hash_secret
from manager.store.users import is_password

_SECRET_BYTES = 32
_LAST_SEEN_STEP = timedelta(minutes=1)
_AHEAD = timedelta(minutes=1)  # by how much the clocks of several managers may differ


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How long a session lasts at most, and how long without a request."""

    length: timedelta = timedelta(hours=12)
    idle: timedelta = timedelta(minutes=120)


DEFAULT_LIMITS = SessionLimits()


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session: the secret that its cookie holds, and whose it is."""

    secret: str
    principal: Principal

    @property
    def csrf_token(self) -> str:
        """What a form of this session sends along. Made from the secret, so that managers need share no key."""
        return hmac.new(self.secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def sign_in(
    database: Database,
    name: str,
    password: str,
    address: str,
    now: datetime,
    limits: SessionLimits,
    turns: Turns | None = None,
) -> SignedIn:
    """Begin a session for a user, or for a token by its name and its secret as the password; those of machines may not.

    A password's hash takes 32 MiB for a while: ``turns`` bounds how many are made at the same time, and begins with the
    neighbourhoods that asked least lately.

    Raises SignInThrottled, or SignInRefused, the same and after about the same time whatever is wrong; Busy.
    """
    refuse_try(database, name, address, now)
    known_name = name if re.fullmatch(NAME_PATTERN, name) else ""
    with turns.turn(network(address, 24, 48)) if turns else nullcontext():
        count_try(database, name, address, now)
        proven_hash = _proven_hash(database, known_name, password)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    with database.exclusively() as session:  # nobody may change the user or the token meanwhile
        user = find(session, UserRow, known_name)
        token = find(session, TokenRow, known_name)
        owner: UserRow | TokenRow | None = None
        if user is not None and user.password_hash == proven_hash:
            owner = user
            user.signed_in_at = now
        elif token is not None and _may_sign_in(token, password, now):
            owner = token
        if owner is None:
            shown = known_name if user or token else ""  # an unknown name may be a password in the wrong field
            record_refusal(session, shown, address, now)
        else:
            forgive(session, name)
            principal = _principal(owner)
            session.add(
                SessionRow(
                    secret_hash=hash_secret(secret),
                    user_id=owner.id if owner is user else None,
                    token_id=owner.id if owner is token else None,
                    created_at=now,
                    last_seen_at=now,
                    expires_at=now + limits.length,
                    address=address,
                )
            )
            record(session, actor_of(principal, address), "session.create", principal.name, now)
            return SignedIn(secret, principal)
    raise SignInRefused("the name is unknown or the password is wrong")


def find_session(
    database: Database, secret: str, now: datetime, limits: SessionLimits, *, used: bool = True
) -> SignedIn | None:
    """The session of a secret, or None where it has ended.

    Notes the use, at most once a minute and where that can be written; ``used`` false: only asks whether it goes on.
    """
    with database.reading() as session:
        session_and_owner = _find(session, secret)
    if session_and_owner is None:
        return None
    row, owner = session_and_owner
    if min(row.expires_at, row.last_seen_at + limits.idle) <= now:
        return None
    if row.last_seen_at > now + _AHEAD:
        return None  # used by a clock that was ahead, or before this one was set back: it would last until then
    if isinstance(owner, TokenRow) and has_expired(owner, now):
        return None
    if used and now - row.last_seen_at >= _LAST_SEEN_STEP:
        with suppress(DatabaseUnavailable), database.writing() as session:
            session.execute(update(SessionRow).where(SessionRow.id == row.id).values(last_seen_at=now))
    return SignedIn(secret, _principal(owner))


def sign_out(database: Database, secret: str, address: str, now: datetime) -> None:
    """End the session of a secret, if there is one."""
    with database.writing() as session:
        session_and_owner = _find(session, secret)
        if session_and_owner is not None:
            row, owner = session_and_owner
            session.execute(delete(SessionRow).where(SessionRow.id == row.id))
            record(session, actor_of(_principal(owner), address), "session.delete", owner.name, now)


def list_sessions(
    session: Session, principal: Principal, now: datetime, limits: SessionLimits, after: Position | None, most: int
) -> Sequence[SessionRow]:
    """At most so many sessions of a user or a token that go on, newest first, that come after a position."""
    owner = UserRow if principal.kind is PrincipalKind.USER else TokenRow
    column = SessionRow.user_id if principal.kind is PrincipalKind.USER else SessionRow.token_id
    query = (
        select(SessionRow)
        .join(owner, owner.id == column)
        .where(
            owner.name == principal.name,
            SessionRow.expires_at > now,
            SessionRow.last_seen_at.between(now - limits.idle, now + _AHEAD),
        )
    )
    place = SessionRow.created_at, SessionRow.id
    if after is not None:
        query = query.where(tuple_(*place) < tuple_(literal(after.at, SessionRow.created_at.type), literal(after.id)))
    return session.scalars(query.order_by(*(column.desc() for column in place)).limit(most)).all()


def verify_password(database: Database, name: str, password: str, address: str, now: datetime) -> None:
    """Have a user prove who it is once more. Raises SignInThrottled or SignInRefused."""
    count_try(database, name, address, now)
    if _proven_hash(database, name, password) is None:
        raise SignInRefused("this is not the current password")
    with database.writing() as session:
        forgive(session, name)


def _proven_hash(database: Database, name: str, password: str) -> str | None:
    """The hash of the user's password if this is it. Outside of transactions, because it takes long."""
    with database.reading() as session:
        user = find(session, UserRow, name)
    return user.password_hash if is_password(user, password) and user else None


def _find(session: Session, secret: str) -> tuple[SessionRow, UserRow | TokenRow] | None:
    query = (
        select(SessionRow, UserRow, TokenRow)
        .outerjoin(UserRow, UserRow.id == SessionRow.user_id)
        .outerjoin(TokenRow, TokenRow.id == SessionRow.token_id)
        .where(SessionRow.secret_hash == hash_secret(secret))
    )
    row = session.execute(query).one_or_none()
    return None if row is None else (row[0], row[1] or row[2])


def _may_sign_in(token: TokenRow, password: str, now: datetime) -> bool:
    right = hmac.compare_digest(token.secret_hash, hash_secret(password))
    return right and token.role not in MACHINES and not has_expired(token, now)


def _principal(owner: UserRow | TokenRow) -> Principal:
    kind = PrincipalKind.USER if isinstance(owner, UserRow) else PrincipalKind.TOKEN
    return Principal(owner.name, Role(owner.role), None, kind)
