"""The settings of placement, each named and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import CLOSED, Cpus
from manager.model.network import BATCH_PART, MOST_KBIT
from manager.model.power import MOST_LATENCY_US


class BatchPlacement(StrEnum):
    """Where batch VMs run.

    ``float``: on all pCPUs, so that no cycle is lost. ``fence``: on cores that no critical vCPU is pinned to, or where
    there are none on siblings of such pCPUs. ``single``: each on one pCPU, so that the critical VMs beside it wake up
    promptly (docs/internals/lab.md, "Batch VMs with several vCPUs"), at the price that it uses no more than one; as few
    critical services as possible are beside them, and these with all their pCPUs.
    """

    FLOAT = "float"
    FENCE = "fence"
    SINGLE = "single"


class BatchGroupUse(StrEnum):
    """Whether all batch VMs are put below one control group (docs/concepts/placement.md, "The batch group").

    ``auto``: where the kernel was found to need it; ``on``: where it can be done.
    """

    OFF = "off"
    AUTO = "auto"
    ON = "on"


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
    """How VMs are placed on a host's pCPUs, see docs/concepts/placement.md."""

    batch: Annotated[
        BatchPlacement,
        Field(
            description="batch VMs: float over all pCPUs; fence: off cores of critical vCPUs; single: on one pCPU each"
        ),
    ] = BatchPlacement.FLOAT
    reserved_cpus: Annotated[
        Cpus,
        Field(
            description="pCPU numbers and ranges such as 0-3,8 that no VM is pinned to",
            json_schema_extra={"default": ""},
        ),
    ] = frozenset()
    irqs: Annotated[
        IrqSteering,
        Field(
            description="network interrupts: off: as they are; reserved: on the reserved pCPUs; serving:"
            " on critical ones"
        ),
    ] = IrqSteering.OFF
    min_gain: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="a placed vCPU moves only where the worst expected response time falls by this fraction",
        ),
    ] = 0.2
    moves_per_min: Annotated[
        int, Field(ge=0, le=1_000, description="vCPUs of placed VMs that move in a minute at most")
    ] = 6
    demand_window_s: Annotated[
        float, Field(ge=1, le=3_600, description="time over which the CPU use of vCPUs and interrupts is averaged")
    ] = 60.0
    batch_group: Annotated[
        BatchGroupUse,
        Field(
            description="all batch VMs below one control group: off; auto: where the kernel was found to need it; on:"
            " where it can be done"
        ),
    ] = BatchGroupUse.AUTO
    resume_latency_us: Annotated[
        int | None,
        Field(
            ge=0,
            le=MOST_LATENCY_US,
            description="pCPUs with critical vCPUs resume from idle within so many microseconds; 0: they poll; null:"
            " as the host has it",
        ),
    ] = None
    performance_governor: Annotated[
        bool, Field(description="the highest clock frequency on pCPUs with critical vCPUs, by the governor")
    ] = False
    __pydantic_config__: ClassVar = CLOSED

    @property
    def powers(self) -> bool:
        """Whether power settings of pCPUs are to be set."""
        return self.resume_latency_us is not None or self.performance_governor


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """How memory is divided between critical and batch VMs, see docs/concepts/memory.md."""

    protect: Annotated[bool, Field(description="keep the resident memory of critical VMs from being reclaimed")] = False
    most_protected: Annotated[
        float, Field(gt=0, le=0.9, description="part of the host's memory that is protected at most, in all")
    ] = 0.5
    ceilings: Annotated[
        bool, Field(description="hold back batch VMs that grow while a critical one is short of memory")
    ] = False
    headroom: Annotated[
        float,
        Field(ge=0.02, le=1, description="part of a VM's resident memory that is added to it, for either"),
    ] = 0.1
    steps: Annotated[
        bool,
        Field(description="the policy may switch either on for one VM: steps of `auto` while memory is short"),
    ] = False
    __pydantic_config__: ClassVar = CLOSED

    @property
    def in_use(self) -> bool:
        """Whether there is, or may be, anything to do."""
        return self.protect or self.ceilings or self.steps


@dataclass(frozen=True, slots=True)
class DiskRules:
    """How the time of disks is divided between critical and batch VMs, see docs/concepts/disks.md."""

    weights: Annotated[
        bool, Field(description="weight critical VMs over batch VMs on disks where weights act: BFQ, io.cost")
    ] = False
    batch_weight: Annotated[
        int, Field(ge=1, le=1000, description="disk weight of batch VMs; critical ones have 1000")
    ] = 20
    ceilings: Annotated[
        bool, Field(description="hold back batch VMs that make a disk slow for critical VMs, with any scheduler")
    ] = False
    steps: Annotated[
        bool,
        Field(description="the policy may switch weights on and set ceilings: steps of `auto` while a disk is slow"),
    ] = False
    __pydantic_config__: ClassVar = CLOSED

    @property
    def in_use(self) -> bool:
        """Whether there is, or may be, anything to do."""
        return self.weights or self.ceilings or self.steps


@dataclass(frozen=True, slots=True)
class UplinkRules:
    """An uplink of a host, by the name of its interface."""

    interface: Annotated[
        str,
        Field(min_length=1, max_length=15, pattern=r"^[^\x00-\x20\x7f/:]+$", description="name of a network interface"),
    ]
    rate_mbit: Annotated[
        int | None,
        Field(ge=1, le=MOST_KBIT // 1000, description="rate to divide, in Mbit/s; null: 95 % of the link's speed"),
    ] = None
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """How the rate of uplinks is divided between critical and batch VMs, see docs/concepts/network.md."""

    shares: Annotated[
        bool, Field(description="divide what uplinks send: critical VMs first, batch VMs what these leave")
    ] = False
    uplinks: Annotated[
        tuple[UplinkRules, ...],
        Field(max_length=64, description="which; none: all physical ports of bridges whose speed is known"),
    ] = ()
    batch_floor: Annotated[
        float,
        Field(ge=BATCH_PART, le=1, description="part of the rate below which the ceiling of batch VMs never goes"),
    ] = 0.1
    steps: Annotated[
        bool,
        Field(description="the policy may switch shares on: a step of `auto` while an uplink is saturated"),
    ] = False
    batch_tap_mbit: Annotated[
        int | None,
        Field(
            ge=1,
            le=MOST_KBIT // 1000,
            description="what a batch VM may send at each tap while a critical VM runs here, in Mbit/s; null: no limit",
        ),
    ] = None
    __pydantic_config__: ClassVar = CLOSED

    @property
    def in_use(self) -> bool:
        """Whether there is, or may be, anything to do."""
        return self.shares or self.steps or self.batch_tap_mbit is not None


DEFAULT_RULES = PlacementRules()
