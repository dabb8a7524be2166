"""Health and metrics, the two routes that need no token."""

from __future__ import annotations

from flask import Blueprint, Response
from flask_openapi3.blueprint import APIBlueprint

from manager import __version__
from manager.api.auth import OPEN, allow
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.metrics import Metrics
from manager.api.schemas import HealthOut


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


def metrics_page(metrics: Metrics) -> Blueprint:
    """``/metrics``, where Prometheus looks for it by default."""
    page = Blueprint("metrics", __name__)

    @page.get("/metrics")
    @allow(OPEN)
    def get_metrics() -> Response:
        return Response(metrics.text(), content_type=metrics.content_type)

    return page
