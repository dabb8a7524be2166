"""Every error as application/problem+json (RFC 9457), whatever raised it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus

from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, HTTPException

from manager.api.validation import FieldError, InvalidFields
from manager.errors import (
    Busy,
    Conflict,
    DatabaseUnavailable,
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

log = logging.getLogger(__name__)


def problem(status: HTTPStatus, detail: str, errors: Sequence[FieldError] = ()) -> Response:
    """An error's answer."""
    body = ProblemDetails(
        title=status.phrase,
        status=status,
        detail=detail,
        field=errors[0].field if errors else None,
        errors=[{"field": error.field, "message": error.message} for error in errors],
        request_id=REQUEST_ID.get() or None,
    )
    return Response(body.model_dump_json(), status, mimetype=MEDIA_TYPE)


def install_errors(app: Flask) -> None:
    """Make every error that leaves a view, or keeps a request from reaching one, a problem."""
    app.before_request(_refuse_unreadable)
    app.register_error_handler(InvalidRequest, _invalid)
    app.register_error_handler(NotFound, lambda error: problem(HTTPStatus.NOT_FOUND, str(error)))
    app.register_error_handler(ProtocolRefused, lambda error: problem(HTTPStatus.UPGRADE_REQUIRED, str(error)))
    app.register_error_handler(Conflict, lambda error: problem(HTTPStatus.CONFLICT, str(error)))
    app.register_error_handler(JoinRefused, _join_refused)
    app.register_error_handler(SignInRefused, lambda error: problem(HTTPStatus.UNAUTHORIZED, str(error)))
    app.register_error_handler(SignInThrottled, _throttled)
    app.register_error_handler(TooManyRequests, _throttled)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(DatabaseUnavailable, _database)
    app.register_error_handler(Busy, _busy)
    app.register_error_handler(Exception, _unexpected)


def _refuse_unreadable() -> None:
    """Raises BadRequest for a query that is no UTF-8, at which the framework would fail wherever it is read."""
    try:
        request.query_string.decode()
    except UnicodeDecodeError:
        raise BadRequest("the query is not UTF-8: percent-encode what is not ASCII") from None


def _invalid(error: InvalidRequest) -> Response:
    errors = error.errors if isinstance(error, InvalidFields) else (FieldError(error.field, error.message),)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}{more}; nothing was changed", errors)


def _join_refused(error: JoinRefused) -> Response:
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), [FieldError("token", str(error))])


def _throttled(error: SignInThrottled | TooManyRequests) -> Response:
    answer = problem(HTTPStatus.TOO_MANY_REQUESTS, str(error))
    answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


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
    answer = problem(HTTPStatus.SERVICE_UNAVAILABLE, "the database cannot be used now; nothing was changed, try again")
    answer.headers["Retry-After"] = str(_RETRY_AFTER_S)
    return answer


def _busy(error: Busy) -> Response:
    answer = problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    answer.headers["Retry-After"] = str(_RETRY_AFTER_S)
    return answer


def _unexpected(error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error, described in the manager's log")
