"""What the demonstration consists of: VMs, pCPUs, load, SLAs and phases."""

from __future__ import annotations

import os
from dataclasses import dataclass

from deploy.lab.loadgen import HttpOptions, LoadSpec, MemcachedOptions, Phase
from deploy.lab.vms import HTTP_PORT, MEMCACHED_PORT, PREFIX, LabVm, Role
from manager.model.cpus import format_cpus

MANAGED_PCPUS = 2
CONNECTIONS = 64
WARMUP_S = 3.0
PUSH_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Service:
    """A critical VM, the load it is given and the SLA it is registered with."""

    name: str
    vm: LabVm
    rate_rps: float
    sla_ms: float

    def load(self, duration_s: float) -> LoadSpec:
        """The same load in every phase, arrivals included."""
        port, protocol = (
            (MEMCACHED_PORT, MemcachedOptions())
            if self.vm.role is Role.MEMCACHED
            else (HTTP_PORT, HttpOptions("/4k.txt"))
        )
        return LoadSpec(
            self.vm.ip,
            port,
            protocol,
            (Phase(duration_s, self.rate_rps),),
            warmup_s=WARMUP_S,
            connections=CONNECTIONS,
            interval_s=PUSH_INTERVAL_S,
        )


@dataclass(frozen=True, slots=True)
class DemoPhase:
    """How the host is controlled while the load runs."""

    name: str
    says: str
    policy: str
    pinning: bool
    batch_runs: bool


PHASES = (
    DemoPhase("alone", "batch VMs paused", "equal", pinning=False, batch_runs=False),
    DemoPhase("equal", "all VMs at the kernel's default weight", "equal", pinning=False, batch_runs=True),
    DemoPhase("priority", "critical VMs weigh more", "priority", pinning=False, batch_runs=True),
    DemoPhase("pinned", "and have a pCPU to each vCPU", "priority", pinning=True, batch_runs=True),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """The pCPUs the VMs run on, those of the load generators (the same ones where there are no others), the VMs."""

    managed_cpus: frozenset[int]
    load_cpus: frozenset[int]
    services: tuple[Service, ...]
    batch: tuple[LabVm, ...]

    @property
    def vms(self) -> tuple[LabVm, ...]:
        """All VMs, critical ones first."""
        return (*(service.vm for service in self.services), *self.batch)


def make_scene() -> Scene:
    """The scene for this machine: VMs on its first two pCPUs, load generators on the others if there are any.

    There is a batch VM of one vCPU for each managed pCPU, so that batch alone fills them. One vCPU, because the kernel
    reweighs a VM's group on every pCPU whenever threads of it come and go on several, which makes critical VMs wait
    for timer ticks (docs/lab.md, "Batch VMs with several vCPUs").
    """
    online = sorted(os.sched_getaffinity(0))
    managed = frozenset(online[:MANAGED_PCPUS])
    load = frozenset(online) - managed or managed
    cpus = "" if managed == frozenset(online) else format_cpus(managed)

    def vm(name: str, role: Role, last_octet: int, vcpus: int) -> LabVm:
        return LabVm(PREFIX + name, role, f"192.168.122.{last_octet}", vcpus=vcpus, cpus=cpus)

    services = (
        Service("memcached", vm("memcached", Role.MEMCACHED, 231, 1), rate_rps=2000, sla_ms=2.0),
        Service("nginx", vm("nginx", Role.NGINX, 232, 1), rate_rps=500, sla_ms=10.0),
    )
    batch = tuple(vm(f"batch-{number + 1}", Role.BATCH, 233 + number, 1) for number in range(len(managed)))
    return Scene(managed, load, services, batch)
