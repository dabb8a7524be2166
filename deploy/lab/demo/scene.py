"""What the demonstrations consist of: VMs, pCPUs, load, SLAs and phases."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.lab.lab_vms import HTTP_PORT, MEMCACHED_PORT, PREFIX, GuestRole, LabVm
from manager.load import HttpOptions, LoadSpec, MemcachedOptions, Phase
from manager.model.cpus import format_cpus

MANAGED_PCPUS = 2
CONNECTIONS = 64
WARMUP_S = 3.0
FULLEST_ALONE = 0.55
"""Services that take more of the managed pCPUs by themselves answer late with nobody beside them."""
# As in the study, the spike doubles the load at first, and half more than the load is agreed. In fractions of the
# requests/s that the pCPU serves of one application, so that machines of any speed are filled alike; the SLA until one
# is found by measuring is in mean service times.
SPIKE_BASE_OF_CAPACITY = 0.285
SPIKE_SLA_SERVICE_TIMES = 13.0
CALM, SPIKING = "wiki-1", "wiki-2"


@dataclass(frozen=True, slots=True)
class Service:
    """A critical VM, the load it is given and the SLA it is registered with.

    With ``spike_rps`` the load has that rate in the middle third of the time after ``lead_s``, ``rate_rps`` else.
    """

    name: str
    vm: LabVm
    rate_rps: float
    sla_ms: float
    path: str = "/4k.txt"
    spike_rps: float | None = None
    max_rate_rps: float | None = None
    values: MemcachedOptions = field(default_factory=MemcachedOptions)
    seed: int = 1
    lead_s: float = 0.0

    def load(self, duration_s: float, push_interval_s: float) -> LoadSpec:
        """The same load whenever it is asked for, arrivals included."""
        port, protocol = (
            (MEMCACHED_PORT, self.values)
            if self.vm.role is GuestRole.MEMCACHED
            else (HTTP_PORT, HttpOptions(self.path))
        )
        rates = [self.rate_rps] if self.spike_rps is None else [self.rate_rps, self.spike_rps, self.rate_rps]
        part_s = (duration_s - self.lead_s) / len(rates)
        return LoadSpec(
            self.vm.ip,
            port,
            protocol,
            tuple(Phase(part_s + (0.0 if place else self.lead_s), rate_rps) for place, rate_rps in enumerate(rates)),
            warmup_s=WARMUP_S,
            connections=CONNECTIONS,
            seed=self.seed,
            interval_s=push_interval_s,
        )


@dataclass(frozen=True, slots=True)
class DemoPhase:
    """How the host is controlled while the load runs: by the product's defaults, but for ``settings`` of the host."""

    name: str
    says: str
    settings: Mapping[str, Any]
    batch_runs: bool = True
    warp: bool = False


EQUAL: Mapping[str, Any] = {"policy": "equal", "pinning": False, "placement": {"batch_group": "off"}}
PHASES = (
    DemoPhase("alone-pinned", "batch VMs paused, critical vCPUs pinned: the limit", {}, batch_runs=False),
    DemoPhase("equal", "all VMs at the kernel's default weight", EQUAL),
    DemoPhase("weighted", "weights and pins only", {"placement": {"batch_group": "off"}}),
    DemoPhase("protected", "what Equipoise does by itself", {}),
    DemoPhase("warp", "as equal, and critical VMs have the warp of their SLA", EQUAL, warp=True),
)
"""``protected`` sets nothing: the VMs, applications and SLAs are registered, and that is all."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The pCPUs the VMs run on, those of the load generators (the same ones where there are no others), the VMs.

    ``interval_s`` is the control interval, ``push_interval_s`` how often load generators tell of response times.
    ``late`` is a batch VM that is registered with the others, but started in the middle of a run. ``tapped``: response
    times come from the VMs' taps, and not from the load generators. ``clients`` is the network namespace that load
    generators run in; empty: the host's.
    """

    managed_cpus: frozenset[int]
    load_cpus: frozenset[int]
    services: tuple[Service, ...]
    batch: tuple[LabVm, ...]
    interval_s: float = 1.0
    push_interval_s: float = 2.0
    late: LabVm | None = None
    tapped: bool = False
    clients: str = ""

    @property
    def vms(self) -> tuple[LabVm, ...]:
        """All VMs that run throughout, critical ones first."""
        return (*(service.vm for service in self.services), *self.batch)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """So many batch VMs of so many vCPUs each."""

    vms: int = 2
    vcpus: int = 2

    def __str__(self) -> str:
        return f"{self.vms}x{self.vcpus}"


MOST_BATCH_VMS, MOST_BATCH_VCPUS = 4, 4


def parse_shape(text: str) -> BatchShape:
    """Such as ``2x4``: two VMs of four vCPUs. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,3})x([0-9]{1,3})", text)
    shape = BatchShape(int(found[1]), int(found[2])) if found else None
    if shape is None or not (1 <= shape.vms <= MOST_BATCH_VMS and 1 <= shape.vcpus <= MOST_BATCH_VCPUS):
        raise ValueError(
            f"{text!r} is refused: use NxM, 1 to {MOST_BATCH_VMS} VMs of 1 to {MOST_BATCH_VCPUS} vCPUs, such as 2x4"
        )
    return shape


def phases_scene(shape: BatchShape) -> Scene:
    """The scene for this machine: VMs on its first two pCPUs, load generators on the others if there are any."""
    online = sorted(os.sched_getaffinity(0))
    managed = frozenset(online[:MANAGED_PCPUS])
    load = frozenset(online) - managed or managed
    cpus = "" if managed == frozenset(online) else format_cpus(managed)

    def vm(name: str, role: GuestRole, last_octet: int, vcpus: int) -> LabVm:
        return LabVm(PREFIX + name, role, f"192.168.122.{last_octet}", vcpus=vcpus, cpus=cpus)

    services = (
        Service("memcached", vm("memcached", GuestRole.MEMCACHED, 231, 1), rate_rps=2000, sla_ms=2.0),
        Service("nginx", vm("nginx", GuestRole.NGINX, 232, 1), rate_rps=500, sla_ms=10.0),
    )
    batch = tuple(vm(f"batch-{number + 1}", GuestRole.BATCH, 233 + number, shape.vcpus) for number in range(shape.vms))
    return Scene(managed, load, services, batch)


def eased(scene: Scene, alone_share: float) -> Scene:
    """The scene with all loads smaller by one factor where the services alone took too much of the managed pCPUs.

    Emulated guests on a slow machine do; ``alone_share`` is what was measured.
    """
    factor = min(1.0, FULLEST_ALONE / alone_share) if alone_share > 0 else 1.0
    return replace(scene, services=tuple(replace(one, rate_rps=one.rate_rps * factor) for one in scene.services))


def spike_scene(capacity_rps: float) -> Scene:
    """Two NGINX applications alike and a batch VM, all on one pCPU; the load of the second doubles for a while.

    All threads of the VMs are on that pCPU, so that the two compete for it, and the load generators on others.
    ``capacity_rps`` is how many requests/s one application can serve by itself. Which spike breaks the SLA under static
    weights, and which SLA that is, has to be measured (``deploy.lab.demo.calibrate``).
    """
    base_rps = SPIKE_BASE_OF_CAPACITY * capacity_rps
    sla_ms = round(SPIKE_SLA_SERVICE_TIMES * 1000 / capacity_rps, 3)
    online = sorted(os.sched_getaffinity(0))
    managed = frozenset(online[:1])
    cpus = format_cpus(managed)

    def vm(name: str, role: GuestRole, last_octet: int) -> LabVm:
        return LabVm(PREFIX + name, role, f"192.168.122.{last_octet}", cpus=cpus)

    services = tuple(
        Service(
            name,
            vm(name, GuestRole.NGINX, octet),
            rate_rps=base_rps,
            sla_ms=sla_ms,
            path="/gzip",
            spike_rps=spike_rps,
            max_rate_rps=round(1.5 * base_rps, 1),
            seed=octet,
        )
        for name, octet, spike_rps in ((CALM, 235, None), (SPIKING, 236, 2 * base_rps))
    )
    batch = (vm("batch-1", GuestRole.BATCH, 233),)
    return Scene(managed, frozenset(online) - managed or managed, services, batch, 5.0, 1.0)


def with_spike(scene: Scene, times: float) -> Scene:
    """The scene with a spike of so many times the load."""
    services = tuple(
        one if one.spike_rps is None else replace(one, spike_rps=times * one.rate_rps) for one in scene.services
    )
    return replace(scene, services=services)


def with_sla(scene: Scene, sla_ms: float) -> Scene:
    """The scene with that SLA for all applications."""
    return replace(scene, services=tuple(replace(one, sla_ms=sla_ms) for one in scene.services))
