"""Tokens, for administrators."""

from __future__ import annotations

from flask import Response
from flask_openapi3.blueprint import APIBlueprint

from manager.api.audit_routes import audited
from manager.api.auth import ADMIN
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint, no_content
from manager.api.pages import TokenPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import NamePath, PageQuery
from manager.api.schemas.service_shapes import TokenIn, TokenOut, TokenSecret
from manager.store.access_models import TokenRow
from manager.store.tokens import Role, create_token, described_token, list_tokens, revoke_token


def tokens_api(context: ManagerContext) -> APIBlueprint:
    """The routes of tokens."""
    api = blueprint("tokens", "Bearer tokens and their roles.")
    database = context.database

    @api.get("/tokens", responses=answers((200, TokenPage)))
    @endpoint(ADMIN)
    def list_tokens_(query: PageQuery) -> Response:
        """All tokens by name, without their secrets."""
        with database.reading() as session:
            rows = list_tokens(session, read_cursor(query, name_place), query.limit + 1)
        shown, following = cut(rows, query.limit, lambda row: row.name)
        items = [TokenOut.model_validate(row, from_attributes=True) for row in shown]
        return answer(TokenPage(items=items, next=following))

    @api.post("/tokens", responses=answers((201, TokenSecret)))
    @endpoint(ADMIN)
    def post_token(body: TokenIn) -> Response:
        """Make a token. The answer is the only place where its secret is ever shown."""
        with audited(context, "token.create", TokenRow, body.name, described_token) as session:
            row, secret = create_token(
                session, body.name, Role(body.role), body.host, context.now(), body.expires_at, body.application
            )
        token = TokenOut.model_validate(row, from_attributes=True)
        return answer(TokenSecret(token=secret, **dict(token)), 201)

    @api.delete("/tokens/<name>", responses=answers((204, None)))
    @endpoint(ADMIN)
    def delete_token(path: NamePath) -> Response:
        """Revoke a token; it is refused from now on."""
        with audited(context, "token.delete", TokenRow, path.name, described_token) as session:
            revoke_token(session, path.name)
        return no_content()

    return api
