"""Tokens, join tokens, users and their sessions, and the audit log."""

from __future__ import annotations

from datetime import timedelta

from flask import Response, g, request

from manager.api.auth import ADMIN, ADMIN_OR_OWN_USER, OPEN, OPERATOR, VIEWER, audited
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup, answer
from manager.api.paging import RECORD, Page, part, part_by_name, read_cursor
from manager.api.queries import AuditQuery, Conditions, NamePath, PageQuery
from manager.api.schemas.access_shapes import (
    AuditOut,
    JoinIn,
    JoinOut,
    JoinTokenIn,
    JoinTokenOut,
    JoinTokenSecret,
    PasswordIn,
    SessionOut,
    TokenIn,
    TokenOut,
    TokenSecret,
    UserIn,
    UserOut,
    UserRoleIn,
)
from manager.errors import InvalidRequest, SignInRefused
from manager.store.access_models import TokenRow, UserRow
from manager.store.audit import AuditFilter, list_audit
from manager.store.event_records import Position
from manager.store.host_models import JoinTokenRow
from manager.store.joining import create_join_token, described_join_token, join
from manager.store.registrations import delete, get
from manager.store.sessions import list_sessions, verify_password
from manager.store.tokens import PrincipalKind, Role, create_token, described_token
from manager.store.users import create_user, described_user, hash_password, remove_user, set_password, set_role

_JOIN_TOKEN_LASTS = timedelta(days=1)


def tokens_api(context: ManagerContext) -> RouteGroup:
    """The routes of tokens."""
    api = RouteGroup("tokens", "Bearer tokens and their roles.")

    @api.at("GET /tokens", ADMIN)
    def list_tokens(query: PageQuery) -> Page[TokenOut]:
        """All tokens by name, without secrets."""
        return part_by_name(Page[TokenOut], query, context.database, TokenRow)

    @api.at("POST /tokens", ADMIN, TokenSecret, 201)
    def post_token(body: TokenIn) -> Response:
        """Create a token. Only this answer contains its secret."""
        with audited(context, "token.create", TokenRow, body.name, described_token) as session:
            row, secret = create_token(
                session, body.name, Role(body.role), body.host, context.now(), body.expires_at, body.application
            )
        token = TokenOut.model_validate(row, from_attributes=True)
        return answer(TokenSecret(token=secret, **dict(token)), 201, row.etag)

    @api.at("DELETE /tokens/<name>", ADMIN)
    def delete_token(path: NamePath, header: Conditions) -> None:
        """Revoke a token, with immediate effect."""
        with audited(context, "token.delete", TokenRow, path.name, described_token) as session:
            delete(session, TokenRow, path.name, header.check)

    return api


def joining_api(context: ManagerContext) -> RouteGroup:
    """The routes of join tokens, and of joining."""
    api = RouteGroup("joining", "Hosts join with single-use tokens.")
    database = context.database

    @api.at("GET /join-tokens", ADMIN)
    def list_join_tokens(query: PageQuery) -> Page[JoinTokenOut]:
        """All join tokens by name, including those used or expired in the last 30 days."""
        return part_by_name(Page[JoinTokenOut], query, database, JoinTokenRow)

    @api.at("POST /join-tokens", ADMIN, JoinTokenSecret, 201)
    def post_join_token(body: JoinTokenIn) -> Response:
        """Create a single-use join token for a host. Only this answer contains its secret."""
        now = context.now()
        expires_at = body.expires_at or now + _JOIN_TOKEN_LASTS
        with audited(context, "join-token.create", JoinTokenRow, body.name, described_join_token) as session:
            row, secret = create_join_token(session, body.name, body.host, now, expires_at, replace=body.replace)
        token = JoinTokenOut.model_validate(row, from_attributes=True)
        return answer(JoinTokenSecret(token=secret, **dict(token)), 201, row.etag)

    @api.at("DELETE /join-tokens/<name>", ADMIN)
    def delete_join_token(path: NamePath, header: Conditions) -> None:
        """Delete a join token. A host that joined with it keeps its own token."""
        with audited(context, "join-token.delete", JoinTokenRow, path.name, described_join_token) as session:
            delete(session, JoinTokenRow, path.name, header.check)

    @api.at("POST /hosts/<name>/join", OPEN, JoinOut, 201)
    def join_host(path: NamePath, body: JoinIn) -> Response:
        """Exchange a join token for a token of the host; 422 gives the reason for a refusal. Needs no other token."""
        row, secret = join(database, body.token, path.name, request.remote_addr or "", context.now())
        return answer(JoinOut(host=path.name, name=row.name, token=secret), 201)

    return api


def users_api(context: ManagerContext) -> RouteGroup:
    """The routes of users and sessions."""
    api = RouteGroup("users", "People who sign in to the dashboard, and their roles.")
    database = context.database

    @api.at("GET /users", ADMIN)
    def list_users(query: PageQuery) -> Page[UserOut]:
        """All users by name."""
        return part_by_name(Page[UserOut], query, database, UserRow)

    @api.at("POST /users", ADMIN, UserOut, 201)
    def post_user(body: UserIn) -> Response:
        """Create a user."""
        password_hash = hash_password(body.password)
        with audited(context, "user.create", UserRow, body.name, described_user) as session:
            row = create_user(session, body.name, Role(body.role), password_hash, context.now())
        return _user_answer(row, 201)

    @api.at("GET /users/<name>", ADMIN, UserOut)
    def get_user(path: NamePath) -> Response:
        """One user."""
        with database.reading() as session:
            return _user_answer(get(session, UserRow, path.name))

    @api.at("PUT /users/<name>", ADMIN, UserOut)
    def put_user(path: NamePath, header: Conditions, body: UserRoleIn) -> Response:
        """Set a user's role. A different role ends the user's sessions; 409 for the last administrator."""
        with audited(context, "user.put", UserRow, path.name, described_user) as session:
            row = set_role(session, path.name, Role(body.role), context.now(), header.check)
        return _user_answer(row)

    @api.at("PUT /users/<name>/password", ADMIN_OR_OWN_USER)
    def put_password(path: NamePath, body: PasswordIn) -> None:
        """Set a user's password, which ends the user's sessions. Your own also needs the current one."""
        password_hash = hash_password(body.password)
        if g.principal.kind is PrincipalKind.USER and g.principal.name == path.name:
            _verify(path.name, body.current_password)
        with audited(context, "user.password", UserRow, path.name, described_user) as session:
            set_password(session, path.name, password_hash, context.now())

    @api.at("DELETE /users/<name>", ADMIN)
    def delete_user(path: NamePath, header: Conditions) -> None:
        """Remove a user and end their sessions; 409 for the last administrator."""
        with audited(context, "user.delete", UserRow, path.name, described_user) as session:
            remove_user(session, path.name, header.check)

    @api.at("GET /sessions", VIEWER)
    def list_own_sessions(query: PageQuery) -> Page[SessionOut]:
        """Your own sessions, newest first."""
        after, most = read_cursor(query, RECORD), query.limit + 1
        with database.reading() as session:
            rows = list_sessions(session, g.principal, context.now(), context.sessions, after, most)
        return part(Page[SessionOut], query, rows, lambda row: Position(row.created_at, row.id))

    def _verify(name: str, current_password: str | None) -> None:
        if current_password is None:
            raise InvalidRequest("current_password", "is required to change one's own password")
        try:
            verify_password(database, name, current_password, request.remote_addr or "", context.now())
        except SignInRefused as error:
            raise InvalidRequest("current_password", str(error)) from None

    return api


def _user_answer(row: UserRow, status: int = 200) -> Response:
    return answer(UserOut.model_validate(row, from_attributes=True), status, row.etag)


def audit_api(context: ManagerContext) -> RouteGroup:
    """The route of the audit."""
    api = RouteGroup("audit", "Who changed what.")

    @api.at("GET /audit", OPERATOR)
    def list_audit_(query: AuditQuery) -> Page[AuditOut]:
        """Changes to registrations, restores, and sign-ins and sign-outs, newest first."""
        wanted = AuditFilter(query.actor, query.object_kind, query.object, query.since, query.until)
        with context.database.reading() as session:
            rows = list_audit(session, wanted, read_cursor(query, RECORD), query.limit + 1)
        return part(Page[AuditOut], query, rows, lambda row: Position(row.at, row.id))

    return api
