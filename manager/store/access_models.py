"""More tables: who may use the manager, and what they did."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from manager.store.models import Base, Json, Registered, Serial


class TokenRow(Registered):
    """A bearer token. Only the SHA-256 of its 256-bit random secret is kept."""

    __tablename__ = "tokens"
    kind = "token"
    assigned = False

    role: Mapped[str]
    host: Mapped[str | None]
    secret_hash: Mapped[str] = mapped_column(unique=True)
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    application: Mapped[str | None]


class UserRow(Registered):
    """A person who signs in to the dashboard. ``password_hash`` is as ``manager.store.users`` makes it."""

    __tablename__ = "users"
    kind = "user"
    assigned = False

    role: Mapped[str]
    password_hash: Mapped[str]
    signed_in_at: Mapped[datetime | None]


class SessionRow(Base):
    """A user or a token that is signed in, one of the two. Only the SHA-256 of the 256-bit random secret is kept."""

    __tablename__ = "sessions"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    secret_hash: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    token_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    address: Mapped[str]


class SignInFailureRow(Base):
    """A failed sign-in. The name is kept as a hash: it may be a password in the wrong field."""

    __tablename__ = "sign_in_failures"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    name_hash: Mapped[str]
    network: Mapped[str]


class AuditRow(Base):
    """An action, with what was registered before and after; see ``manager.store.audit``."""

    __tablename__ = "audit"
    __table_args__ = (
        *(Index(None, *columns, "at", "id") for columns in ((), ("actor",), ("object",))),
        *(Index(None, column, "id") for column in ("actor", "object")),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime]
    actor_kind: Mapped[str]
    actor: Mapped[str]
    role: Mapped[str]
    address: Mapped[str]
    action: Mapped[str]
    object_kind: Mapped[str]
    object: Mapped[str]
    before: Mapped[Json | None]
    after: Mapped[Json | None]


class AuditRetentionRow(Base):
    """Lets the transaction that added it remove rows of the audit from before that time: triggers refuse all else.

    It is removed in the same transaction, so no other transaction ever sees it.
    """

    __tablename__ = "audit_retention"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    before: Mapped[datetime]
