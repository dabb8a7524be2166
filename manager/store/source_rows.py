"""Sources of response times, their hosts and statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from manager.model.source import SOURCES, Source
from manager.store.database import insert_for
from manager.store.models import ApplicationRow, HostRow, Json, SourceStatusRow, TierRow, TierVmRow, VmRow, VmStatusRow

log = logging.getLogger(__name__)


def sources_of(row: ApplicationRow) -> tuple[Source, ...]:
    """The sources of an application. Sources that violate current rules are left out and logged."""
    try:
        return SOURCES.validate_python(row.sources or ())
    except ValidationError:
        return tuple(source for stored in row.sources or () for source in _valid(row.name, stored))


def _valid(application: str, stored: Json) -> tuple[Source, ...]:
    try:
        return SOURCES.validate_python((stored,))
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, part['loc'][2:]))}: {part['msg']}" for part in error.errors())
        log.error("application %s: source %r is left out: %s", application, stored.get("name"), reasons)
        return ()


def hosts_of(session: Session, names: Mapping[int, str]) -> dict[str, frozenset[str]]:
    """The hosts with a VM of each application, by its name: registered for the host, or for none and reported there.

    ``names``: of applications by row number.
    """
    hosts_by_name: dict[str, set[str]] = {name: set() for name in names.values()}
    query = (
        select(TierRow.application_id, VmRow.host, HostRow.name)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .outerjoin(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .outerjoin(HostRow, HostRow.id == VmStatusRow.host_id)
        .where(TierRow.application_id.in_(names), or_(VmRow.host.is_not(None), HostRow.name.is_not(None)))
    )
    for number, registered, seen in session.execute(query):
        hosts_by_name[names[number]].add(registered or seen)
    return {name: frozenset(hosts) for name, hosts in hosts_by_name.items()}


def replace_source_statuses(
    session: Session, host: HostRow, statuses: Mapping[tuple[int, str], str], now: datetime
) -> None:
    """Store the statuses of all sources on a host, as JSON text by the application's row number and source name."""
    session.execute(delete(SourceStatusRow).where(SourceStatusRow.host_id == host.id))
    if statuses:
        session.execute(
            insert_for(session, SourceStatusRow),
            [
                {"application_id": number, "source": source, "host_id": host.id, "at": now, "body": body}
                for (number, source), body in sorted(statuses.items())
            ],
        )


def source_statuses(session: Session, application: ApplicationRow) -> Sequence[tuple[str, str, datetime, str]]:
    """Source, host, time and status (JSON text) of an application's sources, by source and host."""
    query = (
        select(SourceStatusRow.source, HostRow.name, SourceStatusRow.at, SourceStatusRow.body)
        .join(HostRow, HostRow.id == SourceStatusRow.host_id)
        .where(SourceStatusRow.application_id == application.id)
        .order_by(SourceStatusRow.source, HostRow.name)
    )
    return [(source, host, at, body) for source, host, at, body in session.execute(query)]
