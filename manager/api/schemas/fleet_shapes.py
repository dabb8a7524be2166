"""Shapes of the fleet at a glance."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from manager.model.fields import Count, Name, Schema, Text
from manager.model.registration import Mode, Sla
from manager.model.window import Burn, SlaState
from manager.protocol.report import TickStatus


class FleetApplication(Schema):
    """An application at a glance."""

    name: Name
    sla: Sla | None
    sla_state: SlaState
    measured_ms: float | None = Field(description="the SLA's percentile in the latest window; null: unknown")
    measured_at: AwareDatetime | None = Field(description="end of the latest window; null: no response times yet")
    rate_rps: float | None = Field(description="null: unknown")
    attainment: float | None = Field(
        description="share of judged intervals of the last 30 days in which the SLA held; null: none was judged"
    )
    budget_remaining: float | None = Field(
        description="share of the error budget of 30 days that is left, below 0: used up; null: none was judged"
    )
    burn_rate: float | None = Field(
        description="of the last hour: share of violated intervals by 1 - `attainment_target`; null: none was judged"
    )
    burning: Burn = Field(description="how urgent the burn rate is, by several windows: fast, slow or none")
    hosts: list[Name] = Field(description="on which its VMs run")
    points_ms: list[float | None] = Field(
        description="the percentile in the last minutes, oldest first: of each step its slowest slot; null: no data"
    )


class FleetHost(Schema):
    """A host at a glance."""

    name: Name
    mode: Mode
    policy: Name
    last_seen_at: AwareDatetime | None
    silent: bool = Field(description="it has not reported for `silent_intervals`")
    agent_version: Text | None
    tick: TickStatus | None


class FleetOut(Schema):
    """Applications as asked for, how many there are of each state, and all hosts."""

    applications: list[FleetApplication]
    matching: Count = Field(description="applications that meet all conditions")
    states: dict[SlaState, Count] = Field(description="of those that meet all conditions but that of the state")
    attainment_target: float = Field(description="the setting: 1 minus it is the error budget")
    registered: Count = Field(description="all applications")
    step_s: float = Field(description="length of a step of `points_ms`, in seconds")
    until: AwareDatetime = Field(description="end of the last step")
    hosts: list[FleetHost]
