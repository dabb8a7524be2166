"""Reading an assignment: a VM or an application that cannot be understood keeps no other from being controlled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manager.model.registration import Assignment
from manager.model.window import Window
from manager.protocol.assignment import AssignmentOut
from manager.protocol.sparing import read_sparing

Slots = Mapping[str, tuple[Window, ...]]

_WHAT = {"vms": "VM", "applications": "application"}


@dataclass(frozen=True, slots=True)
class Assigned:
    """The manager's last assignment. ``assignment`` None: there never was one, and there is no cache of one.

    ``slots`` are those of response times that came from elsewhere than this host, by application, oldest first.
    ``revision`` is that of the registrations at the manager, None where it is unknown.
    """

    assignment: Assignment | None = None
    slots: Slots = field(default_factory=dict)
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class AssignmentRead:
    """An assignment as understood. ``problems`` say what of it was left as it was before, or out."""

    assignment: Assignment
    slots: Slots
    digest: str
    problems: Sequence[str]


def read_assignment(content: bytes, before: Assignment | None) -> AssignmentRead:
    """An assignment, but for fields that a later manager may send.

    ``before`` is the one that was in force: what is not understood of the new one stays as it was in that. Raises
    ValueError for what is no assignment.
    """
    read = read_sparing(AssignmentOut, content, tuple(_WHAT), strict=False)
    bad = [(item.place[0], _name(item.value), item.error["msg"]) for item in read.spoilt]
    assignment = read.model.assignment
    if bad and before is not None:
        names = {(kind, name) for kind, name, _ in bad}
        vms = (vm for vm in before.vms if ("vms", vm.name) in names)
        applications = (app for app in before.applications if ("applications", app.name) in names)
        assignment = replace(
            assignment, vms=(*assignment.vms, *vms), applications=(*assignment.applications, *applications)
        )
    problems = [f"{_WHAT[kind]} {name or 'without a name'} is not understood: {why}" for kind, name, why in bad]
    return AssignmentRead(assignment, read.model.slots, read.model.digest, problems)


def _name(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""
