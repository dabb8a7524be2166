"""Registered VMs; see ``vm_lists`` for what is known of them besides."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import fields
from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy import delete as remove
from sqlalchemy.orm import Session

from manager.control.job_promise import objection
from manager.errors import Conflict, InvalidRequest
from manager.model.fields import fields_of
from manager.model.job import BatchVm, JobState
from manager.model.registration import VmIn, VmSpec
from manager.store.host_models import ClaimRow
from manager.store.models import ApplicationRow, TierRow, TierVmRow, VmRow, VmStatusRow
from manager.store.registrations import (
    Precondition,
    delete,
    get,
    replace,
    touch,
)
from manager.store.vm_claims import drop_status_elsewhere
from manager.store.vm_lists import get_vm


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
    batch: BatchVm | None = get_vm(session, name)["batch"]
    if batch is None or batch.done_cpu_s is None or batch.state is JobState.DONE:
        return 0.0
    return batch.done_cpu_s


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


def vms_for_host(session: Session, host: str) -> list[VmSpec]:
    """The VMs that may run on a host, by name."""
    rows = session.execute(select(*_SPEC).where(may_run_on(host)).order_by(VmRow.name))
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


_SPEC = (VmRow.name, *(getattr(VmRow, field.name) for field in fields(VmIn)), VmRow.adoptions)
