"""The audit: who did what, added in the transaction of the change itself.

The database refuses to change rows, and to remove them in any other way than ``forget``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from manager.store.access_models import AuditRetentionRow, AuditRow
from manager.store.assigned_hosts import NO_HOST, Hosts, assigned_hosts, union
from manager.store.database import Database
from manager.store.event_records import Position
from manager.store.models import Json
from manager.store.registrations import Row, find
from manager.store.revisions import hold_assignments, note_registration
from manager.store.tokens import Principal

LOCAL = "local"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change.

    ``kind`` is ``user`` or ``token``; ``LOCAL`` for a system user of the manager's machine; ``UNKNOWN`` without a
    sign-in. ``address`` is empty where there is none.
    """

    kind: str
    name: str
    role: str
    address: str


def actor_of(principal: Principal, address: str) -> Actor:
    """The author of a signed-in request."""
    return Actor(principal.kind, principal.name, principal.role, address)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows to list; None means any. ``since`` is inclusive, ``until`` is not."""

    actor: str | None = None
    object_kind: str | None = None
    object: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def record(
    session: Session,
    actor: Actor,
    action: str,
    name: str,
    now: datetime,
    before: Json | None = None,
    after: Json | None = None,
) -> None:
    """Add a row. ``action`` begins with the object's kind, such as ``vm.put``; ``name`` is the object's."""
    session.add(
        AuditRow(
            at=now,
            actor_kind=actor.kind,
            actor=actor.name,
            role=actor.role,
            address=actor.address,
            action=action,
            object_kind=action.partition(".")[0],
            object=name,
            before=before,
            after=after,
        )
    )


@contextmanager
def audited(
    database: Database,
    actor: Actor,
    action: str,
    kind: type[Row],
    name: str,
    describe: Callable[[Session, Row], Json],
    now: datetime,
) -> Iterator[Session]:
    """A transaction that changes one object exclusively, which is recorded if it changed what was registered.

    Only then are registrations of a new revision, and only by objects on which assignments depend; and the assignments
    of the hosts that it belonged to before or belongs to now.

    ``describe`` returns what was registered, without secrets. Nothing is recorded when the block raises.
    """

    def state(session: Session) -> tuple[str | None, Json | None, Hosts]:
        row = find(session, kind, name)
        return (row.etag, describe(session, row), assigned_hosts(session, row)) if row else (None, None, NO_HOST)

    with database.exclusively() as session:
        etag, before, hosts_before = state(session)
        hold_assignments(session, hosts_before)
        yield session
        new_etag, after, hosts_after = state(session)
        if new_etag != etag:
            if kind.assigned:
                note_registration(session, union(hosts_before, hosts_after))
            record(session, actor, action, name, now, before, after)


def list_audit(session: Session, wanted: AuditFilter, after: Position | None, limit: int) -> Sequence[AuditRow]:
    """At most ``limit`` rows, newest first, that come after a position: in the order of arrival, whatever the clock."""
    query = select(AuditRow)
    if wanted.since is not None:
        query = query.where(AuditRow.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditRow.at < wanted.until)
    if after is not None:
        query = query.where(AuditRow.id < after.id)
    for name in ("actor", "object_kind", "object"):
        if getattr(wanted, name) is not None:
            query = query.where(getattr(AuditRow, name) == getattr(wanted, name))
    return session.scalars(query.order_by(AuditRow.id.desc()).limit(limit)).all()


def forget(session: Session, before: datetime, newest_id: int, most: int) -> int:
    """Remove at most ``most`` rows from before a time, up to a number; the database allows no other way. How many."""
    allowed = AuditRetentionRow(before=before)
    session.add(allowed)
    session.flush()
    some = select(AuditRow.id).where(AuditRow.at < before, AuditRow.id <= newest_id).limit(most)
    gone = len(session.execute(delete(AuditRow).where(AuditRow.id.in_(some)).returning(AuditRow.id)).all())
    session.delete(allowed)
    return gone
