"""What the agent of a host tells the manager, and what it is told."""

from __future__ import annotations

import hashlib
from http import HTTPStatus

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session
from werkzeug.http import parse_etags

from manager.api.applications import assigned_application
from manager.api.auth import ADMIN_OR_OWN_HOST, VIEWER_OR_OWN_HOST
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.metrics import Metrics
from manager.api.queries import AssignmentConditions, NamePath
from manager.api.schemas import (
    AssignedHost,
    AssignedVm,
    AssignmentOut,
    EventBody,
    HostIn,
    RecordBody,
    ReportIn,
    ReportOut,
)
from manager.api.validation import FieldError, InvalidFields, shown
from manager.model.registration import HostSpec
from manager.store.applications import applications_for_host, applications_of
from manager.store.hosts import replace_statuses, reporting_host
from manager.store.models import DecisionRow, EventRow, HostRow
from manager.store.records import store_new
from manager.store.registered import get
from manager.store.vms import vms_for_host
from manager.store.windows import latest_windows


def agents_api(context: ManagerContext, metrics: Metrics) -> APIBlueprint:
    """The routes that agents use."""
    api = blueprint("agents", "What the agent of a host reports and is told.")
    database = context.database

    @api.post("/hosts/<name>/report", responses=answers((200, ReportOut)))
    @endpoint(ADMIN_OR_OWN_HOST)
    def report(path: NamePath, body: ReportIn) -> Response:
        """Take an agent's report, all of it or nothing. An unknown host is registered with the default settings."""
        _refuse_contradictions(path.name, body)
        defaults = HostIn()
        spec = HostSpec(path.name, defaults.mode, defaults.policy, defaults.pinning)
        now = context.now()
        with database.writing() as session:
            row = reporting_host(session, spec, now)
            row.last_seen_at = now
            row.agent_version = body.agent_version
            row.capabilities = body.capabilities.model_dump(mode="json")
            if body.tick is not None:
                row.tick = body.tick.model_dump(mode="json")
            if body.vms is not None:
                replace_statuses(session, row, {vm.vm: vm.model_dump_json() for vm in body.vms}, now)
            decisions = store_new(session, DecisionRow, [_decision_row(record) for record in body.decisions])
            events = store_new(session, EventRow, [_event_row(event) for event in body.events])
        metrics.records_stored(decisions, events)
        return answer(ReportOut(stored_decisions=decisions, stored_events=events))

    @api.get("/hosts/<name>/assignment", responses=answers((200, AssignmentOut), (304, None)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_assignment(path: NamePath, header: AssignmentConditions) -> Response:
        """All that the agent of a host needs to know. With If-None-Match: only if it changed."""
        with database.reading() as session:
            response = answer(_assignment(session, path.name))
        etag = hashlib.sha256(response.get_data()).hexdigest()
        if header.if_none_match is not None and parse_etags(header.if_none_match).contains_weak(etag):
            response = Response(status=HTTPStatus.NOT_MODIFIED)
        response.set_etag(etag)
        return response

    return api


def _refuse_contradictions(host: str, body: ReportIn) -> None:
    """Raises InvalidFields for records of another host, and for a VM with two statuses."""
    named = [(f"decisions[{index}].host", record.host) for index, record in enumerate(body.decisions)]
    named += [(f"events[{index}].host", event.host) for index, event in enumerate(body.events)]
    errors = [
        FieldError(field, f"{shown(other)} is refused; allowed: {host}, which is reporting")
        for field, other in named
        if other != host
    ]
    seen: set[str] = set()
    for index, vm in enumerate(body.vms or []):
        if vm.vm in seen:
            errors.append(FieldError(f"vms[{index}].vm", f"{shown(vm.vm)} is refused: it is listed twice"))
        seen.add(vm.vm)
    if errors:
        raise InvalidFields(errors)


def _decision_row(body: RecordBody) -> dict[str, object]:
    fields = dict(body)
    return {"record_id": fields.pop("id"), "knob_index": fields.pop("index"), **fields}


def _event_row(body: EventBody) -> dict[str, object]:
    fields = dict(body)
    return {"record_id": fields.pop("id"), **fields}


def _assignment(session: Session, name: str) -> AssignmentOut:
    host = get(session, HostRow, name)
    vms = vms_for_host(session, name)
    rows = applications_for_host(session, name)
    applications = applications_of(session, rows)
    windows = latest_windows(session, rows)
    return AssignmentOut(
        host=AssignedHost(name=host.name, mode=host.mode, policy=host.policy, pinning=host.pinning),
        vms=[AssignedVm(**vm) for vm in vms],
        applications=[assigned_application(one, windows.get(one.name)) for one in applications.values()],
    )
