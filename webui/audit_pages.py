"""The audit: who changed what."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from flask import Blueprint, request
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from webui.filled import differences
from webui.inside import Json, RequestRefused
from webui.labels import label_of
from webui.site import Site, page

_FILTERS = ("actor", "object_kind", "object", "since", "until")


def add_audit(web: Blueprint, site: Site) -> None:
    """The page ``/audit``."""

    @web.get("/audit")
    @allow(OPERATOR)
    def audit() -> AnyResponse:
        """Who changed what, newest first."""
        wanted = {name: request.args.get(name, "").strip() for name in _FILTERS}
        asked = {name: moment(text) if name in {"since", "until"} else text for name, text in wanted.items() if text}
        errors: Mapping[str, str] = {}
        found: Json = {"items": [], "next": None}
        try:
            found = site.api.get("/audit", limit=100, cursor=request.args.get("cursor"), **asked)
        except RequestRefused as refused:
            if not refused.errors:
                raise
            errors = refused.errors
        rows = [(one, _changes(one)) for one in found["items"]]
        status = HTTPStatus.UNPROCESSABLE_ENTITY if errors else HTTPStatus.OK
        return page("audit.html", status, rows=rows, following=found["next"], wanted=wanted, errors=errors)


def moment(text: str) -> str:
    """A time as a browser's field gives it, which is UTC, as the interface wants it; other text as it is."""
    return f"{text}:00Z" if len(text) == len("2026-01-31T12:00") else text


def _changes(entry: Json) -> list[tuple[str, str, str]]:
    """What an entry of the audit changed: (label, before, after)."""
    found = differences(entry["before"] or {}, entry["after"] or {})
    return [(label_of(path), before, after) for path, before, after in found]
