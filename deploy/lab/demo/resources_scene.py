"""What the demonstration of memory, disk and network consists of: for each resource a service and who harms it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.lab.demo.scene import EQUAL, MANAGED_PCPUS, DemoPhase, Scene, Service
from deploy.lab.lab_vms import PREFIX, GuestRole, LabVm
from deploy.lab.slow_wire import CLIENTS_ADDRESS, UPLINK
from manager.load.spec import MemcachedOptions
from manager.model.cpus import format_cpus
from manager.model.knobs import Knob

ALONE, UNPROTECTED, CPU_ONLY, PROTECTED = "alone", "equal", "cpu only", "protected"
DISK_REQUESTS_PER_S = 500
DISK_MIB, SERVED_MIB, USED_MIB = 64, 8, 8
"""Of the slow disk, the image that NGINX serves a file of, and the one that an antagonist reads and writes."""
DISK_FILE = "4k.txt"
WIRE_MBIT, SHARED_MBIT = 50, 45
"""What the wire behind the uplink carries, and what of that Equipoise divides: its queue is to be the only one."""
DISK_RATE_RPS, WEB_RATE_RPS, MEMCACHED_RATE_RPS = 150.0, 100.0, 1000.0
"""Of files, each a request of the disk: more than an equal share beside ``DISK_ANTAGONISTS``. BFQ serves who takes less
than that in time whatever the weights."""
DISK_ANTAGONISTS = 4
VALUES = MemcachedOptions(keys=6000, value_bytes=4000)
"""What a memcached that is to be short of memory holds, 24 MB, and is asked for."""
VALUES_RATE_RPS = 200.0
TAKEN_MIB, VMS_MIB, SWAP_MIB = 160, 220, 512
"""What the antagonist touches for ever, and what all VMs together may have: less than the two need, some 80 MiB of the
service's among it; what is not used, such as of their boot, goes to the swap."""
MEMORY_SETTLE_S = 10.0
"""So long a service reads again what was taken from it in the phase before."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that VMs share: who is harmed, by whom, and what of Equipoise protects it.

    ``settings`` of the host switch on what sets ``knobs``; without any, nothing protects this resource as such. Each
    phase lasts ``settle_s`` before it counts.
    """

    name: str
    says: str
    service: GuestRole
    antagonist: Mapping[str, str | int]
    rate_rps: float
    path: str = "/4k.txt"
    antagonists: int = 1
    settings: Mapping[str, Any] | None = None
    knobs: frozenset[Knob] = frozenset()
    values: MemcachedOptions = field(default_factory=MemcachedOptions)
    settle_s: float = 1.0

    @property
    def phases(self) -> tuple[DemoPhase, ...]:
        """From the limit to what Equipoise does."""
        phases = (
            DemoPhase(ALONE, "the antagonist paused: the limit", {}, batch_runs=False),
            DemoPhase(UNPROTECTED, "all VMs at the kernel's default weight", EQUAL),
            DemoPhase(CPU_ONLY, "what Equipoise does by itself, for CPU time alone", {}),
        )
        if self.settings is None:
            return phases
        return (*phases, DemoPhase(PROTECTED, f"and {self.says}", self.settings))


RESOURCES = (
    Resource(
        "memory",
        "protection of the service's memory, and ceilings",
        GuestRole.MEMCACHED,
        {"kind": "memory", "mib": TAKEN_MIB, "mib_per_s": 64},
        VALUES_RATE_RPS,
        settings={"memory": {"protect": True, "ceilings": True}},
        knobs=frozenset({Knob.MEMORY_PROTECTION, Knob.MEMORY_CEILING, Knob.SWAPPINESS}),
        values=VALUES,
        settle_s=MEMORY_SETTLE_S,
    ),
    Resource(
        "disk",
        "weights and ceilings of VMs on the disk",
        GuestRole.NGINX,
        {"kind": "disk", "threads": 16, "write_percent": 50},
        DISK_RATE_RPS,
        path=f"/disk/{DISK_FILE}",
        antagonists=DISK_ANTAGONISTS,
        settings={"disk": {"weights": True, "ceilings": True}},
        knobs=frozenset({Knob.BFQ_WEIGHT, Knob.IO_WEIGHT, Knob.DISK_CEILING}),
    ),
    Resource(
        "network",
        "shares of the uplink",
        GuestRole.NGINX,
        {"kind": "network", "threads": 2, "bytes": 1400, "to": CLIENTS_ADDRESS},
        WEB_RATE_RPS,
        settings={"network": {"shares": True, "uplinks": [{"interface": UPLINK, "rate_mbit": SHARED_MBIT}]}},
        knobs=frozenset({Knob.EGRESS_GROUP}),
    ),
    Resource(
        "interrupts",
        "",
        GuestRole.MEMCACHED,
        {"kind": "network", "threads": 2, "bytes": 1, "to": "192.168.122.1"},
        MEMCACHED_RATE_RPS,
    ),
    Resource(
        "cache",
        "",
        GuestRole.MEMCACHED,
        {"kind": "cache", "threads": 2, "mib": 64},
        MEMCACHED_RATE_RPS,
    ),
)


def resource_scene(resource: Resource) -> Scene:
    """The VMs of service and antagonists on the first two pCPUs; load generators on the others, if there are any."""
    online = frozenset(os.sched_getaffinity(0))
    managed = frozenset(sorted(online)[:MANAGED_PCPUS])
    cpus = "" if managed == online else format_cpus(managed)
    service = LabVm(f"{PREFIX}{resource.service}", resource.service, "192.168.122.231", cpus=cpus)
    antagonists = tuple(
        LabVm(
            f"{PREFIX}antagonist-{number + 1}",
            GuestRole.ANTAGONIST,
            f"192.168.122.{233 + number}",
            vcpus=2,
            cpus=cpus,
            options=resource.antagonist,
        )
        for number in range(resource.antagonists)
    )
    at = Service(resource.service, service, resource.rate_rps, 10.0, resource.path, values=resource.values)
    return Scene(managed, online - managed or managed, (at,), antagonists, push_interval_s=1.0)


def with_disks(scene: Scene, disks: Mapping[str, Any]) -> Scene:
    """The scene with these images as disks, by name of the VM."""
    services = tuple(
        replace(service, vm=replace(service.vm, disk=disks.get(service.vm.name))) for service in scene.services
    )
    return replace(scene, services=services, batch=tuple(replace(vm, disk=disks.get(vm.name)) for vm in scene.batch))
