"""Health and metrics, the routes that need no token."""

from __future__ import annotations

from flask import Blueprint, Response
from flask_openapi3.blueprint import APIBlueprint

from manager import __version__
from manager.api.auth import OPEN, allow
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.manager_metrics import Metrics
from manager.api.schemas.service_shapes import HealthOut


def health_api(context: ManagerContext) -> APIBlueprint:
    """The route of health."""
    api = blueprint("health", "Whether the manager can serve requests.")

    @api.get("/health", responses=answers((200, HealthOut)))
    @endpoint(OPEN)
    def get_health() -> Response:
        """Whether the database answers; 503 if not."""
        context.database.ping()
        return answer(HealthOut(status="ok", version=__version__, database="ok"))

    return api


def probe_pages(context: ManagerContext) -> Blueprint:
    """``/healthz`` and ``/readyz``, as orchestrators and proxies ask them."""
    pages = Blueprint("probes", __name__)

    @pages.get("/healthz")
    @allow(OPEN)
    def healthz() -> Response:
        """That this process answers: where it does not, starting it anew may help."""
        return Response("ok\n", mimetype="text/plain")

    @pages.get("/readyz")
    @allow(OPEN)
    def readyz() -> Response:
        """Whether requests should be sent here: 503 without a database, which a new start would not bring back."""
        context.database.ping()
        return Response("ok\n", mimetype="text/plain")

    return pages


def metrics_page(metrics: Metrics) -> Blueprint:
    """``/metrics``, where Prometheus looks for it by default."""
    page = Blueprint("metrics", __name__)

    @page.get("/metrics")
    @allow(OPEN)
    def get_metrics() -> Response:
        return Response(metrics.text(), content_type=metrics.content_type)

    return page
