"""Applications at a glance: as little of each as tells its state, and where those that are shown run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from manager.model.registration import Mode, Sla
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow


@dataclass(frozen=True, slots=True)
class GlancedApplication:
    """An application's row number, name, SLA and mode; None is inherited."""

    number: int
    name: str
    sla: Sla | None
    mode: Mode | None = None


def list_applications(session: Session) -> list[GlancedApplication]:
    """All applications, by name."""
    sla = ApplicationRow.sla_response_time_ms, ApplicationRow.sla_percentile, ApplicationRow.sla_max_rate_rps
    columns = ApplicationRow.id, ApplicationRow.name, ApplicationRow.mode, *sla
    rows = session.execute(select(*columns).order_by(ApplicationRow.name))
    applications = []
    for number, name, mode, response_time_ms, percentile, max_rate_rps in rows:
        target: Sla | None = None
        if response_time_ms is not None and percentile is not None:
            target = Sla(response_time_ms, percentile, max_rate_rps)
        applications.append(GlancedApplication(number, name, target, mode))
    return applications


def running_on(session: Session, host: str) -> frozenset[int]:
    """The applications (row numbers) of which a VM runs on a host."""
    return frozenset(number for number, _ in session.execute(_running().where(HostRow.name == host)))


def runs_on(host: str) -> ColumnElement[bool]:
    """Whether a VM of an application runs on a host."""
    return ApplicationRow.id.in_(_running().where(HostRow.name == host).with_only_columns(TierRow.application_id))


def hosts_of(session: Session, numbers: Collection[int] | None = None) -> dict[int, Sequence[str]]:
    """Names of the hosts on which VMs of these applications (row numbers) run, in order; nothing of those without.

    None means all applications.
    """
    hosts: dict[int, list[str]] = {}
    query = _running() if numbers is None else _running().where(TierRow.application_id.in_(numbers))
    for number, host in session.execute(query.distinct().order_by(HostRow.name)):
        hosts.setdefault(number, []).append(host)
    return {**hosts}


def _running() -> Select[int, str]:
    """Row numbers of applications with the names of hosts on which one of their VMs runs."""
    return (
        select(TierRow.application_id, HostRow.name)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .join(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .join(HostRow, HostRow.id == VmStatusRow.host_id)
    )
