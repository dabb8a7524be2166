"""People who sign in to the dashboard: a name, a role, and a password that is kept as a hash."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete as delete_rows
from sqlalchemy import select
from sqlalchemy.orm import Session
from werkzeug.security import check_password_hash, generate_password_hash

from manager.errors import Conflict, InvalidRequest
from manager.store.access_models import SessionRow, UserRow
from manager.store.models import Json
from manager.store.registrations import Precondition, delete, find, get, not_found, refuse_bad_name, touch
from manager.store.sign_in_throttle import forgive
from manager.store.tokens import MACHINES, Role

MIN_PASSWORD = 10
MAX_PASSWORD = 200
# 32 MiB and three passes: what the OWASP Password Storage Cheat Sheet asks of scrypt.
_METHOD = "scrypt:32768:8:3"
_NOBODYS = f"${'0' * 16}${'0' * 128}"


def hash_password(password: str) -> str:
    """The stored form of a password. Takes a quarter of a second of CPU time: call it outside of transactions.

    Raises InvalidRequest for one that is too short, too long, or no text.
    """
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        allowed = f"allowed: {MIN_PASSWORD} to {MAX_PASSWORD} characters"
        raise InvalidRequest("password", f"{len(password)} characters are refused; {allowed}")
    try:
        return generate_password_hash(password, _METHOD)
    except UnicodeEncodeError as error:  # bytes of another encoding
        raise InvalidRequest("password", "it is not text in UTF-8") from error


def is_password(row: UserRow | None, password: str) -> bool:
    """Whether this is the user's password. Takes as long where there is no such user."""
    return check_password_hash(row.password_hash if row else _METHOD + _NOBODYS, password)


def create_user(session: Session, name: str, role: Role, password_hash: str, now: datetime) -> UserRow:
    """Add a user. Call it in ``Database.exclusively``. Raises InvalidRequest naming the field, or Conflict."""
    refuse_bad_name("name", name)
    if find(session, UserRow, name) is not None:
        raise Conflict(f"there is a user named {name!r} already")
    row = UserRow(
        name=name, version=1, created_at=now, updated_at=now, role=_checked(role), password_hash=password_hash
    )
    session.add(row)
    session.flush()
    return row


def set_role(session: Session, name: str, role: Role, now: datetime, precondition: Precondition) -> UserRow:
    """Give a user a role, and end its sessions if that is another one. Call it in ``Database.exclusively``.

    Raises NotFound, or Conflict for the last administrator.
    """
    row = find(session, UserRow, name)
    precondition(row.etag if row else None)
    if row is None:
        raise not_found(UserRow, name)
    if row.role != _checked(role):
        _keep_an_admin(session, row)
        row.role = role
        touch(row, now)
        _end_sessions(session, row)
    return row


def remove_user(session: Session, name: str, precondition: Precondition) -> None:
    """Remove a user, whose sessions end. Call it in ``Database.exclusively``.

    Raises NotFound, or Conflict for the last administrator.
    """
    row = find(session, UserRow, name)
    if row is not None:
        _keep_an_admin(session, row)
    delete(session, UserRow, name, precondition)


def set_password(session: Session, name: str, password_hash: str, now: datetime) -> UserRow:
    """Give a user a new password, end its sessions, and forget its failed sign-ins. Raises NotFound."""
    row = get(session, UserRow, name)
    row.password_hash = password_hash
    touch(row, now)
    _end_sessions(session, row)
    forgive(session, name)
    return row


def described_user(_session: Session, row: UserRow) -> Json:
    """A user as the audit shows it."""
    return {"role": row.role}


def _checked(role: Role) -> Role:
    if role in MACHINES:
        raise InvalidRequest("role", f"{role} is refused: machines use tokens; allowed: viewer, operator, admin")
    return role


def _keep_an_admin(session: Session, row: UserRow) -> None:
    """Raises Conflict for the last administrator, without whom the dashboard could not make another one."""
    others = select(UserRow.id).where(UserRow.role == Role.ADMIN, UserRow.id != row.id).limit(1)
    if row.role == Role.ADMIN and session.scalar(others) is None:
        raise Conflict(f"{row.name!r} is the last administrator: make another user one first; nothing was changed")


def _end_sessions(session: Session, row: UserRow) -> None:
    session.execute(delete_rows(SessionRow).where(SessionRow.user_id == row.id))
