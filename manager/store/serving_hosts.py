"""Which hosts serve an application: as an operator registered it, or as their agents showed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from manager.store.access_models import TokenRow
from manager.store.host_models import ClaimRow
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow
from manager.store.source_rows import sources_of
from manager.store.tokens import Role

_AFTERWARDS = timedelta(minutes=1)
"""For so long after a VM has left a host its response times may still be on their way within it."""


def served_until(session: Session, host: str, numbers: Collection[int]) -> dict[int, datetime | None]:
    """By the applications' row numbers, until when response times may come from a host; None: there is no end.

    It serves those that have a VM registered for it, or a source that names it. VMs registered for no host count where
    their statuses are taken from: on the host that has them, and on one that had them until they left.
    """
    of_host = select(HostRow.id).where(HostRow.name == host).scalar_subquery()
    members = (
        select(TierRow.application_id, VmRow.host, VmRow.updated_at, VmStatusRow.host_id, ClaimRow.left_at)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .outerjoin(VmStatusRow, (VmStatusRow.vm == VmRow.name) & (VmStatusRow.host_id == of_host))
        .outerjoin(ClaimRow, (ClaimRow.vm == VmRow.name) & (ClaimRow.host_id == of_host))
        .where(
            TierRow.application_id.in_(numbers),
            or_(VmRow.host == host, VmStatusRow.host_id.is_not(None), ClaimRow.left_at.is_not(None)),
        )
    )
    ends: dict[int, datetime | None] = {}
    now_here: set[int] = set()
    for number, registered, changed_at, seen, left_at in session.execute(members):
        if registered == host or (registered is None and seen is not None):
            now_here.add(number)
            continue
        last = changed_at if seen is not None else left_at  # the agent has not heard yet that it is another's
        ends[number] = max(ends.get(number) or last + _AFTERWARDS, last + _AFTERWARDS)
    with_sources = select(ApplicationRow).where(ApplicationRow.id.in_(numbers), ApplicationRow.sources.is_not(None))
    for row in session.scalars(with_sources):
        if any(source.host == host for source in sources_of(row)):
            now_here.add(row.id)
    return ends | dict.fromkeys(now_here)


def named_hosts(session: Session, names: Mapping[int, str], now: datetime) -> dict[str, frozenset[str]]:
    """The hosts that an operator registered VMs of each application for, by its name.

    Where that is none, and there is but one host in the fleet, it is that one. ``names`` are those of applications by
    the numbers of their rows.
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
        alone = only_host(session, now)
        hosts_of = {name: hosts or ({alone} if alone else set()) for name, hosts in hosts_of.items()}
    return {name: frozenset(hosts) for name, hosts in hosts_of.items()}


def only_host(session: Session, now: datetime) -> str | None:
    """The only host that is registered, reports, or might with a token of its own; None: there are several, or none."""
    lasting = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)
    tokens = select(func.distinct(TokenRow.host)).where(TokenRow.role == Role.HOST, lasting)
    hosts = {*session.scalars(select(HostRow.name).limit(2)), *session.scalars(tokens.limit(2))}
    return str(hosts.pop()) if len(hosts) == 1 else None


def hosts_to_register(session: Session, application: ApplicationRow) -> list[str]:
    """The VMs of an application, by name, that are registered for no host."""
    query = (
        select(VmRow.name).join(TierVmRow, TierVmRow.vm_id == VmRow.id).join(TierRow, TierRow.id == TierVmRow.tier_id)
    )
    homeless = query.where(TierRow.application_id == application.id, VmRow.host.is_(None))
    return list(session.scalars(homeless.order_by(VmRow.name)))
