"""What all pages share: the interface they read, the page around them, their headers, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, g, redirect, render_template, request, send_from_directory, url_for
from werkzeug.exceptions import Forbidden, HTTPException, Unauthorized
from werkzeug.wrappers import Response as AnyResponse

from manager import __version__
from manager.api.auth import OPEN, allow
from webui.inside import Inside, Refused
from webui.words import FILTERS

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
STATIC = Path(__file__).parent / "static"
FRAGMENT = "HX-Request"
"""Header of a request whose answer replaces a part of the page: only that part is wanted."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a page is made from. ``now_s`` answers seconds since the epoch, ``interval_s`` is a control interval's."""

    api: Inside
    now_s: Callable[[], float]
    interval_s: float
    stale_s: float

    @property
    def silent_s(self) -> float:
        """An agent that has not reported for longer is silent."""
        return max(3 * self.interval_s, self.stale_s)


def page(template: str, /, status: int = 200, **values: object) -> Response:
    """A page for the person who is signed in, or only its block ``live`` where a fragment is asked for.

    A template that extends ``base.html`` has its live part in ``{% block live %}``.
    """
    text = render_template(template, fragment=FRAGMENT in request.headers, **values)
    return Response(text, status, mimetype="text/html")


def install(web: Blueprint, interval_s: float) -> None:
    """Headers, errors, and what templates know."""
    web.after_request(_harden)
    web.context_processor(lambda: {**_known(), "interval_s": interval_s})
    for name, filter_ in FILTERS.items():
        web.add_app_template_filter(filter_, name)
    web.register_error_handler(Refused, _refused)
    web.register_error_handler(Unauthorized, _sign_in_first)
    web.register_error_handler(HTTPException, _http)

    @web.get("/static/<path:filename>")
    @allow(OPEN)
    def static(filename: str) -> Response:
        """Scripts, styles and pictures. Browsers ask each time whether they still have the newest."""
        return send_from_directory(STATIC, filename, max_age=0)


def _known() -> Mapping[str, Any]:
    return {
        "principal": g.get("principal"),
        "csrf_token": g.get("csrf_token", ""),
        "version": __version__,
        "here": request.full_path.rstrip("?"),
    }


def _harden(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = CONTENT_POLICY
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["X-Frame-Options"] = "DENY"
    return response


def _refused(error: Refused) -> Response:
    """A page that could not be made, because the interface refused what it needs."""
    return page("error.html", error.status, title=HTTPStatus(error.status).phrase, detail=error.detail)


def _http(error: HTTPException) -> Response | HTTPException:
    if error.code is None or error.code < 400:
        return error
    if isinstance(error, Forbidden) and g.get("principal") is None:
        return error
    return page("error.html", error.code, title=error.name, detail=error.description or "")


def _sign_in_first(error: Unauthorized) -> AnyResponse:  # noqa: ARG001 - the shape of an error handler
    target = f"{url_for('web.sign_in')}?{urlencode({'next': request.full_path.rstrip('?')})}"
    if FRAGMENT in request.headers:  # the page, not its part, goes to the form
        return Response(status=204, headers={"HX-Redirect": target})
    return redirect(target, HTTPStatus.SEE_OTHER)
