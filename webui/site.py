"""What all pages share: the interface they read, the page around them, their headers, and their errors."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, g, redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.exceptions import Unauthorized
from werkzeug.wrappers import Response as AnyResponse

from manager import __version__
from manager.api.endpoint import PREFIX
from manager.api.problem_details import MEDIA_TYPE
from manager.plain import plain_lines
from webui.assets import FOLDER, inlined, install_assets, load, source_of
from webui.inside import Inside, RequestRefused
from webui.words import FILTERS

STYLE, THEME = "style.css", "theme.js"
"""Each page holds them: without them it would wait for two more answers before anything can be seen."""
FRAGMENT = "HX-Request"
"""Header of a request whose answer replaces a part of the page: only that part is wanted."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a page is made from. ``now_s`` answers seconds since the epoch, ``interval_s`` is a control interval's."""

    api: Inside
    now_s: Callable[[], float]
    interval_s: float
    stale_s: float


def shown(value: Any) -> Any:
    """What stands for a value on a page: text of others hides nothing, turns no direction, and controls nothing.

    What is HTML already was made of such text.
    """
    return plain_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def is_fragment() -> bool:
    """Whether only the live part of a page is asked for."""
    return FRAGMENT in request.headers


def page(template: str, /, status: int = 200, **values: object) -> Response:
    """A page for the person who is signed in, or only its block ``live`` where a fragment is asked for.

    A template that extends ``base.html`` has its live part in ``{% block live %}``.
    """
    text = render_template(template, fragment=is_fragment(), **values)
    return Response(text, status, mimetype="text/html")


def csv_file(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Response:
    """A table as a file. Nothing in it begins like a formula: names and times do not."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(text.getvalue(), mimetype="text/csv", headers=headers)


def install(web: Blueprint, interval_s: float) -> None:
    """Headers, errors, and what templates know."""
    assets = load(FOLDER)
    policy = content_policy(source_of(assets[STYLE]), source_of(assets[THEME]))
    own = {"interval_s": interval_s, "style": inlined(assets[STYLE]), "theme": inlined(assets[THEME])}
    web.after_request(lambda response: _harden(response, policy))
    web.app_context_processor(lambda: {**_known(), **own})
    for name, filter_ in FILTERS.items():
        web.add_app_template_filter(filter_, name)
    web.register_error_handler(RequestRefused, _refused)
    web.register_error_handler(Unauthorized, _sign_in_first)
    web.after_app_request(lambda response: _error_page(response, policy))
    install_assets(web, assets)


def _known() -> Mapping[str, Any]:
    return {
        "principal": g.get("principal"),
        "csrf_token": g.get("csrf_token", ""),
        "version": __version__,
        "here": request.full_path.rstrip("?"),
    }


def content_policy(style: str, script: str) -> str:
    """The Content-Security-Policy of all pages: only what we serve, and the style and script that a page holds."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {script}",
            f"style-src 'self' {style}",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "font-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


def _harden(response: Response, policy: str) -> Response:
    response.headers["Content-Security-Policy"] = policy
    return response


def _refused(error: RequestRefused) -> Response:
    """A page that could not be made, because the interface refused what it needs."""
    return page("error.html", error.status, title=HTTPStatus(error.status).phrase, detail=error.detail)


def _error_page(response: Response, policy: str) -> Response:
    """Any error that is not the interface's, such as of an address that there is not, as a page for a person."""
    if response.mimetype != MEDIA_TYPE or request.path.startswith((f"{PREFIX}/", "/metrics")):
        return response
    problem = response.get_json()
    made = page("error.html", response.status_code, title=problem["title"], detail=problem["detail"])
    response.data, response.content_type = made.data, made.headers["Content-Type"]
    return _harden(response, policy)


def _sign_in_first(error: Unauthorized) -> AnyResponse:  # noqa: ARG001 - the shape of an error handler
    target = f"{url_for('web.sign_in')}?{urlencode({'next': request.full_path.rstrip('?')})}"
    if FRAGMENT in request.headers:  # the page, not its part, goes to the form
        return Response(status=204, headers={"HX-Redirect": target})
    return redirect(target, HTTPStatus.SEE_OTHER)
