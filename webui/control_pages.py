"""Control of what is registered: mode and policy, release, and adopting settings that were modified externally.

What is asked for is confirmed on a page that shows what it would change on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus

from flask import abort, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.model.registration import Mode
from webui import rest
from webui.editing_pages import ANY_KIND, KINDS, EditedKind, policies
from webui.filled import Sheet, etag_of
from webui.forms import Look, parts_of
from webui.rest import Json, RequestRefused
from webui.site import page, web

PLANS = {
    "exact": "exact: these settings are restored",
    "observed": "observed: the agent's last decision, not written",
    "estimated": "estimated: from the last recorded minutes; the agent may decide otherwise",
}


@web.route(f"/control/{ANY_KIND}/<name>", methods=["GET", "POST"])
@allow(OPERATOR)
def control(kind: str, name: str) -> AnyResponse:
    """Mode and policy, with a preview of what another one would change."""
    of, sheet = KINDS[kind], Sheet(name, etag=etag_of(request.form))
    orders = _orders(of)
    if request.method == "POST" and sheet.send("PATCH", of.at(name), body=orders):
        return redirect(url_for("web.control", kind=kind, name=name, done=1), HTTPStatus.SEE_OTHER)
    changed = sheet.status == HTTPStatus.PRECONDITION_FAILED
    now = rest.call("GET", of.at(name))
    asked = {key: value for key, value in orders.items() if value != now.body[key]}
    narrowed = {"hosts": {"host": name}, "applications": {"application": name}}
    vms = [now.body] if kind == "vms" else list(rest.every("/vms", **narrowed[kind]))
    look = Look(only=frozenset({"mode"}))
    if kind == "hosts":
        look = Look(choices={"policy": policies()}, only=frozenset({"mode", "policy"}))
    return page(
        "control.html",
        sheet.status,
        kind=of,
        it=now.body,
        etag=now.etag,
        parts=parts_of(of.model, now.body | asked, {}, look),
        asked=asked,
        plan=_plan(of, name, {"mode": now.body["mode"]} | asked) if asked else None,
        plans=PLANS,
        policies=list(rest.every("/policies")) if kind == "hosts" else [],
        in_force=sorted({vm["status"]["mode"] for vm in vms if vm["status"] and vm["status"]["mode"]}),
        external=list(_external(vms)),
        detail="It was changed meanwhile; the current values are shown." if changed else sheet.detail,
        done="done" in request.args and not asked,
    )


@web.post("/control/<any(vms, hosts):kind>/<name>/adopt")
@allow(OPERATOR)
def adopt(kind: str, name: str) -> AnyResponse:
    """Adopt settings that were modified externally."""
    rest.call("POST", f"{KINDS[kind].at(name)}/adopt")
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


def _plan(kind: EditedKind, name: str, orders: Json) -> Json:
    """What the orders would change: ``kind`` is one of ``PLANS``, ``notes`` say what the changes do not."""
    try:
        plan: Json = rest.get(f"{kind.at(name)}/preview", **orders)
    except RequestRefused as refused:
        return {"kind": "", "changes": [], "notes": [f"The effect is unknown: {refused.detail}."]}
    return plan


def _external(vms: Iterable[Json]) -> Iterator[tuple[str, Json]]:
    """Externally modified settings, with their VMs."""
    for vm in vms:
        for knob in (vm["status"] or {}).get("knobs", ()):
            if knob["external"]:
                yield vm["name"], knob
