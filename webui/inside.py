"""The REST interface, called within the process as the person who is signed in.

So a page shows nothing, and a form changes nothing, that the interface would not: validation, roles and the audit are
those of one code path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from flask import g, request

from manager.api.endpoint import PREFIX

PRINCIPAL = "equipoise.principal"
"""Key of the WSGI environment under which the interface finds who is calling; no header can set it."""

Json = dict[str, Any]
WsgiApp = Callable[..., Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What the interface answered: ``body`` is JSON's value, None where it is empty."""

    status: int
    body: Any
    etag: str | None


@dataclass(slots=True)
class RequestRefused(Exception):
    """The interface refused a request. ``errors`` maps fields, such as ``sla.response_time_ms``, to messages."""

    status: int
    detail: str
    errors: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.detail


class Inside:
    """Calls the interface of an application in process. Thread-safe."""

    def __init__(self, app: WsgiApp) -> None:
        """``app`` is the WSGI application that serves the interface."""
        self._app = app

    def get(self, path: str, **query: object) -> Any:
        """The body of a GET below ``/api/v1``; query values None are left out. Raises Refused."""
        return self.call("GET", path, query=query).body

    def every(self, path: str, **query: object) -> Iterator[Json]:
        """All items of a list, through its pages. Raises Refused."""
        cursor = None
        while True:
            page = self.get(path, **{"limit": 1000, **query}, cursor=cursor)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        etag: str | None = None,
        new: bool = False,
    ) -> ApiAnswer:
        """Any request below ``/api/v1``. Raises Refused for an answer of 400 and above.

        ``etag`` becomes If-Match; with ``new`` the object must not be there yet.
        """
        principal, address = g.principal, request.remote_addr

        def as_caller(environ: dict[str, Any], start_response: object) -> Iterable[bytes]:
            environ[PRINCIPAL] = principal
            environ["REMOTE_ADDR"] = address
            return self._app(environ, start_response)

        given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        headers = {} if etag is None else {"If-Match": f'"{etag}"'}
        if new:
            headers["If-None-Match"] = "*"
        with httpx.Client(transport=httpx.WSGITransport(app=as_caller), base_url="http://inside") as client:
            response = client.request(
                method, f"{PREFIX}{path}", params=given, headers=headers, json=body if body is not None else None
            )
        content = response.json() if response.content else None
        if response.status_code >= 400:
            problem: Json = content or {}
            errors = {one["field"]: one["message"] for one in problem.get("errors", ())}
            raise RequestRefused(response.status_code, problem.get("detail") or problem.get("title", ""), errors)
        found = response.headers.get("ETag")
        return ApiAnswer(response.status_code, content, found.strip('"') if found else None)


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
