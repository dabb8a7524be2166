"""What the policies of hosts said they do for applications."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import JSON, String, column, select
from sqlalchemy.orm import Session

from manager.control.violation_case import ShownNeighbour
from manager.store.last_ticks import with_tick
from manager.store.models import ApplicationRow, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow

_TICKED = column("policy", String), column("at", String), column("explanations", JSON)


@dataclass(frozen=True, slots=True)
class HostExplanation:
    """That of one host, by the policy that was in force at its tick ``at``, an RFC 3339 time.

    ``cause``: who slows the application, where an experiment of the policy has shown it.
    """

    host: str
    policy: str
    at: str
    text: str
    cause: ShownNeighbour | None = None


def explanations_of(session: Session, numbers: Collection[int]) -> dict[str, list[HostExplanation]]:
    """By name of the application, of those with these row numbers, and by host, of those that run its VMs.

    What another host says of an application does not count.
    """
    serving = (
        select(ApplicationRow.name, VmStatusRow.host_id)
        .join(TierRow, TierRow.application_id == ApplicationRow.id)
        .join(TierVmRow, TierVmRow.tier_id == TierRow.id)
        .join(VmRow, VmRow.id == TierVmRow.vm_id)
        .join(VmStatusRow, VmStatusRow.vm == VmRow.name)
        .where(ApplicationRow.id.in_(numbers))
        .distinct()
    )
    pairs = {(application, host_id) for application, host_id in session.execute(serving)}
    hosts = select(HostRow.id, HostRow.name).where(HostRow.id.in_({host_id for _, host_id in pairs}))
    told = with_tick(session, hosts.order_by(HostRow.name), *_TICKED)
    explanations: dict[str, list[HostExplanation]] = {}
    for host_id, host, policy, at, of_host in session.execute(told):
        for each in of_host or ():  # an older agent reports none
            if (each["application"], host_id) in pairs:
                of_application = explanations.setdefault(each["application"], [])
                cause = _shown(host, at, each.get("cause"))
                of_application.append(HostExplanation(host, policy, at, each["text"], cause))
    return explanations


def _shown(host: str, at: str, cause: Mapping[str, Any] | None) -> ShownNeighbour | None:
    if cause is None:
        return None
    ended = datetime.fromisoformat(at) - timedelta(seconds=cause["age_s"])
    return ShownNeighbour(cause["vm"], host, cause["fall"], cause["confidence"], ended)
