"""Proposals to migrate VMs: what is predicted, and the buttons that approve or dismiss one."""

from __future__ import annotations

from http import HTTPStatus

from flask import redirect, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, VIEWER, allow
from manager.model.migration import OPEN, MigrationState
from webui import rest
from webui.rest import RequestRefused
from webui.site import page, web

_SHOWN = 100


@web.get("/proposals")
@allow(VIEWER)
def proposals() -> AnyResponse:
    """Those that are not over, and the newest of the others."""
    return _page()


@web.post("/proposals/<int:number>/<any(approve, dismiss):decision>")
@allow(OPERATOR)
def decide_proposal(number: int, decision: str) -> AnyResponse:
    """Approve or dismiss one; what the interface refuses is said on the page."""
    try:
        rest.call("POST", f"{rest.at('proposals', str(number))}/{decision}")
    except RequestRefused as refused:
        return _page(refused.status, refused.detail)
    return redirect(url_for("web.proposals"), HTTPStatus.SEE_OTHER)


def _page(status: int = HTTPStatus.OK, detail: str = "") -> AnyResponse:
    found = rest.get("/proposals", limit=_SHOWN)["items"]
    is_open = [MigrationState(proposal["state"]) in OPEN for proposal in found]
    return page(
        "proposals.html",
        status,
        detail=detail,
        open=[proposal for proposal, still in zip(found, is_open, strict=True) if still],
        over=[proposal for proposal, still in zip(found, is_open, strict=True) if not still],
    )
