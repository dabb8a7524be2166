"""Applications: tiers, SLA and its state, and sources of response times."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.audit_routes import audited
from manager.api.auth import OPERATOR, VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint, no_content, written
from manager.api.merge import patched
from manager.api.pages import ApplicationPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import Conditions, NamePath, PageQuery
from manager.api.sample_routes import window_out
from manager.api.schemas.registration_shapes import ApplicationOut, MergePatch
from manager.api.validation import FieldError, InvalidFields
from manager.control.sla import sla_state, watched_percentile
from manager.control.source_rules import contradictions
from manager.model.registration import Application
from manager.model.window import Window
from manager.protocol.convert import application_body, application_of
from manager.protocol.registration_in import ApplicationIn
from manager.store.applications import applications_of, put_application, remove_application
from manager.store.models import ApplicationRow, Json
from manager.store.registrations import get, page
from manager.store.windows import latest_windows


def applications_api(context: ManagerContext) -> APIBlueprint:
    """The routes of applications."""
    api = blueprint("applications", "Services with an SLA, made of tiers that VMs serve.")
    database = context.database

    def _applications_out(session: Session, rows: Sequence[ApplicationRow]) -> list[ApplicationOut]:
        applications = applications_of(session, rows)
        windows = latest_windows(session, rows, context.slot_length, context.latest)
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
        wanted = _wanted(path.name, body)
        with audited(context, "application.put", ApplicationRow, path.name, _described) as session:
            row, created = put_application(session, wanted, context.now(), header.check)
            [application] = _applications_out(session, [row])
        return written(application, created, row.etag)

    @api.patch("/applications/<name>", responses=answers((200, ApplicationOut)))
    @endpoint(OPERATOR)
    def patch_application(path: NamePath, header: Conditions, body: MergePatch) -> Response:
        """Change single fields of an application; lists of tiers, VMs and sources are replaced as a whole."""
        with audited(context, "application.patch", ApplicationRow, path.name, _described) as session:
            row = get(session, ApplicationRow, path.name)
            current = application_body(applications_of(session, [row])[row.name])
            wanted = _wanted(path.name, patched(current, body))
            row, _ = put_application(session, wanted, context.now(), header.check)
            [application] = _applications_out(session, [row])
        return answer(application, etag=row.etag)

    @api.delete("/applications/<name>", responses=answers((204, None)))
    @endpoint(OPERATOR)
    def delete_application(path: NamePath, header: Conditions) -> Response:
        """Forget an application. Its VMs stay registered, and its history can be read for as long as it is kept."""
        with audited(context, "application.delete", ApplicationRow, path.name, _described) as session:
            remove_application(session, path.name, context.now(), header.check)
        return no_content()

    return api


def _described(session: Session, row: ApplicationRow) -> Json:
    return application_body(applications_of(session, [row])[row.name]).model_dump(mode="json")


def _wanted(name: str, body: ApplicationIn) -> Application:
    """An application as asked for. Raises InvalidFields where its sources contradict each other, or its SLA."""
    wanted = application_of(name, body)
    errors = [FieldError(field, message) for field, message in contradictions(wanted.sources, wanted.sla)]
    if errors:
        raise InvalidFields(errors)
    return wanted


def _application_out(
    context: ManagerContext, row: ApplicationRow, application: Application, window: Window | None
) -> ApplicationOut:
    percentile = watched_percentile(application.sla)
    return ApplicationOut(
        name=row.name,
        created_at=row.created_at,
        updated_at=row.updated_at,
        sla_state=sla_state(window, application.sla, context.clock(), context.stale_s, context.min_samples),
        window=window_out(window) if window else None,
        measured_percentile=percentile,
        measured_ms=window.percentile_ms(percentile) if window else None,
        **dict(application_body(application)),
    )
