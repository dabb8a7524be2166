"""What of a policy's decision on memory, disks and uplinks the host's settings let it decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from manager.model.decision import ResourceControl, ResourceGoal
from manager.model.registration import HostSpec


@dataclass(frozen=True, slots=True)
class ResourceDecision:
    """Why each is wanted: by name of the VM, or for the whole host, empty: it is not.

    ``protected``: critical VMs whose memory is protected; ``memory_ceilings``: batch VMs that get one.
    """

    protected: Mapping[str, str] = field(default_factory=dict)
    memory_ceilings: Mapping[str, str] = field(default_factory=dict)
    disk_weights: str = ""
    disk_ceilings: tuple[ResourceGoal, ...] = ()
    uplink_shares: str = ""


NOTHING_DECIDED = ResourceDecision()


def resource_decision(goals: Iterable[ResourceGoal], host: HostSpec) -> ResourceDecision:
    """The goals by control, without those that the host's settings do not allow (``steps``)."""
    allowed = [goal for goal in goals if is_allowed(goal.control, host)]
    if not allowed:
        return NOTHING_DECIDED
    return ResourceDecision(
        {goal.vm: goal.reason for goal in allowed if goal.control is ResourceControl.MEMORY_PROTECTION},
        {goal.vm: goal.reason for goal in allowed if goal.control is ResourceControl.MEMORY_CEILING},
        _reason_of(ResourceControl.DISK_WEIGHTS, allowed),
        tuple(goal for goal in allowed if goal.control is ResourceControl.DISK_CEILING),
        _reason_of(ResourceControl.UPLINK_SHARES, allowed),
    )


def is_allowed(control: ResourceControl, host: HostSpec) -> bool:
    """Whether a policy may decide that on this host."""
    if control is ResourceControl.UPLINK_SHARES:
        return host.network.steps
    if control in {ResourceControl.DISK_WEIGHTS, ResourceControl.DISK_CEILING}:
        return host.disk.steps
    return host.memory.steps


def _reason_of(control: ResourceControl, goals: Iterable[ResourceGoal]) -> str:
    return next((goal.reason or "decided by the policy" for goal in goals if goal.control is control), "")
