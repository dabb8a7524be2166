"""What-if: the recorded last minutes of a host, replayed with another policy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from time import monotonic
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field
from sqlalchemy.orm import Session
from werkzeug.exceptions import ServiceUnavailable

from manager.api.assignments import Assignments
from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.host_routes import refuse_unknown_policy
from manager.api.queries import NamePath, WhatIfQuery
from manager.errors import NotFound, TwinRefused
from manager.model.fields import Count, Name, Schema, adapter_of, timestamp
from manager.model.host import Capabilities
from manager.model.knobs import Knob
from manager.model.law import Law
from manager.model.window import SlaState
from manager.protocol.report import VmStatus
from manager.replay.policy_replay import (
    LOOK_BACK_S,
    Replay,
    ReplayStep,
    WeightChange,
    changes,
    replay,
    summaries,
)
from manager.replay.recording import RecordedVm, Recording
from manager.sim.parallel import one_by_one
from manager.sim.twin import calibrate
from manager.sim.twin_effort import Effort
from manager.sim.twin_prediction import predict
from manager.sim.twin_report import closed_loop_json
from manager.store.decision_packs import DecisionFilter, newest_decisions
from manager.store.history import newest_ticks
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import get
from manager.store.vm_lists import VmFilter, list_vms
from manager.store.windows import list_windows

MAX_TICKS = 3600
"""Most replayed ticks: 60 minutes at an interval of 1 s."""
MAX_TWIN_S = 10.0
"""Longest time that a simulation may have taken when another of its runs begins."""
TWIN_EFFORT = Effort(requests=8000, seeds=3, most=40_000)
MAX_POINTS = 300
MAX_CHANGES = 500
_RETRY_AFTER_S = 5
_ALL = 2**31 - 1


ViolatedShare = Annotated[float, Field(ge=0, le=1, description="share of intervals in which the SLA is violated")]


class WhatIfVm(Schema):
    """Weights of a VM, recorded and as the policy would have set them; one value per time of ``at``."""

    vm: Name
    recorded: list[int | None]
    replayed: list[int | None]


class WhatIfApplication(Schema):
    """An application: recorded ticks with a known state of its SLA, and the range of its VMs' weights."""

    application: Name
    judged: Count
    violated: Count
    recorded: tuple[int, int] | None
    replayed: tuple[int, int] | None
    vms: list[WhatIfVm]


class ClosedLoopApplication(Schema):
    """The SLA's percentile as measured, and as it would have been: simulated, with an interval."""

    application: Name
    percentile: float
    target_ms: float
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    violated_measured: ViolatedShare
    violated_predicted: ViolatedShare


class ClosedLoopRefusal(Schema):
    """An application that is not predicted, and why."""

    application: Name
    reason: str


class ClosedLoopOut(Schema):
    """What would have been under the policy, in the host's twin; see docs/how-to/replay.md."""

    simulated: Literal[True]
    since: AwareDatetime
    until: AwareDatetime
    seeds: Count
    simulated_share: float = Field(description="part of the requests that were simulated, each as much slower")
    applications: list[ClosedLoopApplication]
    refused: list[ClosedLoopRefusal]
    batch_pcpus_in_force: float = Field(description="pCPUs that batch VMs use under the policy in force, simulated")
    batch_pcpus: float = Field(description="and under the other")


class WhatIfOut(Schema):
    """What another policy would have decided, an estimate; see docs/how-to/replay.md."""

    estimated: Literal[True]
    host: Name
    since: AwareDatetime
    until: AwareDatetime
    policy: Name
    law: Law
    recorded_policies: list[Name]
    interval_s: float
    ticks: Count
    at: list[AwareDatetime] = Field(description="ticks with weights, at most 300")
    sla: dict[str, list[SlaState]] = Field(description="state as recorded by application, one per time of `at`")
    applications: list[WhatIfApplication]
    changes: list[WeightChange] = Field(description="newest first, at most 500")
    changes_total: Count
    problems: list[str] = Field(description="why some ticks decided nothing")
    left_out: list[Name] = Field(description="VMs that ran, but are no longer registered")
    notes: list[str]
    closed_loop: ClosedLoopOut | None = Field(description="null: see closed_loop_refused")
    closed_loop_refused: str | None = Field(description="why nothing is predicted, and the open loop is all there is")


def what_if_api(context: ManagerContext) -> RouteGroup:
    """The route of what-if."""
    api = RouteGroup("what-if", "What another policy would have decided.")
    busy = threading.Lock()

    @api.at("GET /hosts/<name>/what-if", VIEWER)
    def get_what_if(path: NamePath, query: WhatIfQuery) -> WhatIfOut:
        """Replay the last minutes of a host with another policy: an estimate. One request at a time."""
        refuse_unknown_policy(query.policy, context.policies)
        if not busy.acquire(blocking=False):
            raise ServiceUnavailable("another what-if is being computed: try again", retry_after=_RETRY_AFTER_S)
        try:
            with context.database.reading() as session:
                recording = recorded(session, context, path.name, timedelta(minutes=query.minutes))
            law = recording.assignment.host.law
            law = replace(law, published=True) if query.published else law
            policy = context.policies[query.policy].policy
            replayed = replay(recording, policy, law, context.stale_s, context.min_samples)
            closed, refused = (
                _closed_loop(recording, query.policy, law) if query.closed_loop else (None, "not asked for")
            )
        finally:
            busy.release()
        return _thinned(replayed, recording, closed, refused)

    return api


def recorded(session: Session, context: ManagerContext, name: str, length: timedelta) -> Recording:
    """The history of a host for a replay. Raises NotFound if there is none."""
    host = get(session, HostRow, name)
    if host.capabilities is None:
        raise NotFound(f"the agent of host {name!r} never reported")
    until = context.now()
    ticks = newest_ticks(session, name, until - length, until, MAX_TICKS)
    if not ticks:
        raise NotFound(f"host {name!r} has no ticks of the last {length.total_seconds() / 60:g} minutes")
    since = timestamp(ticks[0].time_s)
    assignment = Assignments(context).whole(session, name)[0].assignment
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
    decisions = newest_decisions(session, DecisionFilter(host=name, since=since, until=until), None, _ALL)
    vms = list_vms(session, VmFilter(host=name), None, _ALL)
    return Recording(
        ticks[0].time_s,
        until.timestamp(),
        assignment,
        adapter_of(Capabilities).validate_python(host.capabilities),
        tuple(_vm(vm["name"], VmStatus.model_validate_json(vm["status"])) for vm in vms if vm["status"] is not None),
        tuple(ticks),
        tuple(sorted(windows, key=lambda window: window.end_s)),
        tuple(decision.record() for decision in reversed(decisions)),
    )


def _vm(name: str, status: VmStatus) -> RecordedVm:
    weights = [knob for knob in status.knobs if knob.knob == Knob.WEIGHT]
    original = next((knob.original or knob.value for knob in weights), None)
    return RecordedVm(name, status.vcpus, None if original is None else int(original))


def _closed_loop(recording: Recording, policy: str, law: Law) -> tuple[ClosedLoopOut | None, str | None]:
    """What would have been, or why that cannot be said. Takes some seconds, and no other process."""
    until_s = monotonic() + MAX_TWIN_S

    def in_time() -> None:
        if monotonic() > until_s:
            raise TwinRefused(f"it takes longer than {MAX_TWIN_S:g} s: use `equipoise record` and `equipoise replay`")

    try:
        twin = calibrate(recording, TWIN_EFFORT, one_by_one, in_time)
        found = predict(twin, policy, law, one_by_one, in_time)
    except TwinRefused as error:
        return None, str(error)
    return ClosedLoopOut.model_validate(closed_loop_json(found)), None


def _thinned(replayed: Replay, recording: Recording, closed: ClosedLoopOut | None, refused: str | None) -> WhatIfOut:
    """A replay with at most ``MAX_POINTS`` points and ``MAX_CHANGES`` changes; a point is the last of several ticks."""
    stride = -(-len(replayed.steps) // MAX_POINTS)
    points = replayed.steps[::-1][::stride][::-1]
    made = changes(replayed)
    problems = [step.problem for step in replayed.steps if step.problem]
    applications = {application.name: application for application in recording.assignment.applications}
    return WhatIfOut(
        estimated=True,
        host=recording.assignment.host.name,
        since=timestamp(recording.from_s),
        until=timestamp(recording.to_s),
        policy=replayed.policy,
        law=replayed.law,
        recorded_policies=list(dict.fromkeys(tick.policy for tick in recording.ticks)),
        interval_s=replayed.interval_s,
        ticks=len(replayed.steps),
        at=[timestamp(step.time_s) for step in points],
        sla={name: [step.sla[name] for step in points] for name in applications},
        applications=[
            WhatIfApplication(**asdict(summary), vms=_vm_points(points, sorted(applications[summary.application].vms)))
            for summary in summaries(replayed, recording)
        ],
        changes=list(made[::-1][:MAX_CHANGES]),
        changes_total=len(made),
        problems=[
            f"{problems.count(problem)} of {len(replayed.steps)} ticks: {problem}"
            for problem in dict.fromkeys(problems)
        ],
        left_out=list(replayed.left_out),
        notes=list(replayed.notes),
        closed_loop=closed,
        closed_loop_refused=refused,
    )


def _vm_points(points: Sequence[ReplayStep], vms: Sequence[str]) -> list[WhatIfVm]:
    """The weights of the VMs that ran on the host."""
    by_point = [{vm.vm: vm for vm in step.vms} for step in points]
    lines = []
    for name in vms:
        seen = [vms_then.get(name) for vms_then in by_point]
        if any(seen):
            recorded = [vm.recorded if vm else None for vm in seen]
            lines.append(WhatIfVm(vm=name, recorded=recorded, replayed=[vm.replayed if vm else None for vm in seen]))
    return lines
