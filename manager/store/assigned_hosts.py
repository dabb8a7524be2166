"""The hosts to whose assignments a registration belongs."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.store.models import ApplicationRow, HostRow, Registered, TierRow, TierVmRow, VmRow
from manager.store.source_rows import sources_of

Hosts = frozenset[str] | None
"""Names of hosts; None: any host, registered or not."""
NO_HOST: Hosts = frozenset()


def assigned_hosts(session: Session, row: Registered) -> Hosts:
    """Those whose assignments hold a host, a VM or an application, as it is registered now.

    A VM that is registered for no host may run on any. An application belongs to the hosts of its VMs and sources.
    """
    if isinstance(row, HostRow):
        return frozenset({row.name})
    if isinstance(row, VmRow):
        return _all_of([row.host])
    if not isinstance(row, ApplicationRow):
        return NO_HOST
    vms = select(VmRow.host).join(TierVmRow, TierVmRow.vm_id == VmRow.id).join(TierRow)
    hosts = session.scalars(vms.where(TierRow.application_id == row.id).distinct())
    return union(_all_of(hosts), frozenset(source.host for source in sources_of(row) if source.host is not None))


def union(*of: Hosts) -> Hosts:
    """All hosts of several such sets."""
    known = [hosts for hosts in of if hosts is not None]
    return frozenset().union(*known) if len(known) == len(of) else None


def _all_of(hosts: Iterable[str | None]) -> Hosts:
    names = list(hosts)
    return None if None in names else frozenset(name for name in names if name is not None)
