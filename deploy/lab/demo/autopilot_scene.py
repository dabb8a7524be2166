"""What the demonstration of the autopilot consists of: VMs, their load, and a phase for each policy."""

from __future__ import annotations

import os
from dataclasses import replace

from deploy.lab.demo.scene import EQUAL, MANAGED_PCPUS, DemoPhase, Scene, Service
from deploy.lab.lab_vms import PREFIX, GuestRole, LabVm
from manager.model.cpus import format_cpus

INTERVAL_S = 0.5
"""What `parties` asks for (its ``sample_s``) and less than `heracles` does. The interval is a setting of the agent that
the REST interface does not change, so all policies have it."""
SPIKE_TIMES = 1.5
"""The load of the service that spikes in the middle third, in multiples of that before."""
AGREED_TIMES = 1.5
"""The agreed rate in multiples of the highest load: the SLA always applies."""
LEAD_S = 4.0
"""So long, after the warm-up, it is measured at equal weights before the policy is set."""
AT_EQUAL = DemoPhase("equal", "all VMs at the kernel's default weight", EQUAL)
"""Before each turn, so that there is a violation to be cured."""
BY_HAND = DemoPhase("by hand", "the best hand-made setting: weights, pins, batch group", {"policy": "priority"})
STATIC, AUTO = "priority", "auto"
PHASES = (
    BY_HAND,
    *(
        DemoPhase(policy, f"policy {policy}, and nothing else", {"policy": policy})
        for policy in (STATIC, "fair", "parties", "heracles", AUTO)
    ),
)
"""The hand-made setting is that of `priority` with the product's defaults; how far the two are apart is noise."""


def late_vm() -> LabVm:
    """The batch VM that starts for the last third."""
    return _vm("batch-late", GuestRole.BATCH, 237, vcpus=2)


def autopilot_scene(late: LabVm) -> Scene:
    """Memcached, NGINX and batch VMs of one and two vCPUs on the first two pCPUs; ``late`` comes later."""
    online = frozenset(os.sched_getaffinity(0))
    managed = _managed()
    services = (
        Service("memcached", _vm("memcached", GuestRole.MEMCACHED, 231), rate_rps=2000, sla_ms=10.0, lead_s=LEAD_S),
        Service("nginx", _vm("nginx", GuestRole.NGINX, 232), rate_rps=500, sla_ms=10.0, lead_s=LEAD_S),
    )
    return Scene(
        managed,
        online - managed or managed,
        services,
        (_vm("batch-1", GuestRole.BATCH, 233), _vm("batch-2", GuestRole.BATCH, 234, vcpus=2)),
        interval_s=INTERVAL_S,
        push_interval_s=INTERVAL_S,
        late=late,
        tapped=True,
    )


def _managed() -> frozenset[int]:
    return frozenset(sorted(os.sched_getaffinity(0))[:MANAGED_PCPUS])


def _vm(name: str, role: GuestRole, last_octet: int, vcpus: int = 1) -> LabVm:
    cpus = "" if _managed() == os.sched_getaffinity(0) else format_cpus(_managed())
    return LabVm(PREFIX + name, role, f"192.168.122.{last_octet}", vcpus=vcpus, cpus=cpus)


def with_events(scene: Scene) -> Scene:
    """The scene with the spike of NGINX, and the rates that are agreed."""

    def service_with(service: Service) -> Service:
        spike_rps = service.rate_rps * SPIKE_TIMES if service.vm.role is GuestRole.NGINX else None
        most_rps = spike_rps or service.rate_rps
        return replace(service, spike_rps=spike_rps, max_rate_rps=round(AGREED_TIMES * most_rps, 1))

    return replace(scene, services=tuple(map(service_with, scene.services)))


def with_targets(scene: Scene, targets_ms: dict[str, float]) -> Scene:
    """The scene with these SLAs, by service."""
    return replace(
        scene, services=tuple(replace(service, sla_ms=targets_ms[service.name]) for service in scene.services)
    )
