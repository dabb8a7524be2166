"""Many ticks of a host as one."""

from __future__ import annotations

from collections.abc import Sequence

from manager.control.vcpus import mean_vcpu
from manager.model.records import TickRecord, VcpuTick, VmTick


def mean_tick(ticks: Sequence[tuple[TickRecord, int]]) -> TickRecord:
    """The mean of ticks, oldest first, each with how many ticks it is the mean of itself; raises ValueError for none.

    Of a VM over those that tell of it. Time, policy, mode and weights are those of the newest that tells.
    """
    if not ticks:
        raise ValueError("no ticks")
    newest = ticks[-1][0]
    sums: dict[str, tuple[int, float, float, VmTick]] = {}
    vcpus: dict[str, list[tuple[VcpuTick | None, int]]] = {}
    for tick, weight in ticks:
        for vm in tick.vms:
            vcpus.setdefault(vm.vm, []).append((vm.vcpu, weight))
            count, used, waited, _ = sums.get(vm.vm, (0, 0.0, 0.0, vm))
            sums[vm.vm] = count + weight, used + weight * vm.cpu_share, waited + weight * vm.run_delay_share, vm
    busy = sum(weight * tick.host_cpu_share for tick, weight in ticks) / sum(weight for _, weight in ticks)
    vms = tuple(
        VmTick(
            name,
            round(min(used / count, 1.0), 5),
            round(waited / count, 5),
            last.weight,
            last.mode,
            mean_vcpu(vcpus[name]),
        )
        for name, (count, used, waited, last) in sorted(sums.items())
    )
    return TickRecord(newest.time_s, newest.policy, newest.mode, round(min(busy, 1.0), 5), vms)
