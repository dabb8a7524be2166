"""Earlier registrations of applications, from the audit, which contains the state before each change.

Before its oldest row (``audit_days``), or before the first registration, the oldest known state counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.model.registration import Application, Sla
from manager.store.access_models import AuditRow
from manager.store.models import ApplicationRow, Json, TierRow, TierVmRow, VmRow


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
        for until, before in self.changes.get(row.name, ()):
            if at < until:
                return Sla(**before["sla"]) if before["sla"] else None
        return row.sla

    def eras(self, now: Application) -> list[Era]:
        """The VMs of an application over time, oldest first."""
        return [*(Era(until, _vms(before)) for until, before in self.changes.get(now.name, ())), Era(None, now.vms)]

    def vms(self, now: Application, at: datetime) -> frozenset[str]:
        """The VMs that served an application at a time."""
        return next(era.vms for era in self.eras(now) if era.until is None or at < era.until)


def read_past(session: Session, since: datetime | None, name: str | None = None) -> Past:
    """Changes of all applications, or of ``name``, from ``since`` on."""
    query = select(AuditRow.object, AuditRow.at, AuditRow.before).where(AuditRow.object_kind == "application")
    if since is not None:
        query = query.where(AuditRow.at >= since)
    if name is not None:
        query = query.where(AuditRow.object == name)
    changes: dict[str, list[tuple[datetime, Json]]] = {}
    for application, at, before in session.execute(query.order_by(AuditRow.at, AuditRow.id)):
        if before is not None:
            changes.setdefault(application, []).append((at, before))
    return Past(changes)


def serving(
    session: Session, past: Past, places: Collection[tuple[str, datetime]]
) -> dict[tuple[str, datetime], ApplicationRow]:
    """The applications that VMs served at times; removed applications are left out."""
    query = (
        select(VmRow.name, ApplicationRow)
        .join(TierVmRow, TierVmRow.vm_id == VmRow.id)
        .join(TierRow, TierRow.id == TierVmRow.tier_id)
        .join(ApplicationRow, ApplicationRow.id == TierRow.application_id)
        .where(VmRow.name.in_({vm for vm, _ in places}))
    )
    now: dict[str, ApplicationRow] = {row[0]: row[1] for row in session.execute(query)}
    changed = session.scalars(select(ApplicationRow).where(ApplicationRow.name.in_(past.changes))).all()
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
