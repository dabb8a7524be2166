"""Room: pCPUs that batch VMs leave to floating critical VMs while an SLA is at risk.

Weights decide who gets a pCPU that several want, and not who wants it. Where batch VMs fill every pCPU, none is ever
idle, so that two critical vCPUs that share one wait until the kernel next evens out its run queues, although the pCPU
beside them runs batch VMs only. A pCPU that batch VMs leave is idle as soon as no critical vCPU wants it, and the
kernel brings one there at once. Heracles (Lo et al., ISCA 2015) and Caladan (Fried et al., OSDI 2020) give pCPUs for
this reason. As many are left as critical VMs use on average, so that they are seldom idle, and batch VMs lose little.
It shortens vCPU wait and nothing else, so that it only begins where that is material.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from manager.control.feedback_law import average
from manager.control.placer import usable_cpus
from manager.model.cpus import format_cpus
from manager.model.decision import CpusGoal, Snapshot
from policies.cores import batch_vms, cpus_goal, enforced, ordered_cpus

MOST_LOST = 0.15
"""Share of their CPU time that batch VMs may lose to room, averaged over AVERAGED_S; then it ends until half of it."""
AVERAGED_S = 300.0
SMOOTHING = 0.2
FIRM_S = 5.0
"""An SLA that is only at risk must be so for so long: percentiles of one interval cross any threshold by chance."""
LASTING_S = 10.0
"""Room stays for so long after the last risk: most come again soon, and each time all batch VMs would move twice."""
HYSTERESIS = 0.5
"""As many pCPUs stay left while use is off by no more than this."""


@dataclass(frozen=True, slots=True)
class Room:
    """``pcpus`` are left by batch VMs now.

    ``used_pcpus``: the moving average of what critical VMs use. ``lost``: that of the share of their CPU time that
    batch VMs lose; ``spent``: they lost too much of it. An SLA is at risk since ``risk_since_s``, None: none is;
    ``risk_s`` is when one was last. ``began_s``: when they began to leave any.
    """

    pcpus: int = 0
    used_pcpus: float | None = None
    lost: float = 0.0
    spent: bool = False
    risk_since_s: float | None = None
    risk_s: float = -math.inf
    began_s: float = -math.inf


def next_room(
    before: Room,
    snapshot: Snapshot,
    *,
    at_risk: bool,
    violated: bool = False,
    waits: bool = True,
    may: bool = True,
    stays: bool = False,
) -> Room:
    """Room as of now, while an SLA is or was ``at_risk``, or even ``violated``; none at all unless there ``may`` be.

    It only begins where one at risk ``waits`` for pCPUs. ``stays``: as it is, while it does not cost too much. What
    batch VMs lost since the tick before was idle.
    """
    now_s = snapshot.steady_s
    since_s = (before.risk_since_s if before.risk_since_s is not None else now_s) if at_risk else None
    risk_s = now_s if at_risk else before.risk_s
    is_firm = violated or (since_s is not None and now_s - since_s >= FIRM_S)
    holds = now_s - risk_s < LASTING_S if before.pcpus else is_firm and waits
    online, usable = len(snapshot.capabilities.online_cpus), len(usable_cpus(snapshot))
    used_pcpus = average(before.used_pcpus, sum(vm.cpu_share for vm in snapshot.vms if vm.critical) * online, SMOOTHING)
    lost = before.lost + (_lost(before, snapshot) - before.lost) * min(1.0, snapshot.interval_s / AVERAGED_S)
    spent = lost > (MOST_LOST / 2 if before.spent else MOST_LOST)
    pcpus = _pcpus(before.pcpus, used_pcpus, usable) if may and holds and not spent else 0
    if stays and may and not spent:
        pcpus = min(before.pcpus, usable - 1)
    return Room(pcpus, used_pcpus, lost, spent, since_s, risk_s, before.began_s if before.pcpus else now_s)


def _pcpus(before: int, used_pcpus: float, usable: int) -> int:
    """How many are left: as many as critical VMs use, or as before while that is off by less than half of one."""
    keeps = before and before - HYSTERESIS <= used_pcpus < before + 1 + HYSTERESIS
    return max(min(before if keeps else math.floor(used_pcpus), usable - 1), 0)


def _lost(room: Room, snapshot: Snapshot) -> float:
    """Of what batch VMs could have had in the last interval, the share that was idle for their leaving pCPUs.

    Those that are only observed leave none.
    """
    if not room.pcpus or not enforced(batch_vms(snapshot)):
        return 0.0
    online = len(snapshot.capabilities.online_cpus)
    idle_pcpus = max(0.0, (1 - sum(vm.cpu_share for vm in snapshot.vms)) * online)
    got_pcpus = sum(vm.cpu_share for vm in snapshot.vms if not vm.critical) * online
    lost_pcpus = min(idle_pcpus, room.pcpus)
    return lost_pcpus / (lost_pcpus + got_pcpus) if lost_pcpus else 0.0


def room_goals(room: Room, snapshot: Snapshot) -> Iterator[CpusGoal]:
    """Batch VMs on the other pCPUs; one that may use none of these stays where it is."""
    if not room.pcpus:
        return
    order = ordered_cpus(snapshot)
    left, others = order[: room.pcpus], frozenset(order[room.pcpus :])
    why = f"auto: an SLA is at risk, so batch VMs leave pCPUs {format_cpus(frozenset(left))} to critical VMs"
    for vm in batch_vms(snapshot):
        goal = cpus_goal(vm, others, why)
        if goal:
            yield goal
