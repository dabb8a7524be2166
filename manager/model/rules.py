"""The settings of placement, each named and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from manager.model.cpus import CpuSet


class BatchPlacement(StrEnum):
    """Where batch VMs run.

    ``float``: on all pCPUs, so that no cycle is lost. ``fence``: on those that no critical vCPU is pinned to.
    ``single``: each on one pCPU, so that the critical VMs beside it wake up promptly (docs/internals/lab.md, "Batch VMs
    with several vCPUs"), at the price that it uses no more than one.
    """

    FLOAT = "float"
    FENCE = "fence"
    SINGLE = "single"


class IrqSteering(StrEnum):
    """Which pCPUs serve the interrupts of network interfaces.

    ``off``: as they are. ``reserved``: those in ``reserved_cpus``. ``serving``: those of the critical VMs, so that a
    packet is handled where it is wanted.
    """

    OFF = "off"
    RESERVED = "reserved"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """How VMs are placed on a host's pCPUs.

    ``reserved_cpus``: pCPUs that no VM is pinned to. ``min_gain``: a placed vCPU moves only where that makes the worst
    expected response time of the VMs concerned smaller by this fraction. ``moves_per_min``: so many vCPUs of placed
    VMs move in a minute at most. ``demand_window_s``: time over which the CPU use of vCPUs is averaged.
    """

    batch: BatchPlacement = BatchPlacement.FLOAT
    reserved_cpus: CpuSet = frozenset()
    irqs: IrqSteering = IrqSteering.OFF
    min_gain: float = 0.2
    moves_per_min: int = 6
    demand_window_s: float = 60.0


DEFAULT_RULES = PlacementRules()

BOUNDS: dict[str, tuple[float, float]] = {
    "min_gain": (0, 10),
    "moves_per_min": (0, 1000),
    "demand_window_s": (1, 3600),
}
"""Least and largest value of each number."""
