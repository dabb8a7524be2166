"""The first steps on an empty system: from an agent that reports to an application that meets its SLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from flask import redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.api.queries import NamePath
from manager.model.registration import Mode
from webui import rest
from webui.editing_pages import KINDS, filled, free_vms, save
from webui.filled import Sheet
from webui.forms import Look, Part, form_page, parts_of
from webui.host_view import Contact, heard
from webui.rest import Json
from webui.site import now_s, web

STEPS: Mapping[str, str] = {
    "agent": "An agent reports",
    "vms": "Its VMs are registered",
    "application": "An application has an SLA",
    "sources": "Response times arrive",
    "mode": "Observe or enforce",
    "done": "Running",
}
"""What has to be so, one after the other."""

_APPLICATIONS = KINDS["applications"]


@dataclass(frozen=True, slots=True)
class System:
    """What there is so far. ``application`` is the one that the steps are about, None before there is one."""

    reporting: Sequence[Json]
    silent: Sequence[Json]
    vms: Sequence[Json]
    application: Json | None

    @property
    def step(self) -> str:
        """The first step that is not done."""
        done = {
            "agent": bool(self.reporting),
            "vms": any(vm["class"] == "critical" for vm in self.vms),
            "application": self.application is not None,
            "sources": self.application is not None and bool(self.application["sources"] or self.application["window"]),
            "mode": self.application is not None and self.application["mode"] in {None, Mode.ENFORCE},
        }
        return next((step for step, so in done.items() if not so), "done")


@web.route("/first", methods=["GET", "POST"])
@allow(OPERATOR)
def register_first() -> AnyResponse:
    """What to do next, from what there is; ``step`` and ``application`` lead to other ones."""
    system = look()
    step = request.values.get("step", system.step)
    if step not in STEPS or (system.application is None and step in {"sources", "mode"}):
        step = system.step
    sheet = Sheet()
    if step == "application":
        sheet = _new_application(system)
    elif step == "sources" and system.application:
        sheet = _sources_of(system.application["name"])
    sent = request.method == "POST" and "do" not in request.form
    if sheet.body and sent and not sheet.detail and save(_APPLICATIONS, sheet):
        return redirect(url_for("web.register_first", application=sheet.name), HTTPStatus.SEE_OTHER)
    return form_page(
        "first.html",
        sheet,
        _parts(step, sheet, system) if sheet.body else (),
        steps=STEPS,
        step=step,
        reached=list(STEPS).index(system.step),
        system=system,
        hosts=sorted({vm["status_host"] for vm in system.vms if vm["status_host"]}),
    )


def look() -> System:
    """What there is now."""
    hosts = list(rest.every("/hosts"))
    reporting = [host for host in hosts if heard(host, now_s()).contact is Contact.LIVE]
    applications = [application for application in rest.every("/applications") if application["sla"]]
    asked = request.values.get("application")
    chosen = next((row for row in applications if row["name"] == asked), applications[0] if applications else None)
    return System(reporting, [host for host in hosts if host not in reporting], list(rest.every("/vms")), chosen)


def _new_application(system: System) -> Sheet:
    """The form of a new application; here it needs an SLA."""
    if request.method == "GET":
        critical = [vm["name"] for vm in system.vms if vm["class"] == "critical" and not vm["application"]]
        tier = {"name": "web", "vms": critical if len(critical) == 1 else []}
        return Sheet("", {"tiers": [tier], "mode": Mode.OBSERVE.value})
    sheet = filled(_APPLICATIONS, None, request.form)
    if not sheet.body["sla"] and "do" not in request.form:
        sheet.invalid({"sla.response_time_ms": "is required: it is the target that Equipoise holds"})
    return sheet


def _sources_of(name: str) -> Sheet:
    """The form of an application's sources."""
    now = _APPLICATIONS.registered(name)
    if request.method == "GET":
        return now
    sheet = filled(_APPLICATIONS, name, request.form)
    sheet.body = now.body | {"sources": sheet.body["sources"]}
    return sheet


def _parts(step: str, sheet: Sheet, system: System) -> tuple[Part, ...]:
    if step == "sources":
        return parts_of(_APPLICATIONS.model, sheet.body, sheet.errors, Look(only=frozenset({"sources"})))
    free = free_vms(system.vms, None)
    only, needed = frozenset({"tiers", "sla", "mode"}), frozenset({"sla"})
    shown = Look(choices={"tiers[].vms": free}, only=only, needed=needed, focus=sheet.focus)
    parts = parts_of(_APPLICATIONS.model, sheet.body, sheet.errors, shown)
    return (*parts_of(NamePath, {"name": sheet.name}, sheet.errors), *parts)
