"""Errors as application/problem+json (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, HTTPException

from manager.api.validation import FieldError, InvalidFields
from manager.errors import (
    Busy,
    Conflict,
    DatabaseUnavailable,
    EquipoiseError,
    InvalidRequest,
    JoinRefused,
    NotFound,
    ProtocolRefused,
    SignInRefused,
    SignInThrottled,
    TooManyRequests,
)
from manager.logs import REQUEST_ID
from manager.protocol.samples import ProblemDetails

MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_S = 5
_STATUSES: dict[type[EquipoiseError], HTTPStatus] = {
    NotFound: HTTPStatus.NOT_FOUND,
    ProtocolRefused: HTTPStatus.UPGRADE_REQUIRED,
    Conflict: HTTPStatus.CONFLICT,
    SignInRefused: HTTPStatus.UNAUTHORIZED,
    SignInThrottled: HTTPStatus.TOO_MANY_REQUESTS,
    TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    Busy: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Of errors whose text is the whole answer."""

log = logging.getLogger(__name__)


def problem(
    status: HTTPStatus, detail: str, errors: Sequence[FieldError] = (), retry_after_s: int | None = None
) -> Response:
    """The response for an error."""
    body = ProblemDetails(
        title=status.phrase,
        status=status,
        detail=detail,
        field=errors[0].field if errors else None,
        errors=[{"field": error.field, "message": error.message} for error in errors],
        request_id=REQUEST_ID.get() or None,
    )
    headers = None if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return Response(body.model_dump_json(), status, headers, mimetype=MEDIA_TYPE)


def install_errors(app: Flask) -> None:
    """Answer every error with a problem, in a view or before one is reached."""
    app.before_request(_refuse_unreadable)
    app.register_error_handler(InvalidRequest, _invalid)
    app.register_error_handler(JoinRefused, _join_refused)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(DatabaseUnavailable, _database)
    for kind, status in _STATUSES.items():
        app.register_error_handler(kind, partial(_expected, status))
    app.register_error_handler(Exception, _unexpected)


def _refuse_unreadable() -> None:
    """Raises BadRequest for a query that is not UTF-8, also percent-encoded: the framework would read other text."""
    try:
        unquote_to_bytes(request.query_string).decode()
    except UnicodeDecodeError:
        raise BadRequest("the query is not UTF-8: percent-encode what is not ASCII, in UTF-8") from None


def _invalid(error: InvalidRequest) -> Response:
    errors = error.errors if isinstance(error, InvalidFields) else (FieldError(error.field, error.message),)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}{more}; nothing was changed", errors)


def _join_refused(error: JoinRefused) -> Response:
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), [FieldError("token", str(error))])


def _expected(status: HTTPStatus, error: EquipoiseError) -> Response:
    retry_after_s = _RETRY_AFTER_S if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(status, str(error), retry_after_s=getattr(error, "retry_after_s", retry_after_s))


def _http(error: HTTPException) -> Response | HTTPException:
    if error.code is None or error.code < 400:
        return error  # a redirect
    answer = problem(HTTPStatus(error.code), error.description or "")
    for name, value in error.get_headers():
        if name.lower() not in {"content-type", "content-length"}:
            answer.headers.add(name, value)
    return answer


def _database(error: DatabaseUnavailable) -> Response:
    log.error("%s %s: %s", request.method, request.path, error)
    text = "the database cannot be used now; nothing was changed, try again"
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, text, retry_after_s=_RETRY_AFTER_S)


def _unexpected(error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error, described in the manager's log")
