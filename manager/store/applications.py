"""Applications: tiers, SLA, sources, and VMs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from functools import cache

from sqlalchemy import Select, delete, or_, select
from sqlalchemy.orm import Session

from manager.errors import Conflict, InvalidRequest
from manager.model.registration import Application, Sla, Tier
from manager.model.source import SOURCES
from manager.store.by_driver import rows_of
from manager.store.models import ApplicationRow, PastApplicationRow, TierRow, TierVmRow, VmRow
from manager.store.registrations import Precondition, find, get, not_found, replace, touch
from manager.store.row_writes import among, has_arrays
from manager.store.source_rows import sources_of
from manager.store.vms import may_run_on


def put_application(
    session: Session, wanted: Application, now: datetime, precondition: Precondition
) -> tuple[ApplicationRow, bool]:
    """Register an application; see ``registrations.replace``. A removed application of that name regains its history.

    Raises InvalidRequest naming the field if a tier's VM is unregistered or a name is used twice, and Conflict if a VM
    serves another application.
    """
    vm_ids: dict[str, int] = {}

    def servable(etag: str | None) -> None:
        precondition(etag)
        vm_ids.update(_registered_vms(session, wanted))

    values = {f"sla_{field.name}": getattr(wanted.sla, field.name, None) for field in fields(Sla)}
    values |= {name: getattr(wanted, name) for name in ("mode", "sharing", "warp_us", "cache")}
    values["sources"] = SOURCES.dump_python(wanted.sources, mode="json", by_alias=True) or None
    past = _past(session, wanted.name)
    first = {"id": past.id, "version": past.version + 1} if past else None
    row, created = replace(session, ApplicationRow, wanted.name, values, now, servable, first)
    if past is not None:
        session.delete(past)
    if applications_of(session, [row])[row.name].tiers != wanted.tiers:
        session.execute(delete(TierRow).where(TierRow.application_id == row.id))
        for place, tier in enumerate(wanted.tiers):
            tier_row = TierRow(application_id=row.id, name=tier.name, position=place)
            session.add(tier_row)
            session.flush()
            session.add_all(
                TierVmRow(vm_id=vm_ids[vm], tier_id=tier_row.id, position=index) for index, vm in enumerate(tier.vms)
            )
        if not created:
            touch(row, now)
    return row, created


def remove_application(session: Session, name: str, now: datetime, precondition: Precondition) -> None:
    """Remove an application; its history stays until its retention ends. Raises NotFound."""
    row = find(session, ApplicationRow, name)
    precondition(row.etag if row else None)
    if row is None:
        raise not_found(ApplicationRow, name)
    sla = row.sla
    past = {"id": row.id, "name": row.name, "version": row.version, "sla": asdict(sla) if sla else None}
    session.add(PastApplicationRow(**past, removed_at=now))
    session.delete(row)


def application_with_past(session: Session, name: str) -> ApplicationRow:
    """An application, also a removed one, whose history can be read by its row number.

    The row of a removed one is in no session, and has no VMs. Raises NotFound.
    """
    past = _past(session, name)
    return get(session, ApplicationRow, name) if past is None else as_it_was(past)


def as_it_was(past: PastApplicationRow) -> ApplicationRow:
    """A row, in no session, for a removed application."""
    sla = {f"sla_{field}": value for field, value in (past.sla or {}).items()}
    return ApplicationRow(id=past.id, name=past.name, version=past.version, **sla)


def _past(session: Session, name: str) -> PastApplicationRow | None:
    return session.scalars(select(PastApplicationRow).where(PastApplicationRow.name == name)).one_or_none()


def _registered_vms(session: Session, wanted: Application) -> dict[str, int]:
    """Row numbers of the application's VMs by name."""
    numbered = session.execute(select(VmRow.name, VmRow.id).where(VmRow.name.in_(wanted.vms)))
    vms = {row[0]: row[1] for row in numbered}
    users = session.execute(
        select(VmRow.name, ApplicationRow.name)
        .join(TierVmRow, TierVmRow.vm_id == VmRow.id)
        .join(TierRow)
        .join(ApplicationRow)
        .where(VmRow.name.in_(wanted.vms), ApplicationRow.name != wanted.name)
    )
    used = {row[0]: row[1] for row in users}
    seen_tiers: set[str] = set()
    seen_vms: set[str] = set()
    for place, tier in enumerate(wanted.tiers):
        if tier.name in seen_tiers:
            raise InvalidRequest(
                f"tiers[{place}].name", f"{tier.name!r} is the name of an earlier tier; use another name"
            )
        seen_tiers.add(tier.name)
        for index, vm in enumerate(tier.vms):
            field = f"tiers[{place}].vms[{index}]"
            if vm in seen_vms:
                raise InvalidRequest(field, f"{vm!r} is listed twice; a VM serves one tier of one application")
            seen_vms.add(vm)
            if vm not in vms:
                raise InvalidRequest(field, f"{vm!r} is not a registered VM; register it first with PUT /vms/{vm}")
            if vm in used:
                raise Conflict(f"{field}: VM {vm!r} serves application {used[vm]!r} already")
    return vms


def applications_of(session: Session, rows: Sequence[ApplicationRow]) -> dict[str, Application]:
    """The value types of rows by name, in the order of the rows."""
    members = session.execute(
        select(TierRow.application_id, TierRow.name, VmRow.name)
        .outerjoin(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .outerjoin(VmRow, VmRow.id == TierVmRow.vm_id)
        .where(TierRow.application_id.in_([row.id for row in rows]))
        .order_by(TierRow.position, TierVmRow.position)
    )
    tiers: dict[int, dict[str, list[str]]] = {row.id: {} for row in rows}
    for application, tier, vm in members:
        vms = tiers[application].setdefault(tier, [])
        if vm is not None:
            vms.append(vm)
    return {
        row.name: Application(
            row.name,
            tuple(Tier(tier, tuple(vms)) for tier, vms in tiers[row.id].items()),
            row.sla,
            row.mode,
            row.sharing,
            row.warp_us,
            row.cache,
            sources_of(row),
        )
        for row in rows
    }


def applications_for_host(session: Session, host: str) -> Sequence[ApplicationRow]:
    """The applications that have a VM which may run on a host, or a source there, by name."""
    served = (
        select(TierRow.application_id)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .where(may_run_on(host))
    )
    is_served = ApplicationRow.id.in_(served)
    query = select(ApplicationRow, is_served).where(or_(is_served, ApplicationRow.sources.is_not(None)))
    rows = session.execute(query.order_by(ApplicationRow.name))
    return [row for row, here in rows if here or any(source.host == host for source in sources_of(row))]


def keep_applications(session: Session, numbers: Collection[int]) -> dict[str, int]:
    """Row numbers by name of those applications that still are there, and stay until the transaction's end."""
    return dict(rows_of(session, _locked(has_arrays(session)), {"numbers": sorted(numbers)}))


@cache
def _locked(arrays: bool) -> Select[str, int]:
    query = select(ApplicationRow.name, ApplicationRow.id).where(among(ApplicationRow.id, "numbers", arrays))
    return query.order_by(ApplicationRow.id).with_for_update(read=True, key_share=True)
