"""The REST interface, called within the process as the person who is signed in.

So a page shows nothing, and a form changes nothing, that the interface would not: validation, roles and the audit are
those of one code path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
from flask import g, request

from manager.api.auth import PRINCIPAL_KEY
from manager.api.endpoint import PREFIX
from webui.site import site

Json = dict[str, Any]

SUGGESTED = 100
"""Most names that a field suggests; what is entered narrows them."""
LONGEST_SEARCH = 63


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What the interface answered: ``body`` is JSON's value, None where it is empty."""

    body: Any
    etag: str


@dataclass(slots=True)
class RequestRefused(Exception):
    """The interface refused a request. ``errors`` maps fields, such as ``sla.response_time_ms``, to messages."""

    status: int
    detail: str
    errors: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.detail


def at(*parts: str) -> str:
    """The path of names, such as ``/hosts/kvm1/history``: no name leads to another path, as ``..`` would."""
    quoted = (quote(part.replace("/", "%2F"), safe="") for part in parts)
    return "".join(f"/{part.replace('.', '%2E') if part in {'.', '..'} else part}" for part in quoted)


def get(path: str, **query: object) -> Any:
    """The body of a GET below ``/api/v1``; query values None are left out. Raises RequestRefused."""
    return call("GET", path, query=query).body


def every(path: str, **query: object) -> Iterator[Json]:
    """All items of a list, through its pages. Raises RequestRefused."""
    cursor = None
    while True:
        page = get(path, **{"limit": 1000, **query}, cursor=cursor)
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return


def suggested(kind: str, search: str = "", elsewhere: str = "") -> list[str]:
    """Names of the first ``vms`` or ``hosts`` that have ``search`` in theirs, for fields that suggest some.

    VMs on the host ``elsewhere`` are left out. Raises RequestRefused.
    """
    text = search.strip()[:LONGEST_SEARCH] or None
    if kind == "hosts":
        return [host["name"] for host in get("/fleet/hosts", sort="name", search=text, limit=SUGGESTED)["items"]]
    vms = get("/vms", search=text, limit=SUGGESTED)["items"]
    return [vm["name"] for vm in vms if not elsewhere or vm["status_host"] != elsewhere]


def call(
    method: str,
    path: str,
    *,
    query: Mapping[str, Any] | None = None,
    body: object = None,
    etag: str = "",
    new: bool = False,
) -> ApiAnswer:
    """Any request below ``/api/v1``. Raises RequestRefused for an answer of 400 and above.

    ``etag`` becomes If-Match; with ``new`` the object must not be there yet.
    """
    rest_api, caller = site().rest_api, {PRINCIPAL_KEY: g.principal, "REMOTE_ADDR": request.remote_addr}

    def as_caller(environ: dict[str, Any], start_response: object) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode().decode("latin-1")  # as WSGI has it (PEP 3333), other than httpx
        return rest_api(environ | caller | {"PATH_INFO": path}, start_response)

    headers = {"If-None-Match": "*"} if new else {"If-Match": f'"{etag}"'} if etag else {}
    params = {name: value for name, value in (query or {}).items() if value is not None}
    with httpx.Client(transport=httpx.WSGITransport(app=as_caller), base_url="http://inside") as client:
        response = client.request(method, f"{PREFIX}{path}", params=params, headers=headers, json=body)
    if response.has_redirect_location:  # a path with an empty name is none of an object
        raise RequestRefused(HTTPStatus.NOT_FOUND, "a name is missing in the address")
    content = response.json() if response.content else None
    if response.status_code >= 400:
        problem: Json = content or {}
        errors = {error["field"]: error["message"] for error in problem.get("errors", ())}
        raise RequestRefused(response.status_code, problem.get("detail") or problem.get("title", ""), errors)
    return ApiAnswer(content, response.headers.get("ETag", "").strip('"'))
