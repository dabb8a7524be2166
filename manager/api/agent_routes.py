"""Reports of agents and their assignments, with protocol check and the manager's time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http import HTTPStatus

from flask import Response, g, request
from sqlalchemy.orm import Session
from werkzeug.http import parse_etags

from manager.api.acceptance import Accepted, read_report
from manager.api.agent_headers import clock_ahead_s, has_taps, headers_to_agent, refuse_other_protocols, who_sent
from manager.api.assignments import Assignments, ReportingHost
from manager.api.auth import REPORT_OF_HOST, VIEWER_OR_OWN_HOST, prove_within, proving
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup, answer, json_body
from manager.api.live_lane import REPORT_PATH, TRIED, Tried
from manager.api.live_reports import LiveReports
from manager.api.manager_metrics import Metrics
from manager.api.queries import AssignmentConditions, NamePath
from manager.api.report_ends import latest_ends
from manager.control.claim_rules import Foul, RegisteredVm
from manager.control.dating import dated
from manager.errors import Conflict
from manager.model.fields import adapter_of, fields_of, json_of, timestamp
from manager.model.host import Capabilities
from manager.model.host_health import TickHealth
from manager.model.packed_records import moment_of
from manager.model.packed_ticks import TickPack
from manager.model.records import DecisionRecord, Event, TickRecord
from manager.model.registration import HostSpec
from manager.protocol.assignment import AssignmentOut, ReportOut, SlotsOut
from manager.protocol.report import ReportedWindow, ReportIn, VmStatus
from manager.store.agent_tenure import note_agent, refusal
from manager.store.applications import keep_applications
from manager.store.decision_packs import store_decisions
from manager.store.event_records import store_events
from manager.store.hosts import (
    HostReport,
    note_report,
    put_findings,
    put_services,
    replace_domains,
    reporting_host,
    shares_on,
)
from manager.store.kept_glances import glances_at, renewed
from manager.store.models import HostRow
from manager.store.proposals import take_reports
from manager.store.registrations import get
from manager.store.serving_hosts import served_until
from manager.store.silent_hosts import note_clock
from manager.store.source_rows import replace_source_statuses
from manager.store.tick_packs import store_ticks
from manager.store.vm_claims import RefusedVm, Reported, TakenStatuses, take_statuses
from manager.store.vm_shares import older_shares
from manager.store.windows import replace_windows, slot_start

Dating = Callable[[Iterable[TickRecord | DecisionRecord | Event]], Mapping[datetime, datetime]]
"""The effective dates of reported items, by the claimed dates."""


def agents_api(context: ManagerContext, metrics: Metrics, live: LiveReports) -> RouteGroup:
    """The routes that agents use."""
    api = RouteGroup("agents", "Reports of agents, and their assignments.", lenient=True)
    database, assignments = context.database, live.assignments
    reports = _Reports(context, metrics, live)

    @api.at(
        f"POST {REPORT_PATH}",
        REPORT_OF_HOST,
        ReportOut,
        content={"application/json": api.reference(ReportIn)},
    )
    def report(path: NamePath) -> Response:
        """Store an agent's report. An unknown host is registered with the default settings.

        Invalid items are left out and named in the answer, and so are windows in the future even by the host's own
        clock; all others are stored, or none. Windows of applications that the host does not serve are left out.
        Unknown fields are ignored.
        """
        with proving(context):
            refuse_other_protocols(request.headers)
            return reports.take(path.name)

    @api.at("GET /hosts/<name>/assignment", VIEWER_OR_OWN_HOST, AssignmentOut, 200, 304)
    def get_assignment(path: NamePath, header: AssignmentConditions) -> Response:
        """The assignment of a host. With If-None-Match: only if it changed."""
        return current(path.name, header, assignments.whole)

    @api.at("GET /hosts/<name>/slots", VIEWER_OR_OWN_HOST, SlotsOut, 200, 304)
    def get_slots(path: NamePath, header: AssignmentConditions) -> Response:
        """The response times of the assignment, which change all the time. With If-None-Match: only if they changed."""
        return current(path.name, header, assignments.slots)

    def current(
        name: str, header: AssignmentConditions, read: Callable[[Session, str, bool], tuple[object, int]]
    ) -> Response:
        """The assignment of a host, or 304 if the agent has it already.

        Raises Conflict for an agent that does not serve the host.
        """
        refuse_other_protocols(request.headers)
        with database.reading() as session:
            agent = who_sent(request.headers)
            if agent is not None:
                why = refusal(get(session, HostRow, name), agent, context.now(), context.silent)
                if why:
                    raise Conflict(why)
            body, revision = read(session, name, has_taps(request.headers))
        response = answer(body)
        etag = hashlib.sha256(response.get_data()).hexdigest()
        if header.if_none_match is not None and parse_etags(header.if_none_match).contains_weak(etag):
            response = Response(status=HTTPStatus.NOT_MODIFIED)
        response.set_etag(etag)
        return _to_agent(response, context, revision)

    return api


class _Reports:
    """Takes reports within a request. Thread-safe."""

    def __init__(self, context: ManagerContext, metrics: Metrics, live: LiveReports) -> None:
        self._context, self._metrics, self._live = context, metrics, live
        self._assignments, self._cadences = live.assignments, live.cadences

    def take(self, host: str) -> Response:
        """Store a host's report. Raises Conflict for an agent that does not serve the host, and as ``prove``."""
        context, now, headers = self._context, self._context.now(), request.headers
        tried: Tried | None = request.environ.get(TRIED)
        live = None
        if tried is not None:
            accepted = tried.result()
        else:
            ahead_s = clock_ahead_s(headers)
            accepted = read_report(host, json_body(), latest_ends(context, host, ahead_s))
            live = self._live.take(host, accepted, who_sent(headers), has_taps(headers), ahead_s, now, g.unproven)
        stored, revision, refused_vms = (*live, ()) if live is not None else self._take_all(host, accepted, now)
        _count(self._metrics, accepted, stored, refused_vms)
        return _to_agent(answer(stored), context, revision)

    def _take_all(
        self, name: str, accepted: Accepted, now: datetime
    ) -> tuple[ReportOut, int | None, Sequence[RefusedVm]]:
        """Store a report of any kind; the answer, the revision of the assignment in it, and VMs of other hosts."""
        context, database, assignments = self._context, self._context.database, self._assignments
        with database.writing() as session:
            prove_within(session, context)
            host = reporting_host(session, HostSpec(name), now)
            rival = note_agent(session, host, who_sent(request.headers), now, context.silent)
            taken = None if rival else _take(session, context, assignments, host, accepted, now)
            slots, cadence = None, self._cadences.of(session, host, now)
            if taken is not None and taken.reporter.registered is not None and accepted.body.wants_slots:
                slots = assignments.slots(session, name, has_taps(request.headers), taken.reporter, taken.measured)
        if taken is None:
            self._metrics.agent_refused()
            raise Conflict(rival)
        stored = taken.stored
        stored.refused, stored.cadence, stored.migrations = accepted.refused, cadence, list(taken.reporter.orders)
        if accepted.body.migrations:
            with database.writing() as session:
                take_reports(session, name, accepted.body.migrations, now)
        if slots is None and accepted.body.wants_slots:  # of one state of the database, as it is made anew
            with database.reading() as session:
                slots = assignments.slots(session, name, has_taps(request.headers))
        stored.slots, revision = slots or (None, None)
        return stored, revision, taken.refused_vms


def _to_agent(response: Response, context: ManagerContext, revision: int | None) -> Response:
    response.headers.extend(headers_to_agent(context, revision))
    return response


def _count(metrics: Metrics, accepted: Accepted, stored: ReportOut, refused_vms: Sequence[RefusedVm]) -> None:
    metrics.items_refused(item.field for item in accepted.refused)
    metrics.claims_refused(refused.why for refused in refused_vms)
    metrics.records_stored(stored.stored_decisions, stored.stored_events, stored.stored_ticks)
    metrics.windows_taken("stored", stored.stored_windows)
    metrics.windows_taken("future", accepted.future)
    metrics.windows_taken("unknown", len(accepted.body.windows) - stored.stored_windows)


@dataclass(frozen=True, slots=True)
class _Taken:
    """The answer to a report, and the VMs in it that belong to another host.

    ``measured``: until when the host measured applications (row numbers).
    """

    stored: ReportOut
    refused_vms: Sequence[RefusedVm]
    reporter: ReportingHost
    measured: Mapping[int, datetime]


def _take(
    session: Session, context: ManagerContext, assignments: Assignments, row: HostRow, accepted: Accepted, now: datetime
) -> _Taken:
    """Store a report."""
    body = accepted.body
    name, ahead_s, skew = row.name, clock_ahead_s(request.headers), timedelta(seconds=context.skew_s)
    registered = assignments.reporter(session, name)
    shares, missing, refused_vms = _take_statuses(session, context, row, accepted, now, registered.vms)
    missing = missing or (row.last_seen_at is None and body.capabilities is None)  # it was forgotten meanwhile
    capabilities = None if body.capabilities is None else adapter_of(Capabilities).dump_json(body.capabilities).decode()
    tick = None if body.tick is None else body.tick.model_dump_json()
    store_events(session, note_clock(row, ahead_s, context.clock_bound_s, now))
    if body.domains is not None:
        replace_domains(session, row, {domain.libvirt_uuid: domain.libvirt_name for domain in body.domains})
    if body.findings is not None:
        put_findings(session, row, json_of(body.findings).decode())
    if body.services is not None:
        put_services(session, row, json_of(body.services).decode(), now)
    here: dict[str, int] = {}
    if body.windows or body.sources:
        here = keep_applications(session, registered.applications)
    if body.sources is not None:
        statuses = {
            (here[source.application], source.source): json_of(source).decode()
            for source in body.sources
            if source.application in here
        }
        replace_source_statuses(session, row, statuses, now)

    def date(items: Iterable[TickRecord | DecisionRecord | Event]) -> dict[datetime, datetime]:
        return dated([timestamp(item.time_s) for item in items], now, ahead_s, skew)

    ends: dict[int, datetime | None] = dict.fromkeys(registered.served)
    others = {number for window in body.windows if (number := here.get(window.application)) is not None} - ends.keys()
    if others:
        ends |= served_until(session, name, others)
    windows = [
        window for window in body.windows if _serves(ends, here.get(window.application), timestamp(window.end_s))
    ]
    measured: dict[int, datetime] = {}
    for window in windows:
        number, end = here[window.application], timestamp(window.end_s)
        if end <= context.latest:
            measured[number] = max(end, measured.get(number, end))
    as_they_came, ticks = _to_date(accepted, now + skew)
    taken = replace_windows(session, name, here, windows, context.slot_length, now + skew, together=not body.live)
    glances = _glances(context, row.glances, registered.percentiles, here, windows, ahead_s) if windows else None
    health = TickHealth() if body.tick is None else body.tick.health
    report = HostReport(now, body.agent_version, ahead_s, capabilities, tick, health, shares, glances)
    note_report(session, row, report)
    stored = ReportOut(
        stored_decisions=store_decisions(session, name, _rows(body.decisions, date)),
        stored_events=store_events(session, _rows(body.events, date)),
        stored_ticks=store_ticks(session, name, *_tick_bodies(ticks, date), as_they_came),
        stored_windows=taken,
        vms_missing=missing,
        packed=True,
        packed_ticks=True,
    )
    return _Taken(stored, refused_vms, registered, measured)


def _glances(
    context: ManagerContext,
    kept: bytes | None,
    percentiles: Mapping[int, float],
    here: Mapping[str, int],
    windows: Sequence[ReportedWindow],
    ahead_s: float | None,
) -> bytes:
    """What the host's row keeps of the latest windows of its applications, now that these are stored."""
    measured = {here[window.application] for window in windows}
    placed: list[tuple[int, datetime, ReportedWindow]] = []
    if abs(ahead_s or 0.0) <= context.clock_bound_s:  # else windows were moved, and do not fit slots
        ends = [(window, timestamp(window.end_s)) for window in windows]
        known = [(here[window.application], end, window) for window, end in ends if end <= context.latest]
        placed = [
            (number, slot_start(end, context.slot_length), window)
            for number, end, window in known
            if number in percentiles
        ]
    glances = glances_at(placed, percentiles, context.slot_length)
    served = (percentiles.keys() - measured) | {glance.number for glance in glances}
    return renewed(kept, glances, served, context.slot_length)


def _serves(ends: Mapping[int, datetime | None], application: int | None, end: datetime) -> bool:
    """Whether response times until ``end`` may come from a host; ``ends`` as ``served_until`` answers them."""
    if application is None or application not in ends:
        return False
    last = ends[application]
    return last is None or end <= last


def _take_statuses(
    session: Session,
    context: ManagerContext,
    host: HostRow,
    accepted: Accepted,
    now: datetime,
    known: Mapping[str, RegisteredVm],
) -> tuple[str | None, bool, Sequence[RefusedVm]]:
    """The shares of VMs for the host's row, whether statuses of VMs in the newest tick are missing, or too many, and
    the VMs that belong to another host.

    ``known``: how VMs are registered, as far as that is known.
    """
    body = accepted.body
    taken: TakenStatuses | None = None
    if body.vms is not None:
        reported = [Reported(status.vm, status.libvirt_uuid, _status_columns(status)) for status in body.vms]
        whole = not body.vms_changed_only
        taken = take_statuses(session, host, reported, now, context.silent, whole=whole, known=known)
    refused = taken.refused if taken else ()
    # Such a VM is this host's once the other has let go, which nothing here shows: all VMs come again until then.
    waits = any(vm.why is Foul.RUNS_ELSEWHERE for vm in refused)
    shares = _newest_shares(accepted)
    if shares is None:
        return older_shares(host, {status.vm for status in body.vms or ()}) if taken else None, waits, refused
    text, complete = shares_on(session, host, shares, now, taken.here if taken else None)
    return text, not complete or waits, refused


def _newest_shares(accepted: Accepted) -> Mapping[str, tuple[float, float]] | None:
    """The shares of VMs in the newest tick of a report; None: it has no tick."""
    packed = max(accepted.packs, key=lambda pack: pack.at_us[-1], default=None)
    single = max(accepted.body.ticks, key=lambda tick: tick.time_s, default=None)
    if single is None or (packed is not None and moment_of(packed.at_us[-1]) >= timestamp(single.time_s)):
        return None if packed is None else packed.shares
    return {vm.vm: (vm.cpu_share, vm.run_delay_share) for vm in single.vms}


def _to_date(accepted: Accepted, latest: datetime) -> tuple[Sequence[TickPack], Sequence[TickRecord]]:
    """The packs of ticks that all keep their dates, and all other ticks, one by one. See ``dated``."""
    as_they_came: list[TickPack] = []
    ticks = [*accepted.body.ticks]
    for pack in accepted.packs:
        if moment_of(pack.at_us[-1]) > latest:
            ticks += pack.ticks()
        else:
            as_they_came.append(pack)
    return as_they_came, ticks


def _status_columns(vm: VmStatus) -> dict[str, object]:
    """The columns of a status; its shares have separate columns, because they change all the time."""
    body = vm.model_dump_json(exclude={"cpu_share", "run_delay_share"})
    return {"vm": vm.vm, "cpu_share": vm.cpu_share, "run_delay_share": vm.run_delay_share, "body": body}


def _rows(items: Sequence[DecisionRecord | Event], date: Dating) -> list[dict[str, object]]:
    """Columns of decisions or events by name."""
    dates = date(items)
    rows: list[dict[str, object]] = []
    for item in items:
        columns = fields_of(type(item), item)
        claimed = timestamp(columns.pop("time_s"))
        at = dates[claimed]
        rows.append({**columns, "at": at, "claimed_at": None if at == claimed else claimed})
    return rows


def _tick_bodies(ticks: Sequence[TickRecord], date: Dating) -> tuple[dict[datetime, str], dict[datetime, datetime]]:
    """Ticks as JSON text by effective date; and the claimed dates that differ, by effective date."""
    dates = date(ticks)
    bodies = {(at := dates[timestamp(tick.time_s)]): replace(tick, time_s=at.timestamp()) for tick in ticks}
    claimed = {date: moment for moment, date in dates.items() if date != moment}
    return {at: json_of(tick).decode() for at, tick in bodies.items()}, claimed
