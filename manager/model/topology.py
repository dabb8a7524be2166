"""A host's pCPUs as hardware: cores, caches, memory nodes, and the network queues whose interrupts they serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.cpus import CpuSet
from manager.model.fields import CLOSED, Count, Cpus, SafeText


@dataclass(frozen=True, slots=True)
class Pcpu:
    """An online logical CPU.

    ``core`` and ``l3`` name the physical core and the last-level-cache domain by their lowest CPU, so both are unique
    on the host; ``socket`` and ``node`` are the kernel's numbers. ``capacity`` is its speed as a fraction of the
    host's fastest CPU (below 1 on the small cores of hybrid processors). ``isolated``: the kernel balances no load
    onto it (isolcpus=), so it runs only what is pinned there.
    """

    number: Count
    core: Count
    socket: int
    node: int
    l3: Count
    capacity: Annotated[float, Field(description="speed as a fraction of the host's fastest pCPU")] = 1.0
    isolated: bool = False
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class NicQueue:
    """An interrupt of a network interface and the CPUs it may be delivered to (smp_affinity).

    ``serving`` are those it is delivered to now (effective_affinity), the same where the kernel does not tell.
    ``managed``: the kernel placed it itself and refuses another affinity.
    """

    interface: SafeText
    irq: Count
    cpus: Cpus
    serving: Cpus
    managed: Annotated[bool, Field(description="the kernel placed it itself and refuses another affinity")] = False
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class Topology:
    """The online pCPUs in order of their numbers, and the queues of network interfaces in order of their interrupts."""

    cpus: tuple[Pcpu, ...] = ()
    queues: tuple[NicQueue, ...] = ()
    __pydantic_config__: ClassVar = CLOSED

    @classmethod
    def flat(cls, cpus: Iterable[int]) -> Topology:
        """Of pCPUs about which nothing is known: a core each, in one socket with one memory node and one cache."""
        numbers = sorted(cpus)
        return cls(tuple(Pcpu(number, core=number, socket=0, node=0, l3=min(numbers)) for number in numbers))

    @property
    def numbers(self) -> CpuSet:
        """The numbers of all pCPUs."""
        return frozenset(cpu.number for cpu in self.cpus)

    @property
    def isolated(self) -> CpuSet:
        """Those that the kernel balances no load onto."""
        return frozenset(cpu.number for cpu in self.cpus if cpu.isolated)

    def whole_cores(self, cpus: CpuSet) -> CpuSet:
        """These pCPUs with all siblings: every thread of the cores that they are on."""
        cores = {cpu.core for cpu in self.cpus if cpu.number in cpus}
        return cpus.union(cpu.number for cpu in self.cpus if cpu.core in cores)

    @property
    def interrupted(self) -> CpuSet:
        """Those that serve interrupts of network interfaces."""
        return frozenset().union(*(queue.serving for queue in self.queues))
