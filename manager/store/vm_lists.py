"""VMs as lists show them: registration, application, last status, and what their hosts last reported of them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, CompoundSelect, Select, func, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.model.registration import VmClass, VmIn
from manager.store.database import is_postgresql
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow
from manager.store.registrations import by_name, has_in_name, if_asked, not_found
from manager.store.row_writes import is_one_of
from manager.store.vm_shares import StoredShares
from manager.store.vm_use import VmReport, read_use

REPORTED = "status_host", "status_at", "resources", "batch", "power_watts", "status"
"""What of a VM is as reported."""


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


class ListedVm(NamedTuple):
    """A VM with its host and what is new in its status; ``digest`` tells this from former ones without the shares.

    Without a host it runs nowhere, and the rest is None.
    """

    name: str
    host: str | None
    digest: int | str | None
    stored: StoredShares


def page_of_vms(session: Session, wanted: VmFilter, after: str | None, limit: int) -> list[ListedVm]:
    """A page of VMs, with as little of each as must be read each time."""
    query = _wanted(_of_vms(VmRow.name, HostRow.name, _digest(session), *_SHARES), wanted)
    rows = session.execute(by_name(query, VmRow, after, limit))
    return [ListedVm(name, host, digest, StoredShares(*stored)) for name, host, digest, *stored in rows]


def registered_vms(session: Session, names: Collection[str]) -> list[dict[str, Any]]:
    """Registrations and applications of VMs, each as a mapping. They stay the same for a revision of registrations."""
    result = session.execute(_of_vms(*_REGISTERED).where(is_one_of(session, VmRow.name, names)))
    return [dict(row) for row in result.mappings()]


def status_texts(session: Session, names: Collection[str]) -> dict[str, str]:
    """The statuses of VMs, by name, as JSON text without the shares."""
    rows = session.execute(select(VmStatusRow.vm, VmStatusRow.body).where(is_one_of(session, VmStatusRow.vm, names)))
    return {vm: body for vm, body in rows}  # noqa: C416 - a row is no pair to mypy


def list_vms(session: Session, wanted: VmFilter, after: str | None, limit: int) -> list[dict[str, Any]]:
    """A page of VMs, each as a mapping: registration, application, and status (as JSON text)."""
    query = _of_vms(HostRow.name, VmStatusRow.body, *_SHARES, *_REGISTERED)
    rows = session.execute(by_name(_wanted(query, wanted), VmRow, after, limit)).all()
    used = read_use(session, {host for host, *_ in rows if host is not None})
    vms = []
    for host, body, at, cpu_share, run_delay_share, *columns in rows:
        vm: dict[str, Any] = dict(zip(_NAMES, columns, strict=True))
        use = None if host is None else used[host].of(vm["name"], StoredShares(at, cpu_share, run_delay_share))
        vms.append(vm | _reported(use, body))
    return vms


def _reported(use: VmReport | None, body: str) -> dict[str, Any]:
    if use is None:
        return dict.fromkeys(REPORTED)
    shares = use.shares
    reported = use.host, shares.at, use.resources, use.batch, use.power_watts, shares.status(body)
    return dict(zip(REPORTED, reported, strict=True))


def get_vm(session: Session, name: str) -> dict[str, Any]:
    """One VM as in ``list_vms``. Raises NotFound."""
    vms = list_vms(session, VmFilter(names=frozenset({name})), None, 1)
    if not vms:
        raise not_found(VmRow, name)
    return vms[0]


def vcpus_of(session: Session, names: Collection[str]) -> dict[str, int]:
    """How many vCPUs VMs have, by name, as far as they run anywhere."""
    return {vm: json.loads(body)["vcpus"] for vm, body in status_texts(session, names).items()}


_SHARES = VmStatusRow.at, VmStatusRow.cpu_share, VmStatusRow.run_delay_share
_REGISTERED = (
    VmRow.name,
    *(getattr(VmRow, field.name) for field in fields(VmIn)),
    ApplicationRow.name.label("application"),
    VmRow.created_at,
    VmRow.updated_at,
)
_NAMES = tuple(column.key for column in _REGISTERED)


def _of_vms(*columns: Any) -> Select[*tuple[Any, ...]]:
    """Columns of VMs, their applications, statuses and hosts: of these the database joins those that it needs."""
    return (
        select(*columns)
        .select_from(VmRow)
        .outerjoin(TierVmRow, TierVmRow.vm_id == VmRow.id)
        .outerjoin(TierRow, TierRow.id == TierVmRow.tier_id)
        .outerjoin(ApplicationRow, ApplicationRow.id == TierRow.application_id)
        .outerjoin(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .outerjoin(HostRow, HostRow.id == VmStatusRow.host_id)
    )


def _wanted(query: Select[*tuple[Any, ...]], wanted: VmFilter) -> Select[*tuple[Any, ...]]:
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
    return query.where(*if_asked(TierVmRow.vm_id.is_not(None), wanted.serving))


def _of_host(host: str) -> CompoundSelect[int]:
    """Row numbers of the VMs that are registered for a host, or were last seen on it.

    Two queries, for each of which there is an index: for one condition about both all VMs of the fleet would be read.
    """
    seen = select(VmRow.id).join(VmStatusRow, VmStatusRow.vm == VmRow.name).join(HostRow).where(HostRow.name == host)
    return union(select(VmRow.id).where(VmRow.host == host), seen)


def _digest(session: Session) -> ColumnElement[Any] | InstrumentedAttribute[str]:
    """Of a status: 64 bits, for one VM's only. SQLite, within the process, has the text itself."""
    return func.hashtextextended(VmStatusRow.body, 0) if is_postgresql(session) else VmStatusRow.body
