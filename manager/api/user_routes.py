"""Users, for administrators, and what everybody may do about the own account."""

from __future__ import annotations

from flask import Response, g, request
from flask_openapi3.blueprint import APIBlueprint

from manager.api.audit_routes import audited
from manager.api.auth import ADMIN, ADMIN_OR_OWN_USER, VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint, no_content
from manager.api.pages import SessionPage, UserPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import Conditions, NamePath, PageQuery
from manager.api.schemas.access_shapes import PasswordIn, SessionOut, UserIn, UserOut, UserRoleIn
from manager.errors import InvalidRequest, SignInRefused
from manager.store.access_models import SessionRow, UserRow
from manager.store.registrations import get, page
from manager.store.sessions import list_sessions, verify_password
from manager.store.tokens import PrincipalKind, Role
from manager.store.users import create_user, described_user, hash_password, remove_user, set_password, set_role


def users_api(context: ManagerContext) -> APIBlueprint:
    """The routes of users."""
    api = blueprint("users", "People who sign in to the dashboard, and their roles.")
    database = context.database

    @api.get("/users", responses=answers((200, UserPage)))
    @endpoint(ADMIN)
    def list_users(query: PageQuery) -> Response:
        """All users by name."""
        with database.reading() as session:
            rows = page(session, UserRow, read_cursor(query, name_place), query.limit + 1)
        shown, following = cut(rows, query.limit, lambda row: row.name)
        return answer(UserPage(items=[_user_out(row) for row in shown], next=following))

    @api.post("/users", responses=answers((201, UserOut)))
    @endpoint(ADMIN)
    def post_user(body: UserIn) -> Response:
        """Make a user."""
        password_hash = hash_password(body.password)
        with audited(context, "user.create", UserRow, body.name, described_user) as session:
            row = create_user(session, body.name, Role(body.role), password_hash, context.now())
        return answer(_user_out(row), 201, row.etag)

    @api.get("/users/<name>", responses=answers((200, UserOut)))
    @endpoint(ADMIN)
    def get_user(path: NamePath) -> Response:
        """One user."""
        with database.reading() as session:
            row = get(session, UserRow, path.name)
        return answer(_user_out(row), etag=row.etag)

    @api.put("/users/<name>", responses=answers((200, UserOut)))
    @endpoint(ADMIN)
    def put_user(path: NamePath, header: Conditions, body: UserRoleIn) -> Response:
        """Give a user a role. Another one than before ends the user's sessions; 409 for the last administrator."""
        with audited(context, "user.put", UserRow, path.name, described_user) as session:
            row = set_role(session, path.name, Role(body.role), context.now(), header.check)
        return answer(_user_out(row), etag=row.etag)

    @api.put("/users/<name>/password", responses=answers((204, None)))
    @endpoint(ADMIN_OR_OWN_USER)
    def put_password(path: NamePath, body: PasswordIn) -> Response:
        """Give a user a new password, which ends the user's sessions. One's own needs the present one, too."""
        password_hash = hash_password(body.password)
        if g.principal.kind is PrincipalKind.USER and g.principal.name == path.name:
            _verify(path.name, body.current_password)
        with audited(context, "user.password", UserRow, path.name, described_user) as session:
            set_password(session, path.name, password_hash, context.now())
        return no_content()

    @api.delete("/users/<name>", responses=answers((204, None)))
    @endpoint(ADMIN)
    def delete_user(path: NamePath, header: Conditions) -> Response:
        """Remove a user, whose sessions end; 409 for the last administrator."""
        with audited(context, "user.delete", UserRow, path.name, described_user) as session:
            remove_user(session, path.name, header.check)
        return no_content()

    @api.get("/sessions", responses=answers((200, SessionPage)))
    @endpoint(VIEWER)
    def list_own_sessions() -> Response:
        """The sessions of whoever asks."""
        with database.reading() as session:
            rows = list_sessions(session, g.principal, context.now(), context.sessions)
        return answer(SessionPage(items=[_session_out(row) for row in rows]))

    def _verify(name: str, current_password: str | None) -> None:
        if current_password is None:
            raise InvalidRequest("current_password", "is required to change one's own password")
        try:
            verify_password(database, name, current_password, request.remote_addr or "", context.now())
        except SignInRefused as error:
            raise InvalidRequest("current_password", str(error)) from None

    return api


def _user_out(row: UserRow) -> UserOut:
    return UserOut.model_validate(row, from_attributes=True)


def _session_out(row: SessionRow) -> SessionOut:
    return SessionOut.model_validate(row, from_attributes=True)
