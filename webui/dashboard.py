"""The dashboard as a part of the manager's WSGI application: its pages, their headers, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from urllib.parse import urlencode, urlsplit

from flask import Flask, Response, g, redirect, request, url_for
from werkzeug.exceptions import Unauthorized
from werkzeug.wrappers import Response as AnyResponse

from manager import __version__
from manager.api.context import ManagerContext
from manager.api.endpoint import PREFIX
from manager.api.problem_details import MEDIA_TYPE
from manager.store.change_feed import Changes
from webui import (  # noqa: F401 - each adds its pages
    admission_pages,
    application_pages,
    control_pages,
    editing_pages,
    first_pages,
    fleet_pages,
    host_pages,
    inventory_pages,
    live_feed,
    people_pages,
    proposal_pages,
    record_pages,
    savings_pages,
    sign_in_pages,
)
from webui.assets import ASSETS, inlined, source_of
from webui.rest import RequestRefused
from webui.site import Site, is_fragment, page, shown, site, web
from webui.words import FILTERS

STYLE, THEME = "style.css", "theme.js"
"""Each page holds them: without them it would wait for two more answers before anything can be seen."""


def install_dashboard(app: Flask, context: ManagerContext, changes: Changes) -> None:
    """Add the pages to an application that already serves the interface."""
    app.jinja_env.finalize = shown
    app.jinja_env.filters |= FILTERS
    app.extensions["dashboard"] = Site(context, changes, app.wsgi_app)
    app.register_blueprint(web)


_SECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("application", "report"), "fleet"),
    **dict.fromkeys(("host", "admission"), "hosts"),
    "cause": "decisions",
    **dict.fromkeys(("pick", "register", "change", "forget"), "registered"),
    **dict.fromkeys(("new_user", "new_token", "person", "revoke"), "people"),
}
"""The page in the navigation that each page below it belongs to."""
_CONTROLLED: Mapping[str, str] = {"applications": "fleet", "hosts": "hosts", "vms": "registered"}


def section() -> str:
    """The page in the navigation that the one asked for is below; empty: it is none of these, or one itself."""
    name = (request.endpoint or "").removeprefix("web.")
    return _CONTROLLED[(request.view_args or {})["kind"]] if name == "control" else _SECTIONS.get(name, "")


@web.app_context_processor
def _known() -> dict[str, object]:
    """What all templates know."""
    return {
        "principal": g.get("principal"),
        "csrf_token": g.get("csrf_token", ""),
        "version": __version__,
        "interval_s": site().context.slot_s,
        "style": inlined(ASSETS[STYLE]),
        "theme": inlined(ASSETS[THEME]),
        "section": section(),
    }


@cache
def content_policy() -> str:
    """The Content-Security-Policy of all pages: only what we serve, and the style and script that a page holds."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {source_of(ASSETS[THEME])}",
            f"style-src 'self' {source_of(ASSETS[STYLE])}",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "font-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


@web.after_request
def _harden(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = content_policy()
    return response


@web.errorhandler(RequestRefused)
def _refused(error: RequestRefused) -> Response:
    """A page that could not be made, because the interface refused what it needs."""
    return page("error.html", error.status, title=HTTPStatus(error.status).phrase, detail=error.detail)


@web.after_app_request
def _error_page(response: Response) -> Response:
    """Any error that is not the interface's, such as of an address that there is not, as a page for a person."""
    if response.mimetype != MEDIA_TYPE or request.path.startswith((f"{PREFIX}/", "/metrics")):
        return response
    problem = response.get_json()
    made = page("error.html", response.status_code, title=problem["title"], detail=problem["detail"])
    response.data, response.content_type = made.data, made.headers["Content-Type"]
    return _harden(response)


@web.errorhandler(Unauthorized)
def _sign_in_first(error: Unauthorized) -> AnyResponse:  # noqa: ARG001 - the shape of an error handler
    wanted = _page_wanted()
    target = url_for("web.sign_in") + (f"?{urlencode({'next': wanted})}" if wanted else "")
    if is_fragment():  # the page, not its part, goes to the form
        return Response(status=204, headers={"HX-Redirect": target})
    return redirect(target, HTTPStatus.SEE_OTHER)


def _page_wanted() -> str:
    """The page to go on to after signing in; empty: none, as of a button that is no page.

    htmx says which page it is that a field or a part of asked.
    """
    rule = request.url_rule
    if request.method not in {"GET", "HEAD"} and (rule is None or "GET" not in (rule.methods or ())):
        path = ""
    else:
        path = request.full_path.rstrip("?")
    try:
        shown_page = urlsplit(request.headers.get("HX-Current-URL", ""))
    except ValueError:
        return path
    return shown_page._replace(scheme="", netloc="", fragment="").geturl() or path
