"""Hosts that somebody looks at now: their agents are asked for all in each interval, see ``manager.api.cadences``."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, or_, select, union, update
from sqlalchemy.orm import Session

from manager.errors import DatabaseUnavailable
from manager.store.database import Database
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow
from manager.store.window_packs import YOUNG

WATCHED_FOR = timedelta(minutes=1)
"""How long a host counts as watched after somebody looked."""
_RENEWED = timedelta(seconds=30)
"""Looking again changes nothing for so long."""
_MEASURED = timedelta(minutes=10)
"""Hosts that measured an application within this time show what is looked at, too."""

log = logging.getLogger(__name__)


def is_watched(host: HostRow, now: datetime) -> bool:
    """Whether somebody looks at it, or did a moment ago; what a clock that was ahead wrote does not count."""
    return host.watched_until is not None and timedelta() < host.watched_until - now <= WATCHED_FOR


def look_at(
    database: Database, now: datetime, *, hosts: Collection[str] = (), applications: Collection[str] = ()
) -> None:
    """Somebody looks at these hosts and applications, by name. Where that cannot be written, they stay as they are."""
    if not hosts and not applications:
        return
    try:
        with database.reading() as session:
            numbers = _to_mark(session, hosts, applications, now)
        if numbers:
            with database.writing() as session:
                _mark(session, numbers, now)
    except DatabaseUnavailable as error:
        log.warning("hosts that are looked at are not marked: %s", error)


def _to_mark(session: Session, hosts: Collection[str], applications: Collection[str], now: datetime) -> frozenset[int]:
    """The row numbers of these hosts, and of those that serve these applications, that are to be marked (again)."""
    wanted: ColumnElement[bool] = HostRow.name.in_(hosts)
    if applications:
        named = ApplicationRow.name.in_(applications)
        serving = (
            select(VmStatusRow.host_id)
            .join(VmRow, VmRow.name == VmStatusRow.vm)
            .join(TierVmRow, TierVmRow.vm_id == VmRow.id)
            .join(TierRow, TierRow.id == TierVmRow.tier_id)
            .join(ApplicationRow, ApplicationRow.id == TierRow.application_id)
            .where(named)
        )
        numbers = select(ApplicationRow.id).where(named)
        measuring = union(
            *(
                select(kind.origin).where(kind.application_id.in_(numbers), moment >= now - _MEASURED)
                for kind, moment in YOUNG
            )
        )
        wanted = or_(wanted, HostRow.id.in_(serving), HostRow.name.in_(measuring))
    fresh = HostRow.watched_until.between(now + _RENEWED, now + WATCHED_FOR)
    return frozenset(session.scalars(select(HostRow.id).where(wanted, or_(HostRow.watched_until.is_(None), ~fresh))))


def _mark(session: Session, numbers: Collection[int], now: datetime) -> None:
    """Mark hosts; one whose report is being stored is left for the next time."""
    free = select(HostRow.id).where(HostRow.id.in_(numbers)).with_for_update(skip_locked=True)
    marked = update(HostRow).where(HostRow.id.in_(session.scalars(free).all()))
    session.execute(marked.values(watched_until=now + WATCHED_FOR).execution_options(synchronize_session=False))
