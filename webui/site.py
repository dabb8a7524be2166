"""What all pages share: their blueprint, what the dashboard was installed with, and how a page is answered."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from flask import Blueprint, Response, current_app, render_template, request
from markupsafe import Markup

from manager.api.context import ManagerContext
from manager.plain import plain_lines
from manager.store.change_feed import Changes

FRAGMENT = "HX-Request"
"""Header of a request whose answer replaces a part of the page: only that part is wanted."""

WsgiApp = Callable[..., Iterable[bytes]]

web = Blueprint("web", __name__, template_folder="templates")
"""All pages: each module adds its own."""


@dataclass(frozen=True, slots=True)
class Site:
    """What the dashboard of an application was installed with; ``rest_api`` serves the interface that pages read."""

    context: ManagerContext
    changes: Changes
    rest_api: WsgiApp


def site() -> Site:
    """That of the application that answers the current request."""
    return cast(Site, current_app.extensions["dashboard"])


def now_s() -> float:
    """Seconds since the epoch."""
    return site().context.clock()


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
