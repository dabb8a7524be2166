"""Shapes of what happened over time: history, budget, evidence, what-if and the story of decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, ConfigDict, Field

from manager.model.fields import Count, Name, Schema, Text
from manager.model.knobs import Knob
from manager.model.law import Law
from manager.model.records import KnobIndex, OutcomeKind
from manager.model.registration import Mode, Sla, VmClass
from manager.model.verdict import VerdictKind
from manager.model.window import SlaState

Line = list[float | None]
_ALIGNED = "one value a step, null: unknown"


class StepOut(Schema):
    """Response times of one step of a history, from merged histograms."""

    start: AwareDatetime
    end: AwareDatetime
    count: int = Field(ge=0, description="response times")
    requests: float | None = Field(ge=0, description="null: unknown")
    rate_rps: float | None = Field(ge=0, description="null: unknown")
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    time_ms: float | None = Field(description="the percentile of the SLA; null: no SLA, or unknown")
    judged: Count = Field(description="slots with enough response times")
    missed: Count = Field(description="of these, those that violated the SLA then in force")


class ViolationOut(Schema):
    """A time in which an SLA was violated."""

    start: AwareDatetime
    end: AwareDatetime
    missed: Count = Field(description="slots that violated it")


class HistoryOut(Schema):
    """Response times of an application over a range of time, oldest first."""

    application: Name
    since: AwareDatetime
    until: AwareDatetime
    step_s: float
    sla: Sla | None = Field(description="as it is now")
    steps: list[StepOut]
    violations: list[ViolationOut] = Field(description="those less than a step apart are one")


class BudgetOut(Schema):
    """SLA attainment over a time until now."""

    length_s: Count
    since: AwareDatetime
    judged: Count
    missed: Count
    missed_share: float | None = Field(description="of the judged slots; null: none was")
    attainment: float | None = Field(description="share of the judged slots in which the SLA held")
    burn_rate: float | None = Field(description="`missed_share` by 1 - `attainment_target`")
    longest_violation_s: float
    time_ms: float | None = Field(description="the percentile of the SLA over the whole time")


class BudgetsOut(Schema):
    """The budgets of the last hour, day and 30 days."""

    application: Name
    sla: Sla | None
    slot_s: float
    attainment_target: float = Field(description="the setting: 1 minus it is the error budget")
    budget_remaining: float | None = Field(
        description="share of the error budget of 30 days that is left, below 0: used up; null: none was judged"
    )
    first_at: AwareDatetime | None = Field(
        description="begin of the oldest slot, or minute or hour, of which response times are kept; null: none is"
    )
    budgets: list[BudgetOut]


class HostStepOut(Schema):
    """How a host's CPU time was used in a step; null: no tick tells."""

    start: AwareDatetime
    ticks: Count = Field(description="ticks that the means are of")
    host_cpu_share: float | None
    critical_share: float | None
    batch_share: float | None
    other_share: float | None = Field(description="what no registered VM used")


class VmLinesOut(Schema):
    """A VM over the steps of a history."""

    vm: Name
    host: Name
    vm_class: VmClass = Field(alias="class")
    cpu_share: Line = Field(description=f"mean fraction of the host's CPU time; {_ALIGNED}")
    run_delay_share: Line = Field(description=f"mean seconds a second that its vCPUs waited; {_ALIGNED}")
    weight: list[int | None] = Field(description="last of each step")
    mode: list[Mode | None] = Field(description="last of each step")

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)


class HostHistoryOut(Schema):
    """CPU use and weights on a host over a range of time, oldest first."""

    host: Name
    since: AwareDatetime
    until: AwareDatetime
    step_s: float
    steps: list[HostStepOut]
    vms: list[VmLinesOut]


class TierHistoryOut(Schema):
    """A tier: the pCPUs its VMs used together, and its VMs on each host on which they ran."""

    tier: Name
    pcpus: Line = Field(description=f"CPU seconds a second; {_ALIGNED}")
    vms: list[VmLinesOut]


class TiersHistoryOut(Schema):
    """CPU use and weights of an application's tiers over a range of time, oldest first."""

    application: Name
    since: AwareDatetime
    until: AwareDatetime
    step_s: float
    starts: list[AwareDatetime] = Field(description="begin of each step")
    tiers: list[TierHistoryOut]


class MeasureOut(Schema):
    """A mean before a violation (null: unknown) and during it."""

    subject: Name
    what: Literal["cpu_share", "wait_part", "vcpu_used", "vcpu_wait"] = Field(
        description="cpu_share: of the host; wait_part: part of the time its vCPUs wanted to run that they waited"
    )
    before: float | None
    during: float


class EvidenceOut(Schema):
    """The likely cause of a violation, with the evidence in sentences and numbers."""

    application: Name
    at: AwareDatetime
    sla: Sla | None
    violation: ViolationOut | None = Field(description="null: the SLA was not violated then")
    rate_rps: float | None = Field(description="during it; null: unknown")
    verdict: VerdictKind
    vm: Name | None = Field(description="the noisy neighbour")
    host: Name | None
    evidence: list[str]
    measures: list[MeasureOut]


class WhatIfVm(Schema):
    """Weights of a VM: as they were, and as the policy would have set them; one value a time of ``at``."""

    vm: Name
    recorded: list[int | None]
    replayed: list[int | None]


class WhatIfApplication(Schema):
    """An application: ticks with a known state of its SLA, as recorded, and its VMs' least and largest weights."""

    application: Name
    judged: Count
    missed: Count
    recorded: tuple[int, int] | None
    replayed: tuple[int, int] | None
    vms: list[WhatIfVm]


class WhatIfChange(Schema):
    """A weight that the policy would have changed; ``recorded`` is what the VM had after that tick."""

    at: AwareDatetime
    vm: Name
    recorded: int | None
    before: int | None
    after: int | None
    reason: str


class WhatIfOut(Schema):
    """What another policy would have decided on what happened; see docs/how-to/replay.md. An estimate."""

    estimated: Literal[True]
    host: Name
    since: AwareDatetime
    until: AwareDatetime
    policy: Name
    law: Law
    recorded_policies: list[Name]
    interval_s: float
    ticks: Count
    at: list[AwareDatetime] = Field(description="ticks of which weights are answered, at most 300")
    sla: dict[str, list[SlaState]] = Field(description="state as recorded by application, one a time of `at`")
    applications: list[WhatIfApplication]
    changes: list[WhatIfChange] = Field(description="newest first, at most 500")
    changes_total: Count
    problems: list[str] = Field(description="why nothing was decided at some ticks")
    left_out: list[Name] = Field(description="VMs that ran, but are not registered now")
    notes: list[str]


class StoryChange(Schema):
    """One record of a story's entry, by its id in `/decisions`."""

    id: str
    knob: Knob
    index: KnobIndex
    before: Text
    after: Text
    reason: Text
    outcome: OutcomeKind
    detail: Text


class StoryOut(Schema):
    """What was decided of a VM, or of the host itself, in one tick."""

    at: AwareDatetime
    host: Name
    vm: Name | None
    application: Name | None = Field(description="that the VM serves now")
    policy: Name
    mode: Mode
    outcome: OutcomeKind = Field(description="the worst of its changes")
    reason: Text
    sla: Sla | None
    time_ms: float | None = Field(description="the percentile of the SLA then; null: no SLA, or unknown")
    violated: bool = Field(description="the SLA was violated then")
    later_s: float = Field(description="two intervals")
    later_ms: float | None = Field(description="that percentile so much later")
    sentence: str
    changes: list[StoryChange]
