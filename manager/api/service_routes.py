"""The manager itself: health, metrics, probes, and the installed policies."""

from __future__ import annotations

from operator import attrgetter
from typing import Literal

from flask import Blueprint, Response

from manager import __version__
from manager.api.auth import OPEN, VIEWER, allow
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.manager_metrics import Metrics
from manager.api.paging import NAME, Page, part, read_cursor
from manager.api.queries import NamePath, PageQuery
from manager.errors import NotFound
from manager.model.fields import Name, Schema, Text


class PolicyOut(Schema):
    """An installed policy."""

    name: Name
    summary: Text
    provided_by: Text


class HealthOut(Schema):
    """Whether the manager can serve requests."""

    status: Literal["ok"]
    version: Text
    database: Literal["ok"]


def policies_api(context: ManagerContext) -> RouteGroup:
    """The routes of policies."""
    api = RouteGroup("policies", "Policies decide weights; each host uses one.")
    policies = {
        name: PolicyOut(name=name, summary=installed.policy.summary, provided_by=installed.provided_by)
        for name, installed in sorted(context.policies.items())
    }

    @api.at("GET /policies", VIEWER)
    def list_policies(query: PageQuery) -> Page[PolicyOut]:
        """All installed policies by name."""
        after = read_cursor(query, NAME) or ""
        return part(Page[PolicyOut], query, [policies[name] for name in policies if name > after], attrgetter("name"))

    @api.at("GET /policies/<name>", VIEWER)
    def get_policy(path: NamePath) -> PolicyOut:
        """One policy."""
        if path.name not in policies:
            raise NotFound(f"there is no policy named {path.name!r}")
        return policies[path.name]

    return api


def health_api(context: ManagerContext) -> RouteGroup:
    """The route of health."""
    api = RouteGroup("health", "Whether the manager can serve requests.", lenient=True)

    @api.at("GET /health", OPEN)
    def get_health() -> HealthOut:
        """Whether the database answers; 503 if not."""
        context.database.ping()
        return HealthOut(status="ok", version=__version__, database="ok")

    return api


def service_pages(context: ManagerContext, metrics: Metrics) -> Blueprint:
    """``/healthz``, ``/readyz`` and ``/metrics``, where orchestrators, proxies and Prometheus look for them."""
    pages = Blueprint("service", __name__)

    @pages.get("/healthz")
    @allow(OPEN)
    def healthz() -> Response:
        """Liveness: if it does not answer, restart the process."""
        return Response("ok\n", mimetype="text/plain")

    @pages.get("/readyz")
    @allow(OPEN)
    def readyz() -> Response:
        """Readiness: 503 without a database, where a restart would not help."""
        context.database.ping()
        return Response("ok\n", mimetype="text/plain")

    @pages.get("/metrics")
    @allow(OPEN)
    def get_metrics() -> Response:
        return Response(metrics.text(), content_type=metrics.content_type)

    return pages
