"""A page that begins before its content is known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from http import HTTPStatus

from flask import Response, current_app, make_response, render_template, request

from manager.serving.exchange import OpenedBody
from webui.rest import RequestRefused
from webui.site import is_fragment, page

log = logging.getLogger(__name__)


def opened_page(template: str, make: Callable[[], Mapping[str, object]]) -> Response:
    """A page of which a browser draws what stands above the content while ``make`` reads the content's values.

    It is answered with 200 before that, and an error takes the place of the content. So where the request has
    arguments, which may be refused, or wants the live part or the headers alone, the page is answered as a whole.
    """
    if request.args or is_fragment() or request.method == "HEAD":
        return page(template, HTTPStatus.OK, **make())
    opening = render_template(template, part="opening")

    def rest() -> bytes:
        try:
            content = render_template(template, part="content", **make())
        except Exception as error:  # noqa: BLE001 - it is shown, as by any page
            content = render_template("error.html", part="content", **_told(error))
        return content.encode()

    # The request is over for the framework once this returns; what runs in the copy still knows it.
    body = OpenedBody(opening.encode(), partial(copy_context().run, rest))
    headers = {"X-Accel-Buffering": "no"}
    return Response(body, headers=headers, mimetype="text/html", direct_passthrough=True)


def _told(error: Exception) -> dict[str, str]:
    """Title and detail of an error. What was not expected is described in the log."""
    if isinstance(error, RequestRefused):
        log.warning("%s is answered without its content: %s", request.path, error)
        return {"title": HTTPStatus(error.status).phrase, "detail": error.detail}
    problem = make_response(current_app.handle_user_exception(error)).get_json()
    return {"title": problem["title"], "detail": problem["detail"]}
