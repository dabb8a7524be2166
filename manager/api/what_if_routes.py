"""What another policy would have decided: the recorded last minutes of a host, replayed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session
from werkzeug.exceptions import ServiceUnavailable

from manager.api.assignments import Assignments
from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.queries import NamePath, WhatIfQuery
from manager.api.schemas.history_shapes import WhatIfApplication, WhatIfChange, WhatIfOut, WhatIfVm
from manager.api.validation import shown
from manager.errors import InvalidRequest, NotFound
from manager.model.fields import adapter_of, timestamp
from manager.model.host import Capabilities
from manager.model.knobs import Knob
from manager.model.records import DecisionRecord
from manager.protocol.convert import assignment_of
from manager.protocol.report import VmStatus
from manager.replay.policy_replay import LOOK_BACK_S, Replay, ReplayStep, changes, replay, summaries
from manager.replay.recording import RecordedVm, Recording
from manager.store.decision_records import RecordFilter, list_records
from manager.store.history import newest_ticks
from manager.store.models import ApplicationRow, DecisionRow, HostRow
from manager.store.registrations import get
from manager.store.vms import VmFilter, list_vms
from manager.store.windows import list_windows

MAX_TICKS = 3600
"""Most ticks that are replayed: what 60 minutes have at an interval of a second."""
MAX_POINTS = 300
MAX_CHANGES = 500
_RETRY_AFTER_S = 5
_ALL = 2**31 - 1


def what_if_api(context: ManagerContext) -> APIBlueprint:
    """The route of what-if."""
    api = blueprint("what-if", "What another policy would have decided.")
    busy = threading.Lock()

    @api.get("/hosts/<name>/what-if", responses=answers((200, WhatIfOut)))
    @endpoint(VIEWER)
    def get_what_if(path: NamePath, query: WhatIfQuery) -> Response:
        """The last minutes of a host as another policy would have decided on them: an estimate, one at a time."""
        installed = context.policies.get(query.policy)
        if installed is None:
            names = ", ".join(sorted(context.policies))
            raise InvalidRequest("policy", f"{shown(query.policy)} is not installed; allowed: {names}")
        if not busy.acquire(blocking=False):
            raise ServiceUnavailable("another what-if is being computed: try again", retry_after=_RETRY_AFTER_S)
        try:
            with context.database.reading() as session:
                recording = recorded(session, context, path.name, timedelta(minutes=query.minutes))
            law = recording.assignment.host.law
            law = replace(law, published=True) if query.published else law
            found = replay(recording, installed.policy, law, context.stale_s, context.min_samples)
        finally:
            busy.release()
        return answer(_thinned(found, recording))

    return api


def recorded(session: Session, context: ManagerContext, name: str, length: timedelta) -> Recording:
    """The history of a host as far as a replay needs it. Raises NotFound where there is none."""
    host = get(session, HostRow, name)
    if host.capabilities is None:
        raise NotFound(f"the agent of host {name!r} never reported")
    until = context.now()
    ticks = newest_ticks(session, name, until - length, until, MAX_TICKS)
    if not ticks:
        raise NotFound(f"host {name!r} has no ticks of the last {length.total_seconds() / 60:g} minutes")
    since = timestamp(ticks[0].time_s)
    assignment, _ = assignment_of(Assignments(context).whole(session, name)[0])
    windows = [
        window
        for application in assignment.applications
        for _, window in list_windows(
            session,
            get(session, ApplicationRow, application.name),
            since - timedelta(seconds=LOOK_BACK_S),
            until,
            _ALL,
        )
    ]
    decisions = list_records(session, DecisionRow, RecordFilter(host=name, since=since, until=until), None, _ALL)
    vms = list_vms(session, VmFilter(host=name), None, _ALL)
    return Recording(
        ticks[0].time_s,
        until.timestamp(),
        assignment,
        adapter_of(Capabilities).validate_python(host.capabilities),
        tuple(_vm(vm["name"], VmStatus.model_validate_json(vm["status"])) for vm in vms if vm["status"] is not None),
        tuple(ticks),
        tuple(sorted(windows, key=lambda window: window.end_s)),
        tuple(_decision(row) for row in reversed(decisions)),
    )


def _vm(name: str, status: VmStatus) -> RecordedVm:
    weights = [knob for knob in status.knobs if knob.knob == Knob.WEIGHT]
    original = next((knob.original or knob.value for knob in weights), None)
    return RecordedVm(name, status.vcpus, None if original is None else int(original))


def _decision(row: DecisionRow) -> DecisionRecord:
    return DecisionRecord(
        row.record_id,
        row.at.timestamp(),
        row.host,
        row.vm,
        row.knob,
        row.knob_index,
        row.before,
        row.after,
        row.reason,
        row.policy,
        row.mode,
        row.outcome,
        row.detail,
    )


def _thinned(found: Replay, recording: Recording) -> WhatIfOut:
    """A replay with at most so many points and changes; of several ticks the last is a point."""
    stride = -(-len(found.steps) // MAX_POINTS)
    points = found.steps[::-1][::stride][::-1]
    made = changes(found)
    problems = [step.problem for step in found.steps if step.problem]
    applications = {application.name: application for application in recording.assignment.applications}
    return WhatIfOut(
        estimated=True,
        host=recording.assignment.host.name,
        since=timestamp(recording.from_s),
        until=timestamp(recording.to_s),
        policy=found.policy,
        law=found.law,
        recorded_policies=list(dict.fromkeys(tick.policy for tick in recording.ticks)),
        interval_s=found.interval_s,
        ticks=len(found.steps),
        at=[timestamp(step.time_s) for step in points],
        sla={name: [step.sla[name] for step in points] for name in applications},
        applications=[
            WhatIfApplication(**asdict(summary), vms=_vm_points(points, sorted(applications[summary.application].vms)))
            for summary in summaries(found, recording)
        ],
        changes=[
            WhatIfChange(
                at=timestamp(one.time_s),
                vm=one.vm,
                recorded=one.recorded,
                before=one.before,
                after=one.after,
                reason=one.reason,
            )
            for one in made[::-1][:MAX_CHANGES]
        ],
        changes_total=len(made),
        problems=[
            f"{problems.count(problem)} of {len(found.steps)} ticks: {problem}" for problem in dict.fromkeys(problems)
        ],
        left_out=list(found.left_out),
        notes=list(found.notes),
    )


def _vm_points(points: Sequence[ReplayStep], vms: Sequence[str]) -> list[WhatIfVm]:
    """The weights of those of the VMs that ran on the host."""
    by_point = [{vm.vm: vm for vm in step.vms} for step in points]
    lines = []
    for name in vms:
        seen = [vms_then.get(name) for vms_then in by_point]
        if any(seen):
            recorded = [one.recorded if one else None for one in seen]
            lines.append(WhatIfVm(vm=name, recorded=recorded, replayed=[one.replayed if one else None for one in seen]))
    return lines
