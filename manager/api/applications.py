"""Applications: tiers, SLA and its state, response times coming in, and the windows they make."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.auth import OPERATOR, OPERATOR_OR_ANY_HOST, VIEWER
from manager.api.context import ManagerContext
from manager.api.convert import timestamp
from manager.api.endpoint import answer, answers, blueprint, endpoint, no_content, written
from manager.api.pages import ApplicationPage, WindowPage
from manager.api.paging import cut, name_place, read_cursor, time_place
from manager.api.queries import Conditions, NamePath, PageQuery, WindowQuery
from manager.api.schemas import (
    ApplicationIn,
    ApplicationOut,
    AssignedApplication,
    AssignedWindow,
    SamplesIn,
    SamplesOut,
    SlaBody,
    TierBody,
    WindowOut,
)
from manager.api.validation import shown
from manager.control.sla import sla_state
from manager.errors import InvalidRequest
from manager.model.histogram import Histogram
from manager.model.registration import Application, Sla, Tier
from manager.model.window import Window
from manager.store.applications import applications_of, put_application
from manager.store.models import ApplicationRow
from manager.store.registered import delete, get, page
from manager.store.windows import MAX_COUNT, latest_windows, list_windows, merge_samples, window_of

_DEFAULT_INTERVAL = timedelta(seconds=1)


def applications_api(context: ManagerContext) -> APIBlueprint:
    """The routes of applications."""
    api = blueprint("applications", "Services with an SLA, made of tiers that VMs serve.")
    database = context.database

    def _applications_out(session: Session, rows: Sequence[ApplicationRow]) -> list[ApplicationOut]:
        applications = applications_of(session, rows)
        windows = latest_windows(session, rows)
        return [_application_out(context, row, applications[row.name], windows.get(row.name)) for row in rows]

    @api.get("/applications", responses=answers((200, ApplicationPage)))
    @endpoint(VIEWER)
    def list_applications(query: PageQuery) -> Response:
        """All applications by name."""
        with database.reading() as session:
            found = page(session, ApplicationRow, read_cursor(query, name_place), query.limit + 1)
            rows, following = cut(found, query.limit, lambda row: row.name)
            items = _applications_out(session, rows)
        return answer(ApplicationPage(items=items, next=following))

    @api.get("/applications/<name>", responses=answers((200, ApplicationOut)))
    @endpoint(VIEWER)
    def get_application(path: NamePath) -> Response:
        """One application."""
        with database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            [application] = _applications_out(session, [row])
        return answer(application, etag=row.etag)

    @api.put("/applications/<name>", responses=answers((200, ApplicationOut), (201, ApplicationOut)))
    @endpoint(OPERATOR)
    def put_application_(path: NamePath, header: Conditions, body: ApplicationIn) -> Response:
        """Register an application. Its VMs must be registered, and each serves one tier of one application."""
        sla = Sla(body.sla.response_time_ms, body.sla.percentile, body.sla.max_rate_rps) if body.sla else None
        tiers = tuple(Tier(tier.name, tuple(tier.vms)) for tier in body.tiers)
        wanted = Application(path.name, tiers, sla, body.mode)
        with database.registering() as session:
            row, created = put_application(session, wanted, context.now(), header.check)
            [application] = _applications_out(session, [row])
        return written(application, created, row.etag)

    @api.delete("/applications/<name>", responses=answers((204, None)))
    @endpoint(OPERATOR)
    def delete_application(path: NamePath, header: Conditions) -> Response:
        """Forget an application and its windows. Its VMs stay registered."""
        with database.registering() as session:
            delete(session, ApplicationRow, path.name, header.check)
        return no_content()

    @api.post("/applications/<name>/samples", responses=answers((200, SamplesOut)))
    @endpoint(OPERATOR_OR_ANY_HOST)
    def post_samples(path: NamePath, body: SamplesIn) -> Response:
        """Take response times: single ones, or counts by histogram bucket, or both."""
        start, end = _interval(body, context)
        histogram = Histogram.of(time_ms * 1000 for time_ms in body.times_ms).merge(Histogram(body.buckets))
        if histogram.count > MAX_COUNT:
            raise InvalidRequest(
                "buckets", f"{histogram.count} response times are refused; allowed: {MAX_COUNT} in all"
            )
        with database.writing() as session:
            merge_samples(session, path.name, start, end, histogram, timedelta(seconds=context.slot_s))
        return answer(SamplesOut(accepted=histogram.count))

    @api.get("/applications/<name>/windows", responses=answers((200, WindowPage)))
    @endpoint(VIEWER)
    def get_windows(path: NamePath, query: WindowQuery) -> Response:
        """The windows of an application, newest first."""
        before = read_cursor(query, time_place)
        with database.reading() as session:
            application = get(session, ApplicationRow, path.name)
            found = list_windows(session, application, query.since, before, query.limit + 1)
        rows, following = cut(found, query.limit, lambda row: row.slot.isoformat())
        return answer(WindowPage(items=[_window_out(window_of(path.name, row)) for row in rows], next=following))

    return api


def assigned_application(application: Application, window: Window | None) -> AssignedApplication:
    """An application as its hosts' agents are told of it."""
    assigned = None
    if window is not None:
        start, end = timestamp(window.start_s), timestamp(window.end_s)
        assigned = AssignedWindow(start=start, end=end, buckets=dict(window.histogram.buckets))
    return AssignedApplication(name=application.name, window=assigned, **dict(_application_in(application)))


def _interval(body: SamplesIn, context: ManagerContext) -> tuple[datetime, datetime]:
    now = context.now()
    end = body.end or now
    start = body.start or end - _DEFAULT_INTERVAL
    if end > now + timedelta(seconds=context.skew_s):
        # It would be the latest window until that time comes, whatever else happens.
        raise InvalidRequest("end", f"{shown(end)} is refused; allowed: at most {context.skew_s:g} s after {now}")
    if start > end:
        raise InvalidRequest("start", f"{shown(start)} is refused; allowed: at most the end, {end}")
    return start, end


def _application_in(application: Application) -> ApplicationIn:
    sla = application.sla
    promise = None
    if sla is not None:
        promise = SlaBody(
            response_time_ms=sla.response_time_ms, percentile=sla.percentile, max_rate_rps=sla.max_rate_rps
        )
    tiers = [TierBody(name=tier.name, vms=list(tier.vms)) for tier in application.tiers]
    return ApplicationIn(tiers=tiers, sla=promise, mode=application.mode)


def _application_out(
    context: ManagerContext, row: ApplicationRow, application: Application, window: Window | None
) -> ApplicationOut:
    return ApplicationOut(
        name=row.name,
        created_at=row.created_at,
        updated_at=row.updated_at,
        sla_state=sla_state(window, application.sla, context.clock(), context.stale_s, context.min_samples),
        window=_window_out(window) if window else None,
        **dict(_application_in(application)),
    )


def _window_out(window: Window) -> WindowOut:
    return WindowOut(
        start=timestamp(window.start_s),
        end=timestamp(window.end_s),
        count=window.histogram.count,
        rate_rps=window.rate_rps,
        p50_ms=window.percentile_ms(50),
        p95_ms=window.percentile_ms(95),
        p99_ms=window.percentile_ms(99),
    )
