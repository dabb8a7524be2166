"""Which pCPU each batch VM gets where all its threads stay on one (placement rule ``single``).

A service is as fast as its slowest thread, so a batch VM beside one of its vCPUs costs it as much as one beside each:
"if you wish to share a CPU core with other workloads (either via OS scheduling or hyperthreading), you might as well
share all of the cores that memcached is running on" (Leverich and Kozyrakis, EuroSys 2014, section 4.2). So batch VMs
go to cores without critical vCPUs, then to the siblings of a whole service, then to all pCPUs of a whole service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from manager.model.cpus import CpuSet
from manager.model.topology import Topology

STACK = 2
"""Batch VMs on a pCPU before a service is shared for which there are too few of them."""


@dataclass(frozen=True, slots=True)
class Block:
    """pCPUs that batch VMs use all or none of. ``service`` is whose they are, "" where no critical vCPU is near.

    ``siblings``: no vCPU of the service is on them, but beside them on the same cores.
    """

    cpus: tuple[int, ...]
    service: str = ""
    siblings: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """A batch VM that is to have a pCPU: where it may run, and the one it is on now."""

    vm: str
    allowed: CpuSet
    now: int | None = None


def blocks_of(topology: Topology, usable: CpuSet, services: Mapping[str, CpuSet]) -> tuple[Block, ...]:
    """The usable pCPUs in the order in which batch VMs get them.

    First those on cores without a critical vCPU; then the free siblings of each of the ``services``; then the pCPUs of
    each. Of services those with the fewest pCPUs come first, as there are the soonest enough batch VMs for all of them.
    Services that share a pCPU count as one.
    """
    pinned = frozenset[int]().union(*services.values())
    near = topology.whole_cores(pinned)
    free = Block(tuple(sorted(usable - near)))
    beside: list[Block] = []
    own: list[Block] = []
    left = usable & near - pinned
    for service, cpus in _apart(services):
        siblings = topology.whole_cores(cpus) & left
        left -= siblings
        beside.append(Block(tuple(sorted(siblings)), service, siblings=True))
        own.append(Block(tuple(sorted(cpus & usable)), service))
    beside.sort(key=lambda block: len(block.cpus))
    own.sort(key=lambda block: len(block.cpus))
    return tuple(block for block in (free, *beside, *own) if block.cpus)


def _apart(services: Mapping[str, CpuSet]) -> Sequence[tuple[str, CpuSet]]:
    """Services, or several together, that share no pCPU; in the order of their names."""
    apart: list[tuple[str, CpuSet]] = []
    for service, cpus in sorted(services.items()):
        sharing = [(name, used) for name, used in apart if used & cpus]
        together = " and ".join([*(name for name, _ in sharing), service])
        rest = [(name, used) for name, used in apart if not used & cpus]
        apart = [*rest, (together, cpus.union(*(used for _, used in sharing)))]
    return apart


def opened(blocks: Sequence[Block], count: int) -> CpuSet:
    """The pCPUs for so many batch VMs: whole blocks, in their order, while there is a VM for each pCPU of the next.

    With fewer VMs the next block is taken all the same before more than STACK of them would share a pCPU. More VMs get
    the pCPUs that fewer get, and more.
    """
    cpus: set[int] = set()
    for block in blocks:
        fits = not block.service or count - len(cpus) >= len(block.cpus)
        if not fits and count <= STACK * len(cpus):
            break
        cpus.update(block.cpus)
        if not fits:
            break
    return frozenset(cpus)


def seat(seats: Sequence[Seat], others: Iterable[int], blocks: Sequence[Block]) -> Mapping[str, tuple[int, str]]:
    """The pCPU of each VM that may use one, and why that.

    They are spread evenly over the ``opened`` pCPUs, the first ones first, and none moves to one with as many VMs as
    its own or one less. A VM that may use none of these gets another. ``others`` are the pCPUs of VMs that are not
    placed but stay on one.
    """
    usable = [cpu for block in blocks for cpu in block.cpus]
    loads = dict.fromkeys(usable, 0)
    for cpu in (*others, *(one.now for one in seats)):
        if cpu in loads:
            loads[cpu] += 1
    given = opened(blocks, len(seats))
    found: dict[str, int] = {}
    for one in sorted(seats, key=lambda one: (len(one.allowed & loads.keys()), one.vm)):  # the least choice first
        cpu = _least_loaded(loads, one.allowed & given or one.allowed, one.now)
        if cpu is not None:
            found[one.vm] = cpu
    used = frozenset(found.values())
    why = {cpu: _why(block, used) for block in blocks for cpu in block.cpus}
    return {vm: (cpu, f"batch VM: all its threads on pCPU {cpu}{why[cpu]}") for vm, cpu in found.items()}


def _why(block: Block, used: CpuSet) -> str:
    if not block.service:
        return ", on a core without critical vCPUs"
    whole = used.issuperset(block.cpus)
    where = f"a sibling of {block.service}" if block.siblings else f"beside {block.service}"
    if whole:
        every = "all of its cores are" if block.siblings else "all of its pCPUs are"
        return f", {where}: {every} shared with batch"
    every = "siblings" if block.siblings else "pCPUs"
    return f", {where}: too few batch VMs can run on its other {every}"


def _least_loaded(loads: dict[int, int], allowed: CpuSet, now: int | None) -> int | None:
    """The first pCPU with the fewest VMs; the one it is on unless another has two fewer. Counts the VM there."""
    candidates = [cpu for cpu in loads if cpu in allowed]
    if not candidates:
        return None
    best = min(candidates, key=loads.__getitem__)
    if now in candidates and loads[now] - 1 <= loads[best]:
        return now
    if now in loads:
        loads[now] -= 1
    loads[best] += 1
    return best
