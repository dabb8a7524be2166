"""Where everything that is not a placed vCPU runs: batch VMs, and the interrupts of network interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manager.control.placer import Pinned, allowed_cpus, usable_cpus, wants_pins
from manager.model.cpus import CpuSet
from manager.model.decision import Placement, Snapshot
from manager.model.registration import Mode
from manager.model.rules import BatchPlacement, IrqSteering


@dataclass(frozen=True, slots=True)
class Confined:
    """All threads of a VM are to stay on ``cpus``."""

    vm: str
    cpus: CpuSet
    reason: str


@dataclass(frozen=True, slots=True)
class Steered:
    """An interrupt is to be delivered to one pCPU."""

    irq: int
    cpu: int
    reason: str


def confine(
    snapshot: Snapshot, placement: Placement, pinned: Mapping[str, Pinned], taken: CpuSet = frozenset()
) -> tuple[Confined, ...]:
    """Where the VMs go that are not placed: batch VMs as the host's rules say, and any VM within its registered pCPUs.

    ``taken`` are pCPUs of VMs that cannot be read now: a fence stays off them. Sorted by VM name; VMs that may run
    everywhere are not among them. A VM for which a rule leaves no pCPU floats.
    """
    rules, online = snapshot.host.placement, snapshot.capabilities.online_cpus
    placed = dict(placement.cpus)
    critical = frozenset().union(*placed.values())
    loads = dict.fromkeys(sorted(usable_cpus(snapshot)), 0)
    found: list[Confined] = []
    free = [vm for vm in snapshot.vms if vm.name not in placed and vm.mode is not Mode.RELEASED and vm.vcpus]
    staying = {vm.name: _single_cpu(pinned.get(vm.name)) for vm in free}
    for cpu in staying.values():
        if cpu in loads:
            loads[cpu] += 1
    for vm in free:
        known = pinned.get(vm.name)
        own = frozenset().union(*known.originals) if known else online
        allowed = allowed_cpus(vm.spec, own, online)
        cpus, reason = allowed, "within its registered pCPUs"
        if not vm.critical and not wants_pins(vm, snapshot):
            if rules.batch is BatchPlacement.FENCE and allowed - critical:
                # Those taken may be of a batch VM, too: better on them than nowhere.
                cpus = allowed - critical - taken or allowed - critical
                reason = "batch VM: off the pCPUs of critical VMs"
            elif rules.batch is BatchPlacement.SINGLE:
                cpu = _least_loaded(loads, allowed, staying[vm.name])
                if cpu is not None:
                    cpus, reason = frozenset({cpu}), f"batch VM: all its threads on pCPU {cpu}"
        if cpus and cpus < own & online:
            found.append(Confined(vm.name, cpus, reason))
    return tuple(found)


def _single_cpu(known: Pinned | None) -> int | None:
    """The one pCPU that all vCPUs are on now, None where they are not."""
    cpus = set(known.now) if known else set()
    return cpus.pop() if len(cpus) == 1 else None


def _least_loaded(loads: dict[int, int], allowed: CpuSet, now: int | None) -> int | None:
    """The pCPU with the fewest batch VMs; the one it is on unless another has two fewer. Counts the VM there."""
    candidates = [cpu for cpu in loads if cpu in allowed]
    if not candidates:
        return None
    best = min(candidates, key=lambda cpu: (loads[cpu], cpu))
    if now in candidates and loads[now] - 1 <= loads[best]:
        return now
    if now in loads:
        loads[now] -= 1
    loads[best] += 1
    return best


def steer_interrupts(snapshot: Snapshot, placement: Placement, taken: CpuSet = frozenset()) -> tuple[Steered, ...]:
    """Where the queues of network interfaces are to be served, spread evenly in order of their numbers.

    ``serving`` takes the pCPUs of the placed critical VMs, ``reserved`` the reserved ones; nothing where there are
    none. Queues that the kernel itself placed are left out. ``taken``: see ``confine``.
    """
    rules = snapshot.host.placement
    critical = {vm.name for vm in snapshot.vms if vm.critical}
    if rules.irqs is IrqSteering.SERVING:
        cpus = sorted(taken.union(*(pins for name, pins in placement.cpus if name in critical)))
        reason = "network interrupt: where the critical VMs run"
    elif rules.irqs is IrqSteering.RESERVED:
        cpus = sorted(rules.reserved_cpus & snapshot.capabilities.online_cpus)
        reason = "network interrupt: on the reserved pCPUs"
    else:
        return ()
    if not cpus:
        return ()
    interfaces: dict[str, int] = {}
    found: list[Steered] = []
    for queue in snapshot.capabilities.topology.queues:
        place = interfaces.get(queue.interface, 0)
        interfaces[queue.interface] = place + 1
        if not queue.managed:
            found.append(Steered(queue.irq, cpus[place % len(cpus)], f"{reason} ({queue.interface})"))
    return tuple(found)
