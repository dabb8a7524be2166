"""Operations on all registered objects: find, list, replace idempotently, delete."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, not_, select
from sqlalchemy.orm import Session

from manager.errors import InvalidRequest, NotFound
from manager.model.fields import MANAGER, NAME_PATTERN
from manager.store.models import Registered

Row = TypeVar("Row", bound=Registered)
Query = TypeVar("Query", bound="Select[*tuple[Any, ...]]")

Precondition = Callable[[str | None], None]
"""Called in the transaction with the object's ETag, None for a new object; raises to prevent the write."""


def find(session: Session, kind: type[Row], name: str) -> Row | None:
    """The object of that kind and name, or None."""
    return session.scalars(select(kind).where(kind.name == name)).one_or_none()


def get(session: Session, kind: type[Row], name: str) -> Row:
    """The object of that kind and name. Raises NotFound."""
    row = find(session, kind, name)
    if row is None:
        raise not_found(kind, name)
    return row


def refuse_bad_name(field: str, name: str) -> None:
    """Raises InvalidRequest for an invalid name."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidRequest(field, f"{name!r} is refused; use 1 to 63 letters, digits, dots, dashes, underscores")


def refuse_bad_host(field: str, name: str) -> None:
    """Raises InvalidRequest for an invalid name of a host."""
    refuse_bad_name(field, name)
    if name == MANAGER:
        raise InvalidRequest(field, f"{name!r} is refused; it is reserved for events of the manager itself")


def not_found(kind: type[Registered], name: str) -> NotFound:
    """The error for an unknown name."""
    return NotFound(f"there is no {kind.kind} named {name!r}")


def by_name(query: Query, kind: type[Registered], after: str | None, limit: int) -> Query:
    """``query`` in the order of names: at most ``limit`` rows with names after ``after``."""
    if after is not None:
        query = query.where(kind.name > after)
    return query.order_by(kind.name).limit(limit)


def page(
    session: Session,
    kind: type[Row],
    after: str | None,
    limit: int,
    search: str | None = None,
    wanted: Sequence[ColumnElement[bool]] = (),
) -> Sequence[Row]:
    """A page of the objects of a kind that are ``wanted``, see ``by_name``; with ``search`` in their names."""
    query = select(kind).where(*wanted, *([has_in_name(kind, search)] if search else []))
    return session.scalars(by_name(query, kind, after, limit)).all()


def has_in_name(kind: type[Registered], part: str) -> ColumnElement[bool]:
    """Whether names have a part, in capitals or not. Names are ASCII."""
    return kind.name.icontains(part, autoescape=True)


def if_asked(condition: ColumnElement[bool], wanted: bool | None) -> list[ColumnElement[bool]]:
    """What asks that a condition holds, or that it does not; None: nothing is asked."""
    return [] if wanted is None else [condition if wanted else not_(condition)]


def replace(
    session: Session,
    kind: type[Row],
    name: str,
    values: Mapping[str, object],
    now: datetime,
    precondition: Precondition,
    first: Mapping[str, object] | None = None,
) -> tuple[Row, bool]:
    """Create the object, or set its values; the second result: whether it was created.

    ``first``: further columns of a new object, such as a first version other than 1.

    Equal values leave the object unchanged, including its version and ``updated_at``.
    Call it in ``Database.registering``.
    """
    row = find(session, kind, name)
    precondition(row.etag if row else None)
    if row is None:
        row = kind(**{"name": name, "version": 1, "created_at": now, "updated_at": now, **values, **(first or {})})
        session.add(row)
        session.flush()
        return row, True
    changed = {column: value for column, value in values.items() if getattr(row, column) != value}
    for column, value in changed.items():
        setattr(row, column, value)
    if changed:
        touch(row, now)
    return row, False


def touch(row: Registered, now: datetime) -> None:
    """Start a new version of the registration."""
    row.version += 1
    row.updated_at = now


def delete(session: Session, kind: type[Row], name: str, precondition: Precondition) -> None:
    """Remove the object and its dependent rows. Raises NotFound."""
    row = find(session, kind, name)
    precondition(row.etag if row else None)
    if row is None:
        raise not_found(kind, name)
    session.delete(row)
