"""Signing in and out, and one's own account."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from flask import Blueprint, Request, g, redirect, request, url_for
from werkzeug.exceptions import Forbidden
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPEN, VIEWER, allow, cookie_arguments, session_of, session_secret
from manager.api.context import ManagerContext
from manager.api.schemas.access_shapes import PasswordIn
from manager.errors import SignInRefused, SignInThrottled
from manager.store import sessions
from manager.store.sessions import SignedIn
from webui.filled import check, discreet, read_form
from webui.forms import Look, parts_of, summary_of
from webui.inside import RequestRefused
from webui.site import Site, page


def add_sign_in(web: Blueprint, context: ManagerContext) -> None:
    """The pages ``/sign-in`` and ``/sign-out``."""

    @web.route("/sign-in", methods=["GET", "POST"])
    @allow(OPEN)
    def sign_in() -> AnyResponse:
        """The form, and what comes of it."""
        target = local_path(request.values.get("next", "")) or url_for("web.fleet")
        if request.method == "GET":
            if session_of(context, used=False) is not None:
                return redirect(target, HTTPStatus.SEE_OTHER)
            return page("sign_in.html", target=target)
        refuse_other_sites(request)
        name, password = request.form.get("name", "").strip(), request.form.get("password", "")
        try:
            signed_in = _begin_session(context, name, password)
        except SignInRefused as refused:
            return page("sign_in.html", HTTPStatus.UNAUTHORIZED, target=target, name=name, detail=str(refused))
        except SignInThrottled as refused:
            until = context.now() + timedelta(seconds=refused.retry_after_s)
            answer: AnyResponse = page(
                "sign_in.html", HTTPStatus.TOO_MANY_REQUESTS, target=target, name=name, until=until.isoformat()
            )
            answer.headers["Retry-After"] = str(refused.retry_after_s)
            return answer
        return _with_cookie(context, redirect(target, HTTPStatus.SEE_OTHER), signed_in)

    @web.post("/sign-out")
    @allow(VIEWER)
    def sign_out() -> AnyResponse:
        """End the session."""
        secret = session_secret(context)
        if secret:
            sessions.sign_out(context.database, secret, request.remote_addr or "", context.now())
        answer = redirect(url_for("web.sign_in"), HTTPStatus.SEE_OTHER)
        answer.delete_cookie(**cookie_arguments(context))
        return answer


def add_account(web: Blueprint, site: Site, context: ManagerContext) -> None:
    """The page ``/account``."""

    @web.route("/account", methods=["GET", "POST"])
    @allow(VIEWER)
    def account() -> AnyResponse:
        """Who is signed in and where; users change their password here."""
        errors: dict[str, str] = {}
        detail = ""
        if request.method == "POST":
            body = read_form(PasswordIn, request.form)
            errors = check(PasswordIn, body)
            detail = "some fields are invalid" if errors else ""
            try:
                if not errors:
                    site.api.call("PUT", f"/users/{quote(g.principal.name, safe='')}/password", body=body)
                    # That ended all sessions, this one too.
                    signed_in = _begin_session(context, g.principal.name, body["password"])
                    target = url_for("web.account", changed=1)
                    return _with_cookie(context, redirect(target, HTTPStatus.SEE_OTHER), signed_in)
            except RequestRefused as refused:
                errors, detail = discreet(refused.errors), refused.detail
        look = Look(labels={"password": "New password"}, needed=frozenset({"current_password"}))
        parts = parts_of(PasswordIn, {}, errors, look)
        return page(
            "account.html",
            HTTPStatus.UNPROCESSABLE_ENTITY if detail else HTTPStatus.OK,
            sessions=site.api.get("/sessions")["items"],
            parts=parts,
            detail=detail,
            summary=summary_of(parts, errors),
            changed="changed" in request.args,
        )


def _begin_session(context: ManagerContext, name: str, password: str) -> SignedIn:
    address = request.remote_addr or ""
    return sessions.sign_in(context.database, name, password, address, context.now(), context.sessions, context.turns)


def _with_cookie(context: ManagerContext, answer: AnyResponse, signed_in: SignedIn) -> AnyResponse:
    answer.set_cookie(
        **cookie_arguments(context), value=signed_in.secret, max_age=int(context.sessions.length.total_seconds())
    )
    return answer


def local_path(target: str) -> str:
    """The path if it is one of this site, else nothing: no link to the form may lead elsewhere after it."""
    # Browsers read a backslash as a slash, and leave out tabs and line breaks.
    safe = target.isascii() and target.isprintable() and "\\" not in target
    parts = urlsplit(target) if safe and target.startswith("/") and not target.startswith("//") else None
    return target if parts and not parts.scheme and not parts.netloc else ""


def refuse_other_sites(given: Request) -> None:
    """Raises Forbidden for a form that another site sent: it would sign its reader in as another user."""
    site = given.headers.get("Sec-Fetch-Site", "same-origin")
    origin = given.headers.get("Origin", "")
    if site not in {"same-origin", "none"} or (origin and urlsplit(origin).netloc != given.host):
        raise Forbidden("this form was sent by another site: open the sign-in page here and try again")
