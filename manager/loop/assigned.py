"""Reading an assignment: a VM or an application that cannot be understood keeps no other from being controlled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from manager.model.registration import Assignment
from manager.model.window import Window
from manager.protocol.assignment import AssignmentOut
from manager.protocol.convert import application_of, assignment_of, vm_spec
from manager.protocol.sparing import read_sparing

_WHAT = {"vms": "VM", "applications": "application"}


@dataclass(frozen=True, slots=True)
class Assigned:
    """What the manager said. ``problems`` tell of what was left as it was told before, or out."""

    assignment: Assignment
    slots: dict[str, tuple[Window, ...]]
    digest: str
    problems: Sequence[str]


def read_assignment(content: bytes, before: Assignment | None) -> Assigned:
    """An assignment, but for fields that a later manager may tell.

    ``before`` is the one that was in force: what is not understood of the new one stays as it was in that. Raises
    ValueError for what is no assignment.
    """
    read = read_sparing(AssignmentOut, content, tuple(_WHAT), strict=False)
    bad = [(one.place[0], _name(one.value), one.error["msg"]) for one in read.spoilt]
    vms, bad_vms = _sound("vms", read.model.vms, lambda vm: vm_spec(vm.name, vm, vm.adoptions))
    applications, bad_ones = _sound("applications", read.model.applications, lambda one: application_of(one.name, one))
    body = read.model.model_copy(update={"vms": vms, "applications": applications})
    assignment, slots = assignment_of(body)
    bad += bad_vms + bad_ones
    if bad and before is not None:
        names = {(kind, name) for kind, name, _ in bad}
        kept_vms = tuple(vm for vm in before.vms if ("vms", vm.name) in names)
        kept = tuple(application for application in before.applications if ("applications", application.name) in names)
        vm_specs, known = (*assignment.vms, *kept_vms), (*assignment.applications, *kept)
        assignment = replace(assignment, vms=vm_specs, applications=known)
    problems = [f"{_WHAT[kind]} {name or 'without a name'} is not understood: {why}" for kind, name, why in bad]
    return Assigned(assignment, slots, body.digest, problems)


def _sound(
    kind: str, items: Sequence[Any], convert: Callable[[Any], object]
) -> tuple[list[Any], list[tuple[str, str, str]]]:
    """Those that can be converted; and of the others kind, name and why."""
    good: list[Any] = []
    bad: list[tuple[str, str, str]] = []
    for item in items:
        try:
            convert(item)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            bad.append((kind, item.name, str(error)))
        else:
            good.append(item)
    return good, bad


def _name(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""
