"""Shapes of what operators register: hosts, VMs, applications, and the response times that are posted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, ConfigDict, Field

from manager.api.schemas.agents import CapabilitiesBody, ReadyBody, TickStatus, VmStatus
from manager.api.schemas.fields import (
    Buckets,
    Count,
    CpuList,
    DomainName,
    Moment,
    Name,
    Percentile,
    Schema,
    SomeCpus,
    Text,
    Uuid,
    Weight,
)
from manager.api.schemas.sources import SourceBody
from manager.model.law import BOUNDS, DEFAULT_LAW
from manager.model.registration import Mode, Sharing, VmClass
from manager.model.rules import BOUNDS as RULE_BOUNDS
from manager.model.rules import DEFAULT_RULES, BatchPlacement, IrqSteering
from manager.model.window import SlaState


class VmIn(Schema):
    """A VM as registered. Without ``libvirt_uuid`` and ``libvirt_name`` the resource's own name is the libvirt name."""

    vm_class: VmClass = Field(alias="class")
    libvirt_name: DomainName | None = None
    libvirt_uuid: Uuid | None = None
    host: Name | None = Field(default=None, description="host it runs on; null: wherever it is found")
    weight: Weight | None = Field(default=None, description="overrides the policy's weight (v1 shares or v2 weight)")
    pin: bool | None = Field(default=None, description="give its vCPUs pCPUs of their own; null: as the host says")
    cpus: SomeCpus | None = Field(default=None, description="the pCPUs it may run on, such as 0-3,8; null: all")
    max_pcpus: Annotated[float, Field(ge=0.01, le=8192)] | None = Field(
        default=None, description="CPU seconds a second that it may use; null: no limit"
    )
    mode: Mode | None = Field(default=None, description="null: as its application and host say")

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)


class VmOut(VmIn):
    """A registered VM with what is known of it."""

    name: Name
    application: Name | None = None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    status: VmStatus | None = Field(default=None, description="null: not running on any reporting host")
    status_host: Name | None = None
    status_at: AwareDatetime | None = None


class SlaBody(Schema):
    """``percentile`` of response times stays at or below ``response_time_ms`` at up to ``max_rate_rps``."""

    response_time_ms: Annotated[float, Field(gt=0, le=100_000)]
    percentile: Percentile = 95.0
    max_rate_rps: Annotated[float, Field(gt=0, le=1e9)] | None = None


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
    sources: list[SourceBody] = Field(default_factory=list, max_length=50, description="of response times")


class WindowOut(Schema):
    """Response times of one interval, from all sources and hosts together."""

    start: AwareDatetime
    end: AwareDatetime
    count: int = Field(ge=0, description="response times")
    requests: float | None = Field(ge=0, description="requests that were served; null: unknown, as with probes")
    rate_rps: float | None = Field(ge=0, description="null: unknown")
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    buckets: Buckets | None = Field(default=None, description="null: not asked for with `buckets=true`")
    ready: ReadyBody | None = Field(
        default=None, description="a percentile that a source answered itself; as `buckets`"
    )


class ApplicationOut(ApplicationIn):
    """A registered application with its SLA's state."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    sla_state: SlaState
    window: WindowOut | None = Field(default=None, description="latest window; null: no response times yet")


Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


class SamplesIn(Schema):
    """Response times of one application: single times, or a histogram with the buckets of docs/api.md, or both."""

    start: Moment | None = Field(default=None, description="begin of the interval; null: one second before end")
    end: Moment | None = Field(default=None, description="end of the interval; null: now")
    times_ms: list[Milliseconds] = Field(default_factory=list, max_length=100_000)
    buckets: Buckets = Field(default_factory=dict)
    requests: Annotated[float, Field(ge=0, le=1e15)] | None = Field(
        default=None, description="requests in the interval, if these times are a sample of them; null: their number"
    )


class SampleLine(Schema):
    """A line of application/x-ndjson: one response time, and when it ended (null: now)."""

    time_ms: Milliseconds
    end: Moment | None = None


class SamplesOut(Schema):
    """How many response times were taken, and how many were too old to be."""

    accepted: Count
    late: Count


def _bounded(name: str) -> Any:
    low, high = BOUNDS[name]
    return Field(default=getattr(DEFAULT_LAW, name), ge=low, le=high)


class LawBody(Schema):
    """Settings of the feedback law, see docs/policies.md; what is left out gets its default."""

    published: bool = DEFAULT_LAW.published
    min_samples: int = _bounded("min_samples")
    max_age_s: float = _bounded("max_age_s")
    hold_s: float = _bounded("hold_s")
    gain: float = _bounded("gain")
    largest_miss: float = _bounded("largest_miss")
    demand_exponent: float = _bounded("demand_exponent")
    smoothing: float = _bounded("smoothing")
    dead_band: float = _bounded("dead_band")
    max_step: float = _bounded("max_step")
    idle_hold_s: float = _bounded("idle_hold_s")
    idle_half_life_s: float = _bounded("idle_half_life_s")
    batch_floor: float = _bounded("batch_floor")
    floor_window_s: float = _bounded("floor_window_s")
    over_rate_s: float = _bounded("over_rate_s")
    over_rate_margin: float = _bounded("over_rate_margin")


def _rule(name: str) -> Any:
    low, high = RULE_BOUNDS[name]
    return Field(default=getattr(DEFAULT_RULES, name), ge=low, le=high)


class PlacementBody(Schema):
    """Settings of placement, see docs/placement.md; what is left out gets its default."""

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
    min_gain: float = _rule("min_gain")
    moves_per_min: int = _rule("moves_per_min")
    demand_window_s: float = _rule("demand_window_s")


class HostIn(Schema):
    """How a host is to be controlled."""

    mode: Mode = Mode.ENFORCE
    policy: Name = "priority"
    pinning: bool = Field(default=True, description="give critical vCPUs pCPUs of their own")
    batch_idle: bool = Field(
        default=False, description="put batch VMs into the kernel's idle class while they have their floor"
    )
    law: LawBody = Field(default_factory=LawBody)
    placement: PlacementBody = Field(default_factory=PlacementBody)


class HostOut(HostIn):
    """A host with what its agent last reported."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    last_seen_at: AwareDatetime | None = None
    agent_version: Text | None = None
    tick: TickStatus | None = None
    capabilities: CapabilitiesBody | None = None
