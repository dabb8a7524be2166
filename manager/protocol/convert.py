"""Between the REST interface's shapes and the model's value types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manager.model.cpus import format_cpus, parse_cpus
from manager.model.fields import timestamp
from manager.model.histogram import Histogram
from manager.model.host import VmInstance
from manager.model.registration import Application, Assignment, HostSpec, VmSpec
from manager.model.window import Window
from manager.protocol.assignment import AssignedApplication, AssignedWindow, AssignmentOut
from manager.protocol.registration_in import ApplicationIn, HostIn, VmIn
from manager.protocol.report import (
    DomainBody,
    WindowBody,
)


def assignment_of(body: AssignmentOut) -> tuple[Assignment, dict[str, tuple[Window, ...]]]:
    """The assignment and the recent slots of each application that has some."""
    vms = tuple(vm_spec(vm.name, vm, vm.adoptions) for vm in body.vms)
    slots = {one.name: tuple(window_of(one.name, window) for window in one.windows) for one in body.applications}
    applications = tuple(application_of(one.name, one) for one in body.applications)
    assignment = Assignment(host_spec(body.host.name, body.host, body.host.adoptions), vms, applications, body.slot_s)
    return assignment, {name: windows for name, windows in slots.items() if windows}


def vm_spec(name: str, body: VmIn, adoptions: int = 0) -> VmSpec:
    """A VM as registered."""
    fields = {field: getattr(body, field) for field in VmIn.model_fields}
    fields["cpus"] = None if body.cpus is None else parse_cpus(body.cpus)
    return VmSpec(name, **fields, adoptions=adoptions)


def vm_fields(spec: VmSpec) -> dict[str, Any]:
    """The inverse of ``vm_spec``: the fields of a VmIn."""
    fields = {field: getattr(spec, field) for field in VmIn.model_fields}
    fields["cpus"] = None if spec.cpus is None else format_cpus(spec.cpus)
    return fields


def host_spec(name: str, body: HostIn, adoptions: int = 0) -> HostSpec:
    """How a host is to be controlled."""
    return HostSpec(
        name,
        body.mode,
        body.policy,
        body.pinning,
        body.law,
        body.batch_idle,
        body.placement,
        adoptions,
        body.warp,
        body.warp_max_us,
        body.cache,
        body.cache_mount,
        body.bandwidth_warning,
    )


def host_fields(spec: HostSpec) -> dict[str, Any]:
    """The inverse of ``host_spec``: the fields of a HostIn."""
    return {
        "mode": spec.mode,
        "policy": spec.policy,
        "pinning": spec.pinning,
        "batch_idle": spec.batch_idle,
        "law": spec.law,
        "placement": spec.placement,
        "warp": spec.warp,
        "warp_max_us": spec.warp_max_us,
        "cache": spec.cache,
        "cache_mount": spec.cache_mount,
        "bandwidth_warning": spec.bandwidth_warning,
    }


def application_of(name: str, body: ApplicationIn) -> Application:
    """An application."""
    sources = body.sources
    return Application(name, body.tiers, body.sla, body.mode, body.sharing, sources, body.warp_us, body.cache)


def application_body(application: Application) -> ApplicationIn:
    """The inverse of ``application_of``."""
    return ApplicationIn.model_validate(
        {
            "tiers": application.tiers,
            "sla": application.sla,
            "mode": application.mode,
            "sharing": application.sharing,
            "sources": application.sources,
            "warp_us": application.warp_us,
            "cache": application.cache,
        }
    )


def assigned_application(application: Application) -> AssignedApplication:
    """An application of an assignment, without slots."""
    return AssignedApplication(name=application.name, **dict(application_body(application)))


def assigned_window(slot: Window) -> AssignedWindow:
    """A slot of an assignment."""
    return AssignedWindow(
        start=timestamp(slot.start_s),
        end=timestamp(slot.end_s),
        buckets=dict(slot.histogram.buckets),
        requests=slot.requests,
        ready=slot.ready,
    )


def window_of(application: str, body: WindowBody | AssignedWindow) -> Window:
    """Response times of one slot of an application."""
    histogram = Histogram(dict(body.buckets))
    return Window(application, body.start.timestamp(), body.end.timestamp(), histogram, body.requests, body.ready)


def window_body(window: Window) -> WindowBody:
    """A slot as an agent reports it. Raises pydantic.ValidationError."""
    return WindowBody(
        application=window.application,
        start=timestamp(window.start_s),
        end=timestamp(window.end_s),
        buckets=dict(window.histogram.buckets),
        requests=window.requests,
        ready=window.ready,
    )


def domain_body(instance: VmInstance) -> DomainBody:
    """A running domain. Raises pydantic.ValidationError."""
    return DomainBody(libvirt_name=instance.libvirt_name, libvirt_uuid=instance.uuid)


def slot_body(row: Mapping[str, Any]) -> WindowBody:
    """A Window, given as a mapping of its fields. Raises pydantic.ValidationError."""
    fields = dict(row)
    start, end = timestamp(fields.pop("start_s")), timestamp(fields.pop("end_s"))
    buckets = fields.pop("histogram")["buckets"]
    return WindowBody.model_validate({"start": start, "end": end, "buckets": buckets, **fields})
