"""What operators register: VMs, applications, SLAs, and how a host is to be controlled."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo

from manager.model.cache import CachePart
from manager.model.costs import HostCosts
from manager.model.fields import CLOSED, WIRE, Count, DomainName, Name, Percentile, SomeCpus, Uuid, Weight
from manager.model.job import BatchJob
from manager.model.law import Law
from manager.model.migration import MigrationUse
from manager.model.rules import DiskRules, MemoryRules, NetworkRules, PlacementRules
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.source import Source
from manager.model.warp import DEFAULT_WARP_MAX_US, MOST_WARP_US, WarpUs, WarpUse

LEAST_LIMIT_PCPUS, MOST_LIMIT_PCPUS = 0.01, 8192.0
"""Within these a VM's CPU time may be limited, in pCPUs."""


class CacheControl(StrEnum):
    """Whether the last-level cache is divided between critical VMs and all others (docs/concepts/cache.md)."""

    OFF = "off"
    ON = "on"


class VmClass(StrEnum):
    """Critical VMs serve requests under an SLA; batch VMs fill what is left."""

    CRITICAL = "critical"
    BATCH = "batch"


class Mode(StrEnum):
    """How far Equipoise goes on a host or for an application.

    ``observe`` runs the whole loop and records what it would do but writes nothing; ``released`` does nothing.
    Entering either from ``enforce`` first restores every changed setting.
    """

    ENFORCE = "enforce"
    OBSERVE = "observe"
    RELEASED = "released"


def _acts(scheduling: Scheduling | None, info: ValidationInfo) -> Scheduling | None:
    if scheduling is not None and info.data.get("vm_class") is VmClass.BATCH:
        raise ValueError("only critical VMs have one")
    if scheduling is not None and scheduling.policy is not SchedulingPolicy.OTHER and info.data.get("warp_us"):
        raise ValueError(f"no warp reaches {scheduling.policy}: leave warp_us null or 0")
    return scheduling


def _is_of_batch(job: BatchJob | None, info: ValidationInfo) -> BatchJob | None:
    if job is not None and info.data.get("vm_class") is VmClass.CRITICAL:
        raise ValueError("only batch VMs have one; critical VMs serve an application, which has an SLA")
    return job


@dataclass(frozen=True)
class Named:
    """What has a name; it comes first among the fields."""

    __slots__ = ()  # whoever inherits it has them
    name: Name


Adoptions = Annotated[Count, Field(description="how often externally modified settings were adopted")]


@dataclass(frozen=True, slots=True)
class VmIn:
    """A VM as registered. Without ``libvirt_uuid`` and ``libvirt_name`` the resource's own name is the libvirt name."""

    vm_class: Annotated[VmClass, Field(alias="class")]
    libvirt_name: Annotated[DomainName | None, Field(description="the domain's; null: the VM's own name")] = None
    libvirt_uuid: Annotated[Uuid | None, Field(description="names the domain in place of the name; null: any")] = None
    host: Annotated[Name | None, Field(description="host it runs on; null: wherever it is found")] = None
    weight: Annotated[
        Weight | None,
        Field(description="in place of the policy's (v1 shares or v2 weight); null: decided by the policy"),
    ] = None
    pin: Annotated[bool | None, Field(description="give its vCPUs pCPUs of their own; null: inherited from host")] = (
        None
    )
    cpus: Annotated[SomeCpus | None, Field(description="the pCPUs it may run on, such as 0-3,8; null: all")] = None
    max_pcpus: Annotated[
        Annotated[float, Field(ge=LEAST_LIMIT_PCPUS, le=MOST_LIMIT_PCPUS)] | None,
        Field(description="CPU seconds a second that it may use; null: no limit"),
    ] = None
    mode: Annotated[Mode | None, Field(description="null: inherited from application and host")] = None
    warp_us: Annotated[
        WarpUs | None,
        Field(
            description="warp in microseconds, or auto: as the SLA says; 0: none; null: inherited from application",
        ),
    ] = None
    scheduling: Annotated[
        Scheduling | None,
        AfterValidator(_acts),
        Field(description="of the vCPU threads of a critical VM; null: left alone"),
    ] = None
    job: Annotated[
        BatchJob | None,
        AfterValidator(_is_of_batch),
        Field(description="what is agreed about the work of a batch VM; null: nothing"),
    ] = None
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class VmSpec(VmIn, Named):
    """A registered VM. It may not exist (yet) on any host."""

    adoptions: Adoptions = 0

    @property
    def real_time(self) -> bool:
        """Whether its vCPUs are to be real-time."""
        return self.scheduling is not None and self.scheduling.real_time


@dataclass(frozen=True, slots=True)
class Sla:
    """``percentile`` of response times stays at or below ``response_time_ms`` at up to ``max_rate_rps``."""

    response_time_ms: Annotated[
        float, Field(gt=0, le=100_000, description="the percentile of response times stays at or below it")
    ]
    percentile: Annotated[Percentile, Field(description="95: of 100 requests, 95 are answered in that time")] = 95.0
    max_rate_rps: Annotated[
        Annotated[float, Field(gt=0, le=1e9)] | None,
        Field(description="requests per second up to which the SLA applies; null: at any rate"),
    ] = None
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier of an application and the names of the registered VMs that serve it."""

    name: Name
    vms: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    __pydantic_config__: ClassVar = CLOSED


class Sharing(StrEnum):
    """What an application above its agreed rate gets under a feedback policy.

    ``fair``: help as if it were not; ``isolation``: none, it pays for its load alone.
    """

    FAIR = "fair"
    ISOLATION = "isolation"


@dataclass(frozen=True, slots=True)
class ApplicationIn:
    """A service with an SLA, as registered."""

    tiers: Annotated[tuple[Tier, ...], Field(max_length=50)] = ()
    sla: Sla | None = None
    mode: Annotated[Mode | None, Field(description="null: inherited from host")] = None
    sharing: Annotated[
        Sharing | None,
        Field(description="above max_rate_rps: fair: keep boosting; isolation: no boost; null: inherited from policy"),
    ] = None
    warp_us: Annotated[
        WarpUs | None,
        Field(description="warp of its critical VMs in microseconds, or auto; 0: none; null: auto if there is an SLA"),
    ] = None
    cache: Annotated[
        CachePart | None,
        Field(
            description="part of the last-level cache for its critical VMs alone, such as 40%, 6 ways or 5MiB, or auto:"
            " as the SLA says; null: none"
        ),
    ] = None
    sources: Annotated[
        tuple[Source, ...],
        Field(max_length=50, description="where response times come from; none: posted to the manager"),
    ] = ()
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class Application(ApplicationIn, Named):
    """A registered application."""

    @property
    def vms(self) -> frozenset[str]:
        """Names of all VMs of all tiers."""
        return frozenset(vm for tier in self.tiers for vm in tier.vms)


@dataclass(frozen=True, slots=True)
class HostIn:
    """How a host is to be controlled."""

    mode: Mode = Mode.ENFORCE
    policy: Name = "priority"
    pinning: Annotated[bool, Field(description="give critical vCPUs pCPUs of their own")] = True
    batch_idle: Annotated[
        bool, Field(description="put batch VMs into the kernel's idle class while they have their floor")
    ] = False
    warp: Annotated[
        WarpUse,
        Field(
            description="warps: off; on: by what the kernel has and was measured to help, else none; sched_ext: by our"
            " own scheduler, which is loaded for it; group_identity, slice: by these, which were not measured to help"
        ),
    ] = WarpUse.OFF
    warp_max_us: Annotated[
        int,
        Field(
            ge=100,
            le=MOST_WARP_US,
            description="largest warp in microseconds, and largest sum of all vCPUs' warps, on average over the pCPUs",
        ),
    ] = DEFAULT_WARP_MAX_US
    cache: Annotated[
        CacheControl,
        Field(
            description="last-level cache: off; on: critical VMs of applications with `cache` get ways of their own,"
            " batch VMs share the rest"
        ),
    ] = CacheControl.OFF
    cache_mount: Annotated[bool, Field(description="mount resctrl for that where it is not mounted")] = False
    bandwidth_warning: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="warn when a domain's memory traffic is above this share of the most that was measured; 0:"
            " never",
        ),
    ] = 0.9
    law: Law = field(default_factory=Law)
    placement: PlacementRules = field(default_factory=PlacementRules)
    memory: MemoryRules = field(default_factory=MemoryRules)
    disk: DiskRules = field(default_factory=DiskRules)
    network: NetworkRules = field(default_factory=NetworkRules)
    migrate: Annotated[
        MigrationUse,
        Field(
            description="migrations of VMs away from it: off; propose: an operator approves them; auto: they begin by"
            " themselves"
        ),
    ] = MigrationUse.PROPOSE
    costs: HostCosts = field(default_factory=HostCosts)
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class HostSpec(HostIn, Named):
    """A registered host."""

    adoptions: Adoptions = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that the agent of one host needs to know.

    The ``sources`` of its applications are those that run on this host. ``slot_s`` is the same on all hosts of a
    manager.
    """

    host: HostSpec
    vms: tuple[VmSpec, ...] = ()
    applications: tuple[Application, ...] = ()
    slot_s: Annotated[float, Field(gt=0, description="length of a slot of response times, in seconds")] = 5.0
    __pydantic_config__: ClassVar = CLOSED
