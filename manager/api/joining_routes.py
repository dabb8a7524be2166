"""Hosts that join: tokens for it, for administrators, and the exchange."""

from __future__ import annotations

from datetime import timedelta

from flask import Response, request
from flask_openapi3.blueprint import APIBlueprint

from manager.api.audit_routes import audited
from manager.api.auth import ADMIN, OPEN
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint, no_content
from manager.api.pages import JoinTokenPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import NamePath, PageQuery
from manager.api.schemas.service_shapes import JoinIn, JoinOut, JoinTokenIn, JoinTokenOut, JoinTokenSecret
from manager.store.host_models import JoinTokenRow
from manager.store.joining import create_join_token, described_join_token, join
from manager.store.registrations import delete, page

_LASTS = timedelta(days=1)


def joining_api(context: ManagerContext) -> APIBlueprint:
    """The routes of joining."""
    api = blueprint("joining", "Hosts that join, each with a token that works once.")
    database = context.database

    @api.get("/join-tokens", responses=answers((200, JoinTokenPage)))
    @endpoint(ADMIN)
    def list_join_tokens(query: PageQuery) -> Response:
        """All tokens to join with by name, also those that were used or expired in the last 30 days."""
        with database.reading() as session:
            rows = page(session, JoinTokenRow, read_cursor(query, name_place), query.limit + 1)
        shown, following = cut(rows, query.limit, lambda row: row.name)
        items = [JoinTokenOut.model_validate(row, from_attributes=True) for row in shown]
        return answer(JoinTokenPage(items=items, next=following))

    @api.post("/join-tokens", responses=answers((201, JoinTokenSecret)))
    @endpoint(ADMIN)
    def post_join_token(body: JoinTokenIn) -> Response:
        """Make a token that a host joins with, once. The answer is the only place where its secret is ever shown."""
        now = context.now()
        expires_at = body.expires_at or now + _LASTS
        with audited(context, "join-token.create", JoinTokenRow, body.name, described_join_token) as session:
            row, secret = create_join_token(session, body.name, body.host, now, expires_at, replace=body.replace)
        made = JoinTokenOut.model_validate(row, from_attributes=True)
        return answer(JoinTokenSecret(token=secret, **dict(made)), 201)

    @api.delete("/join-tokens/<name>", responses=answers((204, None)))
    @endpoint(ADMIN)
    def delete_join_token(path: NamePath) -> Response:
        """Delete a token to join with. Who joined with it before keeps its own."""
        with audited(context, "join-token.delete", JoinTokenRow, path.name, described_join_token) as session:
            delete(session, JoinTokenRow, path.name, lambda _etag: None)
        return no_content()

    @api.post("/hosts/<name>/join", responses=answers((201, JoinOut)))
    @endpoint(OPEN)
    def join_host(path: NamePath, body: JoinIn) -> Response:
        """Exchange a token to join with for the host's own; 422 says why not. It needs no other token."""
        row, secret = join(database, body.token, path.name, request.remote_addr or "", context.now())
        return answer(JoinOut(host=path.name, name=row.name, token=secret), 201)

    return api
