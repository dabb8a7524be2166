"""Placement from interval to interval: who wants to be placed, by which measured demand, and how much may move.

What a vCPU wants is averaged over minutes, and a placement is looked at again only now and then, or at once when VMs,
pCPUs or pins changed: pins are to stand still while weights move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from manager.control.feedback_law import average
from manager.control.placement import PlacementRequest, VcpuNeed, place
from manager.model.cpus import CpuSet
from manager.model.decision import Placement, Snapshot, VmView
from manager.model.registration import Mode, VmSpec
from manager.model.rules import IrqSteering
from manager.model.topology import Topology

RECONSIDER_S = 10.0
"""Demand alone leads to another placement so often at most."""
DRIFT_PCPUS = 0.02
"""And only if a vCPU's average has changed by as much since a placement that had nothing to move."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """What is known of a VM's threads beside its view.

    ``now`` is the pCPU that each vCPU is pinned to, by whomever, up to the first that floats. ``originals`` are the
    pCPUs that each may use without us, ``nodes`` the NUMA nodes of its memory.
    """

    now: tuple[int, ...]
    originals: tuple[CpuSet, ...]
    nodes: frozenset[int] = frozenset()


Question = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class PlacerMemory:
    """Average demand by VM; the times at which vCPUs were moved; and the last placement, with what was asked then.

    ``settled_for`` is the demand for which a placement had nothing to move, None after one that had.
    """

    demand: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    moves_s: tuple[float, ...] = ()
    asked_s: float = 0.0
    question: Question | None = None
    placement: Placement = field(default_factory=Placement)
    settled_for: Mapping[str, tuple[float, ...]] | None = None


def usable_cpus(snapshot: Snapshot) -> CpuSet:
    """The pCPUs that VMs may be pinned to: managed, not reserved, and isolated ones only if all managed ones are.

    Who isolated pCPUs at boot has plans for them; naming nothing else in the setting ``managed_cpus`` says that they
    are meant for this.
    """
    capabilities = snapshot.capabilities
    managed = capabilities.managed_cpus - snapshot.host.placement.reserved_cpus
    isolated = capabilities.topology.isolated
    return managed if managed <= isolated else managed - isolated


def wants_pins(vm: VmView, snapshot: Snapshot) -> bool:
    """Whether a VM is to get pCPUs of its own: as registered for it, else critical ones as the host says."""
    if not vm.vcpus or vm.mode is Mode.RELEASED:
        return False
    return vm.critical and snapshot.host.pinning if vm.spec.pin is None else vm.spec.pin


def allowed_cpus(spec: VmSpec, original: CpuSet, online: CpuSet) -> CpuSet:
    """Where a thread may run: its VM's registered pCPUs, within those another tool restricted it to."""
    allowed = online if spec.cpus is None else spec.cpus & online
    return allowed & original if original & online < online else allowed


def plan_placement(
    snapshot: Snapshot, pinned: Mapping[str, Pinned], taken: CpuSet, memory: PlacerMemory
) -> tuple[Placement, PlacerMemory]:
    """Place the VMs that want pins; ``pinned`` is by VM name, ``taken`` are pCPUs of VMs that cannot be read now."""
    rules, topology = snapshot.host.placement, snapshot.capabilities.topology
    if rules.irqs is not IrqSteering.OFF:  # the interrupts go where they are told to, but for those that cannot
        topology = Topology(topology.cpus, tuple(queue for queue in topology.queues if queue.managed))
    wanting = [vm for vm in snapshot.vms if wants_pins(vm, snapshot) and vm.name in pinned]
    demand = {vm.name: _demand(vm, memory.demand.get(vm.name, ()), snapshot) for vm in wanting}
    cpus = usable_cpus(snapshot) - taken
    online = snapshot.capabilities.online_cpus
    allowed = {
        vm.name: tuple(allowed_cpus(vm.spec, original, online) for original in pinned[vm.name].originals)
        for vm in wanting
    }
    question = (tuple((name, allowed[name], pinned[name]) for name in sorted(allowed)), topology, cpus, rules)
    now_s = snapshot.steady_s
    if question == memory.question:
        if 0 <= now_s - memory.asked_s < RECONSIDER_S:
            return memory.placement, replace(memory, demand=demand)
        if memory.settled_for is not None and _alike(demand, memory.settled_for):
            return memory.placement, replace(memory, demand=demand, asked_s=now_s)
    moves_s = tuple(moved for moved in memory.moves_s if 0 <= now_s - moved < MINUTE_S)
    requests = [
        PlacementRequest(vm.name, tuple(map(VcpuNeed, demand[vm.name], allowed[vm.name])), pinned[vm.name].nodes)
        for vm in wanting
    ]
    previous = {vm.name: pinned[vm.name].now for vm in wanting if pinned[vm.name].now}
    budget = max(rules.moves_per_min - len(moves_s), 0)
    placement = place(requests, topology, cpus, previous, rules, budget)
    moved = sum(
        before != after and before in cpus & may  # it need not have moved
        for name, pins in placement.cpus
        for before, after, may in zip(previous.get(name, ()), pins, allowed[name], strict=False)
    )
    settled_for = demand if budget and placement.cpus == memory.placement.cpus else None
    return placement, PlacerMemory(demand, moves_s + (now_s,) * moved, now_s, question, placement, settled_for)


def _alike(demand: Mapping[str, tuple[float, ...]], before: Mapping[str, tuple[float, ...]]) -> bool:
    """Whether each vCPU of the same VMs wants about what it wanted."""
    pairs = ((now, then) for vm, wanted in demand.items() for now, then in zip(wanted, before[vm], strict=True))
    return all(abs(now - then) < DRIFT_PCPUS for now, then in pairs)


def _demand(vm: VmView, before: tuple[float, ...], snapshot: Snapshot) -> tuple[float, ...]:
    """What each vCPU wants, in pCPUs: what it used and what it waited for, averaged."""
    if len(vm.vcpu_pcpus) != vm.vcpus:
        return before if len(before) == vm.vcpus else (0.0,) * vm.vcpus
    waited = vm.run_delay_share / vm.vcpus
    smoothing = min(1.0, snapshot.interval_s / snapshot.host.placement.demand_window_s)
    return tuple(
        average(before[index] if len(before) == vm.vcpus else None, min(used + waited, 1.0), smoothing)
        for index, used in enumerate(vm.vcpu_pcpus)
    )
