"""The REST interface as a WSGI application."""

from __future__ import annotations

from flask import Response, request
from flask_openapi3.models.info import Info
from flask_openapi3.openapi import OpenAPI

from manager import __version__
from manager.api.agent_routes import agents_api
from manager.api.application_routes import applications_api
from manager.api.audit_routes import audit_api
from manager.api.auth import install_auth
from manager.api.context import ManagerContext
from manager.api.docs import docs_pages
from manager.api.endpoint import components
from manager.api.evidence_routes import evidence_api
from manager.api.fleet_routes import fleet_api
from manager.api.health_routes import health_api, metrics_page, probe_pages
from manager.api.history_routes import history_api
from manager.api.host_routes import hosts_api
from manager.api.joining_routes import joining_api
from manager.api.manager_metrics import Metrics
from manager.api.policy_routes import policies_api
from manager.api.preview_routes import preview_api
from manager.api.problem_details import install_errors
from manager.api.record_routes import records_api
from manager.api.reported_routes import reported_api
from manager.api.request_ids import with_request_ids
from manager.api.sample_routes import samples_api
from manager.api.story_routes import story_api
from manager.api.token_routes import tokens_api
from manager.api.user_routes import users_api
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

_DESCRIPTION = """Register hosts, VMs and applications with their SLAs; read what is decided and why.

Every request but health and metrics needs a bearer token, or a session of the dashboard. PUT creates or replaces, by
name; its answer and that of GET carry an ETag of what was registered (not of status that agents report), for If-Match.
Lists come in parts: pass `next` as `cursor`. Times are RFC 3339. Errors are application/problem+json with one entry in
`errors` a bad field."""


def create_app(context: ManagerContext, metrics: Metrics | None = None) -> OpenAPI:
    """An application for a migrated database. It keeps no state of its own but its metrics, which may be given."""
    app = OpenAPI(
        "equipoise",
        info=Info(title="Equipoise", version=__version__, description=_DESCRIPTION),
        openapi_extensions={"components": components()},
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
    for api in (
        hosts_api(context),
        agents_api(context, metrics),
        vms_api(context),
        applications_api(context),
        samples_api(context),
        fleet_api(context),
        policies_api(context),
        preview_api(context),
        reported_api(context),
        records_api(context),
        story_api(context),
        history_api(context),
        evidence_api(context),
        what_if_api(context),
        tokens_api(context),
        joining_api(context),
        users_api(context),
        audit_api(context),
        health_api(context),
    ):
        app.register_api(api)
    app.register_blueprint(docs_pages(app))
    app.register_blueprint(metrics_page(metrics))
    app.register_blueprint(probe_pages(context))
    app.wsgi_app = with_request_ids(app.wsgi_app)  # type: ignore[method-assign]
    return app


def _harden(response: Response) -> Response:
    """Nothing may be cached: answers depend on the token, and the ETag of an object leaves out its status.

    A browser may make nothing of an answer that is no page: pages have policies of their own.
    """
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    if request.is_secure:
        response.headers["Strict-Transport-Security"] = _HSTS
    return response
