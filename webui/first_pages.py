"""The first steps on an empty system: from an agent that reports to an application that meets its SLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from flask import redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.api.queries import NamePath
from manager.control.watching import application_body, application_names
from manager.model.registration import Mode
from manager.model.traffic import MOST_SERVICES
from webui import rest
from webui.editing_pages import KINDS, filled, free_vms, save
from webui.filled import Sheet
from webui.forms import Look, Part, form_page, parts_of
from webui.host_view import Contact, ServiceLine, heard, service_lines
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


@dataclass(frozen=True, slots=True)
class SeenServices:
    """The services in the registered VMs of a host that reports; ``reported`` is the interface's answer."""

    host: str
    lines: Sequence[ServiceLine]
    reported: Json


@web.route("/first", methods=["GET", "POST"])
@allow(OPERATOR)
def register_first() -> AnyResponse:
    """What to do next, from what there is; ``step`` and ``application`` lead to other ones.

    ``vm`` and ``port`` name a service that the form of a new application is filled in for.
    """
    system = look()
    step = request.values.get("step", system.step)
    if step not in STEPS or (system.application is None and step in {"sources", "mode"}):
        step = system.step
    sheet, services, watched = Sheet(), list[SeenServices](), None
    if step == "application":
        services = _services(system)
        watched = _watched(services)
        sheet = _new_application(system, watched)
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
        services=services,
        watched=watched,
        simulated=any(watched in seen.lines and seen.reported["simulated"] for seen in services),
        asked="vm" in request.args,
    )


def look() -> System:
    """What there is now."""
    hosts = list(rest.every("/hosts"))
    reporting = [host for host in hosts if heard(host, now_s()).contact is Contact.LIVE]
    applications = [application for application in rest.every("/applications") if application["sla"]]
    asked = request.values.get("application")
    chosen = next((row for row in applications if row["name"] == asked), applications[0] if applications else None)
    return System(reporting, [host for host in hosts if host not in reporting], list(rest.every("/vms")), chosen)


def _services(system: System) -> list[SeenServices]:
    """What serves in the registered VMs of each host that reports."""
    seen = []
    for host in system.reporting:
        reported = rest.get(rest.at("hosts", host["name"], "services"), limit=MOST_SERVICES)
        lines = [line for line in service_lines(reported["items"], system.vms) if line.vm is not None]
        seen.append(SeenServices(host["name"], lines, reported))
    return seen


def _watched(services: Sequence[SeenServices]) -> ServiceLine | None:
    """The service that the address names; None where it names none that is seen."""
    named = request.args.get("vm"), request.args.get("port")
    lines = (line for seen in services for line in seen.lines)
    return next((line for line in lines if (line.name, str(line.service["port"])) == named), None)


def _watching(line: ServiceLine) -> Sheet:
    """The form of an application that watches a service: all of it follows from what was seen."""
    taken = {application["name"] for application in rest.every("/applications")}
    name, tier = application_names(line.name, line.service["protocol"], taken)
    return Sheet(name, application_body(line.name, line.service["port"], tier, line.target_ms))


def _new_application(system: System, watched: ServiceLine | None) -> Sheet:
    """The form of a new application, filled in for the service that is to be watched; here it needs an SLA."""
    if request.method == "GET" and watched is not None:
        return _watching(watched)
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
    if sheet.body.get("sources"):
        only |= {"sources"}
    shown = Look(choices={"tiers[].vms": free}, only=only, needed=needed, focus=sheet.focus)
    parts = parts_of(_APPLICATIONS.model, sheet.body, sheet.errors, shown)
    return (*parts_of(NamePath, {"name": sheet.name}, sheet.errors), *parts)
