"""The audit: writes that are recorded with who makes them, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from flask import Response, g, request
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.auth import OPERATOR
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.pages import AuditPage
from manager.api.paging import cut, read_cursor, record_cursor, record_place
from manager.api.queries import AuditQuery
from manager.api.schemas.access_shapes import AuditOut
from manager.store import audit
from manager.store.audit import AuditFilter, actor_of, list_audit
from manager.store.models import Json
from manager.store.registrations import Row


def audited(
    context: ManagerContext, action: str, kind: type[Row], name: str, describe: Callable[[Session, Row], Json]
) -> AbstractContextManager[Session]:
    """``Database.registering`` for what the request changes of one object; see ``manager.store.audit.audited``."""
    actor = actor_of(g.principal, request.remote_addr or "")
    return audit.audited(context.database, actor, action, kind, name, describe, context.now())


def audit_api(context: ManagerContext) -> APIBlueprint:
    """The route of the audit."""
    api = blueprint("audit", "Who changed what.")

    @api.get("/audit", responses=answers((200, AuditPage)))
    @endpoint(OPERATOR)
    def list_audit_(query: AuditQuery) -> Response:
        """What people registered, removed and took back, and when they signed in and out, newest first."""
        wanted = AuditFilter(query.actor, query.object_kind, query.object, query.since, query.until)
        with context.database.reading() as session:
            rows = list_audit(session, wanted, read_cursor(query, record_place), query.limit + 1)
        shown, following = cut(rows, query.limit, lambda row: record_cursor(row.at, row.id))
        items = [AuditOut.model_validate(row, from_attributes=True) for row in shown]
        return answer(AuditPage(items=items, next=following))

    return api
