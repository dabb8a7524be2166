"""Bearer tokens: made here, shown once, kept as a hash."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache

from sqlalchemy import ColumnElement, Select, String, Update, bindparam, select, update
from sqlalchemy.orm import Session

from manager.errors import Conflict, DatabaseUnavailable, InvalidRequest
from manager.model.fields import NAME_MAX
from manager.store.access_models import TokenRow
from manager.store.by_driver import rows_of
from manager.store.database import Database
from manager.store.models import Json, UtcDateTime
from manager.store.registrations import delete, find, refuse_bad_host, refuse_bad_name

_SECRET_BYTES = 32
_END_BYTES = 6  # of a name that is made unique
_PREFIX = "eqp_"  # lets scanners of repositories and logs recognise a leaked token
_LAST_USED_STEP = timedelta(minutes=1)
_MOST_KNOWN = 20_000


class Role(StrEnum):
    """What a token allows. Viewer, operator and admin include each other.

    ``host`` is for the agent of one host, ``source`` for what measures one application: it sends response times.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    HOST = "host"
    SOURCE = "source"


MACHINES = frozenset({Role.HOST, Role.SOURCE})
"""Roles that nobody signs in with, and no user has."""


class PrincipalKind(StrEnum):
    """What a request is authorised by: a person who signed in, or a token."""

    USER = "user"
    TOKEN = "token"  # noqa: S105 - a word


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. ``host`` is set for role ``host`` only, ``application`` for role ``source`` only."""

    name: str
    role: Role
    host: str | None = None
    kind: PrincipalKind = PrincipalKind.TOKEN
    application: str | None = None


def create_token(
    session: Session,
    name: str,
    role: Role,
    host: str | None,
    now: datetime,
    expires_at: datetime | None = None,
    application: str | None = None,
) -> tuple[TokenRow, str]:
    """Make a token, returned with its secret, which cannot be read again. Call it in ``Database.exclusively``.

    ``expires_at`` None: it lasts until it is revoked.

    Raises InvalidRequest naming the field, or Conflict when the name is taken.
    """
    refuse_bad_name("name", name)
    if host is not None:
        refuse_bad_host("host", host)
    if application is not None:
        refuse_bad_name("application", application)
    for field, value, only in ("host", host, Role.HOST), ("application", application, Role.SOURCE):
        if role is only and value is None:
            raise InvalidRequest(field, f"null is refused; a token of role {only} names the {field} it is for")
        if role is not only and value is not None:
            raise InvalidRequest(field, f"{value!r} is refused; only a token of role {only} is for one {field}")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("expires_at", f"{expires_at} is refused; allowed: after now, {now}")
    if find(session, TokenRow, name) is not None:
        raise Conflict(f"there is a token named {name!r} already: revoke it first, or use another name")
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = TokenRow(
        name=name,
        version=1,
        created_at=now,
        updated_at=now,
        role=role,
        host=host,
        secret_hash=hash_secret(secret),
        expires_at=expires_at and expires_at.astimezone(UTC),
        application=application,
    )
    session.add(row)
    return row, secret


def revoke_token(session: Session, name: str) -> None:
    """Remove a token; it is refused from now on. Raises NotFound."""
    delete(session, TokenRow, name, lambda _etag: None)


def host_tokens(session: Session, host: str) -> Sequence[TokenRow]:
    """All tokens that speak for a host, whatever they are called, by name; expired ones among them."""
    query = select(TokenRow).where(TokenRow.role == Role.HOST, TokenRow.host == host)
    return session.scalars(query.order_by(TokenRow.name)).all()


def replaced_tokens(session: Session, name: str, role: Role, host: str | None) -> Sequence[TokenRow]:
    """What a lost token may have been: one of the host's tokens, or without a host that of the name and role."""
    if host is not None:
        return host_tokens(session, host)
    row = find(session, TokenRow, name)
    return [row] if row is not None and row.role == role else []


def free_name(session: Session, wanted: str) -> str:
    """An unused name for a token: ``wanted`` where it is free, else its start with a random end."""
    name = wanted
    while len(name) > NAME_MAX or find(session, TokenRow, name) is not None:
        end = f"-{secrets.token_hex(_END_BYTES)}"
        name = wanted[: NAME_MAX - len(end)] + end
    return name


def authenticate(database: Database, secret: str, now: datetime) -> Principal | None:
    """Whose secret this is, or None, also once it has expired; see ``authenticate_hash``."""
    return authenticate_hash(database, hash_secret(secret), now)


def authenticate_hash(database: Database, secret_hash: str, now: datetime) -> Principal | None:
    """Whose secret has this hash, or None, also once it has expired.

    Notes the use, at most once a minute: reads must not all become writes, nor fail where nothing can be written.
    """
    with database.asking() as session:
        found = rows_of(session, _valid(), {"secret": secret_hash, "now": now})
    if not found:
        return None
    ((name, role, host, application, last_used_at),) = found
    if last_used_at is None or now - last_used_at >= _LAST_USED_STEP:
        with suppress(DatabaseUnavailable):
            database.change(_used(), {"secret": secret_hash, "now": now})
    return Principal(name, Role(role), host, application=application)


def is_valid(session: Session, secret_hash: str, now: datetime) -> bool:
    """Whether a token whose secret has this hash lasts ``now``."""
    return bool(rows_of(session, _valid(), {"secret": secret_hash, "now": now}))


@cache
def _valid() -> Select[str, str, str | None, str | None, datetime | None]:
    row = TokenRow
    lasts = row.expires_at.is_(None) | (row.expires_at > bindparam("now", type_=UtcDateTime()))
    return select(row.name, row.role, row.host, row.application, row.last_used_at).where(_by_secret(), lasts)


@cache
def _used() -> Update:
    return update(TokenRow).where(_by_secret()).values(last_used_at=bindparam("now", type_=UtcDateTime()))


def _by_secret() -> ColumnElement[bool]:
    return TokenRow.secret_hash == bindparam("secret", type_=String())


class KnownTokens:
    """Whose tokens were valid a moment ago, by the hashes of their secrets. Thread-safe.

    For what asks the database itself whether one still is, before it does or tells anything: a token keeps its role,
    host and application for as long as there is one. Each is looked up in full once a minute, which notes its use.
    """

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        """``most``: how many are remembered; the oldest go first."""
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Principal, datetime]] = OrderedDict()

    def note(self, secret_hash: str, principal: Principal, now: datetime) -> None:
        """It is valid ``now``."""
        with self._lock:
            self._known[secret_hash] = principal, now
            self._known.move_to_end(secret_hash)
            if len(self._known) > self._most:
                self._known.popitem(last=False)

    def of(self, secret_hash: str, now: datetime) -> Principal | None:
        """Whose it was less than a minute ago; None: that is to be asked."""
        with self._lock:
            principal, at = self._known.get(secret_hash, (None, now))
        return principal if now - _LAST_USED_STEP < at <= now else None


def has_expired(row: TokenRow, now: datetime) -> bool:
    """Whether a token is over: it counts as revoked from then on."""
    return row.expires_at is not None and row.expires_at <= now


def described_token(_session: Session, row: TokenRow) -> Json:
    """A token as the audit shows it."""
    expires_at = row.expires_at.isoformat() if row.expires_at else None
    return {"role": row.role, "host": row.host, "application": row.application, "expires_at": expires_at}


def hash_secret(secret: str) -> str:
    """The stored form of a secret of 256 random bits."""
    # A plain hash is enough for 256 random bits: there is no dictionary to try, so a slow hash, which every request
    # would pay for, would keep nobody out.
    return hashlib.sha256(secret.encode()).hexdigest()
