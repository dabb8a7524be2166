"""How a route is declared: who may use it, what it reads, and what it answers.

flask-openapi3 turns the annotations of a view (``path``, ``query``, ``header``, ``body``) into the OpenAPI document.
Requests are read here, strictly and with errors that name the field; the document's schemas come from pydantic as they
are, because the copies the library makes of them leave keywords out and mix up what is read with what is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

from flask import Response, request
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from werkzeug.exceptions import UnsupportedMediaType

from manager.api import pages
from manager.api.auth import COOKIE, CSRF_HEADER, READS, Access, allow
from manager.api.problem_details import MEDIA_TYPE
from manager.api.schemas import access_shapes, fleet_shapes, history_shapes, preview_shapes, service_shapes
from manager.api.schemas import registration_shapes as registered
from manager.api.schemas.registration_shapes import MergePatch
from manager.api.validation import read_json, read_text
from manager.model.fields import Schema, json_of
from manager.protocol import assignment, registration_in, report, samples
from manager.protocol.samples import ProblemDetails

View = Callable[..., Response]

PREFIX = "/api/v1"
_REFERENCE = "#/components/schemas/{model}"
_SHAPES = (
    *(assignment, registration_in, report, samples),
    *(access_shapes, fleet_shapes, history_shapes, preview_shapes, registered, service_shapes, pages),
)


def blueprint(name: str, description: str) -> APIBlueprint:
    """The routes of one kind of object, below ``PREFIX``."""
    return APIBlueprint(
        name,
        __name__,
        url_prefix=PREFIX,
        abp_tags=[Tag(name=name, description=description)],
        operation_id_callback=lambda *, name, path, method: name.strip("_"),  # noqa: ARG005 - views have unique names
    )


def endpoint(access: Access) -> Callable[[View], View]:
    """Let a view be used as ``access`` says, and call it with what its annotated parameters describe."""

    def decorate(view: View) -> View:
        models = {name: model for name, model in get_type_hints(view).items() if name != "return"}

        @wraps(view)
        def checked(**url_values: str) -> Response:
            return view(**{name: _read(name, model, url_values) for name, model in models.items()})

        # The library's mark for views that read their request themselves.
        checked.__delay_validate_request__ = True  # type: ignore[attr-defined]
        return allow(access)(checked)

    return decorate


def _read(part: str, model: type[BaseModel], url_values: dict[str, str]) -> BaseModel:
    if part == "body":
        if not request.is_json:
            raise UnsupportedMediaType("send the body as application/json")
        return read_json(model, request.get_data(cache=False))
    if part == "header":
        names = (field.alias for field in model.model_fields.values() if field.alias)
        return read_text(model, {name: request.headers[name] for name in names if name in request.headers})
    return read_text(model, url_values if part == "path" else request.args.to_dict())


def answer(body: object, status: int = 200, etag: str | None = None) -> Response:
    """A JSON answer."""
    response = Response(json_of(body), status, mimetype="application/json")
    if etag is not None:
        response.set_etag(etag)
    return response


def written(body: object, created: bool, etag: str) -> Response:
    """The answer to a PUT."""
    return answer(body, 201 if created else 200, etag)


def no_content() -> Response:
    """The answer to a DELETE."""
    response = Response(status=204)
    del response.headers["Content-Type"]
    return response


def answers(*documented: tuple[int, type | None]) -> dict[str | int, Any]:
    """The documented answers of a route; every other one has ProblemDetails."""
    problem = {"content": {MEDIA_TYPE: {"schema": reference(ProblemDetails)}}}
    responses: dict[str | int, Any] = {}
    for status, model in documented:
        description = {200: "OK", 201: "Created", 204: "Removed", 304: "Not Modified"}[status]
        responses[status] = {"description": description}
        if model is not None:
            responses[status]["content"] = {"application/json": {"schema": reference(model)}}
    responses[422] = {"description": "A field is refused", **problem}
    responses["default"] = {"description": "Any other error", **problem}
    return responses


def reference(model: type) -> dict[str, str]:
    """Refers to the schema of a shape in the OpenAPI document."""
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def security_of(access: Access, method: str) -> list[dict[str, list[str]]]:
    """What an operation needs, by the names in ``components``: either a token, or where a session will do, that."""
    session: dict[str, list[str]] = {"session": []} if method in READS else {"session": [], "csrf": []}
    return [{"bearer": []}, *([session] if access.session else [])]


def components() -> dict[str, Any]:
    """The OpenAPI document's components: all shapes that are exchanged, and who may ask."""
    kinds = (kind for module in _SHAPES for kind in vars(module).values() if isinstance(kind, type))
    models = {kind for kind in kinds if issubclass(kind, Schema | MergePatch | ProblemDetails)} - {Schema, pages.Page}
    ordered = sorted((kind for kind in models if kind.__name__[0] != "_"), key=lambda kind: kind.__name__)
    _, definitions = models_json_schema([(kind, "validation") for kind in ordered], ref_template=_REFERENCE)
    return {
        "schemas": definitions["$defs"],
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": COOKIE,
                "description": f"of somebody who signed in to the dashboard; by https `__Host-{COOKIE}`",
            },
            "csrf": {
                "type": "apiKey",
                "in": "header",
                "name": CSRF_HEADER,
                "description": "the session's token, which its pages hold",
            },
        },
    }
