"""An id for each request, from the proxy or client, or generated; it is in the answer and every line of the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from manager.logs import REQUEST_ID, within

HEADER = "X-Request-Id"
_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{8,64}")
"""Accepted ids: others could forge lines of the log, or fill it."""

WsgiApp = Callable[..., Iterable[bytes]]

log = logging.getLogger(__name__)


def with_request_ids(app: WsgiApp) -> WsgiApp:
    """The application, with an id for each request. Requests that a page makes within the process have its id."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if REQUEST_ID.get():
            return app(environ, start_response)
        received = environ.get("HTTP_X_REQUEST_ID", "")
        request_id = received if _ACCEPTED.fullmatch(received) else uuid4().hex

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            log.debug("%s %s: %s", environ["REQUEST_METHOD"], environ["PATH_INFO"], status)
            return start_response(status, [*headers, (HEADER, request_id)], *more)

        with within(REQUEST_ID, request_id):
            return app(environ, start)

    return answer
