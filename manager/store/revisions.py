"""Revisions of what is registered: of all of it, and of what is assigned to each host.

Whoever keeps what was read compares these numbers. A host's row has the revision since which its assignment is as it
is, so that a registration lets managers read again, and agents act on, only what it concerns. A manager of an earlier
version notes the revision of all alone: ``RevisionRow.assigned`` is behind then, and each assignment is of that one.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import cache

from sqlalchemy import ColumnElement, FromClause, Select, String, bindparam, case, insert, select, update
from sqlalchemy.orm import Session

from manager.store.by_driver import rows_of
from manager.store.host_models import RevisionRow
from manager.store.models import HostRow


def note_registration(session: Session, hosts: Collection[str] | None = None) -> None:
    """Begin a new ``registration_revision``, in a transaction that registers exclusively.

    It is that of the assignments of ``hosts`` from now on; None: of all hosts.
    """
    before = session.execute(select(RevisionRow.number, RevisionRow.assigned)).one_or_none()
    number = max(time.time_ns() // 1000, before.number + 1 if before else 1)
    values = {"number": number, "assigned": number}
    if before is None:
        session.execute(insert(RevisionRow).values(id=1, **values))
    else:
        session.execute(update(RevisionRow).values(values))
    missed = before is not None and before.number != before.assigned
    assign_anew(session, None if missed else hosts)


def hold_assignments(session: Session, hosts: Collection[str] | None) -> None:
    """Lock the rows of hosts whose assignments are about to change; None: of all hosts, which takes too long.

    Reports hold that of their host before all else. Who has removed something that a report needs, and waits for its
    host then, is in its way, and PostgreSQL ends one of the two.
    """
    if hosts:
        rows = select(HostRow.id).where(HostRow.name.in_(hosts)).order_by(HostRow.id)
        session.execute(rows.with_for_update(key_share=True))


def assign_anew(session: Session, hosts: Collection[str] | None) -> None:
    """Let the assignments of hosts, None: of all, be of the present revision; also of hosts that were just added."""
    session.flush()
    table = HostRow.metadata.tables["hosts"]
    anew = update(table).values(assigned_revision=select(RevisionRow.number).scalar_subquery())
    session.execute(anew if hosts is None else anew.where(table.c.name.in_(hosts)))


def registration_revision(session: Session) -> int:
    """Grows with each transaction that registers anything: a number covers all registrations before it.

    It is the time of the last one in microseconds, so that no number recurs, not even in a restored database: what was
    cached by it would be outdated.
    """
    return next((int(number) for (number,) in rows_of(session, _of_all(), {})), 0)


def assignment_revision(session: Session, host: str) -> int:
    """The last ``registration_revision`` that concerned a host; 0 for one that is not registered."""
    return next((int(number) for (number,) in rows_of(session, _of_host(), {"host": host})), 0)


def revision_assigned(hosts: FromClause) -> ColumnElement[int]:
    """The same as an expression, for a row of the table of hosts in the statement around it."""
    return select(_assigned(hosts)).select_from(RevisionRow).correlate(hosts).scalar_subquery()


@cache
def _of_all() -> Select[int]:
    return select(RevisionRow.number)


@cache
def _of_host() -> Select[int]:
    hosts = HostRow.metadata.tables["hosts"]
    return select(_assigned(hosts)).join_from(RevisionRow, hosts, hosts.c.name == bindparam("host", type_=String()))


def _assigned(hosts: FromClause) -> ColumnElement[int]:
    everywhere = RevisionRow.number != RevisionRow.assigned
    return case((everywhere, RevisionRow.number), else_=hosts.c.assigned_revision)
