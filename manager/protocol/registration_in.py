"""Shapes of what operators register: hosts, VMs, applications, and the response times that are posted."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from manager.model.cache import CachePart
from manager.model.fields import (
    DomainName,
    Name,
    Schema,
    SomeCpus,
    Uuid,
    Weight,
)
from manager.model.law import Law
from manager.model.registration import DEFAULT_BANDWIDTH_WARNING, CacheControl, Mode, Sharing, Sla, Tier, VmClass
from manager.model.rules import PlacementRules
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.source import Source
from manager.model.warp import DEFAULT_WARP_MAX_US, MOST_WARP_US, WarpUs, WarpUse


class VmIn(Schema):
    """A VM as registered. Without ``libvirt_uuid`` and ``libvirt_name`` the resource's own name is the libvirt name."""

    vm_class: VmClass = Field(alias="class")
    libvirt_name: DomainName | None = Field(default=None, description="the domain's; null: the VM's own name")
    libvirt_uuid: Uuid | None = Field(default=None, description="names the domain in place of the name; null: any")
    host: Name | None = Field(default=None, description="host it runs on; null: wherever it is found")
    weight: Weight | None = Field(
        default=None, description="in place of the policy's (v1 shares or v2 weight); null: as the policy decides"
    )
    pin: bool | None = Field(default=None, description="give its vCPUs pCPUs of their own; null: inherited from host")
    cpus: SomeCpus | None = Field(default=None, description="the pCPUs it may run on, such as 0-3,8; null: all")
    max_pcpus: Annotated[float, Field(ge=0.01, le=8192)] | None = Field(
        default=None, description="CPU seconds a second that it may use; null: no limit"
    )
    mode: Mode | None = Field(default=None, description="null: inherited from application and host")
    warp_us: WarpUs | None = Field(
        default=None,
        description="warp in microseconds, or auto: as the SLA says; 0: none; null: inherited from application",
    )
    scheduling: Scheduling | None = Field(
        default=None, description="of the vCPU threads of a critical VM; null: left alone"
    )

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)

    @field_validator("scheduling")
    @classmethod
    def _acts(cls, value: Scheduling | None, info: ValidationInfo) -> Scheduling | None:
        if value is not None and info.data.get("vm_class") is VmClass.BATCH:
            raise ValueError("only critical VMs have one")
        if value is not None and value.policy is not SchedulingPolicy.OTHER and info.data.get("warp_us"):
            raise ValueError(f"no warp reaches {value.policy}: leave warp_us null or 0")
        return value


class ApplicationIn(Schema):
    """An application as registered."""

    tiers: tuple[Tier, ...] = Field(default=(), max_length=50)
    sla: Sla | None = None
    mode: Mode | None = Field(default=None, description="null: inherited from host")
    sharing: Sharing | None = Field(
        default=None,
        description="above max_rate_rps: fair: keep boosting; isolation: no boost; null: as the policy",
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
    sources: tuple[Source, ...] = Field(
        default=(), max_length=50, description="where response times come from; none: posted to the manager"
    )


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
    law: Law = Field(default_factory=Law)
    placement: PlacementRules = Field(default_factory=PlacementRules)
