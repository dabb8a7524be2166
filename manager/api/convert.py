"""Between the REST interface's shapes and the model's value types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from manager.api.schemas import (
    MAX_TEXT,
    AssignedApplication,
    AssignedWindow,
    AssignmentOut,
    CapabilitiesBody,
    EventBody,
    RecordBody,
)
from manager.model.cpus import format_cpus
from manager.model.histogram import Histogram
from manager.model.host import Capabilities
from manager.model.registration import Application, Assignment, HostSpec, Sla, Tier, VmSpec
from manager.model.window import Window


def timestamp(time_s: float) -> datetime:
    """Seconds since the epoch as an aware datetime."""
    return datetime.fromtimestamp(time_s, UTC)


def assignment_of(body: AssignmentOut) -> tuple[Assignment, dict[str, Window]]:
    """The assignment and the latest window of each application that has one."""
    host = HostSpec(body.host.name, body.host.mode, body.host.policy, body.host.pinning)
    vms = tuple(
        VmSpec(vm.name, vm.vm_class, vm.libvirt_name, vm.libvirt_uuid, vm.host, vm.weight, vm.pin) for vm in body.vms
    )
    windows = {
        application.name: _window(application.name, application.window)
        for application in body.applications
        if application.window
    }
    return Assignment(host, vms, tuple(_application(application) for application in body.applications)), windows


def _application(body: AssignedApplication) -> Application:
    sla = Sla(body.sla.response_time_ms, body.sla.percentile, body.sla.max_rate_rps) if body.sla else None
    return Application(body.name, tuple(Tier(tier.name, tuple(tier.vms)) for tier in body.tiers), sla, body.mode)


def _window(application: str, body: AssignedWindow) -> Window:
    return Window(application, body.start.timestamp(), body.end.timestamp(), Histogram(dict(body.buckets)))


def capabilities_body(capabilities: Capabilities) -> CapabilitiesBody:
    """What a host offers; without weights their range is 0."""
    scale = capabilities.weights
    return CapabilitiesBody.model_validate(
        {
            "kernel": capabilities.kernel,
            "libvirt": capabilities.libvirt,
            "cgroup_version": capabilities.cgroup_version,
            "weight_min": scale.minimum if scale else 0,
            "weight_max": scale.maximum if scale else 0,
            "weight_default": scale.default if scale else 0,
            "online_cpus": format_cpus(capabilities.online_cpus),
            "managed_cpus": format_cpus(capabilities.managed_cpus),
            "schedstat": capabilities.schedstat,
            "warnings": list(capabilities.warnings),
        }
    )


def record_body(row: Mapping[str, Any]) -> RecordBody:
    """A DecisionRecord, given as a mapping of its fields. Raises pydantic.ValidationError."""
    fields = dict(row)
    texts = {name: _text(fields.pop(name)) for name in ("reason", "detail")}
    return RecordBody.model_validate(
        {"id": fields.pop("record_id"), "at": timestamp(fields.pop("time_s")), **texts, **fields}
    )


def event_body(row: Mapping[str, Any]) -> EventBody:
    """An Event, given as a mapping of its fields. Raises pydantic.ValidationError."""
    fields = dict(row)
    message = _text(fields.pop("message"))
    return EventBody.model_validate(
        {"id": fields.pop("event_id"), "at": timestamp(fields.pop("time_s")), "message": message, **fields}
    )


def _text(text: str) -> str:
    """Text as the interface takes it, whatever a third party's policy or the kernel put into it."""
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)[:MAX_TEXT]
