"""Schemas of registered hosts, VMs and applications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AwareDatetime, Field, JsonValue, RootModel

from manager.model.fields import Buckets, DomainName, Name, Schema, Text
from manager.model.host import Capabilities
from manager.model.job import BatchVm
from manager.model.registration import Application, HostIn, Named, VmIn
from manager.model.resource_use import VmResources
from manager.model.source import SourceKind, SourceStatus
from manager.model.traffic import SeenService
from manager.model.window import Ready, SlaState
from manager.protocol.report import DomainBody, TickStatus, VmStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class VmOut(VmIn, Named):
    """A registered VM with its application and status."""

    application: Name | None = None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    status: Annotated[VmStatus | None, Field(description="null: not running on any reporting host")] = None
    status_host: Name | None = None
    status_at: AwareDatetime | None = None
    resources: Annotated[
        VmResources | None,
        Field(description="what it uses besides CPU time, as of its host's last round of readings; null: little"),
    ] = None
    batch: Annotated[
        BatchVm | None, Field(description="how a batch VM fares against running alone; null: not known")
    ] = None
    power_watts: Annotated[
        float | None,
        Field(
            description="its part of the host's power (RAPL) by CPU time, without the part that the host would draw"
            " idle; null: not measured"
        ),
    ] = None


class DomainOut(DomainBody):
    """A domain that runs on a host, as its agent last reported, and the VM it is registered as."""

    host: Name
    registered_as: Name | None = Field(default=None, description="null: unregistered, so it is never touched")
    name_shared: bool = Field(
        default=False,
        description="whether it is unregistered and another domain or a VM has its name, so that only its UUID tells"
        " them apart",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOut(SeenService):
    """A service in a running domain, and the VM that this is registered as."""

    libvirt_name: DomainName
    registered_as: Annotated[Name | None, Field(description="null: unregistered, so it is never touched")] = None


class MergePatch(RootModel[dict[str, JsonValue]]):
    """Changes to an object's fields (RFC 7396): absent fields stay, null restores a default.

    The result must be valid for PUT.
    """


class WindowOut(Schema):
    """Response times of one interval, from all sources and hosts together."""

    start: AwareDatetime
    end: AwareDatetime
    count: int = Field(ge=0, description="response times")
    requests: float | None = Field(ge=0, description="served requests; null: unknown, as with probes")
    rate_rps: float | None = Field(ge=0, description="null: unknown")
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    buckets: Buckets | None = Field(default=None, description="null: `buckets=true` was not requested")
    ready: Ready | None = Field(
        default=None, description="a percentile that a source computed itself; null: as `buckets`"
    )


class ShownNeighbourOut(Schema):
    """A VM that an experiment of the policy has shown to slow the application."""

    vm: Name
    fall: float = Field(description="of ln(percentile) while the VM was held back")
    confidence: float = Field(ge=0, le=1, description="1 minus the probability that a harmless VM is named")
    at: AwareDatetime = Field(description="end of the experiment")


class ExplanationOut(Schema):
    """What the policy of a host does for an application, what that brought and cost, and what comes next."""

    host: Name
    policy: Name
    at: AwareDatetime = Field(description="time of the tick that it is of")
    text: Text
    cause: ShownNeighbourOut | None = Field(description="null: nobody was shown by experiment to slow it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationOut(Application):
    """A registered application with its SLA's state."""

    created_at: AwareDatetime
    updated_at: AwareDatetime
    sla_state: SlaState
    window: Annotated[WindowOut | None, Field(description="latest window; null: no response times yet")] = None
    measured_percentile: Annotated[float, Field(description="the percentile of the SLA; 95 without an SLA")]
    measured_ms: Annotated[float | None, Field(description="that percentile of the latest window; null: unknown")] = (
        None
    )
    explanations: Annotated[
        list[ExplanationOut], Field(description="of each host that runs its VMs and whose policy explains itself")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOut(HostIn, Named):
    """A host with what its agent last reported."""

    created_at: AwareDatetime
    updated_at: AwareDatetime
    last_seen_at: AwareDatetime | None = None
    silent: Annotated[bool, Field(description="it has not reported for `silent_intervals`")] = False
    clock_ahead_s: Annotated[
        float | None, Field(description="how far its clock is ahead of the manager's, in seconds; null: unknown")
    ] = None
    agent_version: Text | None = None
    agent_instance: Annotated[Text | None, Field(description="id of the agent that serves it; null: unknown")] = None
    rival_instance: Annotated[
        Text | None, Field(description="id of another agent that was refused in the last 11 minutes; null: none")
    ] = None
    tick: TickStatus | None = None
    capabilities: Capabilities | None = None


class SourceOut(Schema):
    """A source of an application on one host."""

    source: Name
    type: SourceKind
    host: Name | None = Field(description="null: no agent has reported it yet")
    at: AwareDatetime | None = Field(description="time of the report")
    status: SourceStatus | None
    problem: Text = Field(default="", description="why no host runs it; empty: no known problem")
