"""How full a host is: the consolidation factor, what its VMs want of the CPU over what there is. Pure.

After Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation
management" (IM 2013), section IV.A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from manager.model.records import TickRecord


@dataclass(frozen=True, slots=True)
class Consolidation:
    """What VMs want on a host of ``pcpus``, in CPU seconds a second: what they ran, and what they waited for."""

    pcpus: int
    critical_pcpus: float = 0.0
    batch_pcpus: float = 0.0

    @property
    def critical(self) -> float:
        """The factor of the critical VMs alone; above 1 they cannot all have what they want."""
        return self.critical_pcpus / self.pcpus

    @property
    def total(self) -> float:
        """The factor of all VMs."""
        return (self.critical_pcpus + self.batch_pcpus) / self.pcpus

    def with_vm(self, critical: bool, demand_pcpus: float) -> Consolidation:
        """With one VM more that wants so much."""
        if critical:
            return replace(self, critical_pcpus=self.critical_pcpus + demand_pcpus)
        return replace(self, batch_pcpus=self.batch_pcpus + demand_pcpus)


def consolidation(
    ticks: Sequence[TickRecord], vcpus: Mapping[str, int], critical: frozenset[str], pcpus: int
) -> Consolidation:
    """Means over ticks of a host of ``pcpus``. ``vcpus`` by VM bound what each wants; those not in it do not count."""
    wanted = {True: 0.0, False: 0.0}
    for tick in ticks:
        for vm in tick.vms:
            if vm.vm in vcpus:
                used = vm.cpu_share * pcpus
                wanted[vm.vm in critical] += max(used, min(used + vm.run_delay_share, vcpus[vm.vm]))
    count = max(len(ticks), 1)
    return Consolidation(pcpus, wanted[True] / count, wanted[False] / count)


def overfull(after: Consolidation) -> str:
    """Why critical VMs cannot all have what they want; empty: they can."""
    if after.critical <= 1:
        return ""
    return (
        f"critical VMs would want {after.critical_pcpus:.2f} of {after.pcpus} pCPUs: a consolidation factor of"
        f" {after.critical:.2f} leaves nothing to give them"
    )
