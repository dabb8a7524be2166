"""Shapes of what operators register: hosts, VMs, applications, and the response times that are posted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from manager.model.law import BOUNDS, DEFAULT_LAW
from manager.model.registration import DEFAULT_BANDWIDTH_WARNING, CacheControl, Mode, Sharing, VmClass
from manager.model.rules import BOUNDS as RULE_BOUNDS
from manager.model.rules import DEFAULT_RULES, BatchPlacement, IrqSteering
from manager.model.scheduling import (
    LARGEST_LIMIT,
    LARGEST_NICE,
    LARGEST_PRIORITY,
    LEAST_LIMIT,
    LEAST_NICE,
    SchedulingPolicy,
)
from manager.model.warp import DEFAULT_WARP_MAX_US, MOST_WARP_US, WarpUse
from manager.protocol.fields import (
    CachePart,
    CpuList,
    DomainName,
    Name,
    Percentile,
    Schema,
    SomeCpus,
    Uuid,
    WarpUs,
    Weight,
)
from manager.protocol.sources import SourceBody


class SchedulingBody(Schema):
    """How the kernel schedules its vCPU threads."""

    policy: SchedulingPolicy = Field(description="fifo and rr: before all that is not real-time")
    priority: Annotated[int, Field(ge=1, le=LARGEST_PRIORITY)] | None = Field(
        default=None, description="of fifo and rr, the larger goes first; null: 1"
    )
    nice: Annotated[int, Field(ge=LEAST_NICE, le=LARGEST_NICE)] | None = Field(
        default=None, description="of other, the smaller gets more; null: 0"
    )
    limit: Annotated[float, Field(ge=LEAST_LIMIT, le=LARGEST_LIMIT)] | None = Field(
        default=None,
        validate_default=True,
        description="share of each second of each pCPU that all its vCPUs together may run, with fifo and rr",
    )

    @field_validator("priority", "nice", "limit")
    @classmethod
    def _fits(cls, value: float | None, info: ValidationInfo) -> float | None:
        policy = info.data.get("policy")
        if policy is None:  # refused itself
            return value
        if value is None:
            if info.field_name == "limit" and policy is not SchedulingPolicy.OTHER:
                raise ValueError(f"{policy} needs a limit")
        elif (info.field_name == "nice") is not (policy is SchedulingPolicy.OTHER):
            raise ValueError(f"{policy} has no {info.field_name}")
        return value


class VmIn(Schema):
    """A VM as registered. Without ``libvirt_uuid`` and ``libvirt_name`` the resource's own name is the libvirt name."""

    vm_class: VmClass = Field(alias="class")
    libvirt_name: DomainName | None = Field(default=None, description="the domain's; null: the VM's own name")
    libvirt_uuid: Uuid | None = Field(default=None, description="names the domain in place of the name; null: any")
    host: Name | None = Field(default=None, description="host it runs on; null: wherever it is found")
    weight: Weight | None = Field(
        default=None, description="in place of the policy's (v1 shares or v2 weight); null: as the policy decides"
    )
    pin: bool | None = Field(default=None, description="give its vCPUs pCPUs of their own; null: as the host says")
    cpus: SomeCpus | None = Field(default=None, description="the pCPUs it may run on, such as 0-3,8; null: all")
    max_pcpus: Annotated[float, Field(ge=0.01, le=8192)] | None = Field(
        default=None, description="CPU seconds a second that it may use; null: no limit"
    )
    mode: Mode | None = Field(default=None, description="null: as its application and host say")
    warp_us: WarpUs | None = Field(
        default=None,
        description="warp in microseconds, or auto: as the SLA says; 0: none; null: as its application says",
    )
    scheduling: SchedulingBody | None = Field(
        default=None, description="of the vCPU threads of a critical VM; null: left alone"
    )

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)

    @field_validator("scheduling")
    @classmethod
    def _acts(cls, value: SchedulingBody | None, info: ValidationInfo) -> SchedulingBody | None:
        if value is not None and info.data.get("vm_class") is VmClass.BATCH:
            raise ValueError("only critical VMs have one")
        if value is not None and value.policy is not SchedulingPolicy.OTHER and info.data.get("warp_us"):
            raise ValueError(f"no warp reaches {value.policy}: leave warp_us null or 0")
        return value


class SlaBody(Schema):
    """``percentile`` of response times stays at or below ``response_time_ms`` at up to ``max_rate_rps``."""

    response_time_ms: Annotated[float, Field(gt=0, le=100_000)] = Field(
        description="the percentile of response times stays at or below it"
    )
    percentile: Percentile = Field(default=95.0, description="95: of 100 requests, 95 are answered in that time")
    max_rate_rps: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None, description="requests per second up to which the promise holds; null: at any rate"
    )


class TierBody(Schema):
    """A tier and the registered VMs that serve it."""

    name: Name
    vms: list[Name] = Field(default_factory=list, max_length=1000)


class ApplicationIn(Schema):
    """An application as registered."""

    tiers: list[TierBody] = Field(default_factory=list, max_length=50)
    sla: SlaBody | None = None
    mode: Mode | None = Field(default=None, description="null: as the host says")
    sharing: Sharing | None = Field(
        default=None,
        description="above max_rate_rps: fair: helped as ever; isolation: not helped; null: as the policy",
    )
    warp_us: WarpUs | None = Field(
        default=None,
        description="warp of its critical VMs in microseconds, or auto; 0: none; null: auto if there is an SLA",
    )
    cache: CachePart | None = Field(
        default=None,
        description="part of the last-level cache for its critical VMs alone, such as 40%, 6 ways or 5MiB, or auto: as"
        " the SLA says; null: none",
    )
    sources: list[SourceBody] = Field(
        default_factory=list, max_length=50, description="where response times come from; none: posted to the manager"
    )


def _bounded(name: str, meaning: str) -> Any:
    low, high = BOUNDS[name]
    return Field(default=getattr(DEFAULT_LAW, name), ge=low, le=high, description=meaning)


class LawBody(Schema):
    """Settings of the feedback law, see docs/concepts/policies.md; what is left out gets its default."""

    published: bool = Field(
        default=DEFAULT_LAW.published, description="exactly as printed: nothing of the following but batch_floor"
    )
    min_samples: int = _bounded(
        "min_samples", "response times a percentile needs; windows are merged until there are as many"
    )
    max_age_s: float = _bounded("max_age_s", "age at which windows are stale and weights are held")
    hold_s: float = _bounded("hold_s", "how long they are held before they fall back to priority")
    gain: float = _bounded("gain", "exponent on response time / promised time")
    largest_miss: float = _bounded(
        "largest_miss", "that quotient counts as at least the inverse of this, and above it for less and less again"
    )
    demand_exponent: float = _bounded("demand_exponent", "exponent on the CPU used")
    smoothing: float = _bounded("smoothing", "weight of the newest value in moving averages")
    dead_band: float = _bounded("dead_band", "relative changes of a weight below it are not made")
    max_step: float = _bounded("max_step", "largest factor by which a weight changes in an interval")
    idle_hold_s: float = _bounded("idle_hold_s", "how long an application without requests keeps its weight")
    idle_half_life_s: float = _bounded("idle_half_life_s", "time in which that weight then halves")
    batch_floor: float = _bounded("batch_floor", "share of the host's CPU that batch VMs get at least")
    floor_window_s: float = _bounded("floor_window_s", "time over which that share is averaged")
    over_rate_s: float = _bounded("over_rate_s", "time over which the rate is judged")
    over_rate_margin: float = _bounded("over_rate_margin", "how far below it a rate must be, to count as below")


def _rule(name: str, meaning: str) -> Any:
    low, high = RULE_BOUNDS[name]
    return Field(default=getattr(DEFAULT_RULES, name), ge=low, le=high, description=meaning)


class PlacementBody(Schema):
    """Settings of placement, see docs/concepts/placement.md; what is left out gets its default."""

    batch: BatchPlacement = Field(
        default=DEFAULT_RULES.batch,
        description="batch VMs: float over all pCPUs; fence: off those of critical vCPUs; single: on one pCPU each",
    )
    reserved_cpus: CpuList = Field(
        default="", description="pCPU numbers and ranges such as 0-3,8 that no VM is pinned to"
    )
    irqs: IrqSteering = Field(
        default=DEFAULT_RULES.irqs,
        description="network interrupts: off: as they are; reserved: on the reserved pCPUs; serving: on critical ones",
    )
    min_gain: float = _rule(
        "min_gain", "a placed vCPU moves only where the worst expected response time falls by this fraction"
    )
    moves_per_min: int = _rule("moves_per_min", "vCPUs of placed VMs that move in a minute at most")
    demand_window_s: float = _rule("demand_window_s", "time over which the CPU use of vCPUs is averaged")


class HostIn(Schema):
    """How a host is to be controlled."""

    mode: Mode = Mode.ENFORCE
    policy: Name = "priority"
    pinning: bool = Field(default=True, description="give critical vCPUs pCPUs of their own")
    batch_idle: bool = Field(
        default=False, description="put batch VMs into the kernel's idle class while they have their floor"
    )
    warp: WarpUse = Field(
        default=WarpUse.OFF,
        description="warps: off; on: by what the kernel has and was measured to help, else none; sched_ext: by our own"
        " scheduler, which is loaded for it; group_identity, slice: by these, which were not measured to help",
    )
    warp_max_us: Annotated[int, Field(ge=100, le=MOST_WARP_US)] = Field(
        default=DEFAULT_WARP_MAX_US,
        description="largest warp in microseconds, and largest sum of all vCPUs' warps, on average over the pCPUs",
    )
    cache: CacheControl = Field(
        default=CacheControl.OFF,
        description="last-level cache: off; on: critical VMs of applications with `cache` get ways of their own, batch"
        " VMs share the rest",
    )
    cache_mount: bool = Field(default=False, description="mount resctrl for that where it is not mounted")
    bandwidth_warning: Annotated[float, Field(ge=0, le=1)] = Field(
        default=DEFAULT_BANDWIDTH_WARNING,
        description="warn when a domain's memory traffic is above this share of the most that was measured; 0: never",
    )
    law: LawBody = Field(default_factory=LawBody)
    placement: PlacementBody = Field(default_factory=PlacementBody)
