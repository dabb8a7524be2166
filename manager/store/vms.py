"""Registered VMs, with their application and last status."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, CompoundSelect, Double, Select, and_, column, or_, select, union
from sqlalchemy import delete as remove
from sqlalchemy.orm import Session

from manager.control.job_promise import objection
from manager.control.power_shares import vm_watts
from manager.errors import Conflict, InvalidRequest
from manager.model.energy import HostPower
from manager.model.fields import adapter_of, fields_of
from manager.model.job import BatchVm, JobState
from manager.model.registration import VmClass, VmIn, VmSpec
from manager.model.resource_use import VmResources
from manager.store.host_models import ClaimRow
from manager.store.last_ticks import with_tick
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow
from manager.store.registrations import (
    Precondition,
    by_name,
    delete,
    get,
    has_in_name,
    if_asked,
    not_found,
    replace,
    touch,
)
from manager.store.vm_claims import drop_status_elsewhere
from manager.store.vm_shares import VmShares, read_shares


@dataclass(frozen=True, slots=True)
class VmFilter:
    """Which VMs to list; None means any.

    ``host``: registered for it, or last seen on it; ``search``: a part of the name; ``serving``: whether it serves an
    application.
    """

    host: str | None = None
    vm_class: VmClass | None = None
    application: str | None = None
    names: frozenset[str] | None = None
    search: str | None = None
    serving: bool | None = None


def put_vm(session: Session, spec: VmSpec, now: datetime, precondition: Precondition) -> tuple[VmRow, bool]:
    """Register a VM; see ``registrations.replace``. Without UUID and libvirt name, its name is the libvirt name.

    Raises Conflict if another VM may be the same domain, and InvalidRequest for a new job that cannot be done in time.
    """
    vm = spec if spec.libvirt_name or spec.libvirt_uuid else dataclasses.replace(spec, libvirt_name=spec.name)

    def unclaimed(etag: str | None) -> None:
        precondition(etag)
        _refuse_rivals(session, vm)
        _refuse_bad_job(session, vm, now)

    row, created = replace(session, VmRow, vm.name, fields_of(VmIn, vm), now, unclaimed)
    if vm.host is not None:
        drop_status_elsewhere(session, vm.name, vm.host, now)
    return row, created


def _refuse_rivals(session: Session, vm: VmSpec) -> None:
    # "= NULL" must not become "IS NULL": two VMs without a UUID do not share one.
    same_name = and_(VmRow.libvirt_name.is_not(None), VmRow.libvirt_name == vm.libvirt_name)
    if vm.host is not None:
        same_name = and_(same_name, or_(VmRow.host == vm.host, VmRow.host.is_(None)))
    same_uuid = and_(VmRow.libvirt_uuid.is_not(None), VmRow.libvirt_uuid == vm.libvirt_uuid)
    rival = session.scalars(select(VmRow).where(VmRow.name != vm.name, or_(same_uuid, same_name)).limit(1)).first()
    if rival is None:
        return
    by_uuid = vm.libvirt_uuid is not None and rival.libvirt_uuid == vm.libvirt_uuid
    what = f"libvirt_uuid {vm.libvirt_uuid}" if by_uuid else f"libvirt_name {vm.libvirt_name!r}"
    where = rival.host or "any host"
    raise Conflict(f"{what} belongs to VM {rival.name!r} already (registered for {where})")


def _refuse_bad_job(session: Session, vm: VmSpec, now: datetime) -> None:
    """A job that stays as it was is not judged again: its deadline may have passed."""
    registered = session.scalars(select(VmRow).where(VmRow.name == vm.name)).one_or_none()
    if vm.job is None or (registered is not None and registered.job == vm.job):
        return
    body = session.scalars(select(VmStatusRow.body).where(VmStatusRow.vm == vm.name)).one_or_none()
    most = [limit for limit in (json.loads(body)["vcpus"] if body else None, vm.max_pcpus) if limit is not None]
    done_cpu_s = 0.0
    if registered is not None and registered.job is not None and registered.job.cpu_seconds == vm.job.cpu_seconds:
        done_cpu_s = _done_cpu_s(session, vm.name)
    found = objection(vm.job, min(most, default=None), now.timestamp(), done_cpu_s)
    if found is not None:
        raise InvalidRequest(f"job.{found[0]}", found[1])


def _done_cpu_s(session: Session, name: str) -> float:
    """Of the work that is not done yet, what is; work that is done counts anew with a new deadline."""
    for found in _mappings(session, _details().where(VmRow.name == name)):
        batch: BatchVm | None = found["batch"]
        if batch is not None and batch.done_cpu_s is not None and batch.state is not JobState.DONE:
            return batch.done_cpu_s
    return 0.0


def delete_vm(session: Session, name: str, precondition: Precondition) -> None:
    """Remove a VM. Raises NotFound, or Conflict if it serves an application."""
    application = session.scalars(
        select(ApplicationRow.name).join(TierRow).join(TierVmRow).join(VmRow).where(VmRow.name == name)
    ).one_or_none()

    def unused(etag: str | None) -> None:
        precondition(etag)
        if application is not None:
            raise Conflict(f"VM {name!r} serves application {application!r}: take it out of its tier first")

    delete(session, VmRow, name, unused)
    session.execute(remove(ClaimRow).where(ClaimRow.vm == name))


def list_vms(session: Session, wanted: VmFilter, after: str | None, limit: int) -> list[dict[str, Any]]:
    """A page of VMs, each as a mapping: registration, application, and status (as JSON text)."""
    query = _details()
    if wanted.host is not None:
        query = query.where(VmRow.id.in_(_of_host(wanted.host)))
    if wanted.vm_class is not None:
        query = query.where(VmRow.vm_class == wanted.vm_class)
    if wanted.application is not None:
        query = query.where(ApplicationRow.name == wanted.application)
    if wanted.names is not None:
        query = query.where(VmRow.name.in_(wanted.names))
    if wanted.search:
        query = query.where(has_in_name(VmRow, wanted.search))
    query = query.where(*if_asked(TierVmRow.vm_id.is_not(None), wanted.serving))
    return _mappings(session, by_name(query, VmRow, after, limit))


def _of_host(host: str) -> CompoundSelect[int]:
    """Row numbers of the VMs that are registered for a host, or were last seen on it.

    Two queries, for each of which there is an index: for one condition about both all VMs of the fleet would be read.
    """
    seen = select(VmRow.id).join(VmStatusRow, VmStatusRow.vm == VmRow.name).join(HostRow).where(HostRow.name == host)
    return union(select(VmRow.id).where(VmRow.host == host), seen)


def get_vm(session: Session, name: str) -> dict[str, Any]:
    """One VM as in ``list_vms``. Raises NotFound."""
    mappings = _mappings(session, _details().where(VmRow.name == name))
    if not mappings:
        raise not_found(VmRow, name)
    return mappings[0]


def vcpus_of(session: Session, names: Collection[str]) -> dict[str, int]:
    """How many vCPUs VMs have, by name, as far as they run anywhere."""
    rows = session.execute(select(VmStatusRow.vm, VmStatusRow.body).where(VmStatusRow.vm.in_(names)))
    return {vm: json.loads(body)["vcpus"] for vm, body in rows}


def vms_for_host(session: Session, host: str) -> list[VmSpec]:
    """The VMs that may run on a host, by name."""
    rows = session.execute(select(*_REGISTERED, VmRow.adoptions).where(may_run_on(host)).order_by(VmRow.name))
    return [VmSpec(*row) for row in rows]


def adopt_vm(session: Session, name: str, now: datetime) -> VmRow:
    """Adopt externally modified settings of a VM. Raises NotFound."""
    row = get(session, VmRow, name)
    row.adoptions += 1
    touch(row, now)
    return row


def may_run_on(host: str) -> ColumnElement[bool]:
    """Whether a VM is registered for a host, or for none."""
    return or_(VmRow.host == host, VmRow.host.is_(None))


def _mappings(session: Session, query: Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    # Columns instead of objects, and one tuple of names for all: lists of a thousand VMs are read often.
    result = session.execute(query)
    names = tuple(result.keys())[: -len(_STATUS)]  # those of the status are the last
    rows = [(dict(zip(names, row, strict=False)), row[-len(_STATUS) :]) for row in result]
    hosts = {vm["status_host"] for vm, _ in rows if vm["status_host"] is not None}
    used, faring, shares, powers = _used(session, hosts)
    for vm, status in rows:
        host, name = vm["status_host"], vm["name"]
        vm["status_at"], vm["status"] = shares[host].status(name, *status) if host is not None else (None, None)
        vm["resources"] = used.get((host, name))
        vm["batch"] = faring.get((host, name))
        vm["power_watts"] = powers[host].of(shares[host].used(name, status[1])) if host in powers else None
    return [vm for vm, _ in rows]


@dataclass(frozen=True, slots=True)
class _ReportedPower:
    """The power of a host, and by what it is divided: see ``vm_watts``."""

    watts: float
    idle_part: float
    busy_share: float

    def of(self, cpu_share: float) -> float:
        """The part of a VM."""
        return round(vm_watts(self.watts, self.idle_part, self.busy_share, cpu_share), 2)


def _used(
    session: Session, hosts: Collection[str]
) -> tuple[
    dict[tuple[str, str], VmResources],
    dict[tuple[str, str], BatchVm],
    dict[str, VmShares],
    dict[str, _ReportedPower],
]:
    """What VMs use besides CPU time, and how batch VMs fare, by host and VM, as the last ticks of these hosts have it.

    And by host shares, and power where it is measured.
    """
    query = select(HostRow.name, HostRow.shares, HostRow.costs).where(HostRow.name.in_(hosts))
    rows = session.execute(with_tick(session, query, *_TICKED)).all() if hosts else ()
    read = adapter_of(VmResources).validate_python
    resources = {(host, vm["vm"]): read(vm) for host, _, _, found, *_ in rows for vm in (found or {}).get("vms", ())}
    read_batch = adapter_of(BatchVm).validate_python
    faring = {(host, vm["vm"]): read_batch(vm) for host, *_, found, _, _ in rows for vm in found or ()}
    powers = {
        host: _ReportedPower(adapter_of(HostPower).validate_python(power).watts, costs.idle_part, busy_share)
        for host, _, costs, *_, power, busy_share in rows
        if power is not None
    }
    return resources, faring, {row.name: read_shares(row.shares) for row in rows}, powers


_TICKED = column("resources", JSON), column("batch_vms", JSON), column("power", JSON), column("host_cpu_share", Double)
_STATUS = ("status_at", "status_cpu_share", "status_run_delay_share", "status_body")
_REGISTERED = (VmRow.name, *(getattr(VmRow, field.name) for field in fields(VmIn)))


def _details() -> Select[*tuple[Any, ...]]:
    return (
        select(
            *_REGISTERED,
            VmRow.created_at,
            VmRow.updated_at,
            ApplicationRow.name.label("application"),
            HostRow.name.label("status_host"),
            *(getattr(VmStatusRow, name.removeprefix("status_")).label(name) for name in _STATUS),
        )
        .select_from(VmRow)
        .outerjoin(TierVmRow, TierVmRow.vm_id == VmRow.id)
        .outerjoin(TierRow, TierRow.id == TierVmRow.tier_id)
        .outerjoin(ApplicationRow, ApplicationRow.id == TierRow.application_id)
        .outerjoin(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .outerjoin(HostRow, HostRow.id == VmStatusRow.host_id)
    )
