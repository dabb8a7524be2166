"""Interference tables: which applications are due, what was measured of each, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import TypeAdapter
from sqlalchemy import and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from manager.control.interference_table import MeasuredMinute
from manager.model.interference import LargestLoad
from manager.model.registration import Sla
from manager.store.applications import keep_applications
from manager.store.interference_models import InterferenceLookRow, InterferenceTableRow
from manager.store.models import ApplicationRow
from manager.store.row_writes import upsert
from manager.store.window_packs import YOUNG

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


@dataclass(frozen=True, slots=True)
class Due:
    """Which applications are due: those that were last looked at before a time.

    ``small_before`` is for those without a table, or with a small one; ``idle_before`` for those of which nothing was
    measured since ``measured_since``.
    """

    before: datetime
    small_before: datetime
    idle_before: datetime
    measured_since: datetime


@dataclass(frozen=True, slots=True)
class MadeTables:
    """The tables of an application (row number) by type of host: the minutes they are made of, and their rows."""

    application: int
    look: InterferenceLook
    tables: Mapping[str, tuple[Sequence[MeasuredMinute], Sequence[LargestLoad]]]


def due_applications(session: Session, due: Due, limit: int) -> list[str]:
    """The applications that are due: the oldest look first, none without an SLA.

    Those whose SLA has changed, and those that were never looked at, are due in any case.
    """
    look, row = InterferenceLookRow, ApplicationRow
    table = InterferenceTableRow
    small = ~exists().where(table.application_id == row.id, table.minutes >= _FEW)
    measured = or_(
        *(exists().where(kind.application_id == row.id, moment >= due.measured_since) for kind, moment in YOUNG)
    )
    query = (
        select(row.name)
        .outerjoin(look, look.application_id == row.id)
        .where(
            row.sla_response_time_ms.is_not(None),
            or_(
                look.at.is_(None),
                look.sla_ms != row.sla_response_time_ms,
                look.percentile != row.sla_percentile,
                look.at < due.idle_before,
                and_(or_(look.at < due.before, and_(small, look.at < due.small_before)), measured),
            ),
        )
        .order_by(look.at.is_not(None), look.at, row.name)
    )
    return list(session.scalars(query.limit(limit)))


def count_with_sla(session: Session) -> int:
    """How many applications have an SLA."""
    return session.scalar(select(func.count()).where(ApplicationRow.sla_response_time_ms.is_not(None))) or 0


def look_of(session: Session, application: ApplicationRow) -> InterferenceLook | None:
    """How far the tables of an application are; None: they were never made."""
    return looks_of(session, [application.id]).get(application.id)


def looks_of(session: Session, applications: Collection[int]) -> dict[int, InterferenceLook]:
    """How far the tables of applications are, by row number; without those of which they were never made."""
    rows = session.scalars(select(InterferenceLookRow).where(InterferenceLookRow.application_id.in_(applications)))
    return {
        row.application_id: InterferenceLook(
            row.at, row.until, Sla(row.sla_ms, row.percentile), row.size, row.size_since, row.why
        )
        for row in rows
    }


def measured_of(session: Session, applications: Collection[int]) -> dict[int, dict[str, list[MeasuredMinute]]]:
    """The minutes that tables are made of, by row number of the application and type of host."""
    table = InterferenceTableRow
    columns = table.application_id, table.host_type, table.measured
    found: dict[int, dict[str, list[MeasuredMinute]]] = {number: {} for number in applications}
    for number, host_type, text in session.execute(select(*columns).where(table.application_id.in_(applications))):
        found[number][host_type] = [MeasuredMinute(*each) for each in json.loads(text)]
    return found


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


def put_tables(session: Session, made: Sequence[MadeTables]) -> int:
    """Replace the tables of applications; returns how many there are of them, none of those that are gone."""
    there = set(keep_applications(session, [each.application for each in made]).values())
    kept = [each for each in made if each.application in there]
    upsert(session, InterferenceLookRow, [_look_row(each.application, each.look) for each in kept], ["application_id"])
    table = InterferenceTableRow
    wanted = {each.application: each.tables for each in kept}
    known = session.execute(
        select(table.id, table.application_id, table.host_type).where(table.application_id.in_(wanted))
    )
    gone = [row.id for row in known if row.host_type not in wanted[row.application_id]]
    if gone:
        session.execute(delete(table).where(table.id.in_(gone)))
    rows = [
        _table_row(number, host_type, minutes, loads)
        for number, tables in wanted.items()
        for host_type, (minutes, loads) in sorted(tables.items())
    ]
    upsert(session, table, rows, ["application_id", "host_type"])
    return len(rows)


def _look_row(application: int, look: InterferenceLook) -> dict[str, object]:
    return {
        "application_id": application,
        "at": look.at,
        "until": look.until,
        "percentile": look.sla.percentile,
        "sla_ms": look.sla.response_time_ms,
        "size": look.size,
        "size_since": look.size_since,
        "why": look.why,
    }


def _table_row(
    application: int, host_type: str, minutes: Sequence[MeasuredMinute], loads: Sequence[LargestLoad]
) -> dict[str, object]:
    return {
        "application_id": application,
        "host_type": host_type,
        "since": datetime.fromtimestamp(minutes[0].start_s, UTC),
        "until": datetime.fromtimestamp(minutes[-1].start_s, UTC),
        "minutes": len(minutes),
        "peak_rps": max(minute.rate_rps for minute in minutes),
        "loads": _LOADS.dump_json(tuple(loads), by_alias=True).decode(),
        "measured": _text(minutes),
    }


def _text(minutes: Sequence[MeasuredMinute]) -> str:
    rows = [[minute.start_s, *(float(f"{value:.{_DIGITS}g}") for value in minute[1:])] for minute in minutes]
    return json.dumps(rows, separators=(",", ":"))
