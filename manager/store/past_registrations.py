"""Earlier registrations of applications, from the audit, which contains the state before each change.

Before its oldest row (``audit_days``), or before the first registration, the oldest known state counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from manager.model.registration import Application, Sla
from manager.store.access_models import AuditRow
from manager.store.applications import as_it_was
from manager.store.models import ApplicationRow, Json, PastApplicationRow, TierRow, TierVmRow, VmRow
from manager.store.row_writes import among, has_arrays, is_one_of


@dataclass(frozen=True, slots=True)
class Era:
    """The VMs of an application from the end of the previous era to ``until``; None: now."""

    until: datetime | None
    vms: frozenset[str]


@dataclass(frozen=True, slots=True)
class Past:
    """Changes since some time: by name, the times of changes and the registrations before, oldest first."""

    changes: Mapping[str, Sequence[tuple[datetime, Json]]]

    def sla(self, row: ApplicationRow, at: datetime) -> Sla | None:
        """The SLA of an application at a time."""
        return self.sla_of(row.name, row.sla, at)

    def sla_of(self, name: str, now: Sla | None, at: datetime) -> Sla | None:
        """The SLA at a time of an application that has the SLA ``now``, or had it last."""
        for until, before in self.changes.get(name, ()):
            if at < until:
                return Sla(**before["sla"]) if before["sla"] else None
        return now

    def eras(self, now: Application) -> list[Era]:
        """The VMs of an application over time, oldest first."""
        return [*(Era(until, _vms(before)) for until, before in self.changes.get(now.name, ())), Era(None, now.vms)]

    def vms(self, now: Application, at: datetime) -> frozenset[str]:
        """The VMs that served an application at a time."""
        return next(era.vms for era in self.eras(now) if era.until is None or at < era.until)


@dataclass(frozen=True, slots=True)
class SlaPast:
    """The SLAs of applications over time. ``known``: names and present, or last, SLAs by row number."""

    known: Mapping[int, tuple[str, Sla | None]]
    past: Past

    def at(self, number: int, moment: datetime) -> Sla | None:
        """The SLA of an application at a time; None also for one that is not known."""
        name, now = self.known.get(number, ("", None))
        return self.past.sla_of(name, now, moment)


def read_slas(session: Session, numbers: Collection[int], since: datetime) -> SlaPast:
    """The SLAs of applications (row numbers), also of removed ones, from a time on."""
    given = {"numbers": sorted(numbers)}
    present, removed = _registered(has_arrays(session))
    known = {
        number: (name, None if None in (time_ms, percentile) else Sla(time_ms, percentile, most_rps))
        for number, name, time_ms, percentile, most_rps in session.execute(present, given)
    }
    for number, name, sla in session.execute(removed, given):
        known[number] = name, Sla(**sla) if sla else None
    return SlaPast(known, read_past(session, since))


@cache
def _registered(arrays: bool) -> tuple[Select[*tuple[Any, ...]], Select[*tuple[Any, ...]]]:
    """Name and SLA of applications, and of removed ones: columns, as objects of rows take longer to make."""
    row, past = ApplicationRow, PastApplicationRow
    sla = row.sla_response_time_ms, row.sla_percentile, row.sla_max_rate_rps
    return (
        select(row.id, row.name, *sla).where(among(row.id, "numbers", arrays)),
        select(past.id, past.name, past.sla).where(among(past.id, "numbers", arrays)),
    )


def read_past(session: Session, since: datetime | None, names: Collection[str] | None = None) -> Past:
    """Changes of all applications, or of those of these ``names``, from ``since`` on."""
    query = select(AuditRow.object, AuditRow.at, AuditRow.before).where(
        AuditRow.object_kind == "application", AuditRow.before.is_not(None)
    )
    if since is not None:
        query = query.where(AuditRow.at >= since)
    if names is not None:
        query = query.where(is_one_of(session, AuditRow.object, names))
    changes: dict[str, list[tuple[datetime, Json]]] = {}
    for application, at, before in session.execute(query.order_by(AuditRow.id)):
        if before is not None:
            changes.setdefault(application, []).append((at, before))
    return Past({application: _in_order(made) for application, made in changes.items()})


def _in_order(changes: Sequence[tuple[datetime, Json]]) -> list[tuple[datetime, Json]]:
    """Changes in the order in which they were made, none dated later than the next: managers' clocks may differ."""
    ordered: list[tuple[datetime, Json]] = []
    for at, before in reversed(changes):
        ordered.append((min(at, ordered[-1][0]) if ordered else at, before))
    return ordered[::-1]


def serving(
    session: Session, past: Past, places: Collection[tuple[str, datetime]]
) -> dict[tuple[str, datetime], ApplicationRow]:
    """The applications that VMs served at times, removed ones too, by rows that are in no session."""
    query = (
        select(VmRow.name, ApplicationRow)
        .join(TierVmRow, TierVmRow.vm_id == VmRow.id)
        .join(TierRow, TierRow.id == TierVmRow.tier_id)
        .join(ApplicationRow, ApplicationRow.id == TierRow.application_id)
        .where(VmRow.name.in_({vm for vm, _ in places}))
    )
    now: dict[str, ApplicationRow] = {row[0]: row[1] for row in session.execute(query)}
    changed = [
        *session.scalars(select(ApplicationRow).where(ApplicationRow.name.in_(past.changes))),
        *map(as_it_was, session.scalars(select(PastApplicationRow).where(PastApplicationRow.name.in_(past.changes)))),
    ]
    applications = {}
    for vm, at in places:
        before = {row.name: _before(past, row.name, at) for row in changed}
        row = next((row for row in changed if vm in (before[row.name] or ())), None)
        if row is None and vm in now and before.get(now[vm].name) is None:
            row = now[vm]
        if row is not None:
            applications[vm, at] = row
    return applications


def _before(past: Past, name: str, at: datetime) -> frozenset[str] | None:
    """The VMs of an application at a time; None: it has not changed since."""
    return next((_vms(before) for until, before in past.changes.get(name, ()) if at < until), None)


def _vms(body: Json) -> frozenset[str]:
    return frozenset(vm for tier in body["tiers"] for vm in tier["vms"])
