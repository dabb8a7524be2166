"""Signing in and out, and one's own account."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from urllib.parse import urlsplit

from flask import Request, g, redirect, request, url_for
from werkzeug.exceptions import Forbidden
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPEN, VIEWER, allow, cookie_arguments, session_of, session_secret
from manager.api.schemas.access_shapes import PasswordIn
from manager.errors import SignInRefused, SignInThrottled
from manager.store import sessions
from webui import rest
from webui.filled import Sheet
from webui.forms import Look, form_page, parts_of
from webui.site import page, site, web


@web.route("/sign-in", methods=["GET", "POST"])
@allow(OPEN)
def sign_in() -> AnyResponse:
    """The form, and what comes of it."""
    context = site().context
    target = local_path(request.values.get("next", "")) or url_for("web.fleet")
    if request.method == "GET":
        if session_of(context, used=False) is not None:
            return redirect(target, HTTPStatus.SEE_OTHER)
        return page("sign_in.html", target=target)
    refuse_other_sites(request)
    name, password = request.form.get("name", "").strip(), request.form.get("password", "")
    try:
        return _signed_in(name, password, target)
    except SignInRefused as refused:
        return page("sign_in.html", HTTPStatus.UNAUTHORIZED, target=target, name=name, detail=str(refused))
    except SignInThrottled as refused:
        until = (context.now() + timedelta(seconds=refused.retry_after_s)).isoformat()
        answer = page("sign_in.html", HTTPStatus.TOO_MANY_REQUESTS, target=target, name=name, until=until)
        answer.headers["Retry-After"] = str(refused.retry_after_s)
        return answer


@web.post("/sign-out")
@allow(VIEWER)
def sign_out() -> AnyResponse:
    """End the session."""
    context = site().context
    secret = session_secret(context)
    if secret:
        sessions.sign_out(context.database, secret, request.remote_addr or "", context.now())
    answer = redirect(url_for("web.sign_in"), HTTPStatus.SEE_OTHER)
    answer.delete_cookie(**cookie_arguments(context))
    return answer


@web.route("/account", methods=["GET", "POST"])
@allow(VIEWER)
def account() -> AnyResponse:
    """Who is signed in and where; users change their password here."""
    sheet, path = Sheet(), rest.at("users", g.principal.name, "password")
    if request.method == "POST" and sheet.submit(PasswordIn, request.form, "PUT", path):
        # That ended all sessions, this one too.
        return _signed_in(g.principal.name, sheet.body["password"], url_for("web.account", changed=1))
    look = Look(labels={"password": "New password"}, needed=frozenset({"current_password"}))
    parts = parts_of(PasswordIn, {}, sheet.errors, look)
    mine = rest.get("/sessions")["items"]
    return form_page("account.html", sheet, parts, sessions=mine, changed="changed" in request.args)


def _signed_in(name: str, password: str, target: str) -> AnyResponse:
    """Begin a session and go on to a page. Raises SignInRefused and SignInThrottled."""
    context, address = site().context, request.remote_addr or ""
    limits = context.sessions
    begun = sessions.sign_in(context.database, name, password, address, context.now(), limits, context.turns)
    answer = redirect(target, HTTPStatus.SEE_OTHER)
    answer.set_cookie(**cookie_arguments(context), value=begun.secret, max_age=int(limits.length.total_seconds()))
    return answer


def local_path(target: str) -> str:
    """The path if it is one of this site, else nothing: no link to the form may lead elsewhere after it."""
    # Browsers read a backslash as a slash, and leave out tabs and line breaks.
    safe = target.isascii() and target.isprintable() and "\\" not in target
    parts = urlsplit(target) if safe and target.startswith("/") and not target.startswith("//") else None
    return target if parts and not parts.scheme and not parts.netloc else ""


def refuse_other_sites(given: Request) -> None:
    """Raises Forbidden for a form that another site sent: it would sign its reader in as another user."""
    origin = given.headers.get("Origin", "")
    own = given.headers.get("Sec-Fetch-Site", "same-origin") in {"same-origin", "none"}
    if not own or (origin and urlsplit(origin).netloc != given.host):
        raise Forbidden("this form was sent by another site: open the sign-in page here and try again")
