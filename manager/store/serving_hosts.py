"""The hosts that serve an application, by registration or by reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import Select, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from manager.store.access_models import TokenRow
from manager.store.host_models import ClaimRow, DomainRow
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow
from manager.store.source_rows import sources_of
from manager.store.tokens import Role
from manager.store.vm_claims import held_vm

_AFTERWARDS = timedelta(minutes=1)
"""How long after a VM left a host that host may still report its response times."""


def served_until(session: Session, host: str, numbers: Collection[int]) -> dict[int, datetime | None]:
    """Until when a host may report response times, by row number of the application; None: no end.

    A host serves applications that have a VM registered for it, or a source that names it. VMs registered for no host
    count on the host that reports them, on one that they migrate to by that host's word, and on earlier hosts until
    they left.
    """
    of_host = select(HostRow.id).where(HostRow.name == host).scalar_subquery()
    holder = aliased(VmStatusRow)
    claimed = case((ClaimRow.refused_at.is_not(None), holder.body))
    members = (
        select(TierRow.application_id, VmRow.host, VmRow.updated_at, VmStatusRow.host_id, ClaimRow.left_at, claimed)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .outerjoin(VmStatusRow, (VmStatusRow.vm == VmRow.name) & (VmStatusRow.host_id == of_host))
        .outerjoin(ClaimRow, (ClaimRow.vm == VmRow.name) & (ClaimRow.host_id == of_host))
        .outerjoin(holder, (holder.vm == VmRow.name) & (holder.host_id != of_host))
        .where(
            TierRow.application_id.in_(numbers),
            or_(
                VmRow.host == host,
                VmStatusRow.host_id.is_not(None),
                ClaimRow.left_at.is_not(None),
                claimed.is_not(None),
            ),
        )
    )
    domains = set(session.scalars(select(DomainRow.libvirt_uuid).where(DomainRow.host_id == of_host)))
    ends: dict[int, datetime | None] = {}
    now_here: set[int] = set()
    for number, registered, changed_at, seen, left_at, elsewhere in session.execute(members):
        migrates = elsewhere is not None and held_vm(elsewhere).migrates_to(domains)
        if registered == host or (registered is None and (seen is not None or migrates)):
            now_here.add(number)
            continue
        last = changed_at if seen is not None else left_at  # its agent does not yet know the new registration
        if last is None:
            continue
        ends[number] = max(ends.get(number) or last + _AFTERWARDS, last + _AFTERWARDS)
    with_sources = select(ApplicationRow).where(ApplicationRow.id.in_(numbers), ApplicationRow.sources.is_not(None))
    for row in session.scalars(with_sources):
        if any(source.host == host for source in sources_of(row)):
            now_here.add(row.id)
    return ends | dict.fromkeys(now_here)


def named_hosts(session: Session, names: Mapping[int, str], now: datetime) -> dict[str, frozenset[str]]:
    """The hosts for which VMs of each application are registered, by its name; without any, the fleet's only host.

    ``names``: of applications by row number.
    """
    hosts_of: dict[str, set[str]] = {name: set() for name in names.values()}
    query = (
        select(TierRow.application_id, VmRow.host)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .where(TierRow.application_id.in_(names), VmRow.host.is_not(None))
    )
    for number, host in session.execute(query):
        hosts_of[names[number]].add(str(host))
    if not all(hosts_of.values()):
        single = only_host(session, now)
        hosts_of = {name: hosts or ({single} if single else set()) for name, hosts in hosts_of.items()}
    return {name: frozenset(hosts) for name, hosts in hosts_of.items()}


def awaiting_history(since: datetime) -> Select[int]:
    """Applications (row numbers) with a VM on a host that is silent, or has been back only ``since`` then."""
    here = (VmRow.host == HostRow.name) | (VmRow.host.is_(None) & (VmStatusRow.host_id == HostRow.id))
    return (
        select(TierRow.application_id)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .outerjoin(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .join(HostRow, here)
        .where(or_(HostRow.silent, HostRow.back_at > since))
    )


def only_host(session: Session, now: datetime) -> str | None:
    """The only host that is registered or has a valid token; None: there are several, or none."""
    lasting = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)
    tokens = select(func.distinct(TokenRow.host)).where(TokenRow.role == Role.HOST, lasting)
    hosts = {*session.scalars(select(HostRow.name).limit(2)), *session.scalars(tokens.limit(2))}
    return str(hosts.pop()) if len(hosts) == 1 else None


def hosts_to_register(session: Session, application: ApplicationRow) -> list[str]:
    """The VMs of an application that are registered for no host, by name."""
    query = (
        select(VmRow.name).join(TierVmRow, TierVmRow.vm_id == VmRow.id).join(TierRow, TierRow.id == TierVmRow.tier_id)
    )
    without_host = query.where(TierRow.application_id == application.id, VmRow.host.is_(None))
    return list(session.scalars(without_host.order_by(VmRow.name)))
