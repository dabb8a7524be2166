"""What the vCPUs of a VM did in an interval, one by one: averages hide one that is full."""

from __future__ import annotations

from collections.abc import Iterable

from manager.model.decision import VmView
from manager.model.records import BUSY_VCPU, FULL_VCPU, VcpuTick


def busiest_vcpu(view: VmView) -> VcpuTick | None:
    """The vCPU that wanted to run most, None: none did for BUSY_VCPU of the interval, or it is not known."""
    if not view.vcpu_pcpus or max(view.vcpu_pcpus) + max(view.vcpu_waits) < BUSY_VCPU:  # most VMs, and quick
        return None
    wanted = [used + waited for used, waited in zip(view.vcpu_pcpus, view.vcpu_waits, strict=True)]
    most = max(wanted)
    if most < BUSY_VCPU:
        return None
    index = wanted.index(most)
    full = sum(one >= FULL_VCPU for one in wanted)
    return VcpuTick(index, round(view.vcpu_pcpus[index], 3), round(view.vcpu_waits[index], 3), full)


def busy_vms(views: Iterable[VmView], most: int) -> list[VmView]:
    """Those with a vCPU that wanted to run for BUSY_VCPU of the interval: critical ones first, at most so many."""
    busy = [(view, found) for view in views if (found := busiest_vcpu(view)) is not None]
    busy.sort(key=lambda one: (not one[0].critical, -(one[1].used + one[1].waited), one[0].name))
    return [view for view, _ in busy[:most]]


def mean_vcpu(ticks: Iterable[tuple[VcpuTick | None, int]]) -> VcpuTick | None:
    """That of many ticks, each with how many it stands for: None where most of them have none."""
    told = list(ticks)
    known = [(vcpu, weight) for vcpu, weight in told if vcpu is not None]
    count = sum(weight for _, weight in known)
    if 2 * count <= sum(weight for _, weight in told):
        return None
    used = sum(vcpu.used * weight for vcpu, weight in known) / count
    waited = sum(vcpu.waited * weight for vcpu, weight in known) / count
    full = round(sum(vcpu.full * weight for vcpu, weight in known) / count)
    return VcpuTick(known[-1][0].index, round(used, 3), round(waited, 3), full)
