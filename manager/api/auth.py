"""Authentication by bearer token or session, and the role that each route needs.

A route declares its access with ``allow`` (``endpoint`` does it for the routes of the API); a route without it is for
administrators. Only health and metrics are open. The pages of the interactive documentation also accept a token as the
password of HTTP Basic authentication, with any user name, because a browser can prompt for that. No other route does,
so that another site's page cannot use credentials the browser remembers to change anything. Nor does a session's cookie
suffice for writes: they also need the session's CSRF token.

After the check, ``g.principal`` is the authenticated principal, and ``g.csrf_token`` the session's token for its forms.
A route may take a token that was valid a moment ago, and ask itself whether it still is (``Access.proves_later``);
``g.unproven`` is then the hash of its secret, else None.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from flask import Flask, Request, Response, g, request
from sqlalchemy.orm import Session
from werkzeug.datastructures import Authorization, WWWAuthenticate
from werkzeug.exceptions import Forbidden, RequestEntityTooLarge, Unauthorized

from manager.api.context import ManagerContext
from manager.errors import TooManyRequests
from manager.model.units import per_second
from manager.rate_limit import network
from manager.serving.exchange import EXCHANGE, MAX_BODY_BYTES, OPEN_BODY_BYTES, Environ, Exchange
from manager.store import audit
from manager.store.models import Json
from manager.store.registrations import Row
from manager.store.sessions import SignedIn, find_session
from manager.store.tokens import Principal, PrincipalKind, Role, authenticate_hash, hash_secret, is_valid

View = TypeVar("View", bound=Callable[..., Any])

PRINCIPAL_KEY = "equipoise.principal"
"""Key of the WSGI environment for the principal of a request made within the process. No header can set it."""

COOKIE = "equipoise_session"
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
PROBES = frozenset({"/healthz", "/readyz", "/api/v1/health"})
"""Paths for probes: they have their own threads and no rate limit."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})

_METRICS_COST = 10.0  # in requests: a scrape reads the whole fleet from the database
_REALM = "Equipoise manager"  # in two words, because only then it is quoted, as RFC 9110 wants
_INVALID = "the token is unknown, revoked or expired"
_RANKS = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a route: ``role`` and above (None: everybody), and those that the other fields admit.

    ``own_host``: a host token, if its host is the ``name`` in the path. ``any_host``: every host token.
    ``own_application``: a source token, if that is the ``name`` in the path. ``own_user``: a user, if that is its name.
    ``browser``: HTTP Basic is accepted. ``session``: a session is accepted in place of a token. ``proves_later``: the
    view itself makes sure that a token is still valid before it does or tells anything, see ``proving``.
    """

    role: Role | None
    own_host: bool = False
    any_host: bool = False
    browser: bool = False
    session: bool = False
    own_user: bool = False
    own_application: bool = False
    proves_later: bool = False


OPEN = Access(None)
VIEWER = Access(Role.VIEWER, session=True)
VIEWER_OR_OWN_HOST = Access(Role.VIEWER, own_host=True, session=True)
OPERATOR = Access(Role.OPERATOR, session=True)
OPERATOR_OR_MACHINES = Access(Role.OPERATOR, any_host=True, own_application=True, session=True)
ADMIN = Access(Role.ADMIN, session=True)
REPORT_OF_HOST = Access(Role.ADMIN, own_host=True, proves_later=True)
ADMIN_OR_OWN_USER = Access(Role.ADMIN, session=True, own_user=True)
VIEWER_IN_BROWSER = Access(Role.VIEWER, browser=True, session=True)


def allow(access: Access) -> Callable[[View], View]:
    """Set the access of a view."""

    def mark(view: View) -> View:
        view.access = access  # type: ignore[attr-defined]
        return view

    return mark


def install_auth(app: Flask, context: ManagerContext) -> None:
    """Check every request that matches a route before it is handled."""

    def check() -> Response | None:
        if request.endpoint is None:
            return None  # no such route or method: answered without details
        access: Access = getattr(app.view_functions[request.endpoint], "access", ADMIN)
        exchange: Exchange | None = request.environ.get(EXCHANGE)
        limit_bytes = OPEN_BODY_BYTES
        if access.role is not None:
            signed = _signed(context, access, exchange)
            g.principal, g.unproven = signed.principal, signed.unproven
            _authorize(access, access.role, signed.principal)
            limit_bytes = MAX_BODY_BYTES
        elif exchange is not None and exchange.kept is None:
            _count_open(context)
            exchange.kept = True
        if (request.content_length or 0) > limit_bytes:
            raise RequestEntityTooLarge(f"a body of more than {limit_bytes} bytes is refused")
        if exchange is not None and exchange.undecided:
            exchange.limit_bytes = limit_bytes
            return Response()
        if access.role is not None and signed.csrf_token is not None:
            refuse_forgery(signed.csrf_token)  # may read the body
            g.csrf_token = signed.csrf_token
        return None

    app.before_request(check)


def audited(
    context: ManagerContext, action: str, kind: type[Row], name: str, describe: Callable[[Session, Row], Json]
) -> AbstractContextManager[Session]:
    """``manager.store.audit.audited`` for the principal of the request."""
    actor = audit.actor_of(g.principal, request.remote_addr or "")
    return audit.audited(context.database, actor, action, kind, name, describe, context.now())


def cookie_arguments(context: ManagerContext) -> dict[str, Any]:
    """Arguments of ``Response.set_cookie`` for the session's cookie, without its value.

    Over https, or with the setting ``always``, browsers send it only over https and to the host that set it.
    """
    secure = context.secure_cookies or request.is_secure
    name = f"__Host-{COOKIE}" if secure else COOKIE
    return {"key": name, "path": "/", "secure": secure, "httponly": True, "samesite": "Lax"}


def recognised_reporter(context: ManagerContext, environ: Environ, host: str) -> str | None:
    """The hash of a request's secret, where its token could report for a host a moment ago, and is within its rate.

    It counts then, and is known to the check of ``install_auth``, which does not count it again. None: nothing was
    counted or noted. Whether the token is still valid is for who asks to prove.
    """
    kind, _, secret = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if kind != "Bearer":
        return None
    secret_hash = hash_secret(secret)
    principal = context.tokens.of(secret_hash, context.now())
    if principal is None or not (principal.role is Role.ADMIN or principal.host == host):  # as REPORT_OF_HOST says
        return None
    if context.requests.ask((principal.kind, principal.name)):
        return None
    exchange: Exchange = environ[EXCHANGE]
    exchange.kept, exchange.trusted = _Signed(principal, unproven=secret_hash), True
    return secret_hash


def session_secret(context: ManagerContext) -> str | None:
    """The value of the request's session cookie, if there is one."""
    return request.cookies.get(cookie_arguments(context)["key"])


def session_of(context: ManagerContext, *, used: bool = True) -> SignedIn | None:
    """The request's session, if it has not ended; ``used`` as for ``find_session``."""
    secret = session_secret(context)
    return find_session(context.database, secret, context.now(), context.sessions, used=used) if secret else None


def credentials(incoming: Request) -> Authorization | None:
    """The Authorization header; None if it is absent or malformed."""
    try:
        return incoming.authorization
    except ValueError:  # from Werkzeug, for Basic that is not ASCII
        return None


def reader_left(incoming: Request) -> Callable[[], bool]:
    """A function that returns, also later, whether the client has disconnected."""
    exchange: Exchange | None = incoming.environ.get(EXCHANGE)
    return lambda: exchange is not None and exchange.gone


@contextmanager
def proving(context: ManagerContext) -> Iterator[None]:
    """A block whose reasons of refusal are for a token alone that is still valid. Raises as ``prove``."""
    try:
        yield
    except Exception:  # whatever it tells, only a valid token may hear it
        prove(context)
        raise


def prove(context: ManagerContext) -> None:
    """Make sure that the token of the request is still valid. Raises Unauthorized, TooManyRequests if it is not."""
    secret_hash, g.unproven = g.unproven, None
    if secret_hash is not None and authenticate_hash(context.database, secret_hash, context.now()) is None:
        _refuse_token(context)


def prove_within(session: Session, context: ManagerContext) -> None:
    """The same as ``prove`` within a transaction, before anything else is done in it. Raises as ``prove``."""
    secret_hash, g.unproven = g.unproven, None
    if secret_hash is not None and not is_valid(session, secret_hash, context.now()):
        _refuse_token(context)


def _refuse_token(context: ManagerContext) -> NoReturn:
    _count(context, "address", network(request.remote_addr or ""))
    raise _unauthorized(_INVALID)


def refuse_forgery(csrf_token: str) -> None:
    """Raises Forbidden unless the request only reads, or carries the token."""
    if request.method in READS:
        return
    received = request.headers.get(CSRF_HEADER) or request.form.get(CSRF_FIELD, "")
    if not hmac.compare_digest(received.encode(), csrf_token.encode()):
        raise Forbidden(f"writes in a session need its CSRF token, in header {CSRF_HEADER} or form field {CSRF_FIELD}")


@dataclass(frozen=True, slots=True)
class _Signed:
    """An authenticated principal, and within a session its CSRF token."""

    principal: Principal
    csrf_token: str | None = None
    unproven: str | None = None


def _signed(context: ManagerContext, access: Access, exchange: Exchange | None) -> _Signed:
    """The authenticated principal. Raises Unauthorized, or TooManyRequests above the rate of principal or address."""
    inside = request.environ.get(PRINCIPAL_KEY)
    if isinstance(inside, Principal):
        return _Signed(inside)  # the page that makes this request was counted
    if exchange is not None and isinstance(exchange.kept, _Signed):
        return exchange.kept  # authenticated before the body was read
    try:
        signed = _authenticated(context, access)
    except Unauthorized:
        _count(context, "address", network(request.remote_addr or ""))
        raise
    _count(context, signed.principal.kind, signed.principal.name)
    if exchange is not None:
        exchange.kept = signed
        exchange.trusted = True
    return signed


def _count_open(context: ManagerContext) -> None:
    """Count a request without a token. Raises TooManyRequests; probes are never refused."""
    if request.path in PROBES:
        return
    address = network(request.remote_addr or "")
    if request.method in READS:
        wait_s = context.requests.ask(("open", address), _METRICS_COST if request.path == "/metrics" else 1.0)
    else:
        wait_s = context.tries.ask(address)
    if wait_s:
        raise TooManyRequests(f"address {address!r} exceeds the rate limit without a token", wait_s)


def _count(context: ManagerContext, kind: str, name: str) -> None:
    wait_s = context.requests.ask((kind, name))
    if wait_s:
        limit = per_second(context.requests.per_s)
        raise TooManyRequests(f"{kind} {name!r} exceeds the rate limit of {limit} on average", wait_s)


def _authenticated(context: ManagerContext, access: Access) -> _Signed:
    authorization = credentials(request)
    secret = None
    if authorization is not None and authorization.type == "bearer":
        secret = authorization.token
    elif authorization is not None and authorization.type == "basic" and access.browser:
        secret = authorization.password
    if secret:
        now, secret_hash = context.now(), hash_secret(secret)
        known = context.tokens.of(secret_hash, now) if access.proves_later else None
        if known is not None:
            return _Signed(known, unproven=secret_hash)
        principal = authenticate_hash(context.database, secret_hash, now)
        if principal is not None:
            context.tokens.note(secret_hash, principal, now)
        csrf_token = None
        why = _INVALID
    else:
        signed_in = session_of(context) if access.session else None
        principal = signed_in.principal if signed_in else None
        csrf_token = signed_in.csrf_token if signed_in else None
        ended = access.session and session_secret(context) is not None
        why = "the session has ended" if ended else "a token is needed: Authorization: Bearer <token>"
    if principal is None:
        raise _unauthorized(why, browser=access.browser)
    return _Signed(principal, csrf_token)


def _unauthorized(why: str, *, browser: bool = False) -> Unauthorized:
    challenges = [WWWAuthenticate("bearer", {"realm": _REALM})]
    if browser:
        challenges.append(WWWAuthenticate("basic", {"realm": _REALM}))
    return Unauthorized(why, www_authenticate=challenges)


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
