"""Shapes of what is answered of registered hosts, VMs and applications."""

from __future__ import annotations

from pydantic import AwareDatetime, Field, JsonValue, RootModel

from manager.model.fields import Buckets, Name, Schema, Text
from manager.model.host import Capabilities
from manager.model.source import SourceKind, SourceStatus
from manager.model.window import Ready, SlaState
from manager.protocol.registration_in import ApplicationIn, HostIn, VmIn
from manager.protocol.report import DomainBody, TickStatus, VmStatus


class VmOut(VmIn):
    """A registered VM with what is known of it."""

    name: Name
    application: Name | None = None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    status: VmStatus | None = Field(default=None, description="null: not running on any reporting host")
    status_host: Name | None = None
    status_at: AwareDatetime | None = None


class DomainOut(DomainBody):
    """A domain that runs on a host, as its agent last reported, and the VM it is registered as."""

    host: Name
    registered_as: Name | None = Field(default=None, description="null: not registered, so it is never touched")


class MergePatch(RootModel[dict[str, JsonValue]]):
    """Changes to an object's fields (RFC 7396): those left out stay, null sets one back to its default.

    What comes of it has to be what a PUT takes.
    """


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
    ready: Ready | None = Field(default=None, description="a percentile that a source answered itself; as `buckets`")


class ApplicationOut(ApplicationIn):
    """A registered application with its SLA's state."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    sla_state: SlaState
    window: WindowOut | None = Field(default=None, description="latest window; null: no response times yet")
    measured_percentile: float = Field(description="the percentile of the SLA; 95 without an SLA")
    measured_ms: float | None = Field(default=None, description="that percentile of the latest window; null: unknown")


class HostOut(HostIn):
    """A host with what its agent last reported."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    last_seen_at: AwareDatetime | None = None
    silent: bool = Field(default=False, description="it has not reported for `silent_intervals`")
    clock_ahead_s: float | None = Field(
        default=None, description="how far its clock is ahead of the manager's, in seconds; null: unknown"
    )
    agent_version: Text | None = None
    agent_instance: Text | None = Field(default=None, description="id of the agent that serves it; null: unknown")
    rival_instance: Text | None = Field(
        default=None, description="of another one, refused in the last 11 minutes; null: none was"
    )
    tick: TickStatus | None = None
    capabilities: Capabilities | None = None


class SourceOut(Schema):
    """A source of an application on one host."""

    source: Name
    type: SourceKind
    host: Name | None = Field(description="null: no agent has reported it yet")
    at: AwareDatetime | None = Field(description="time of the report")
    status: SourceStatus | None
    problem: Text = Field(default="", description="why no host runs it; empty: nothing is known to stand in the way")
