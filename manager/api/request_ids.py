"""An id for each request: the proxy's or the caller's, or one made here; answered, and in every line of the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from manager.logs import REQUEST_ID, within

HEADER = "X-Request-Id"
_TAKEN = re.compile(r"[A-Za-z0-9._-]{8,64}")
"""Ids that are taken: what else comes could forge lines of a log, or fill it."""

WsgiApp = Callable[..., Iterable[bytes]]

log = logging.getLogger(__name__)


def with_request_ids(app: WsgiApp) -> WsgiApp:
    """The application, with an id for each request. What a page asks within the process has the page's."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if REQUEST_ID.get():
            return app(environ, start_response)
        given = environ.get("HTTP_X_REQUEST_ID", "")
        request_id = given if _TAKEN.fullmatch(given) else uuid4().hex

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            log.debug("%s %s: %s", environ["REQUEST_METHOD"], environ["PATH_INFO"], status)
            return start_response(status, [*headers, (HEADER, request_id)], *more)

        with within(REQUEST_ID, request_id):
            return app(environ, start)

    return answer
