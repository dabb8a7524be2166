"""Applications: tiers, SLA and its state, and sources of response times."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from flask import Response
from sqlalchemy.orm import Session

from manager.api.auth import OPERATOR, VIEWER, audited
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup, answer
from manager.api.merge import named, patched
from manager.api.paging import NAME, Page, part, read_cursor
from manager.api.queries import ApplicationQuery, Conditions, NamePath
from manager.api.sample_routes import window_out
from manager.api.schemas.registration_shapes import ApplicationOut, ExplanationOut, MergePatch
from manager.api.validation import FieldError, InvalidFields
from manager.control.sla import sla_state, watched_percentile
from manager.control.source_rules import contradictions
from manager.model.fields import fields_of, json_fields
from manager.model.registration import Application, ApplicationIn
from manager.store.application_glances import runs_on
from manager.store.applications import applications_of, put_application, remove_application
from manager.store.explanations import explanations_of
from manager.store.models import ApplicationRow, Json
from manager.store.registrations import get, if_asked, page
from manager.store.windows import latest_windows


def applications_api(context: ManagerContext) -> RouteGroup:
    """The routes of applications."""
    api = RouteGroup("applications", "Services with an SLA, made of tiers that VMs serve.")
    database = context.database

    def answered(session: Session, row: ApplicationRow, created: bool = False) -> Response:
        [application] = _applications_out(session, context, [row])
        return answer(application, 201 if created else 200, row.etag)

    @api.at("GET /applications", VIEWER)
    def list_applications(query: ApplicationQuery) -> Page[ApplicationOut]:
        """All applications by name."""
        wanted = if_asked(ApplicationRow.sla_response_time_ms.is_not(None), query.sla)
        if query.host is not None:
            wanted.append(runs_on(query.host))
        with database.reading() as session:
            rows = page(session, ApplicationRow, read_cursor(query, NAME), query.limit + 1, query.search, wanted)
            return part(Page[ApplicationOut], query, _applications_out(session, context, rows), attrgetter("name"))

    @api.at("GET /applications/<name>", VIEWER, ApplicationOut)
    def get_application(path: NamePath) -> Response:
        """One application."""
        with database.reading() as session:
            return answered(session, get(session, ApplicationRow, path.name))

    @api.at("PUT /applications/<name>", OPERATOR, ApplicationOut, 200, 201)
    def put_application_(path: NamePath, header: Conditions, body: ApplicationIn) -> Response:
        """Register an application. Its VMs must be registered; a VM serves one tier of one application."""
        wanted = _wanted(path.name, body)
        with audited(context, "application.put", ApplicationRow, path.name, _described) as session:
            return answered(session, *put_application(session, wanted, context.now(), header.check))

    @api.at("PATCH /applications/<name>", OPERATOR, ApplicationOut)
    def patch_application(path: NamePath, header: Conditions, body: MergePatch) -> Response:
        """Change fields of an application; lists of tiers, VMs and sources are replaced as a whole."""
        with audited(context, "application.patch", ApplicationRow, path.name, _described) as session:
            current = _body(session, get(session, ApplicationRow, path.name))
            wanted = _wanted(path.name, patched(current, body))
            row, _ = put_application(session, wanted, context.now(), header.check)
            return answered(session, row)

    @api.at("DELETE /applications/<name>", OPERATOR)
    def delete_application(path: NamePath, header: Conditions) -> None:
        """Remove an application. Its VMs stay registered, and its history can be read until its retention ends."""
        with audited(context, "application.delete", ApplicationRow, path.name, _described) as session:
            remove_application(session, path.name, context.now(), header.check)

    return api


def _body(session: Session, row: ApplicationRow) -> ApplicationIn:
    return ApplicationIn(**fields_of(ApplicationIn, applications_of(session, [row])[row.name]))


def _described(session: Session, row: ApplicationRow) -> Json:
    return json_fields(_body(session, row))


def _wanted(name: str, body: ApplicationIn) -> Application:
    """The requested application. Raises InvalidFields if its sources contradict each other or its SLA."""
    wanted = named(Application, name, body)
    errors = [FieldError(field, message) for field, message in contradictions(wanted.sources, wanted.sla)]
    if errors:
        raise InvalidFields(errors)
    return wanted


def _applications_out(
    session: Session, context: ManagerContext, rows: Sequence[ApplicationRow]
) -> list[ApplicationOut]:
    applications = applications_of(session, rows)
    windows = latest_windows(session, rows, context.slot_length, context.latest)
    explanations = explanations_of(session, [row.id for row in rows])
    shapes = []
    for row in rows:
        application, window = applications[row.name], windows.get(row.name)
        percentile = watched_percentile(application.sla)
        shapes.append(
            ApplicationOut(
                **fields_of(Application, application),
                created_at=row.created_at,
                updated_at=row.updated_at,
                sla_state=sla_state(window, application.sla, context.clock(), context.stale_s, context.min_samples),
                window=window_out(window) if window else None,
                measured_percentile=percentile,
                measured_ms=window.percentile_ms(percentile) if window else None,
                explanations=[
                    ExplanationOut.model_validate(explanation, from_attributes=True)
                    for explanation in explanations.get(row.name, ())
                ],
            )
        )
    return shapes
