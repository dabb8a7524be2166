"""The OpenAPI document and its interactive page, served from installed files: nothing comes from another site."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from flask import Blueprint, Response, jsonify, send_from_directory
from flask_openapi3.openapi import OpenAPI

from manager.api.auth import ADMIN, VIEWER_IN_BROWSER, allow
from manager.api.endpoint import PREFIX, security_of

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


def docs_pages(app: OpenAPI) -> Blueprint:
    """The document of all routes that there are by now, the page, and the files of the Swagger UI package."""
    pages = Blueprint("docs", __name__, url_prefix=PREFIX)
    document = _described(app)

    @pages.get("/openapi.json")
    @allow(VIEWER_IN_BROWSER)
    def get_document() -> Response:
        return jsonify(document)

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


def _described(app: OpenAPI) -> dict[str, Any]:
    """The OpenAPI document, with what each operation needs as its view says."""
    document: dict[str, Any] = app.api_doc
    for rule in app.url_map.iter_rules():
        access = getattr(app.view_functions[rule.endpoint], "access", ADMIN)
        for method, operation in document["paths"].get(re.sub(r"<(\w+)>", r"{\1}", rule.rule), {}).items():
            if method.upper() in (rule.methods or ()) and access.role is not None:
                operation["security"] = security_of(access, method.upper())
    return document
