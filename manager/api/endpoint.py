"""Declares routes: access, inputs and answers.

flask-openapi3 turns the annotations of a view (``path``, ``query``, ``header``, ``body``) into the OpenAPI document.
Requests are validated here, strictly and with errors that name the field; the document's schemas come directly from
pydantic, because the library's copies lack keywords and mix up inputs and answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from flask import Response, request
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag
from pydantic import BaseModel, RootModel, create_model
from werkzeug.exceptions import UnsupportedMediaType

from manager.api.auth import Access, allow
from manager.api.problem_details import MEDIA_TYPE
from manager.api.validation import read_json, read_text
from manager.errors import InvalidRequest
from manager.model.fields import Schema, json_of
from manager.protocol.samples import ProblemDetails

View = TypeVar("View", bound=Callable[..., Any])

PREFIX = "/api/v1"
REFERENCE = "#/components/schemas/{model}"
_JSON = "application/json"
_STATUSES = {200: "OK", 201: "Created", 204: "Removed", 304: "Not Modified"}


class _NoQuery(Schema):
    """The query of a route without parameters in it."""


class RouteGroup:
    """The routes of one kind of object, below ``PREFIX``. ``shapes``: their bodies and answers."""

    def __init__(self, name: str, description: str, *, lenient: bool = False) -> None:
        """``lenient``: parameters of a query are ignored where a route has none: of a later version, or a probe's."""
        self.shapes: set[type] = set()
        self._lenient = lenient
        self.blueprint = APIBlueprint(
            name,
            __name__,
            url_prefix=PREFIX,
            abp_tags=[Tag(name=name, description=description)],
            operation_id_callback=lambda *, name, path, method: name.strip("_"),  # noqa: ARG005 - views have unique names
        )

    def at(
        self,
        route: str,
        access: Access,
        shape: type | None = None,
        *statuses: int,
        content: Mapping[str, object] | None = None,
    ) -> Callable[[View], View]:
        """Register the decorated view for ``route``, such as ``GET /hosts``, with ``access``.

        Its annotated parameters are read from the request. Its return type is the answer's shape, None for 204; a view
        that returns a Response names the ``shape`` and the ``statuses`` of success (default: 200), and a view that
        reads the body itself has ``content``: schemas by media type.
        """
        method, path = route.split()

        def decorate(view: View) -> View:
            models = get_type_hints(view)
            returned = models.pop("return")
            answered = shape or (None if returned is type(None) else returned)

            @wraps(view)
            def checked(**url_values: str) -> Response:
                if "query" not in models and not self._lenient:
                    read_text(_NoQuery, _query())
                body = view(**{name: _read(name, model, url_values) for name, model in models.items()})
                return body if isinstance(body, Response) else no_content() if body is None else answer(body)

            # The library's attribute for views that read their request themselves.
            checked.__delay_validate_request__ = True  # type: ignore[attr-defined]
            if "body" in models:
                body_shape: Any = models["body"]
                self.shapes.add(body_shape)
                if isinstance(body_shape, type) and is_dataclass(body_shape):  # the library documents models only
                    documented = create_model(body_shape.__name__, __base__=RootModel[body_shape])
                    checked.__annotations__ = {**view.__annotations__, "body": documented}
            bodies = {kind: {"schema": schema} for kind, schema in (content or {}).items()}
            getattr(self.blueprint, method.lower())(
                path,
                responses=self._answers(answered, statuses or ((200,) if answered else (204,))),
                openapi_extensions={"requestBody": {"required": True, "content": bodies}} if bodies else None,
            )(allow(access)(checked))
            return view

        return decorate

    def reference(self, shape: type) -> dict[str, str]:
        """A reference to the schema of a shape in the OpenAPI document."""
        self.shapes.add(shape)
        return {"$ref": REFERENCE.format(model=re.sub(r"\W", "_", shape.__name__))}

    def _answers(self, shape: type | None, statuses: tuple[int, ...]) -> dict[str | int, Any]:
        """The documented answers of a route; errors have ProblemDetails."""
        responses: dict[str | int, Any] = {status: {"description": _STATUSES[status]} for status in statuses}
        if shape is not None:
            for status in {200, 201} & responses.keys():
                responses[status]["content"] = {_JSON: {"schema": self.reference(shape)}}
        problem = {"content": {MEDIA_TYPE: {"schema": self.reference(ProblemDetails)}}}
        responses[422] = {"description": "A field is refused", **problem}
        responses["default"] = {"description": "Any other error", **problem}
        return responses


def _read(part: str, model: type[BaseModel], url_values: dict[str, str]) -> BaseModel:
    if part == "body":
        return read_json(model, json_body())
    if part == "header":
        names = (field.alias for field in model.model_fields.values() if field.alias)
        return read_text(model, {name: request.headers[name] for name in names if name in request.headers})
    return read_text(model, url_values if part == "path" else _query())


def _query() -> dict[str, str]:
    """The parameters of the query. Raises InvalidRequest for one that is repeated: all but its first would be lost."""
    for name, values in request.args.lists():
        if len(values) > 1:
            raise InvalidRequest(name, f"{len(values)} are refused; allowed: one")
    return request.args.to_dict()


def json_body() -> bytes:
    """The request's body. Raises UnsupportedMediaType if its Content-Type is not JSON."""
    if not request.is_json:
        raise UnsupportedMediaType(f"send the body as {_JSON}")
    return request.get_data(cache=False)


def answer(body: object, status: int = 200, etag: str | None = None) -> Response:
    """A JSON answer; bytes are JSON already."""
    response = Response(body if isinstance(body, bytes) else json_of(body), status, mimetype=_JSON)
    if etag is not None:
        response.set_etag(etag)
    return response


def no_content() -> Response:
    """The answer to a DELETE."""
    response = Response(status=204)
    del response.headers["Content-Type"]
    return response
