"""Many ticks of a host as one; and its vCPUs one by one, as averages hide one that is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter

from manager.control.resource_means import mean_resources
from manager.control.resource_rates import rounded
from manager.model.decision import VmView
from manager.model.records import BUSY_VCPU, FULL_VCPU, TickRecord, VcpuTick, VmTick
from manager.model.registration import Mode

VmValues = tuple[str, float, float, int | None, Mode, VcpuTick | None]
"""The fields of a VmTick, in their order."""
_VALUES = attrgetter(*(field.name for field in fields(VmTick)))


@dataclass(slots=True)
class VmSums:
    """Of a VM over ticks: how many tell of it, and what the newest of these says."""

    weight: int | None
    mode: Mode
    count: int = 0
    used: float = 0.0
    waited: float = 0.0
    vcpus: list[tuple[VcpuTick | None, int]] = field(default_factory=list)


def mean_tick(ticks: Sequence[tuple[TickRecord, int]]) -> TickRecord:
    """The mean of ticks, oldest first, each with how many ticks it is the mean of itself; raises ValueError for none.

    Of a VM, and of the power, over those that tell of it. Time, policy, mode and weights are those of the newest that
    tells.
    """
    return mean_of(ticks, summed((map(_VALUES, tick.vms), count) for tick, count in ticks))


def mean_of(ticks: Sequence[tuple[TickRecord, int]], sums: Mapping[str, VmSums]) -> TickRecord:
    """``mean_tick`` of ticks whose VMs are summed apart: an object for each takes longer to make than the mean."""
    if not ticks:
        raise ValueError("no ticks")
    newest = ticks[-1][0]
    busy = sum(weight * tick.host_cpu_share for tick, weight in ticks) / sum(weight for _, weight in ticks)
    means = tuple(
        VmTick(
            name,
            round(min(of_vm.used / of_vm.count, 1.0), 5),
            round(of_vm.waited / of_vm.count, 5),
            of_vm.weight,
            of_vm.mode,
            mean_vcpu(of_vm.vcpus),
        )
        for name, of_vm in sorted(sums.items())
    )
    measured = [(tick.resources, weight) for tick, weight in ticks if tick.resources is not None]
    resources = mean_resources(measured)
    kept = None if resources is None else rounded(resources)
    share, watts = round(min(busy, 1.0), 5), _mean_watts(ticks)
    return TickRecord(newest.time_s, newest.policy, newest.mode, share, means, kept, watts)


def summed(ticks: Iterable[tuple[Iterable[VmValues], int]]) -> dict[str, VmSums]:
    """By VM, of ticks with how many each stands for."""
    sums: dict[str, VmSums] = {}
    for vms, count in ticks:
        for name, used, waited, weight, mode, vcpu in vms:
            of_vm = sums.get(name)
            if of_vm is None:
                of_vm = sums[name] = VmSums(weight, mode)
            of_vm.weight, of_vm.mode = weight, mode
            of_vm.count += count
            of_vm.used += count * used
            of_vm.waited += count * waited
            of_vm.vcpus.append((vcpu, count))
    return sums


def summed_alike(
    names: Sequence[str],
    used: Iterable[Sequence[float]],
    waited: Iterable[Sequence[float]],
    newest: Iterable[tuple[int | None, Mode]],
) -> dict[str, VmSums]:
    """``summed`` of single ticks with the same VMs and no vCPU: by columns, and quicker.

    ``used`` and ``waited`` have a sequence for each tick, ``newest`` the weight and mode of each VM.
    """
    of_vms = zip(names, zip(*used, strict=True), zip(*waited, strict=True), newest, strict=True)
    return {name: VmSums(*last, len(shares), sum(shares), sum(delays)) for name, shares, delays, last in of_vms}


def _mean_watts(ticks: Sequence[tuple[TickRecord, int]]) -> float | None:
    """None: no tick has any."""
    known = [(tick.power_watts, weight) for tick, weight in ticks if tick.power_watts is not None]
    count = sum(weight for _, weight in known)
    return round(sum(watts * weight for watts, weight in known) / count, 2) if count else None


def busiest_vcpu(view: VmView) -> VcpuTick | None:
    """The vCPU that wanted to run most, None: none did for BUSY_VCPU of the interval, or it is not known."""
    if not view.vcpu_pcpus or max(view.vcpu_pcpus) + max(view.vcpu_waits) < BUSY_VCPU:  # most VMs, and quick
        return None
    wanted = [used + waited for used, waited in zip(view.vcpu_pcpus, view.vcpu_waits, strict=True)]
    most = max(wanted)
    if most < BUSY_VCPU:
        return None
    index = wanted.index(most)
    full = sum(pcpus >= FULL_VCPU for pcpus in wanted)
    return VcpuTick(index, round(view.vcpu_pcpus[index], 3), round(view.vcpu_waits[index], 3), full)


def busy_vms(views: Iterable[VmView], most: int) -> list[VmView]:
    """Those with a vCPU that wanted to run for BUSY_VCPU of the interval: critical ones first, at most so many."""
    busy = [
        (not view.critical, -(vcpu.used + vcpu.waited), view.name, view)
        for view in views
        if (vcpu := busiest_vcpu(view)) is not None
    ]
    return [view for *_, view in sorted(busy)[:most]]


def mean_vcpu(ticks: Iterable[tuple[VcpuTick | None, int]]) -> VcpuTick | None:
    """That of many ticks, each with how many it stands for: None where most of them have none."""
    ticks = list(ticks)
    busy = [(vcpu, weight) for vcpu, weight in ticks if vcpu is not None]
    if not busy:  # most VMs, and quick
        return None
    count = sum(weight for _, weight in busy)
    if 2 * count <= sum(weight for _, weight in ticks):
        return None
    used = sum(vcpu.used * weight for vcpu, weight in busy) / count
    waited = sum(vcpu.waited * weight for vcpu, weight in busy) / count
    full = round(sum(vcpu.full * weight for vcpu, weight in busy) / count)
    return VcpuTick(busy[-1][0].index, round(used, 3), round(waited, 3), full)
