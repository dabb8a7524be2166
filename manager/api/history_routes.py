"""Response times, error budgets, CPU use and weights over time; and likely causes of SLA violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, Field
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.queries import EvidenceQuery, HistoryQuery, NamePath
from manager.api.validation import shown
from manager.control.blame import blame
from manager.control.budget import (
    HOUR_S,
    MINUTE_S,
    Budget,
    Period,
    Steps,
    Violation,
    budget,
    by_step,
    cut_range,
    joined,
    total,
)
from manager.control.error_budget import Judged
from manager.control.series import HostStep, Line, VmLines, host_lines
from manager.control.violation_case import Case, HostTicks, Measure, ShownNeighbour, Verdict
from manager.errors import InvalidRequest
from manager.model.costs import STUDY_COSTS
from manager.model.cpus import parse_cpus
from manager.model.fields import Count, Name, Schema, timestamp
from manager.model.records import TickRecord
from manager.model.registration import Sla, VmClass
from manager.model.verdict import VerdictKind
from manager.protocol.report import VmStatus
from manager.store.applications import application_with_past, applications_of
from manager.store.explanations import explanations_of
from manager.store.history import (
    MAX_TICKS,
    MeasuredPast,
    classified,
    first_measured,
    hosts_in,
    vm_classes,
)
from manager.store.models import ApplicationRow, HostRow
from manager.store.past_registrations import Past, read_past
from manager.store.registrations import find, get
from manager.store.tick_rollups import read_ticks
from manager.store.vm_lists import VmFilter, list_vms

_DAY = timedelta(days=1)
_DEFAULT = timedelta(hours=1)
_LONGEST = timedelta(days=732)
_BUDGETS = ((_DEFAULT, None), (_DAY, MINUTE_S), (30 * _DAY, HOUR_S))
"""Their lengths, shortest first, and the unit to which their begin is aligned; None: a slot."""

_SIDE = timedelta(minutes=5)  # of ticks that are read before a violation, and at its end
_MAX_TICKS = 300  # per side of a violation, and host
_LOOK_BACK = timedelta(minutes=30)  # how long a violation may be
_GAP_S = 30.0  # violations less than this apart count as one
_NEAR = timedelta(minutes=1)  # a violation that ended this recently still counts
_MOST_VMS = 1000


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
    percentile_ms: float | None = Field(description="the percentile of the SLA; null: no SLA, or unknown")
    judged: Count = Field(description="slots with enough response times")
    violated: Count = Field(description="of these, those that violated the SLA in force at the time")


class RangeOut(Schema):
    """A range of time in steps of ``step_s``, oldest first."""

    since: AwareDatetime
    until: AwareDatetime
    step_s: float


class HistoryOut(RangeOut):
    """Response times of an application over a range of time, oldest first."""

    application: Name
    sla: Sla | None = Field(description="the current SLA")
    steps: list[StepOut]
    violations: list[Violation] = Field(description="violations less than a step apart are merged")


class HostHistoryOut(RangeOut):
    """CPU use and weights on a host over a range of time, oldest first."""

    host: Name
    steps: list[HostStep]
    vms: list[VmLines]


class TierHistoryOut(Schema):
    """A tier: the pCPUs its VMs used together, and its VMs on each host where they ran."""

    tier: Name
    pcpus: Line = Field(description="CPU seconds per second; one value per step, null: no data")
    vms: list[VmLines]


class TiersHistoryOut(RangeOut):
    """CPU use and weights of an application's tiers over a range of time, oldest first."""

    application: Name
    starts: list[AwareDatetime] = Field(description="begin of each step")
    tiers: list[TierHistoryOut]


class BudgetsOut(Schema):
    """The budgets of the last hour, day and 30 days."""

    application: Name
    sla: Sla | None
    slot_s: float
    attainment_target: float = Field(description="the setting: 1 minus it is the error budget")
    budget_remaining: float | None = Field(
        description="remaining share of the error budget of 30 days, below 0: overspent; null: no data"
    )
    first_at: AwareDatetime | None = Field(
        description="begin of the oldest slot, minute or hour with response times; null: none"
    )
    budgets: list[Budget]


class EvidenceOut(Schema):
    """The likely cause of a violation, with the evidence in sentences and numbers."""

    application: Name
    at: AwareDatetime
    sla: Sla | None
    violation: Violation | None = Field(description="null: the SLA was not violated at that time")
    rate_rps: float | None = Field(description="during it; null: unknown")
    verdict: VerdictKind
    vm: Name | None = Field(description="the noisy neighbour")
    host: Name | None
    confidence: float | None = Field(
        ge=0, le=1, description="of a noisy neighbour that was shown by experiment; null: it is likely, not shown"
    )
    evidence: tuple[str, ...]
    measures: tuple[Measure, ...]


def history_api(context: ManagerContext) -> RouteGroup:
    """The routes of history."""
    api = RouteGroup("history", "History of response times, budgets, CPU use and weights.")
    database = context.database

    @api.at("GET /applications/<name>/history", VIEWER)
    def get_application_history(path: NamePath, query: HistoryQuery) -> HistoryOut:
        """Response times of an application in steps, and when its SLA was violated."""
        steps = _steps(context, query)
        with database.reading() as session:
            row = application_with_past(session, path.name)
            since, until = timestamp(steps.first_s), timestamp(steps.end_s)
            periods = _measured(session, context, row).periods(since, until, steps.period_s, context.now())
        sla = row.sla
        spans = joined((span for period in periods for span in period.violations), steps.step_s)
        by_place = by_step(row.name, periods, steps, context.clock(), context.slot_s)
        return HistoryOut(
            **_range(steps),
            application=row.name,
            sla=sla,
            steps=[_step_out(period, steps, sla) for period in by_place],
            violations=list(spans),
        )

    @api.at("GET /applications/<name>/budget", VIEWER)
    def get_budget(path: NamePath) -> BudgetsOut:
        """How often and for how long the SLA was violated in the last hour, day and 30 days."""
        with database.reading() as session:
            row = application_with_past(session, path.name)
            first_at = first_measured(session, row)
            budgets = _budgets(session, context, row)
        month = Judged(budgets[-1].judged, budgets[-1].violated)
        return BudgetsOut(
            application=row.name,
            sla=row.sla,
            slot_s=context.slot_s,
            attainment_target=context.attainment_target,
            budget_remaining=month.budget_remaining(context.attainment_target),
            first_at=first_at,
            budgets=budgets,
        )

    @api.at("GET /hosts/<name>/history", VIEWER)
    def get_host_history(path: NamePath, query: HistoryQuery) -> HostHistoryOut:
        """CPU use and weights on a host in steps, from its ticks or, for long ranges, their means."""
        steps = _steps(context, query)
        with database.reading() as session:
            get(session, HostRow, path.name)
            of_host, vms = _lines(session, context, path.name, None, steps, MAX_TICKS)
        return HostHistoryOut(**_range(steps), host=path.name, steps=of_host, vms=vms)

    @api.at("GET /applications/<name>/tiers-history", VIEWER)
    def get_tiers_history(path: NamePath, query: HistoryQuery) -> TiersHistoryOut:
        """CPU use and weights of an application's VMs in steps, on all hosts where they ran."""
        steps = _steps(context, query)
        lines: dict[str, list[VmLines]] = {}
        with database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            application = applications_of(session, [row])[row.name]
            classes = vm_classes(session, application.vms)
            hosts = hosts_in(session, row, classes, _after_tick(context, steps.first_s))
            pcpus = {host: _pcpus_of(find(session, HostRow, host)) for host in hosts}
            for host in hosts:
                _, vms = _lines(session, context, host, classes, steps, max(MAX_TICKS // len(hosts), steps.count))
                for vm in vms:
                    lines.setdefault(vm.vm, []).append(vm)
        tiers = []
        for tier in application.tiers:
            of_tier = [vm for name in tier.vms for vm in lines.get(name, ())]
            used = [_pcpus_used(of_tier, pcpus, place) for place in range(steps.count)]
            tiers.append(TierHistoryOut(tier=tier.name, pcpus=used, vms=of_tier))
        starts = [timestamp(start_s) for start_s in steps.starts_s]
        return TiersHistoryOut(**_range(steps), application=row.name, starts=starts, tiers=tiers)

    return api


def evidence_api(context: ManagerContext) -> RouteGroup:
    """The route of evidence."""
    api = RouteGroup("evidence", "The likely cause of a violated SLA.")

    @api.at("GET /applications/<name>/evidence", VIEWER)
    def get_evidence(path: NamePath, query: EvidenceQuery) -> EvidenceOut:
        """The likely cause of a violation, with evidence."""
        now = context.now()
        at = now if query.at is None else min(query.at, now)
        with context.database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            violation, periods = _violation(session, context, row, at, 30 * _DAY if query.at is None else _LOOK_BACK)
            near = query.at is None or (violation is not None and violation.end_s >= (at - _NEAR).timestamp())
            past = read_past(session, at if violation is None else timestamp(violation.start_s), [row.name])
            if violation is None or not near:
                violation, rate_rps, sla = None, None, past.sla(row, at)
                verdict = _no_violation(sla, at, query.at is None)
            else:
                rate_rps, sla = _rate_rps(periods, context.slot_s), past.sla(row, timestamp(violation.start_s))
                verdict = blame(_case(session, context, row, violation, rate_rps, past))
        return EvidenceOut(
            application=row.name,
            at=timestamp(violation.end_s) if violation else at,
            sla=sla,
            violation=violation,
            rate_rps=rate_rps,
            verdict=verdict.kind,
            vm=verdict.vm,
            host=verdict.host,
            confidence=verdict.confidence,
            evidence=verdict.evidence,
            measures=verdict.measures,
        )

    return api


def cause_now(session: Session, context: ManagerContext, row: ApplicationRow) -> tuple[Violation, Verdict] | None:
    """The violation of an application's SLA that goes on, and its likely cause; None: there was none for a minute."""
    now = context.now()
    violation, periods = _violation(session, context, row, now, _LOOK_BACK)
    if violation is None or violation.end_s < (now - _NEAR).timestamp():
        return None
    past = read_past(session, timestamp(violation.start_s), [row.name])
    return violation, blame(_case(session, context, row, violation, _rate_rps(periods, context.slot_s), past))


def _steps(context: ManagerContext, query: HistoryQuery) -> Steps:
    """The steps of the requested range. Raises InvalidRequest if it is empty or too long."""
    now = context.now()
    until = now if query.until is None else min(query.until, now)
    since = until - _DEFAULT if query.since is None else query.since
    if since >= until:
        raise InvalidRequest("since", f"{shown(since)} is refused; allowed: earlier than until, {until}")
    if until - since > _LONGEST:
        hours = round(_LONGEST.total_seconds() / HOUR_S)
        text = f"{shown(since)} is refused; allowed: at most {hours} hours before until, {until}"
        raise InvalidRequest("since", text)
    kept_from_s = ((now - length).timestamp() for length in (context.keep_slots, context.keep_minutes))
    return cut_range(since.timestamp(), until.timestamp(), query.points, context.slot_s, *kept_from_s)


def _range(steps: Steps) -> dict[str, Any]:
    return {"since": timestamp(steps.first_s), "until": timestamp(steps.end_s), "step_s": steps.step_s}


def _after_tick(context: ManagerContext, time_s: float) -> datetime:
    """A time by which the tick of the interval that ends at ``time_s`` has come."""
    return timestamp(time_s + context.slot_s / 2)


def _lines(
    session: Session,
    context: ManagerContext,
    host: str,
    classes: Mapping[str, VmClass] | None,
    steps: Steps,
    most: int,
) -> tuple[list[HostStep], list[VmLines]]:
    """The ticks of a host in steps, with lines of the VMs that ``classes`` has; None: of all that ran there."""
    since, until = _after_tick(context, steps.first_s), _after_tick(context, steps.end_s)
    ticks = read_ticks(session, host, since, until, most, steps.count)
    if classes is None:
        ticks, classes = classified(session, ticks)
    row = find(session, HostRow, host)
    idle_part = (STUDY_COSTS if row is None else row.costs).idle_part
    return host_lines(host, ticks, classes, steps, context.slot_s / 2, idle_part)


def _pcpus_of(host: HostRow | None) -> int | None:
    """The number of a host's online pCPUs; None: never reported."""
    if host is None or host.capabilities is None:
        return None
    return len(parse_cpus(host.capabilities["online_cpus"])) or None


def _measured(session: Session, context: ManagerContext, row: ApplicationRow) -> MeasuredPast:
    return MeasuredPast(session, row, context.slot_length, context.min_samples)


def _step_out(period: Period, steps: Steps, sla: Sla | None) -> StepOut:
    window = period.window
    return StepOut(
        start=timestamp(period.start_s),
        end=timestamp(period.start_s + steps.step_s),
        count=window.histogram.count,
        requests=window.requests,
        rate_rps=window.rate_rps,
        p50_ms=window.percentile_ms(50),
        p95_ms=window.percentile_ms(95),
        p99_ms=window.percentile_ms(99),
        percentile_ms=window.percentile_ms(sla.percentile) if sla else None,
        judged=period.judged,
        violated=period.violated,
    )


def _budgets(session: Session, context: ManagerContext, row: ApplicationRow) -> list[Budget]:
    """Each budget includes the next shorter one, so nothing is read twice."""
    budgets: list[Budget] = []
    shorter: list[Period] = []
    now_s = end_s = context.clock()
    for length, period_s in _BUDGETS:
        unit_s = period_s or context.slot_s
        since_s = (now_s - length.total_seconds()) // unit_s * unit_s
        since, until = timestamp(since_s), timestamp(end_s)
        periods = MeasuredPast(session, row, context.slot_length, context.min_samples).fewest_periods(since, until)
        whole = total(row.name, [*periods, *shorter], since_s, now_s)
        budgets.append(budget(whole, length.total_seconds(), row.sla, context.attainment_target))
        shorter, end_s = [whole], since_s
    return budgets


def _pcpus_used(vms: Sequence[VmLines], pcpus: Mapping[str, int | None], place: int) -> float | None:
    """The pCPUs that VMs used together in a step; None if their use or a host's number of pCPUs is unknown."""
    used = [(share, pcpus[vm.host]) for vm in vms if (share := vm.cpu_share[place]) is not None]
    parts = [share * count for share, count in used if count is not None]
    return round(sum(parts), 5) if parts and len(parts) == len(used) else None


def _no_violation(sla: Sla | None, at: datetime, ever: bool) -> Verdict:
    when = "in the last 30 days" if ever else f"in the minute until {at}"
    text = f"the SLA was not violated {when}" if sla else "the application has no SLA"
    return Verdict(VerdictKind.UNKNOWN, (text,))


def _violation(
    session: Session, context: ManagerContext, row: ApplicationRow, at: datetime, within: timedelta
) -> tuple[Violation | None, list[Period]]:
    """The latest violation that began before ``at``, with the slots in it."""
    past = _measured(session, context, row)
    latest = past.latest_violation(at, within)
    if latest is None:
        return None, []
    end = timestamp(latest.end_s)
    slots = past.periods(end - _LOOK_BACK, end, context.slot_s, context.now())
    spans = joined((span for slot in slots for span in slot.violations), _GAP_S)
    span = spans[-1] if spans else latest  # its slots may be deleted already
    return span, [slot for slot in slots if span.start_s <= slot.start_s < span.end_s]


def _rate_rps(periods: list[Period], slot_s: float) -> float | None:
    requests = [period.window.requests for period in periods if period.window.requests is not None]
    return sum(requests) / (len(requests) * slot_s) if requests else None


def _case(
    session: Session,
    context: ManagerContext,
    row: ApplicationRow,
    violation: Violation,
    rate_rps: float | None,
    past: Past,
) -> Case:
    """The violation with the application's registration at its begin."""
    begun = timestamp(violation.start_s)
    vms, sla = past.vms(applications_of(session, [row])[row.name], begun), past.sla(row, begun)
    begin, end = _after_tick(context, violation.start_s), _after_tick(context, violation.end_s)
    during = max(begin, end - _SIDE)
    hosts: list[HostTicks] = []
    for name in hosts_in(session, row, vms, begin):
        host = find(session, HostRow, name)
        pcpus = _pcpus_of(host)
        if host is None or host.capabilities is None or pcpus is None:
            continue
        sides = (begin - _SIDE, begin), (during, end)
        ticks = [tuple(read_ticks(session, name, *side, _MAX_TICKS)) for side in sides]
        if any(_contain_any(vms, part) for part in ticks):
            hosts.append(HostTicks(name, pcpus, host.capabilities["schedstat"], *ticks))
    vcpus: dict[str, int] = {}
    limits: dict[str, float] = {}
    for vm in list_vms(session, VmFilter(names=vms), None, _MOST_VMS):
        if vm["status"] is None:
            continue
        vcpus[vm["name"]] = count = VmStatus.model_validate_json(vm["status"]).vcpus
        limits[vm["name"]] = min(count, vm["max_pcpus"] or count)
    max_rate_rps = sla.max_rate_rps if sla else None
    target_ms = sla.response_time_ms if sla else None
    shown = _shown(session, row, begun, timestamp(violation.end_s))
    seen = {vm.vm for host in hosts for tick in (*host.before, *host.during) for vm in tick.vms}
    classes = vm_classes(session, seen | ({shown.vm} if shown else set()))
    return Case(row.name, vms, tuple(hosts), rate_rps, max_rate_rps, vcpus, limits, classes, shown, target_ms)


def _shown(session: Session, row: ApplicationRow, start: datetime, end: datetime) -> ShownNeighbour | None:
    """Who was shown by experiment to slow the application in a violation, of several hosts by the latest."""
    causes = [each.cause for each in explanations_of(session, [row.id]).get(row.name, ()) if each.cause is not None]
    shown = [cause for cause in causes if cause.speaks_of(start, end)]
    return max(shown, key=lambda cause: (cause.at, cause.host), default=None)


def _contain_any(vms: frozenset[str], ticks: tuple[TickRecord, ...]) -> bool:
    return any(vm.vm in vms for tick in ticks for vm in tick.vms)
