"""Shapes of the REST interface: what is accepted and what is answered, for manager, agent and command line alike.

Unknown fields are refused everywhere. Times are RFC 3339 with an offset; other units are in the names.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET
from manager.model.records import Knob, OutcomeKind, Severity
from manager.model.registration import NAME_PATTERN, Mode, VmClass
from manager.model.window import SlaState

Name = Annotated[str, Field(pattern=NAME_PATTERN, description="1 to 63 letters, digits, dots, dashes, underscores")]
DomainName = Annotated[
    str,
    Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$", description="1 to 255 printable characters"),
]
# No database keeps NUL characters in text.
MAX_TEXT = 2000
Text = Annotated[
    str, Field(max_length=MAX_TEXT, pattern=r"^[^\x00]*$", description="up to 2000 characters, none of them NUL")
]
Uuid = Annotated[
    str,
    Field(
        pattern=r"^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
        description="a UUID such as 6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10; answered in lower case",
    ),
    AfterValidator(str.lower),
]


def _rfc_3339(value: object) -> object:
    # Left to itself, pydantic takes more than that, such as "0.5" for seconds since the epoch.
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", value, re.ASCII):
        raise ValueError("should look like 2026-01-31T12:00:00Z or 2026-01-31T12:00:00.5+01:00")
    return datetime.fromisoformat(value.upper())


# Within these years every time can be converted to any offset and added to without overflow.
Moment = Annotated[
    AwareDatetime,
    BeforeValidator(_rfc_3339),
    Field(
        ge=datetime(1970, 1, 1, tzinfo=UTC),
        lt=datetime(9999, 1, 1, tzinfo=UTC),
        description="an RFC 3339 time with offset, from 1970 to 9998",
    ),
]
Share = Annotated[float, Field(ge=0, le=1, description="fraction of the host's CPU time")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Weight = Annotated[int, Field(ge=1, le=262_144)]


class Schema(BaseModel):
    """Base: unknown fields and NaN are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class VmIn(Schema):
    """A VM as registered. Without ``libvirt_uuid`` and ``libvirt_name`` the resource's own name is the libvirt name."""

    vm_class: VmClass = Field(alias="class")
    libvirt_name: DomainName | None = None
    libvirt_uuid: Uuid | None = None
    host: Name | None = Field(default=None, description="host it runs on; null: wherever it is found")
    weight: Weight | None = Field(default=None, description="overrides the policy's weight (v1 shares or v2 weight)")
    pin: bool | None = Field(default=None, description="give its vCPUs pCPUs of their own; null: as the host says")

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)


class KnobStatus(Schema):
    """One knob of a running VM: what it holds, what it held before, and who owns it."""

    knob: Knob
    index: Annotated[int, Field(ge=0, le=8191)] = Field(description="vCPU number for vcpu_pin, otherwise 0")
    value: Text
    original: Text | None = Field(default=None, description="value before the first change; null: never changed")
    owned: bool = False
    foreign: bool = Field(default=False, description="somebody else changed it, so it was given up")


class VmStatus(Schema):
    """A managed VM as its agent last saw it."""

    vm: Name
    libvirt_name: DomainName
    libvirt_uuid: Uuid
    pid: int = Field(ge=1, le=2**31)
    vcpus: int = Field(ge=0, le=8192)
    cpu_share: Share = Field(description="CPU time used in the last interval, as a fraction of the whole host")
    run_delay_share: float = Field(ge=0, description="time its vCPUs waited for a pCPU, per second of the interval")
    knobs: list[KnobStatus] = Field(default_factory=list)


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
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0
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


class WindowOut(Schema):
    """Response times of one interval."""

    start: AwareDatetime
    end: AwareDatetime
    count: Count
    rate_rps: float = Field(ge=0)
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class ApplicationOut(ApplicationIn):
    """A registered application with its SLA's state."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    sla_state: SlaState
    window: WindowOut | None = Field(default=None, description="latest window; null: no response times yet")


class SamplesIn(Schema):
    """Response times of one application: single times, or a histogram with the buckets of docs/api.md, or both."""

    start: Moment | None = Field(default=None, description="begin of the interval; null: one second before end")
    end: Moment | None = Field(default=None, description="end of the interval; null: now")
    times_ms: list[Annotated[float, Field(ge=0, le=1e6)]] = Field(default_factory=list, max_length=100_000)
    buckets: dict[Annotated[int, Field(ge=FIRST_BUCKET, le=LAST_BUCKET)], Count] = Field(
        default_factory=dict,
        description=f"counts by bucket number, {FIRST_BUCKET} to {LAST_BUCKET}",
        json_schema_extra={"propertyNames": {"pattern": "^[1-9][0-9]{2}$"}},
    )


class SamplesOut(Schema):
    """How many response times were taken."""

    accepted: Count


class HostIn(Schema):
    """How a host is to be controlled."""

    mode: Mode = Mode.ENFORCE
    policy: Name = "priority"
    pinning: bool = Field(default=True, description="give critical vCPUs pCPUs of their own")


class CapabilitiesBody(Schema):
    """What the host's kernel and libvirt offer, as probed by its agent."""

    kernel: Text
    libvirt: Text
    cgroup_version: int = Field(ge=0, le=2, description="version that carries the cpu controller; 0: none usable")
    weight_min: Count
    weight_max: Count
    weight_default: Count
    online_cpus: Text
    managed_cpus: Text
    schedstat: bool = Field(description="run-queue delay of vCPU threads can be read")
    warnings: list[Text] = Field(default_factory=list)


class TickStatus(Schema):
    """The last control interval of an agent."""

    number: Count
    at: Moment
    duration_ms: float = Field(ge=0)
    overruns: Count
    errors: Count
    host_cpu_share: Share = Field(description="busy share of all pCPUs")
    vms_cpu_share: Share = Field(description="share used by managed VMs")
    owned_knobs: Count = Field(description="settings that now differ from their original because of Equipoise")
    mode: Mode
    policy: Name
    libvirt_connected: bool


class HostOut(HostIn):
    """A host with what its agent last reported."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    last_seen_at: AwareDatetime | None = None
    agent_version: Text | None = None
    tick: TickStatus | None = None
    capabilities: CapabilitiesBody | None = None


class RecordBody(Schema):
    """A decision about one knob, and what came of it."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$", description="a UUID in lower case")]
    at: Moment
    host: Name
    vm: Name
    knob: Knob
    index: Annotated[int, Field(ge=0, le=8191)]
    before: Text
    after: Text
    reason: Text
    policy: Name
    mode: Mode
    outcome: OutcomeKind
    detail: Text = ""


class EventBody(Schema):
    """Something an operator may want to know."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$", description="a UUID in lower case")]
    at: Moment
    host: Name
    severity: Severity
    kind: Name
    message: Text
    vm: Name | None = None


class ReportIn(Schema):
    """What an agent tells the manager; repeating it stores nothing twice."""

    agent_version: Text
    capabilities: CapabilitiesBody
    tick: TickStatus | None = None
    vms: list[VmStatus] | None = Field(default=None, max_length=5000, description="null: unchanged since last time")
    decisions: list[RecordBody] = Field(default_factory=list, max_length=1000)
    events: list[EventBody] = Field(default_factory=list, max_length=1000)


class ReportOut(Schema):
    """How many records were stored (repeated ones are not counted)."""

    stored_decisions: Count
    stored_events: Count


class AssignedVm(VmIn):
    """A VM the host's agent is to manage if it finds it."""

    name: Name


class AssignedWindow(Schema):
    """The latest window of an application, as a histogram."""

    start: AwareDatetime
    end: AwareDatetime
    buckets: dict[int, Count]


class AssignedApplication(ApplicationIn):
    """An application with its latest window."""

    name: Name
    window: AssignedWindow | None = None


class AssignedHost(HostIn):
    """How the host is to be controlled."""

    name: Name


class AssignmentOut(Schema):
    """All that an agent needs to know."""

    host: AssignedHost
    vms: list[AssignedVm]
    applications: list[AssignedApplication]


class PolicyOut(Schema):
    """An installed policy."""

    name: Name
    summary: Text
    provided_by: Text


class HealthOut(Schema):
    """Whether the manager can serve requests."""

    status: Literal["ok"]
    version: Text
    database: Literal["ok"]


Role = Literal["viewer", "operator", "admin", "host"]


class TokenIn(Schema):
    """A token to make. ``host`` binds a host token to one host and is required for that role only."""

    name: Name
    role: Role
    host: Name | None = None


class TokenOut(TokenIn):
    """A token without its secret."""

    created_at: AwareDatetime
    last_used_at: AwareDatetime | None = None


class TokenSecret(TokenOut):
    """A new token; the secret is shown once and stored as a hash."""

    token: Text


class Problem(BaseModel):
    """Every error, as application/problem+json (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    errors: list[dict[str, str]] = Field(default_factory=list, description="one entry a bad field: field, message")
