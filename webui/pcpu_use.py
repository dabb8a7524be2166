"""How much of each pCPU the VMs of each class use, from what their agent reports of vCPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from manager.model.cpus import CpuSet

CLASSES = ("critical", "batch")

Uses = Mapping[int, Mapping[str, float]]
"""By pCPU and class, shares of the pCPU's time."""


def vcpu_uses(vm: Mapping[str, Any], pcpus: int, busy: Mapping[str, Sequence[float]]) -> list[float]:
    """The share of the time that each vCPU of a VM ran: as reported where one is busy, else the mean of all."""
    vcpus, used = vm["status"].get("vcpus", 0), busy.get(vm["name"], ())
    mean = vm["status"].get("cpu_share", 0.0) * pcpus / max(vcpus, 1)
    return [used[number] if number < len(used) else mean for number in range(vcpus)]


def pcpu_uses(threads: Iterable[tuple[str, CpuSet, float]], online: CpuSet) -> Uses:
    """What vCPUs (class, the pCPUs on which each may run, the share of the time that it runs) use of each pCPU.

    A pinned vCPU uses its own pCPU. What floats is spread over the pCPUs on which it may run, by what the pinned ones
    leave of them: an estimate, since nothing tells where it ran.
    """
    uses = {cpu: dict.fromkeys(CLASSES, 0.0) for cpu in online}
    floating = []
    for kind, cpus, share in threads:
        allowed = cpus & online
        if len(allowed) == 1:
            uses[next(iter(allowed))][kind] += share
        elif allowed:
            floating.append((kind, allowed, share))
    left = {cpu: max(1.0 - sum(parts.values()), 0.0) for cpu, parts in uses.items()}
    for kind, allowed, share in floating:
        room = sum(left[cpu] for cpu in allowed)
        for cpu in allowed:
            uses[cpu][kind] += share * (left[cpu] / room if room else 1 / len(allowed))
    return uses
