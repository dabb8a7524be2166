"""Control of what is registered: mode and policy, release, and adopting settings that were modified externally.

What is asked for is confirmed on a page that shows what it would change on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from flask import Blueprint, abort, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.model.registration import Mode
from webui.editing_pages import ANY_KIND, KINDS, NOT_FOR_A_FORM, EditedKind, etag_of, policies
from webui.forms import Look, parts_of
from webui.inside import ApiAnswer, Inside, Json, RequestRefused
from webui.site import Site, page

PLANS = {
    "exact": "exact: these settings are restored",
    "observed": "observed: the agent's last decision, not written",
    "estimated": "estimated: from the last recorded minutes; the agent may decide otherwise",
}


@dataclass(frozen=True, slots=True)
class OrderPreview:
    """What an order would change: ``kind`` is one of ``PLANS``, ``notes`` say what the changes do not."""

    kind: str
    changes: list[Json]
    notes: list[str]


def add_control(web: Blueprint, site: Site) -> None:
    """The pages below ``/control``."""

    @web.route(f"/control/{ANY_KIND}/<name>", methods=["GET", "POST"])
    @allow(OPERATOR)
    def control(kind: str, name: str) -> AnyResponse:
        """Mode and policy, with a preview of what another one would change."""
        of, detail, status = KINDS[kind], "", HTTPStatus.OK
        if request.method == "POST":
            try:
                site.api.call("PATCH", of.at(name), body=_orders(of), etag=etag_of(request.form))
                return redirect(url_for("web.control", kind=kind, name=name, done=1), HTTPStatus.SEE_OTHER)
            except RequestRefused as refused:
                if refused.status in NOT_FOR_A_FORM:
                    raise
                status = HTTPStatus(refused.status)
                changed = status is HTTPStatus.PRECONDITION_FAILED
                detail = "It was changed meanwhile; the current values are shown." if changed else refused.detail
        found = site.api.call("GET", of.at(name))
        asked = {key: value for key, value in _orders(of).items() if value != found.body[key]}
        parts = parts_of(of.model, found.body | asked, {}, _look(of, site.api))
        return page(
            "control.html",
            status,
            kind=of,
            it=found.body,
            etag=found.etag,
            parts=parts,
            asked=asked,
            plan=_plan(of, found, asked, site.api) if asked else None,
            plans=PLANS,
            policies=list(site.api.every("/policies")) if kind == "hosts" else [],
            external=list(_external(of, found.body, site.api)),
            detail=detail,
            done="done" in request.args and not asked,
        )

    @web.post("/control/<any(vms, hosts):kind>/<name>/adopt")
    @allow(OPERATOR)
    def adopt(kind: str, name: str) -> AnyResponse:
        """Adopt settings that were modified externally."""
        site.api.call("POST", f"{KINDS[kind].at(name)}/adopt")
        return redirect(url_for("web.control", kind=kind, name=name, done=1), HTTPStatus.SEE_OTHER)


def _orders(kind: EditedKind) -> Json:
    """Mode and policy as the request asks for them; aborts with 400 for a mode that there is not."""
    orders: Json = {}
    if "mode" in request.values:
        mode = request.values["mode"]
        if mode not in {*Mode} and (mode or kind.path == "hosts"):
            abort(HTTPStatus.BAD_REQUEST, f"there is no mode {mode!r}")
        orders["mode"] = mode or None
    if kind.path == "hosts" and "policy" in request.values:
        orders["policy"] = request.values["policy"]
    return orders


def _look(kind: EditedKind, api: Inside) -> Look:
    if kind.path != "hosts":
        return Look(only=frozenset({"mode"}))
    return Look(choices={"policy": policies(api)}, only=frozenset({"mode", "policy"}))


def _plan(kind: EditedKind, found: ApiAnswer, asked: Json, api: Inside) -> OrderPreview:
    """What the orders would change, as far as anybody can tell now."""
    orders = {"mode": found.body["mode"]} | asked
    try:
        told = api.get(f"{kind.at(found.body['name'])}/preview", **orders)
    except RequestRefused as refused:
        if refused.status in NOT_FOR_A_FORM:
            raise
        return OrderPreview("", [], [f"The effect is unknown: {refused.detail}."])
    return OrderPreview(told["kind"], told["changes"], told["notes"])


def _external(kind: EditedKind, it: Json, api: Inside) -> Iterator[tuple[str, Json]]:
    """Externally modified settings, with their VMs."""
    vms = [it] if kind.path == "vms" else api.every("/vms", host=it["name"]) if kind.path == "hosts" else ()
    for vm in vms:
        for knob in (vm["status"] or {}).get("knobs", ()):
            if knob["external"]:
                yield vm["name"], knob
