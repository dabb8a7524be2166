"""Proposals to migrate VMs: what is predicted, and the buttons that approve or dismiss one."""

from __future__ import annotations

from http import HTTPStatus
from operator import itemgetter

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
    states = (state for state in MigrationState if state in OPEN)  # in this order none that goes on is missed
    found = {proposal["number"]: proposal for state in states for proposal in rest.every("/proposals", state=state)}
    newest = rest.get("/proposals", limit=_SHOWN)["items"]
    return page(
        "proposals.html",
        status,
        detail=detail,
        open=sorted(found.values(), key=itemgetter("number"), reverse=True),
        over=[proposal for proposal in newest if MigrationState(proposal["state"]) not in OPEN],
    )
