"""The likely cause of a violated SLA."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.history_routes import pcpus_of, violation_out
from manager.api.queries import EvidenceQuery, NamePath
from manager.api.schemas.history_shapes import EvidenceOut, MeasureOut
from manager.control.blame import Case, HostTicks, Verdict, blame
from manager.control.budget import Period, Span, joined
from manager.model.fields import timestamp
from manager.model.records import TickRecord
from manager.model.registration import Sla
from manager.model.verdict import VerdictKind
from manager.protocol.report import VmStatus
from manager.store.applications import applications_of
from manager.store.history import hosts_in, latest_violation, read_periods, vm_classes
from manager.store.models import ApplicationRow, HostRow
from manager.store.past_registrations import Past, read_past
from manager.store.registrations import find, get
from manager.store.tick_rollups import read_ticks
from manager.store.vms import VmFilter, list_vms

SIDE = timedelta(minutes=5)
"""Ticks are looked at for so long before a violation, and for its last so long."""

_MAX_TICKS = 300  # a side of a violation, and host
_LOOK_BACK = timedelta(minutes=30)  # a violation is taken to have begun no earlier
_GAP_S = 30.0  # parts of a violation that are so little apart are one
_NEAR = timedelta(minutes=1)  # a violation that ended so short before a time went on then
_MONTH = timedelta(days=30)
_MOST_VMS = 1000


def evidence_api(context: ManagerContext) -> APIBlueprint:
    """The route of evidence."""
    api = blueprint("evidence", "The likely cause of a violated SLA.")

    @api.get("/applications/<name>/evidence", responses=answers((200, EvidenceOut)))
    @endpoint(VIEWER)
    def get_evidence(path: NamePath, query: EvidenceQuery) -> Response:
        """The verdict on a violation, with its evidence in words and numbers."""
        now = context.now()
        at = now if query.at is None else min(query.at, now)
        with context.database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            span, periods = _violation(session, context, row, at, _MONTH if query.at is None else _LOOK_BACK)
            near = query.at is None or (span is not None and span.end_s >= (at - _NEAR).timestamp())
            past = read_past(session, at if span is None else timestamp(span.start_s), row.name)
            if span is None or not near:
                span, rate_rps, sla = None, None, past.sla(row, at)
                verdict = _not_missed(sla, at, query.at is None)
            else:
                rate_rps, sla = _rate_rps(periods, context.slot_s), past.sla(row, timestamp(span.start_s))
                verdict = blame(_case(session, context, row, span, rate_rps, past))
        return answer(
            EvidenceOut(
                application=row.name,
                at=timestamp(span.end_s) if span else at,
                sla=sla,
                violation=violation_out(span) if span else None,
                rate_rps=rate_rps,
                verdict=verdict.kind,
                vm=verdict.vm,
                host=verdict.host,
                evidence=list(verdict.evidence),
                measures=[MeasureOut.model_validate(asdict(measure)) for measure in verdict.measures],
            )
        )

    return api


def _not_missed(sla: Sla | None, at: datetime, ever: bool) -> Verdict:
    when = "in the last 30 days" if ever else f"in the minute until {at}"
    text = f"the SLA was not violated {when}" if sla else "the application has no SLA"
    return Verdict(VerdictKind.UNKNOWN, (text,))


def _violation(
    session: Session, context: ManagerContext, row: ApplicationRow, at: datetime, within: timedelta
) -> tuple[Span | None, list[Period]]:
    """The latest violation that began before ``at``, with the slots in it."""
    latest = latest_violation(session, row, at, within, context.slot_length, context.min_samples)
    if latest is None:
        return None, []
    end = timestamp(latest.end_s)
    how = context.slot_s, context.slot_length, context.min_samples, context.now()
    slots = read_periods(session, row, end - _LOOK_BACK, end, *how)
    spans = joined((span for slot in slots for span in slot.violations), _GAP_S)
    span = spans[-1] if spans else latest  # its slots may be forgotten already
    return span, [slot for slot in slots if span.start_s <= slot.start_s < span.end_s]


def _rate_rps(periods: list[Period], slot_s: float) -> float | None:
    known = [period.window.requests for period in periods if period.window.requests is not None]
    return sum(known) / (len(known) * slot_s) if known else None


def _case(
    session: Session, context: ManagerContext, row: ApplicationRow, span: Span, rate_rps: float | None, past: Past
) -> Case:
    """The violation with what was registered of the application when it began."""
    begun = timestamp(span.start_s)
    vms, sla = past.vms(applications_of(session, [row])[row.name], begun), past.sla(row, begun)
    # A tick tells of the interval before it, and comes just after its end.
    late = timedelta(seconds=context.slot_s / 2)
    begin, end = timestamp(span.start_s) + late, timestamp(span.end_s) + late
    during = max(begin, end - SIDE)
    hosts: list[HostTicks] = []
    for name in hosts_in(session, row, vms, begin):
        host = find(session, HostRow, name)
        pcpus = pcpus_of(host)
        if host is None or host.capabilities is None or pcpus is None:
            continue
        ticks = [tuple(read_ticks(session, name, *side, _MAX_TICKS)) for side in ((begin - SIDE, begin), (during, end))]
        if any(_tells_of(part, vms) for part in ticks):
            hosts.append(HostTicks(name, pcpus, host.capabilities["schedstat"], *ticks))
    vcpus: dict[str, int] = {}
    limits: dict[str, float] = {}
    for vm in list_vms(session, VmFilter(names=vms), None, _MOST_VMS):
        if vm["status"] is None:
            continue
        vcpus[vm["name"]] = count = VmStatus.model_validate_json(vm["status"]).vcpus
        limits[vm["name"]] = min(count, vm["max_pcpus"] or count)
    return Case(
        row.name,
        vms,
        tuple(hosts),
        rate_rps,
        sla.max_rate_rps if sla else None,
        vcpus,
        limits,
        vm_classes(session),
    )


def _tells_of(ticks: tuple[TickRecord, ...], vms: frozenset[str]) -> bool:
    return any(vm.vm in vms for tick in ticks for vm in tick.vms)
