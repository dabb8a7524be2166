"""The agent's metrics page, at a listener of its own: who may post response times need not see all VMs' names."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from manager.rate_limit import RateLimit
from manager.serving.exchange import WsgiApp
from manager.telemetry.push import HARDENING, Environ, Refusal, StartResponse, refuse

_SCRAPES_PER_S = 10.0


class MetricsPage:
    """A WSGI application: GET /metrics. Called by many threads."""

    def __init__(self, metrics: WsgiApp, requests: RateLimit | None = None) -> None:
        """``requests`` bounds how often each address asks."""
        self._metrics = metrics
        self._requests = requests or RateLimit(_SCRAPES_PER_S)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        headers: list[tuple[str, str]] = []
        try:
            if environ["PATH_INFO"] != "/metrics":
                raise Refusal(HTTPStatus.NOT_FOUND, "there is /metrics here")
            if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
                headers = [("Allow", "GET, HEAD")]
                raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{environ['REQUEST_METHOD']} is not possible here")
            wait_s = self._requests.ask(environ["REMOTE_ADDR"])
            if wait_s:
                raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "metrics are asked for too often", wait_s=wait_s)
        except Refusal as refusal:
            return refuse(refusal, headers, start_response)

        def hardened(status: str, headers: list[tuple[str, str]]) -> object:
            return start_response(status, [*headers, *HARDENING])

        return self._metrics(environ | {"REQUEST_METHOD": "GET"}, hardened)
