"""The first steps on an empty system: from an agent that reports to an application that meets its SLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from flask import redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.api.queries import NamePath
from manager.control.watching import application_body, application_names
from manager.model.registration import Mode
from manager.model.traffic import MOST_SERVICES
from webui import rest
from webui.editing_pages import KINDS, filled, registered_vm, save, vms_to_pick
from webui.filled import Sheet
from webui.forms import Look, Part, form_page, parts_of
from webui.host_view import ServiceLine, service_lines
from webui.rest import Json, RequestRefused
from webui.site import web

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


_NAMED = 10
"""Most hosts of which a step shows the names, and most hosts on a page of services."""


@dataclass(frozen=True, slots=True)
class System:
    """What there is so far. ``application`` is the one that the steps are about, None before there is one.

    ``reporting`` and ``silent`` are the first hosts of either kind, ``more``: more of them report. ``critical: whether
    a critical VM is registered; ``batch``: whether one of batch is.
    """

    reporting: Sequence[Json]
    silent: Sequence[Json]
    more: bool
    critical: bool
    batch: bool
    application: Json | None

    @property
    def step(self) -> str:
        """The first step that is not done."""
        done = {
            "agent": bool(self.reporting),
            "vms": self.critical,
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


@dataclass(frozen=True, slots=True)
class ServicePage:
    """Services of some hosts that report: those with ``search`` in their names, from ``after`` on.

    ``next`` is the ``after`` of the next ones, None after the last.
    """

    search: str
    after: str
    seen: Sequence[SeenServices] = ()
    next: str | None = None


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
    sheet, services, watched = Sheet(), ServicePage("", ""), None
    if step == "application":
        watched = _watched()
        services = ServicePage("", "") if watched else _services()
        sheet = _new_application(watched.lines[0] if watched else None)
    elif step == "sources" and system.application:
        sheet = _sources_of(system.application["name"])
    sent = request.method == "POST" and "do" not in request.form
    if sheet.body and sent and not sheet.detail and save(_APPLICATIONS, sheet):
        return redirect(url_for("web.register_first", application=sheet.name), HTTPStatus.SEE_OTHER)
    return form_page(
        "first.html",
        sheet,
        _parts(step, sheet) if sheet.body else (),
        steps=STEPS,
        step=step,
        reached=list(STEPS).index(system.step),
        system=system,
        hosts=_hosts_of(system.application) if step == "done" and system.application else [],
        services=services,
        watched=watched and watched.lines[0],
        simulated=watched is not None and watched.reported["simulated"],
        asked="vm" in request.args,
    )


def look() -> System:
    """What there is now."""
    reporting = rest.get("/hosts", reporting=True, limit=_NAMED)
    first = not reporting["items"] or request.values.get("step") == "agent"
    silent = rest.get("/hosts", reporting=False, limit=_NAMED)["items"] if first else []
    critical, batch = (rest.get("/vms", **{"class": kind}, limit=1)["items"] for kind in ("critical", "batch"))
    chosen = _chosen(request.values.get("application", ""))
    return System(reporting["items"], silent, reporting["next"] is not None, bool(critical), bool(batch), chosen)


def _chosen(name: str) -> Json | None:
    """The application of that name if it has an SLA, else the first that has one; None: none has."""
    try:
        application: Json | None = rest.get(rest.at("applications", name)) if name else None
    except RequestRefused as refused:
        if refused.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise
        application = None
    if application and application["sla"]:
        return application
    return next(iter(rest.get("/applications", sla=True, limit=1)["items"]), None)


def _hosts_of(application: Json) -> list[str]:
    """Names of the hosts on which an application runs."""
    vms = rest.every("/vms", application=application["name"])
    return sorted({vm["status_host"] for vm in vms if vm["status_host"]})


def _services() -> ServicePage:
    """What serves in the registered VMs of the hosts that report, a few hosts at a time."""
    search, after = request.values.get("search", "").strip(), request.values.get("after", "")
    asked = {"search": search[: rest.LONGEST_SEARCH] or None, "cursor": after or None}
    hosts = rest.get("/hosts", reporting=True, limit=_NAMED, **asked)
    return ServicePage(search, after, [_seen(host["name"]) for host in hosts["items"]], hosts["next"])


def _seen(host: str, vm: Json | None = None) -> SeenServices:
    """What serves in the registered VMs of a host, or in one of them."""
    path = rest.at("hosts", host, "services")
    reported = rest.get(path, vm=vm and vm["name"], limit=MOST_SERVICES)
    names = {service["registered_as"] for service in reported["items"]} - {None}
    vms = {one["name"]: one for one in ([vm] if vm else rest.every("/vms", host=host) if names else ())}
    # One that was registered a moment ago is not known to run there yet.
    vms |= {name: one for name in sorted(names - vms.keys()) if (one := registered_vm(name)) is not None}
    lines = service_lines(reported["items"], vms.values())
    return SeenServices(host, [line for line in lines if line.vm is not None], reported)


def _watched() -> SeenServices | None:
    """The service that the address names, on its host; None where it names none that is seen."""
    name, port = request.args.get("vm", ""), request.args.get("port")
    vm = registered_vm(name) if name and port else None
    host = request.args.get("host") or (vm and vm["status_host"])
    if vm is None or not host:
        return None
    try:
        seen = _seen(host, vm)
    except RequestRefused as refused:
        if refused.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise
        return None
    lines = [line for line in seen.lines if str(line.service["port"]) == port]
    return replace(seen, lines=lines[:1]) if lines else None


def _watching(line: ServiceLine) -> Sheet:
    """The form of an application that watches a service: all of it follows from what was seen."""
    base, _ = application_names(line.name, line.service["protocol"], ())
    taken = {application["name"] for application in rest.every("/applications", search=base[: rest.LONGEST_SEARCH])}
    name, tier = application_names(line.name, line.service["protocol"], taken)
    return Sheet(name, application_body(line.name, line.service["port"], tier, line.target_ms))


def _new_application(watched: ServiceLine | None) -> Sheet:
    """The form of a new application, filled in for the service that is to be watched; here it needs an SLA."""
    if request.method == "GET" and watched is not None:
        return _watching(watched)
    if request.method == "GET":
        critical = [vm["name"] for vm in rest.get("/vms", **{"class": "critical"}, serving=False, limit=2)["items"]]
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


def _parts(step: str, sheet: Sheet) -> tuple[Part, ...]:
    if step == "sources":
        return parts_of(_APPLICATIONS.model, sheet.body, sheet.errors, Look(only=frozenset({"sources"})))
    only, needed = frozenset({"tiers", "sla", "mode"}), frozenset({"sla"})
    if sheet.body.get("sources"):
        only |= {"sources"}
    shown = replace(vms_to_pick(sheet, None), only=only, needed=needed, focus=sheet.focus)
    parts = parts_of(_APPLICATIONS.model, sheet.body, sheet.errors, shown)
    return (*parts_of(NamePath, {"name": sheet.name}, sheet.errors), *parts)
