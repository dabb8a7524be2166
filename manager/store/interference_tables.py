"""Interference tables: which applications are due, what was measured of each, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import TypeAdapter
from sqlalchemy import and_, delete, exists, or_, select
from sqlalchemy.orm import Session

from manager.control.interference_table import MeasuredMinute
from manager.model.interference import LargestLoad
from manager.model.registration import Sla
from manager.store.applications import keep_applications
from manager.store.interference_models import InterferenceLookRow, InterferenceTableRow
from manager.store.models import ApplicationRow
from manager.store.row_writes import upsert

_LOADS = TypeAdapter(tuple[LargestLoad, ...])
_DIGITS = 5
_FEW = 30  # minutes: a table of fewer is small


@dataclass(frozen=True, slots=True)
class InterferenceLook:
    """How far the tables of an application are; see ``InterferenceLookRow``."""

    at: datetime
    until: datetime
    sla: Sla
    size: str
    size_since: datetime | None
    why: str


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table on hosts of one type, of ``minutes`` from ``since`` until ``until``."""

    host_type: str
    since: datetime
    until: datetime
    minutes: int
    peak_rps: float
    loads: tuple[LargestLoad, ...]


def due_applications(session: Session, before: datetime, small_before: datetime, limit: int) -> list[str]:
    """The applications that were last looked at ``before``: the oldest first, none without an SLA.

    Those without a table, or with a small one, ``small_before``, and those whose SLA has changed in any case.
    """
    look, row = InterferenceLookRow, ApplicationRow
    table = InterferenceTableRow
    small = ~exists().where(table.application_id == row.id, table.minutes >= _FEW)
    changed = or_(
        look.sla_ms != row.sla_response_time_ms,
        look.percentile != row.sla_percentile,
        and_(small, look.at < small_before),
    )
    query = (
        select(row.name)
        .outerjoin(look, look.application_id == row.id)
        .where(row.sla_response_time_ms.is_not(None), or_(look.at.is_(None), look.at < before, changed))
        .order_by(look.at.is_not(None), look.at, row.name)
    )
    return list(session.scalars(query.limit(limit)))


def look_of(session: Session, application: ApplicationRow) -> InterferenceLook | None:
    """How far the tables of an application are; None: they were never made."""
    row = session.get(InterferenceLookRow, application.id)
    if row is None:
        return None
    then = Sla(row.sla_ms, row.percentile)
    return InterferenceLook(row.at, row.until, then, row.size, row.size_since, row.why)


def measured_of(session: Session, application: ApplicationRow) -> dict[str, list[MeasuredMinute]]:
    """The minutes that tables are made of, by type of host."""
    table = InterferenceTableRow
    rows = session.execute(select(table.host_type, table.measured).where(table.application_id == application.id))
    return {host_type: [MeasuredMinute(*each) for each in json.loads(text)] for host_type, text in rows}


def tables_of(session: Session, application: ApplicationRow) -> list[KnownTable]:
    """The tables of an application about its present SLA, by type of host."""
    look, sla = look_of(session, application), application.sla
    if look is None or sla is None or look.sla != replace(sla, max_rate_rps=None):
        return []
    table = InterferenceTableRow
    columns = (table.host_type, table.since, table.until, table.minutes, table.peak_rps, table.loads)
    query = select(*columns).where(table.application_id == application.id).order_by(table.host_type)
    return [
        KnownTable(host_type, since, until, minutes, peak_rps, _LOADS.validate_json(loads))
        for host_type, since, until, minutes, peak_rps, loads in session.execute(query)
    ]


def put_tables(
    session: Session,
    application: ApplicationRow,
    look: InterferenceLook,
    tables: Mapping[str, tuple[Sequence[MeasuredMinute], Sequence[LargestLoad]]],
) -> int:
    """Replace the tables of an application, by type of host; returns how many there are, 0 where it is gone."""
    if application.name not in keep_applications(session, [application.id]):
        return 0
    of_look = {
        "application_id": application.id,
        "at": look.at,
        "until": look.until,
        "percentile": look.sla.percentile,
        "sla_ms": look.sla.response_time_ms,
        "size": look.size,
        "size_since": look.size_since,
        "why": look.why,
    }
    upsert(session, InterferenceLookRow, [of_look], ["application_id"])
    table = InterferenceTableRow
    gone = table.application_id == application.id, table.host_type.not_in(list(tables))
    session.execute(delete(table).where(*gone))
    rows = [
        {
            "application_id": application.id,
            "host_type": host_type,
            "since": datetime.fromtimestamp(minutes[0].start_s, UTC),
            "until": datetime.fromtimestamp(minutes[-1].start_s, UTC),
            "minutes": len(minutes),
            "peak_rps": max(minute.rate_rps for minute in minutes),
            "loads": _LOADS.dump_json(tuple(loads), by_alias=True).decode(),
            "measured": _text(minutes),
        }
        for host_type, (minutes, loads) in sorted(tables.items())
    ]
    upsert(session, table, rows, ["application_id", "host_type"])
    return len(rows)


def _text(minutes: Sequence[MeasuredMinute]) -> str:
    rows = [[minute.start_s, *(float(f"{value:.{_DIGITS}g}") for value in minute[1:])] for minute in minutes]
    return json.dumps(rows, separators=(",", ":"))
