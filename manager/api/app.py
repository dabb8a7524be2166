"""The REST interface as a WSGI application."""

from __future__ import annotations

from flask import Response, request
from flask_openapi3.models.info import Info
from flask_openapi3.openapi import OpenAPI

from manager import __version__
from manager.api.access_routes import audit_api, joining_api, tokens_api, users_api
from manager.api.admission_routes import admission_api
from manager.api.agent_routes import agents_api
from manager.api.application_routes import applications_api
from manager.api.assignments import Assignments
from manager.api.auth import install_auth
from manager.api.cadences import Cadences
from manager.api.context import ManagerContext
from manager.api.docs import docs_pages
from manager.api.fleet_routes import fleet_api
from manager.api.history_routes import evidence_api, history_api
from manager.api.host_routes import hosts_api, reported_api
from manager.api.interference_routes import interference_api
from manager.api.live_lane import LiveLane
from manager.api.live_reports import LiveReports
from manager.api.manager_metrics import Metrics
from manager.api.preview_routes import preview_api
from manager.api.problem_details import install_errors
from manager.api.proposal_routes import proposals_api
from manager.api.record_routes import records_api
from manager.api.request_ids import with_request_ids
from manager.api.sample_routes import samples_api
from manager.api.service_routes import health_api, policies_api, service_pages
from manager.api.vm_routes import vms_api
from manager.api.what_if_routes import what_if_api
from manager.protocol.samples import ProblemDetails
from manager.serving.exchange import MAX_BODY_BYTES

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_HSTS = "max-age=31536000"

_DESCRIPTION = """Register hosts, VMs and applications with their SLAs; read decisions and their reasons.

Every request except health and metrics needs a bearer token, or a session of the dashboard. PUT creates or replaces by
name; GET and PUT answer an ETag of the registration (not of status that agents report), for If-Match. Lists are paged:
pass `next` as `cursor`. Times are RFC 3339. Errors are application/problem+json with one entry in `errors` per invalid
field."""


def create_app(context: ManagerContext, metrics: Metrics | None = None) -> OpenAPI:
    """An application for a migrated database; its only state are the metrics."""
    app = OpenAPI(
        "equipoise",
        info=Info(title="Equipoise", version=__version__, description=_DESCRIPTION),
        validation_error_model=ProblemDetails,
        doc_ui=False,
        static_folder=None,
    )
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    metrics = metrics or Metrics(context)
    metrics.install(app)
    install_errors(app)
    install_auth(app, context)
    app.after_request(_harden)
    live = LiveReports(context, Assignments(context), Cadences(context))
    kinds = [
        agents_api(context, metrics, live),
        *(
            routes_of(context)
            for routes_of in (
                *(hosts_api, vms_api, applications_api, samples_api, fleet_api, policies_api, preview_api),
                *(reported_api, records_api, history_api, evidence_api, what_if_api, admission_api, proposals_api),
                *(interference_api, tokens_api, joining_api, users_api, audit_api, health_api),
            )
        ),
    ]
    for routes in kinds:
        app.register_api(routes.blueprint)
    app.register_blueprint(docs_pages(app, {shape for routes in kinds for shape in routes.shapes}))
    app.register_blueprint(service_pages(context, metrics))
    app.wsgi_app = with_request_ids(LiveLane(context, metrics, live, _hardening, app.wsgi_app))  # type: ignore[method-assign]
    return app


def _harden(response: Response) -> Response:
    """Forbid caching: answers depend on the token, and ETags do not cover status.

    A browser may render no answer of the API: pages have their own policies.
    """
    given = {name.lower() for name, _ in response.headers}
    response.headers.extend(
        [(name, value) for name, value in _hardening(request.is_secure) if name.lower() not in given]
    )
    return response


def _hardening(secure: bool) -> list[tuple[str, str]]:
    """The headers of every answer; ``secure``: it is sent by https."""
    return [*_HEADERS.items(), *([("Strict-Transport-Security", _HSTS)] if secure else [])]
