"""Hosts, and what their agents report of themselves and their VMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, literal, or_, select, tuple_, update
from sqlalchemy.orm import Session, aliased

from manager.model.cpus import format_cpus, parse_cpus
from manager.model.law import DEFAULT_LAW, Law
from manager.model.registration import HostSpec
from manager.model.rules import DEFAULT_RULES, BatchPlacement, IrqSteering, PlacementRules
from manager.store.database import insert_for, lock_registrations
from manager.store.host_models import DomainRow, FindingsRow
from manager.store.models import HostRow, VmRow, VmStatusRow
from manager.store.registrations import Precondition, get, refuse_bad_host, replace, touch


def put_host(session: Session, spec: HostSpec, now: datetime, precondition: Precondition) -> tuple[HostRow, bool]:
    """Register how a host is to be controlled; see ``registered.replace``."""
    refuse_bad_host("name", spec.name)
    rules = _unusual(spec.placement, DEFAULT_RULES)
    if "reserved_cpus" in rules:
        rules["reserved_cpus"] = format_cpus(spec.placement.reserved_cpus)
    values = {
        "mode": spec.mode,
        "policy": spec.policy,
        "pinning": spec.pinning,
        "batch_idle": spec.batch_idle,
        "warp": spec.warp,
        "warp_max_us": spec.warp_max_us,
        "cache": spec.cache,
        "cache_mount": spec.cache_mount,
        "bandwidth_warning": spec.bandwidth_warning,
        "law": _unusual(spec.law, DEFAULT_LAW) or None,
        "placement": rules or None,
    }
    return replace(session, HostRow, spec.name, values, now, precondition)


def _unusual(settings: Law | PlacementRules, usual: Law | PlacementRules) -> dict[str, Any]:
    """What was set: what was left at its default follows that when a later version changes it."""
    defaults = asdict(usual)
    return {name: value for name, value in asdict(settings).items() if value != defaults[name]}


def spec_of(row: HostRow) -> HostSpec:
    """How a host is to be controlled."""
    rules = dict(row.placement or {})
    if "reserved_cpus" in rules:
        rules["reserved_cpus"] = parse_cpus(rules["reserved_cpus"])
    if "batch" in rules:
        rules["batch"] = BatchPlacement(rules["batch"])
    if "irqs" in rules:
        rules["irqs"] = IrqSteering(rules["irqs"])
    law = Law(**(row.law or {}))
    placement = PlacementRules(**rules)
    how = (row.mode, row.policy, row.pinning, law, row.batch_idle, placement, row.adoptions)
    cache = (row.cache, row.cache_mount, row.bandwidth_warning)
    return HostSpec(row.name, *how, row.warp, row.warp_max_us, *cache)


def adopt_host(session: Session, name: str, now: datetime) -> HostRow:
    """Have settings of a host itself that somebody else changed taken back. Raises NotFound."""
    row = get(session, HostRow, name)
    row.adoptions += 1
    touch(row, now)
    return row


def reporting_host(session: Session, defaults: HostSpec, now: datetime) -> HostRow:
    """The host whose agent is reporting, its row locked; registered with ``defaults`` if it is new."""
    query = select(HostRow).where(HostRow.name == defaults.name).with_for_update()
    row = session.scalars(query).one_or_none()
    if row is None:
        lock_registrations(session)
        row = session.scalars(query).one_or_none()  # meanwhile somebody else may have registered it
    if row is None:
        row, _ = put_host(session, defaults, now, lambda _etag: None)
    return row


def put_statuses(session: Session, host: HostRow, statuses: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """Take statuses of VMs on a host: mappings with the columns ``vm``, ``cpu_share``, ``run_delay_share``, ``body``.

    A VM that another host reported before (it was migrated) now is on this one.
    """
    rows = [{"host_id": host.id, "at": now, **status} for status in sorted(statuses, key=itemgetter("vm"))]
    if rows:
        insert = insert_for(session, VmStatusRow)
        moved = {name: insert.excluded[name] for name in rows[0] if name != "vm"}
        session.execute(insert.on_conflict_do_update(index_elements=[VmStatusRow.vm], set_=moved), rows)


def put_shares(session: Session, host: HostRow, shares: Mapping[str, tuple[float, float]], now: datetime) -> bool:
    """Take the CPU shares and run-queue delays of the VMs on a host, by name.

    False: the statuses of the host are not of these VMs.
    """
    reported = set(session.scalars(select(VmStatusRow.vm).where(VmStatusRow.host_id == host.id)))
    rows = [
        {"name": vm, "cpu_share": used, "run_delay_share": waited, "at": now}
        for vm, (used, waited) in sorted(shares.items())
        if vm in reported
    ]
    if rows:
        here = (VmStatusRow.vm == bindparam("name"), VmStatusRow.host_id == host.id)
        session.connection().execute(update(VmStatusRow).where(*here), rows)
    return reported == shares.keys()


def statuses_on(session: Session, host: HostRow) -> list[str]:
    """The statuses of the VMs on a host as JSON text, by name of the VM."""
    query = select(VmStatusRow.json_text()).where(VmStatusRow.host_id == host.id).order_by(VmStatusRow.vm)
    return list(session.scalars(query))


def replace_domains(session: Session, host: HostRow, names: Mapping[str, str]) -> None:
    """Take the domains that run on a host, as libvirt names by UUID, for all there are."""
    session.execute(delete(DomainRow).where(DomainRow.host_id == host.id))
    if names:
        rows = [{"host_id": host.id, "libvirt_uuid": uuid, "libvirt_name": name} for uuid, name in names.items()]
        session.execute(insert_for(session, DomainRow), rows)


def list_domains(
    session: Session, host: str | None, registered: bool | None, after: tuple[str, str] | None, limit: int
) -> Sequence[tuple[str, str, str, str | None]]:
    """At most ``limit`` running domains by host and UUID: host, UUID, libvirt name, and the VM it is registered as.

    None means any host, registered or not, from the begin. A UUID decides before a name, as it does at the agents.
    """
    by_uuid, by_name = aliased(VmRow), aliased(VmRow)
    vm = func.coalesce(by_uuid.name, by_name.name)
    query = (
        select(HostRow.name, DomainRow.libvirt_uuid, DomainRow.libvirt_name, vm)
        .join(HostRow, HostRow.id == DomainRow.host_id)
        .outerjoin(
            by_uuid,
            and_(
                by_uuid.libvirt_uuid == DomainRow.libvirt_uuid,
                or_(by_uuid.host == HostRow.name, by_uuid.host.is_(None)),
            ),
        )
        .outerjoin(
            by_name,
            and_(
                by_name.libvirt_uuid.is_(None),
                by_name.libvirt_name == DomainRow.libvirt_name,
                or_(by_name.host == HostRow.name, by_name.host.is_(None)),
            ),
        )
    )
    if host is not None:
        query = query.where(HostRow.name == host)
    if registered is not None:
        query = query.where(vm.is_not(None) if registered else vm.is_(None))
    place = (HostRow.name, DomainRow.libvirt_uuid)
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(*map(literal, after)))
    rows = session.execute(query.order_by(*place).limit(limit))
    return [(name, uuid, libvirt_name, registered_as) for name, uuid, libvirt_name, registered_as in rows]


def put_findings(session: Session, host: HostRow, body: str) -> None:
    """Take what was found out about a host, as JSON text."""
    insert = insert_for(session, FindingsRow).values(host_id=host.id, body=body)
    session.execute(insert.on_conflict_do_update(index_elements=["host_id"], set_={"body": insert.excluded.body}))


def get_findings(session: Session, host: str) -> str | None:
    """What was last found out about a host, as JSON text; None: never. Raises NotFound."""
    row = session.get(FindingsRow, get(session, HostRow, host).id)
    return None if row is None else row.body
