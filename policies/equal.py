"""`equal`: every VM the kernel's default weight (cgroup v1: 1024, v2: 100)."""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.decision import Decision, Memory, Snapshot, WeightGoal


@dataclass(frozen=True, slots=True)
class Equal:
    """The baseline every other policy is measured against."""

    name: str = "equal"
    summary: str = "Every VM gets the kernel's default CPU weight: 1024 on cgroup v1, 100 on v2."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:  # noqa: ARG002 - memoryless
        """The default weight for every managed VM; nothing where the host has no weights."""
        scale = snapshot.capabilities.weights
        if scale is None:
            return Decision()
        return Decision(tuple(WeightGoal(vm.name, scale.default, "equal: default weight") for vm in snapshot.vms))


POLICY = Equal()
