"""Short ways to make topologies and requests for placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from manager.control.placement import PlacementRequest, VcpuNeed, place
from manager.model.decision import Placement
from manager.model.rules import PlacementRules
from manager.model.topology import NicQueue, Pcpu, Topology

ANYWHERE = frozenset(range(1024))
RULES = PlacementRules()


def machine(
    *,
    cores: int = 4,
    threads: int = 1,
    per_l3: int | None = None,
    per_node: int | None = None,
    irqs: Iterable[int] = (),
    slow: dict[int, float] | None = None,
) -> Topology:
    """A host whose siblings are numbered as Linux does on x86: pCPUs 0 .. cores - 1 first, then their siblings.

    ``per_l3`` and ``per_node`` are cores of a cache domain and a NUMA node, by default all; ``slow`` has the capacity
    of cores that are not the fastest.
    """
    per_l3, per_node = per_l3 or cores, per_node or cores
    pcpus = tuple(
        Pcpu(
            number,
            core=core,
            socket=core // per_node,
            node=core // per_node,
            l3=core // per_l3 * per_l3,
            capacity=(slow or {}).get(core, 1.0),
        )
        for number in range(cores * threads)
        for core in [number % cores]
    )
    served = frozenset(irqs)
    return Topology(pcpus, (NicQueue("eth0", 40, served, served),) if served else ())


def vm(
    name: str,
    *demands: float,
    nodes: Iterable[int] = (),
    allowed: Iterable[int] = ANYWHERE,
    pins: dict[int, int] | None = None,
) -> PlacementRequest:
    """A VM with a vCPU for each demand; ``pins`` are manual pins by vCPU."""
    usable = frozenset(allowed)
    needs = tuple(
        VcpuNeed(demand, frozenset({pins[index]}) if pins and index in pins else usable)
        for index, demand in enumerate(demands)
    )
    return PlacementRequest(name, needs, frozenset(nodes))


def put(
    topology: Topology,
    *requests: PlacementRequest,
    cpus: Iterable[int] | None = None,
    previous: dict[str, tuple[int, ...]] | None = None,
    moves: int = 0,
    min_gain: float = RULES.min_gain,
    interrupts: dict[int, float] | None = None,
) -> Placement:
    """Place VMs on all pCPUs of a host, or on some."""
    usable = topology.numbers if cpus is None else frozenset(cpus)
    return place(requests, topology, usable, previous or {}, PlacementRules(min_gain=min_gain), moves, interrupts or {})


def pins(placement: Placement) -> dict[str, tuple[int, ...]]:
    """The pCPUs of each VM."""
    return dict(placement.cpus)


def why(placement: Placement, name: str) -> Sequence[str]:
    """Why each vCPU of a VM is where it is."""
    [found] = [one for one in placement.vms if one.vm == name]
    return [vcpu.why for vcpu in found.vcpus]


def worst(placement: Placement) -> float:
    """The stretch of the VM that fares worst."""
    return max((one.stretch for one in placement.vms), default=1.0)
