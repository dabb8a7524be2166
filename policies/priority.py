"""`priority`: static weights, critical 10000 and batch 2 (cgroup v2: 1), or a weight of the VM's own.

Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation
management", IM 2013, section on static prioritisation.
"""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.decision import Decision, Memory, Snapshot, VmView, WeightGoal
from manager.model.host import WeightScale


@dataclass(frozen=True, slots=True)
class Priority:
    """Critical VMs first, whatever their response times are."""

    name: str = "priority"
    summary: str = "Static: critical VMs get weight 10000 (or their own), batch VMs the smallest there is."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:  # noqa: ARG002 - memoryless
        """A weight for every managed VM; nothing where the host has no weights."""
        scale = snapshot.capabilities.weights
        if scale is None:
            return Decision()
        return Decision(tuple(_goal(vm, scale) for vm in snapshot.vms))


def _goal(vm: VmView, scale: WeightScale) -> WeightGoal:
    if vm.spec.weight is not None:
        return WeightGoal(vm.name, vm.spec.weight, "priority: weight registered for this VM")
    if vm.critical:
        return WeightGoal(vm.name, scale.critical, "priority: critical VM")
    return WeightGoal(vm.name, scale.batch, "priority: batch VM")


POLICY = Priority()
