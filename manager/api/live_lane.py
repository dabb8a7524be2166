"""Live reports, five of six requests of a large fleet, past the web framework, which takes as long as storing one.

Only the usual case is answered here: a host that was known a moment ago reports what is so now. All else is the
framework's to answer, in the same way. What was read here is not read again there, nor is tried again what failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from werkzeug.datastructures import EnvironHeaders

from manager.api.acceptance import Accepted, read_report
from manager.api.agent_headers import (
    clock_ahead_s,
    has_taps,
    headers_to_agent,
    refuse_other_protocols,
    who_sent,
)
from manager.api.auth import recognised_reporter
from manager.api.context import ManagerContext
from manager.api.endpoint import PREFIX
from manager.api.live_reports import LiveReports
from manager.api.manager_metrics import Metrics
from manager.api.report_ends import latest_ends
from manager.model.fields import json_of
from manager.serving.exchange import EXCHANGE, Environ, Exchange, WsgiApp

REPORT_PATH = "/hosts/<name>/report"
TRIED = "equipoise.tried-report"
"""Key of the WSGI environment: a report that came to the framework by the lane, see ``Tried``."""

_BEFORE, _AFTER = (PREFIX + REPORT_PATH).split("<name>")
_LIVE = b'"live":true'
"""In the JSON of the product's own agents. A report without it has more to store, and is not read here."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A report that the lane could not answer: as it was read, or the error that reading or storing it ended with."""

    accepted: Accepted | None
    error: Exception | None = None

    def result(self) -> Accepted:
        """The report. Raises the error."""
        if self.accepted is None:
            raise self.error or TypeError("a report that was tried has neither content nor error")
        return self.accepted


class LiveLane:
    """The WSGI application with the lane before it. Thread-safe."""

    def __init__(
        self,
        context: ManagerContext,
        metrics: Metrics,
        live: LiveReports,
        hardening: Callable[[bool], Iterable[tuple[str, str]]],
        app: WsgiApp,
    ) -> None:
        """``hardening``: the headers of every answer; the argument says whether it is sent by https."""
        self._context, self._metrics, self._live, self._app = context, metrics, live, app
        self._headers = {secure: [*hardening(secure)] for secure in (False, True)}

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        began_s = time.perf_counter()
        host = _reporting_host(environ)
        if host is not None:
            body = environ["wsgi.input"].read()
            secret_hash = recognised_reporter(self._context, environ, host) if _LIVE in body else None
            answer = None if secret_hash is None else self._take(environ, host, body, secret_hash)
            if answer is not None:
                self._metrics.answered("POST", PREFIX + REPORT_PATH, 200, time.perf_counter() - began_s)
                content, revision = answer
                secure = environ["wsgi.url_scheme"] == "https"
                start_response(
                    "200 OK",
                    [
                        ("Content-Type", "application/json"),
                        ("Content-Length", str(len(content))),
                        *headers_to_agent(self._context, revision),
                        *self._headers[secure],
                    ],
                )
                return (content,)
            environ["wsgi.input"].seek(0)
        return self._app(environ, start_response)

    def _take(self, environ: Environ, host: str, body: bytes, secret_hash: str) -> tuple[bytes, int] | None:
        """Store a report; the answer, and the revision of the assignment in it. None: it is the framework's."""
        context, headers, accepted = self._context, EnvironHeaders(environ), None
        try:
            refuse_other_protocols(headers)
            ahead_s = clock_ahead_s(headers)
            accepted = read_report(host, body, latest_ends(context, host, ahead_s))
            agent, taps = who_sent(headers), has_taps(headers)
            taken = self._live.take(host, accepted, agent, taps, ahead_s, context.now(), secret_hash)
        except Exception as error:  # noqa: BLE001 - the framework raises it again, and answers it as any other
            environ[TRIED] = Tried(None, error)
            return None
        if taken is None:
            environ[TRIED] = Tried(accepted)
            return None
        stored, revision = taken
        self._metrics.windows_taken("stored", stored.stored_windows)
        return json_of(stored), revision


def _reporting_host(environ: Mapping[str, Any]) -> str | None:
    """The host of whose report a request has the body; None where it is any other request."""
    path: str = environ["PATH_INFO"]
    if not (path.endswith(_AFTER) and path.startswith(_BEFORE) and environ["REQUEST_METHOD"] == "POST"):
        return None
    exchange: Exchange | None = environ.get(EXCHANGE)
    if exchange is None or exchange.undecided or exchange.kept is not None:
        return None
    if environ.get("CONTENT_TYPE") != "application/json" or environ.get("QUERY_STRING"):
        return None
    return path[len(_BEFORE) : -len(_AFTER)]
