"""The OpenAPI document and its interactive page, served from installed files without external sites."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any

from flask import Blueprint, Response, send_from_directory
from flask_openapi3.openapi import OpenAPI
from pydantic import TypeAdapter

from manager.api.auth import ADMIN, COOKIE, CSRF_HEADER, READS, VIEWER_IN_BROWSER, Access, allow
from manager.api.endpoint import PREFIX, REFERENCE, answer
from manager.model.fields import adapter_of

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Equipoise REST interface</title>
<link rel="icon" href="docs/images/swagger.svg">
<link rel="stylesheet" href="docs/css/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/js/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true});\n'
_CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"of a user who signed in to the dashboard; over https `__Host-{COOKIE}`",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "the session's CSRF token, contained in its pages",
    },
}


def docs_pages(app: OpenAPI, shapes: Iterable[type]) -> Blueprint:
    """The OpenAPI document of all routes, with the schemas of ``shapes``, and the pages of the Swagger UI.

    The document is made when it is asked for first, as that takes a tenth of the time in which a manager starts.
    """
    pages = Blueprint("docs", __name__, url_prefix=PREFIX)
    document, making = cache(lambda: app.json.dumps(_document(app, shapes)).encode()), Lock()

    @pages.get("/openapi.json")
    @allow(VIEWER_IN_BROWSER)
    def get_document() -> Response:
        with making:
            return answer(document())

    @pages.get("/docs")
    @allow(VIEWER_IN_BROWSER)
    def get_page() -> Response:
        return Response(_PAGE, mimetype="text/html", headers={"Content-Security-Policy": _CONTENT_POLICY})

    @pages.get("/docs/start.js")
    @allow(VIEWER_IN_BROWSER)
    def get_start() -> Response:
        return Response(_START, mimetype="text/javascript")

    @pages.get("/docs/<path:file>")
    @allow(VIEWER_IN_BROWSER)
    def get_file(file: str) -> Response:
        return send_from_directory(str(files("flask_openapi3_swagger") / "templates" / "swagger"), file)

    return pages


def _document(app: OpenAPI, shapes: Iterable[type]) -> dict[str, Any]:
    """The OpenAPI document with the schemas of the shapes, and the security that each operation requires."""
    document: dict[str, Any] = app.api_doc
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, definitions = TypeAdapter[Any].json_schemas(
        ((shape, "validation", adapter_of(shape)) for shape in ordered), ref_template=REFERENCE
    )
    document["components"] = {"schemas": definitions["$defs"], "securitySchemes": _SECURITY}
    for rule in app.url_map.iter_rules():
        access = getattr(app.view_functions[rule.endpoint], "access", ADMIN)
        for method, operation in document["paths"].get(re.sub(r"<(\w+)>", r"{\1}", rule.rule), {}).items():
            if method.upper() in (rule.methods or ()) and access.role is not None:
                operation["security"] = _security_of(access, method.upper())
    return document


def _security_of(access: Access, method: str) -> list[dict[str, list[str]]]:
    """The alternatives for an operation: a token, or a session where that is accepted."""
    session: dict[str, list[str]] = {"session": []} if method in READS else {"session": [], "csrf": []}
    return [{"bearer": []}, *([session] if access.session else [])]
