"""Reports of agents, and their assignments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar

from flask import Response, request
from flask_openapi3.blueprint import APIBlueprint
from pydantic import BaseModel
from sqlalchemy.orm import Session
from werkzeug.exceptions import UnsupportedMediaType
from werkzeug.http import parse_etags

from manager.api.acceptance import Accepted, read_report
from manager.api.assignments import Assignments
from manager.api.auth import ADMIN_OR_OWN_HOST, VIEWER, VIEWER_OR_OWN_HOST
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint, reference
from manager.api.manager_metrics import Metrics
from manager.api.pages import TickPage
from manager.api.paging import cut, read_cursor, time_place
from manager.api.protocol_headers import clock_ahead_s, refuse_other_protocols, told, who
from manager.api.queries import AssignmentConditions, NamePath, TickQuery
from manager.control.dating import dated, latest_end
from manager.errors import Conflict
from manager.model.fields import adapter_of, json_of, timestamp
from manager.model.host import Capabilities
from manager.model.records import DecisionRecord, Event, TickRecord
from manager.protocol.assignment import AssignmentOut, ReportOut, SlotsOut
from manager.protocol.convert import host_spec, window_of
from manager.protocol.headers import REVISION_HEADER
from manager.protocol.registration_in import HostIn
from manager.protocol.report import ReportIn, VmStatus
from manager.store.agent_tenure import note_agent, refusal
from manager.store.applications import keep_applications
from manager.store.decision_records import store_new
from manager.store.hosts import (
    put_findings,
    put_shares,
    replace_domains,
    reporting_host,
)
from manager.store.manager_clock import manager_behind_s
from manager.store.models import DecisionRow, EventRow, HostRow
from manager.store.registrations import get
from manager.store.serving_hosts import served_until
from manager.store.silent_hosts import note_clock
from manager.store.source_rows import replace_source_statuses
from manager.store.ticks import list_ticks, store_ticks
from manager.store.vm_claims import RefusedVm, Reported, take_statuses
from manager.store.windows import replace_windows

Item = TypeVar("Item", DecisionRecord, Event)

_REPORT_BODY: dict[str, Any] = {"required": True, "content": {"application/json": {"schema": reference(ReportIn)}}}


def agents_api(context: ManagerContext, metrics: Metrics) -> APIBlueprint:
    """The routes that agents use."""
    api = blueprint("agents", "Reports of agents, and their assignments.")
    database, assignments = context.database, Assignments(context)

    @api.post(
        "/hosts/<name>/report", responses=answers((200, ReportOut)), openapi_extensions={"requestBody": _REPORT_BODY}
    )
    @endpoint(ADMIN_OR_OWN_HOST)
    def report(path: NamePath) -> Response:
        """Take an agent's report. An unknown host is registered with the default settings.

        Items that cannot be accepted are left out and named in the answer, as windows that are of the future by the
        host's own clock, too; all others are taken, or none. Windows of applications that the host does not serve are
        left out. Fields that are not known are passed over.
        """
        refuse_other_protocols()
        if not request.is_json:
            raise UnsupportedMediaType("send the body as application/json")
        accepted = read_report(path.name, request.get_data(cache=False), _latest(context, path.name))
        taken = _store(context, assignments, path.name, accepted)
        if isinstance(taken, str):
            metrics.agent_refused()
            raise Conflict(taken)
        stored, number = taken.stored, None
        if accepted.body.wants_slots:
            with database.reading() as session:
                stored.slots, number = assignments.slots(session, path.name)
        _count(metrics, accepted, taken)
        response = answer(stored)
        if number is not None:
            response.headers[REVISION_HEADER] = str(number)
        return told(response, context)

    @api.get("/hosts/<name>/ticks", responses=answers((200, TickPage)))
    @endpoint(VIEWER)
    def get_ticks(path: NamePath, query: TickQuery) -> Response:
        """What the ticks of a host saw, newest first."""
        after = read_cursor(query, time_place)
        with database.reading() as session:
            get(session, HostRow, path.name)
            found = list_ticks(session, path.name, query.since, query.until, query.limit + 1, after, context.latest)
        rows, following = cut(found, query.limit, lambda row: row.at.isoformat())
        return answer(TickPage(items=[adapter_of(TickRecord).validate_json(row.body) for row in rows], next=following))

    @api.get("/hosts/<name>/assignment", responses=answers((200, AssignmentOut), (304, None)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_assignment(path: NamePath, header: AssignmentConditions) -> Response:
        """All that the agent of a host needs to know. With If-None-Match: only if it changed."""
        refuse_other_protocols()
        with database.reading() as session:
            _refuse_rival(session, context, path.name)
            found, number = assignments.whole(session, path.name)
        return told(_unless_known(found, header, number), context)

    @api.get("/hosts/<name>/slots", responses=answers((200, SlotsOut), (304, None)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_slots(path: NamePath, header: AssignmentConditions) -> Response:
        """Of that only what changes all the time: the slots of response times. With If-None-Match: only if they did."""
        refuse_other_protocols()
        with database.reading() as session:
            _refuse_rival(session, context, path.name)
            found, number = assignments.slots(session, path.name)
        return told(_unless_known(found, header, number), context)

    return api


def _refuse_rival(session: Session, context: ManagerContext, name: str) -> None:
    """Raises Conflict for an agent that is not the one which serves the host."""
    agent = who()
    if agent is not None:
        why = refusal(get(session, HostRow, name), agent, context.now(), context.silent)
        if why:
            raise Conflict(why)


def _unless_known(found: BaseModel, header: AssignmentConditions, revision: int) -> Response:
    """The answer, or 304 where the agent has it already."""
    response = answer(found)
    etag = hashlib.sha256(response.get_data()).hexdigest()
    if header.if_none_match is not None and parse_etags(header.if_none_match).contains_weak(etag):
        response = Response(status=HTTPStatus.NOT_MODIFIED)
    response.set_etag(etag)
    response.headers[REVISION_HEADER] = str(revision)
    return response


@dataclass(frozen=True, slots=True)
class _Taken:
    """What was stored of a report, and VMs that were not."""

    stored: ReportOut
    refused_vms: list[RefusedVm]


def _store(context: ManagerContext, assignments: Assignments, name: str, accepted: Accepted) -> _Taken | str:
    """Store a report in one transaction, or tell why its agent is refused."""
    now, ahead_s = context.now(), clock_ahead_s()
    with context.database.writing() as session:
        host = reporting_host(session, host_spec(name, HostIn()), now)
        rival = note_agent(session, host, who(), now, context.silent)
        if rival:
            return rival
        stored, refused_vms = _take(session, context, assignments, host, accepted.body, now, ahead_s)
    stored.refused = accepted.refused
    return _Taken(stored, refused_vms)


def _count(metrics: Metrics, accepted: Accepted, taken: _Taken) -> None:
    stored = taken.stored
    metrics.items_refused(one.field for one in accepted.refused)
    metrics.claims_refused(one.why for one in taken.refused_vms)
    metrics.records_stored(stored.stored_decisions, stored.stored_events, stored.stored_ticks)
    metrics.windows_taken("stored", stored.stored_windows)
    metrics.windows_taken("future", accepted.future)
    metrics.windows_taken("unknown", len(accepted.body.windows) - stored.stored_windows)


def _latest(context: ManagerContext, host: str) -> Callable[[datetime], datetime]:
    """Until when a window of a host may end, as ``latest_end`` says; the database is asked for those that are ahead."""
    now, ahead_s, skew = context.now(), clock_ahead_s(), timedelta(seconds=context.skew_s)

    @cache
    def ahead() -> datetime:
        with context.database.reading() as session:
            behind_s = manager_behind_s(session, host, ahead_s, context.boot(), now.timestamp(), context.skew_s)
        return latest_end(now, ahead_s, behind_s, skew)

    return lambda end: now + skew if end <= now + skew else ahead()


def _take(
    session: Session,
    context: ManagerContext,
    assignments: Assignments,
    row: HostRow,
    body: ReportIn,
    now: datetime,
    ahead_s: float | None,
) -> tuple[ReportOut, list[RefusedVm]]:
    name = row.name
    row.last_seen_at = now
    store_new(session, EventRow, note_clock(row, ahead_s, context.clock_bound_s, now))
    row.agent_version = body.agent_version
    if body.capabilities is not None:
        row.capabilities = adapter_of(Capabilities).dump_python(body.capabilities, mode="json")
    if body.tick is not None:
        row.tick = body.tick.model_dump(mode="json")
    missing, refused_vms = _take_statuses(session, context, row, body, now)
    if body.domains is not None:
        replace_domains(session, row, {domain.libvirt_uuid: domain.libvirt_name for domain in body.domains})
    if body.findings is not None:
        put_findings(session, row, json_of(body.findings).decode())
    here: dict[str, int] = {}
    if body.windows or body.sources:
        here = keep_applications(session, assignments.applications(session, name))
    if body.sources is not None:
        statuses = {
            (here[source.application], source.source): json_of(source).decode()
            for source in body.sources
            if source.application in here
        }
        replace_source_statuses(session, row, statuses, now)

    def date(items: Iterable[TickRecord | DecisionRecord | Event]) -> dict[datetime, datetime]:
        return dated([timestamp(one.time_s) for one in items], now, ahead_s, timedelta(seconds=context.skew_s))

    ends = served_until(session, name, here.values()) if body.windows else {}
    windows = [
        window_of(window.application, window)
        for window in body.windows
        if _serves(ends, here.get(window.application), window.end)
    ]
    stored = ReportOut(
        stored_decisions=store_new(session, DecisionRow, _rows(body.decisions, _decision_row, date)),
        stored_events=store_new(session, EventRow, _rows(body.events, _event_row, date)),
        stored_ticks=store_ticks(session, name, *_tick_bodies(body.ticks, date)),
        stored_windows=replace_windows(
            session, name, here, windows, context.slot_length, now + timedelta(seconds=context.skew_s)
        ),
        vms_missing=missing,
    )
    return stored, refused_vms


def _serves(ends: Mapping[int, datetime | None], application: int | None, end: datetime) -> bool:
    """Whether response times until ``end`` may come from a host; ``ends`` as ``served_until`` answers them."""
    if application is None or application not in ends:
        return False
    last = ends[application]
    return last is None or end <= last


def _take_statuses(
    session: Session, context: ManagerContext, host: HostRow, body: ReportIn, now: datetime
) -> tuple[bool, list[RefusedVm]]:
    """Whether the newest tick is not of the VMs whose statuses are known; and the VMs that are not this host's."""
    refused: list[RefusedVm] = []
    if body.vms is not None:
        told = [Reported(one.vm, one.libvirt_uuid, _status_fields(one)) for one in body.vms]
        refused = take_statuses(session, host, told, now, context.silent, whole=not body.vms_changed_only)
    if not body.ticks:
        return False, refused
    newest = max(body.ticks, key=lambda tick: tick.time_s)
    shares = {vm.vm: (vm.cpu_share, vm.run_delay_share) for vm in newest.vms}
    return not put_shares(session, host, shares, now), refused


def _status_fields(vm: VmStatus) -> dict[str, object]:
    """The columns of a status; its shares have their own, because they change all the time."""
    body = vm.model_dump_json(exclude={"cpu_share", "run_delay_share"})
    return {"vm": vm.vm, "cpu_share": vm.cpu_share, "run_delay_share": vm.run_delay_share, "body": body}


Dating = Callable[[Iterable[TickRecord | DecisionRecord | Event]], Mapping[datetime, datetime]]
"""The dates that count of what was reported, by those that are claimed."""


def _rows(items: Sequence[Item], columns: Callable[[Item], dict[str, object]], date: Dating) -> list[dict[str, object]]:
    dates = date(items)
    rows: list[dict[str, object]] = []
    for item in items:
        claimed = timestamp(item.time_s)
        at = dates[claimed]
        rows.append(columns(item) | {"at": at, "claimed_at": None if at == claimed else claimed})
    return rows


def _tick_bodies(ticks: Sequence[TickRecord], date: Dating) -> tuple[dict[datetime, str], dict[datetime, datetime]]:
    """As JSON text by the dates that count, and by those the dates that were claimed, where they are others."""
    dates = date(ticks)
    bodies = {(at := dates[timestamp(tick.time_s)]): replace(tick, time_s=at.timestamp()) for tick in ticks}
    claimed = {date: moment for moment, date in dates.items() if date != moment}
    return {at: json_of(tick).decode() for at, tick in bodies.items()}, claimed


def _decision_row(record: DecisionRecord) -> dict[str, object]:
    columns = {field.name: getattr(record, field.name) for field in fields(record) if field.name != "time_s"}
    return {"knob_index": columns.pop("index"), **columns}


def _event_row(event: Event) -> dict[str, object]:
    return {field.name: getattr(event, field.name) for field in fields(event) if field.name != "time_s"}
