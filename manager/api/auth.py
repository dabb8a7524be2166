"""Who may do what: bearer tokens, and for each route the role it needs.

A route says so with ``allow`` (``endpoint`` does it for the routes of the interface); one that says nothing is for
administrators. Only health and metrics are open. The pages of the interactive documentation also take a token as the
password of HTTP Basic authentication, with any user name, because that is what a browser can ask for; no other route
does, so a page of another site cannot use the browser's memory of it to change anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Flask, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from manager.api.context import ManagerContext
from manager.store.tokens import Principal, Role, authenticate

View = TypeVar("View", bound=Callable[..., Any])

_REALM = "Equipoise manager"  # in two words, because only then it is quoted, as RFC 9110 wants
_RANKS = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a route: nobody below ``role``, except host tokens where that is said.

    ``own_host``: a host token, if its host is the ``name`` in the path. ``any_host``: every host token.
    ``browser``: HTTP Basic will do.
    """

    role: Role | None
    own_host: bool = False
    any_host: bool = False
    browser: bool = False


OPEN = Access(None)
VIEWER = Access(Role.VIEWER)
VIEWER_OR_OWN_HOST = Access(Role.VIEWER, own_host=True)
OPERATOR = Access(Role.OPERATOR)
OPERATOR_OR_ANY_HOST = Access(Role.OPERATOR, any_host=True)
ADMIN = Access(Role.ADMIN)
ADMIN_OR_OWN_HOST = Access(Role.ADMIN, own_host=True)
VIEWER_IN_BROWSER = Access(Role.VIEWER, browser=True)


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
            _authorize(access, access.role, _principal(context, access))

    app.before_request(check)


def _principal(context: ManagerContext, access: Access) -> Principal:
    given = request.authorization
    secret = None
    if given is not None and given.type == "bearer":
        secret = given.token
    elif given is not None and given.type == "basic" and access.browser:
        secret = given.password
    principal = authenticate(context.database, secret, context.now()) if secret else None
    if principal is None:
        challenges = [WWWAuthenticate("bearer", {"realm": _REALM})]
        if access.browser:
            challenges.append(WWWAuthenticate("basic", {"realm": _REALM}))
        why = "the token is unknown or revoked" if secret else "a token is needed: Authorization: Bearer <token>"
        raise Unauthorized(why, www_authenticate=challenges)
    return principal


def _authorize(access: Access, role: Role, principal: Principal) -> None:
    if principal.role is Role.HOST:
        own = request.view_args is not None and request.view_args.get("name") == principal.host
        if access.any_host or (access.own_host and own):
            return
        needed = f"role {role}" + (
            f", or host with a token for this host (not {principal.host})" if access.own_host else ""
        )
    elif _RANKS.index(principal.role) >= _RANKS.index(role):
        return
    else:
        needed = f"role {role}"
    raise Forbidden(f"token {principal.token!r} has role {principal.role}; this needs {needed}")
