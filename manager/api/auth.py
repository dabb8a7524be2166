"""Who may do what: bearer tokens and sessions, and for each route the role it needs.

A route says so with ``allow`` (``endpoint`` does it for the routes of the interface); one that says nothing is for
administrators. Only health and metrics are open. The pages of the interactive documentation also take a token as the
password of HTTP Basic authentication, with any user name, because that is what a browser can ask for; no other route
does, so a page of another site cannot use the browser's memory of it to change anything. A session's cookie does not
suffice for writes either: they carry the session's CSRF token.

After the check ``g.principal`` is who asks, and within a session ``g.csrf_token`` what its forms send along.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Flask, Request, g, request
from werkzeug.datastructures import Authorization, WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from manager.api.context import ManagerContext
from manager.errors import TooManyRequests
from manager.store.sessions import SignedIn, find_session
from manager.store.tokens import Principal, PrincipalKind, Role, authenticate

View = TypeVar("View", bound=Callable[..., Any])

PRINCIPAL_KEY = "equipoise.principal"
"""Key of the WSGI environment under which a caller within the process says who asks. No header can set it."""

COOKIE = "equipoise_session"
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
READS = frozenset({"GET", "HEAD", "OPTIONS"})

_REALM = "Equipoise manager"  # in two words, because only then it is quoted, as RFC 9110 wants
_RANKS = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a route: nobody below ``role``, except host tokens and users where that is said.

    ``own_host``: a host token, if its host is the ``name`` in the path. ``any_host``: every host token.
    ``own_application``: a source token, if that is the ``name`` in the path. ``own_user``: a user, if that is its name.
    ``browser``: HTTP Basic will do. ``session``: a session will do in place of a token.
    """

    role: Role | None
    own_host: bool = False
    any_host: bool = False
    browser: bool = False
    session: bool = False
    own_user: bool = False
    own_application: bool = False


OPEN = Access(None)
VIEWER = Access(Role.VIEWER, session=True)
VIEWER_OR_OWN_HOST = Access(Role.VIEWER, own_host=True, session=True)
OPERATOR = Access(Role.OPERATOR, session=True)
OPERATOR_OR_MACHINES = Access(Role.OPERATOR, any_host=True, own_application=True, session=True)
ADMIN = Access(Role.ADMIN, session=True)
ADMIN_OR_OWN_HOST = Access(Role.ADMIN, own_host=True)
ADMIN_OR_OWN_USER = Access(Role.ADMIN, session=True, own_user=True)
VIEWER_IN_BROWSER = Access(Role.VIEWER, browser=True, session=True)


def allow(access: Access) -> Callable[[View], View]:
    """Mark a view with who may use it."""

    def mark(view: View) -> View:
        view.access = access  # type: ignore[attr-defined]
        return view

    return mark


def install_auth(app: Flask, context: ManagerContext) -> None:
    """Check every request that matches a route before anything else is done with it."""

    def check() -> None:
        if request.endpoint is None:
            return  # no such route, or not with this method: says so without telling more
        access: Access = getattr(app.view_functions[request.endpoint], "access", ADMIN)
        if access.role is not None:
            g.principal = _limited(context, access)
            _authorize(access, access.role, g.principal)

    app.before_request(check)


def cookie_arguments(context: ManagerContext) -> dict[str, Any]:
    """How the session's cookie is set and deleted, but for its value: arguments of ``Response.set_cookie``.

    By https, or where the setting says always, browsers send it by https alone, and only to the host that set it.
    """
    secure = context.secure_cookies or request.is_secure
    name = f"__Host-{COOKIE}" if secure else COOKIE
    return {"key": name, "path": "/", "secure": secure, "httponly": True, "samesite": "Lax"}


def session_secret(context: ManagerContext) -> str | None:
    """What the session's cookie of the request holds, if there is one."""
    return request.cookies.get(cookie_arguments(context)["key"])


def session_of(context: ManagerContext, *, used: bool = True) -> SignedIn | None:
    """The session of the request, if there is one that goes on; ``used`` as for ``find_session``."""
    secret = session_secret(context)
    return find_session(context.database, secret, context.now(), context.sessions, used=used) if secret else None


def credentials(given: Request) -> Authorization | None:
    """What the header Authorization holds, None where that cannot be read."""
    try:
        return given.authorization
    except ValueError:  # of Werkzeug, for Basic with what is not ASCII
        return None


def refuse_forgery(csrf_token: str) -> None:
    """Raises Forbidden unless the request only reads, or carries the token."""
    if request.method in READS:
        return
    given = request.headers.get(CSRF_HEADER) or request.form.get(CSRF_FIELD, "")
    if not hmac.compare_digest(given.encode(), csrf_token.encode()):
        raise Forbidden(f"writes in a session need its CSRF token, in header {CSRF_HEADER} or form field {CSRF_FIELD}")


def _limited(context: ManagerContext, access: Access) -> Principal:
    """Who asks. Raises Unauthorized, or TooManyRequests where this one, or its address without a token, floods."""
    inside = request.environ.get(PRINCIPAL_KEY)
    if isinstance(inside, Principal):
        return inside  # the page that it is for was counted
    try:
        principal = _principal(context, access)
    except Unauthorized:
        _count(context, "address", request.remote_addr or "")
        raise
    _count(context, principal.kind, principal.name)
    return principal


def _count(context: ManagerContext, kind: str, name: str) -> None:
    wait_s = context.requests.ask((kind, name))
    if wait_s:
        most = f"{context.requests.per_s:g} requests a second are answered in the long run"
        raise TooManyRequests(f"{kind} {name!r} asks too often, {most}", wait_s)


def _principal(context: ManagerContext, access: Access) -> Principal:
    given = credentials(request)
    secret = None
    if given is not None and given.type == "bearer":
        secret = given.token
    elif given is not None and given.type == "basic" and access.browser:
        secret = given.password
    if secret:
        principal = authenticate(context.database, secret, context.now())
        why = "the token is unknown, revoked or expired"
    else:
        signed_in = session_of(context) if access.session else None
        if signed_in is not None:
            refuse_forgery(signed_in.csrf_token)
            g.csrf_token = signed_in.csrf_token
        principal = signed_in.principal if signed_in else None
        ended = access.session and session_secret(context) is not None
        why = "the session has ended" if ended else "a token is needed: Authorization: Bearer <token>"
    if principal is None:
        challenges = [WWWAuthenticate("bearer", {"realm": _REALM})]
        if access.browser:
            challenges.append(WWWAuthenticate("basic", {"realm": _REALM}))
        raise Unauthorized(why, www_authenticate=challenges)
    return principal


def _authorize(access: Access, role: Role, principal: Principal) -> None:
    name = (request.view_args or {}).get("name")
    if access.own_user and principal.kind is PrincipalKind.USER and principal.name == name:
        return
    if principal.role is Role.HOST:
        if access.any_host or (access.own_host and principal.host == name):
            return
        needed = f"role {role}" + (
            f", or host with a token for this host (not {principal.host})" if access.own_host else ""
        )
    elif principal.role is Role.SOURCE:
        if access.own_application and principal.application == name:
            return
        needed = f"role {role}" + (
            f", or source with a token for this application (not {principal.application})"
            if access.own_application
            else ""
        )
    elif _RANKS.index(principal.role) >= _RANKS.index(role):
        return
    else:
        needed = f"role {role}"
    raise Forbidden(f"{principal.kind} {principal.name!r} has role {principal.role}; this needs {needed}")
