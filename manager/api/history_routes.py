"""What happened over a range of time, for charts: response times, budgets, CPU use and weights."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.queries import HistoryQuery, NamePath
from manager.api.schemas.history_shapes import (
    BudgetOut,
    BudgetsOut,
    HistoryOut,
    HostHistoryOut,
    HostStepOut,
    StepOut,
    TierHistoryOut,
    TiersHistoryOut,
    ViolationOut,
    VmLinesOut,
)
from manager.api.validation import shown
from manager.control.budget import (
    HOUR_S,
    MINUTE_S,
    Period,
    Span,
    Steps,
    budget,
    by_step,
    cut_range,
    joined,
    total,
)
from manager.control.error_budget import Judged
from manager.control.series import Line, VmLines, host_lines
from manager.errors import InvalidRequest
from manager.model.cpus import parse_cpus
from manager.model.fields import timestamp
from manager.model.registration import Sla, VmClass
from manager.store.applications import application_with_past, applications_of, sla_of
from manager.store.history import (
    MAX_TICKS,
    first_measured,
    hosts_in,
    read_longest,
    read_periods,
    vm_classes,
)
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import find, get
from manager.store.tick_rollups import read_ticks

_DAY = timedelta(days=1)
_DEFAULT = timedelta(hours=1)
_LONGEST = timedelta(days=732)
_BUDGETS = ((_DEFAULT, None), (_DAY, MINUTE_S), (30 * _DAY, HOUR_S))
"""Their lengths, the shortest first, and what they begin with, None: a slot."""


def history_api(context: ManagerContext) -> APIBlueprint:
    """The routes of history."""
    api = blueprint("history", "What happened over a range of time.")
    database = context.database

    @api.get("/applications/<name>/history", responses=answers((200, HistoryOut)))
    @endpoint(VIEWER)
    def get_application_history(path: NamePath, query: HistoryQuery) -> Response:
        """Response times of an application in steps, and when its SLA was violated."""
        since, until = _range(query, context.now())
        steps = _steps(context, query, since, until)
        with database.reading() as session:
            row = application_with_past(session, path.name)
            periods = _periods(session, context, row, steps.first_s, _end_s(steps), steps.period_s)
        sla = sla_of(row)
        spans = joined((span for period in periods for span in period.violations), steps.step_s)
        found = by_step(row.name, periods, steps, context.clock())
        return answer(
            HistoryOut(
                application=row.name,
                since=timestamp(steps.first_s),
                until=timestamp(_end_s(steps)),
                step_s=steps.step_s,
                sla=sla,
                steps=[_step_out(period, steps, sla) for period in found],
                violations=[violation_out(span) for span in spans],
            )
        )

    @api.get("/applications/<name>/budget", responses=answers((200, BudgetsOut)))
    @endpoint(VIEWER)
    def get_budget(path: NamePath) -> Response:
        """How often and for how long the SLA was violated in the last hour, day and 30 days."""
        now_s = context.clock()
        with database.reading() as session:
            row = application_with_past(session, path.name)
            sla = sla_of(row)
            first_at = first_measured(session, row)
            found = _budgets_out(session, context, row, now_s)
        whole = Judged(found[-1].judged, found[-1].missed)
        return answer(
            BudgetsOut(
                application=row.name,
                sla=sla,
                slot_s=context.slot_s,
                attainment_target=context.attainment_target,
                budget_remaining=whole.budget_remaining(context.attainment_target),
                first_at=first_at,
                budgets=found,
            )
        )

    @api.get("/hosts/<name>/history", responses=answers((200, HostHistoryOut)))
    @endpoint(VIEWER)
    def get_host_history(path: NamePath, query: HistoryQuery) -> Response:
        """CPU use and weights on a host in steps, from its ticks, or of long ranges their means."""
        since, until = _range(query, context.now())
        steps = _steps(context, query, since, until)
        with database.reading() as session:
            get(session, HostRow, path.name)
            classes = vm_classes(session)
            ticks = read_ticks(session, path.name, *_tick_range(context, steps), MAX_TICKS)
            lines = host_lines(ticks, classes, _tick_range(context, steps)[0].timestamp(), steps.step_s, steps.count)
        shares = zip(
            lines.ticks, lines.host_cpu_share, lines.critical_share, lines.batch_share, lines.other_share, strict=True
        )
        return answer(
            HostHistoryOut(
                host=path.name,
                since=timestamp(steps.first_s),
                until=timestamp(_end_s(steps)),
                step_s=steps.step_s,
                steps=[
                    HostStepOut(
                        start=start,
                        ticks=count,
                        host_cpu_share=busy,
                        critical_share=critical,
                        batch_share=batch,
                        other_share=other,
                    )
                    for start, (count, busy, critical, batch, other) in zip(_starts(steps), shares, strict=True)
                ],
                vms=[_vm_lines_out(path.name, classes[vm.vm], vm) for vm in lines.vms],
            )
        )

    @api.get("/applications/<name>/tiers-history", responses=answers((200, TiersHistoryOut)))
    @endpoint(VIEWER)
    def get_tiers_history(path: NamePath, query: HistoryQuery) -> Response:
        """CPU use and weights of an application's VMs in steps, on all hosts on which they ran."""
        since, until = _range(query, context.now())
        steps = _steps(context, query, since, until)
        first, last = _tick_range(context, steps)
        vms: dict[str, list[tuple[VmLinesOut, int | None]]] = {}
        with database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            application = applications_of(session, [row])[row.name]
            classes = {vm: kind for vm, kind in vm_classes(session).items() if vm in application.vms}
            hosts = hosts_in(session, row, classes, first)
            for host in hosts:
                ticks = read_ticks(session, host, first, last, max(MAX_TICKS // len(hosts), steps.count))
                lines = host_lines(ticks, classes, first.timestamp(), steps.step_s, steps.count)
                pcpus = pcpus_of(find(session, HostRow, host))
                for vm in lines.vms:
                    vms.setdefault(vm.vm, []).append((_vm_lines_out(host, classes[vm.vm], vm), pcpus))
        tiers = []
        for tier in application.tiers:
            own = [one for vm in tier.vms for one in vms.get(vm, ())]
            tiers.append(TierHistoryOut(tier=tier.name, pcpus=_sum(own, steps.count), vms=[vm for vm, _ in own]))
        return answer(
            TiersHistoryOut(
                application=row.name,
                since=timestamp(steps.first_s),
                until=timestamp(_end_s(steps)),
                step_s=steps.step_s,
                starts=_starts(steps),
                tiers=tiers,
            )
        )

    return api


def violation_out(span: Span) -> ViolationOut:
    """A violation as it is answered."""
    return ViolationOut(start=timestamp(span.start_s), end=timestamp(span.end_s), missed=span.missed)


def pcpus_of(host: HostRow | None) -> int | None:
    """Number of a host's online pCPUs, None while its agent never reported them."""
    if host is None or host.capabilities is None:
        return None
    return len(parse_cpus(host.capabilities["online_cpus"])) or None


def _range(query: HistoryQuery, now: datetime) -> tuple[datetime, datetime]:
    """Since and until. Raises InvalidRequest."""
    until = now if query.until is None else min(query.until, now)
    since = until - _DEFAULT if query.since is None else query.since
    if since >= until:
        raise InvalidRequest("since", f"{shown(since)} is refused; allowed: earlier than until, {until}")
    if until - since > _LONGEST:
        hours = round(_LONGEST.total_seconds() / HOUR_S)
        text = f"{shown(since)} is refused; allowed: at most {hours} hours before until, {until}"
        raise InvalidRequest("since", text)
    return since, until


def _steps(context: ManagerContext, query: HistoryQuery, since: datetime, until: datetime) -> Steps:
    now_s = context.clock()
    slots_from_s = now_s - context.keep_slots.total_seconds()
    minutes_from_s = now_s - context.keep_minutes.total_seconds()
    return cut_range(since.timestamp(), until.timestamp(), query.points, context.slot_s, slots_from_s, minutes_from_s)


def _end_s(steps: Steps) -> float:
    return steps.first_s + steps.count * steps.step_s


def _starts(steps: Steps) -> list[datetime]:
    return [timestamp(steps.first_s + place * steps.step_s) for place in range(steps.count)]


def _tick_range(context: ManagerContext, steps: Steps) -> tuple[datetime, datetime]:
    """When ticks come that tell of the steps: a tick tells of the interval before it, and comes just after its end."""
    return timestamp(steps.first_s + context.slot_s / 2), timestamp(_end_s(steps) + context.slot_s / 2)


def _periods(
    session: Session, context: ManagerContext, row: ApplicationRow, since_s: float, until_s: float, period_s: float
) -> list[Period]:
    since, until = timestamp(since_s), timestamp(until_s)
    return read_periods(session, row, since, until, period_s, context.slot_length, context.min_samples, context.now())


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
        time_ms=window.percentile_ms(sla.percentile) if sla else None,
        judged=period.judged,
        missed=period.missed,
    )


def _budgets_out(session: Session, context: ManagerContext, row: ApplicationRow, now_s: float) -> list[BudgetOut]:
    """Each budget holds the shorter one before it, so nothing is read twice."""
    found: list[BudgetOut] = []
    shorter: list[Period] = []
    end_s = now_s
    for length, period_s in _BUDGETS:
        unit_s = period_s or context.slot_s
        since_s = (now_s - length.total_seconds()) // unit_s * unit_s
        since, until = timestamp(since_s), timestamp(end_s)
        periods = read_longest(session, row, since, until, context.slot_length, context.min_samples)
        whole = total(row.name, [*periods, *shorter], since_s, now_s)
        kept = budget(whole, sla_of(row))
        judged = Judged(kept.judged, kept.missed)
        found.append(
            BudgetOut(
                length_s=round(length.total_seconds()),
                since=since,
                judged=kept.judged,
                missed=kept.missed,
                missed_share=kept.missed_share,
                attainment=judged.attainment,
                burn_rate=judged.burn_rate(context.attainment_target),
                longest_violation_s=kept.longest_s,
                time_ms=kept.time_ms,
            )
        )
        shorter, end_s = [whole], since_s
    return found


def _vm_lines_out(host: str, kind: VmClass, lines: VmLines) -> VmLinesOut:
    return VmLinesOut.model_validate(
        {
            "vm": lines.vm,
            "host": host,
            "class": kind,
            "cpu_share": lines.cpu_share,
            "run_delay_share": lines.run_delay_share,
            "weight": lines.weight,
            "mode": lines.mode,
        }
    )


def _sum(vms: Sequence[tuple[VmLinesOut, int | None]], steps: int) -> Line:
    """The pCPUs that VMs used together; None where nothing is known, or a host's number of pCPUs is not."""
    found: Line = []
    for place in range(steps):
        used = [(vm.cpu_share[place], pcpus) for vm, pcpus in vms]
        known = [share * pcpus for share, pcpus in used if share is not None and pcpus is not None]
        complete = all(pcpus is not None for share, pcpus in used if share is not None)
        found.append(round(sum(known), 5) if known and complete else None)
    return found
