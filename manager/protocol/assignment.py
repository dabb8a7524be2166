"""Shapes of assignments."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from manager.model.fields import Count, Name, Schema, Text
from manager.model.window import Ready
from manager.protocol.registration_in import ApplicationIn, HostIn, VmIn


class AssignedVm(VmIn):
    """A VM the host's agent is to manage if it finds it."""

    name: Name
    adoptions: Count = Field(default=0, description="how often externally modified settings were adopted")


class AssignedWindow(Schema):
    """A recent slot of an application, as a histogram: what came from elsewhere than this host's agent."""

    start: AwareDatetime
    end: AwareDatetime
    buckets: dict[int, Annotated[int, Field(ge=0)]]
    requests: float | None = None
    ready: Ready | None = None


class AssignedApplication(ApplicationIn):
    """An application with the sources that run on this host, and its recent slots, oldest first."""

    name: Name
    windows: list[AssignedWindow] = Field(default_factory=list)


class AssignedHost(HostIn):
    """How the host is to be controlled."""

    name: Name
    adoptions: Count = Field(default=0, description="see AssignedVm")


class AssignmentOut(Schema):
    """All that an agent needs to know."""

    host: AssignedHost
    vms: list[AssignedVm]
    applications: list[AssignedApplication]
    slot_s: Annotated[float, Field(gt=0, description="length of a slot of response times, in seconds")]
    digest: str = Field(default="", description="of all but the applications' windows, see the route for slots alone")


class SlotsOut(Schema):
    """The recent slots of a host's applications alone, by application, oldest first."""

    digest: str = Field(description="of the assignment as it is now: if it is another, ask for that")
    windows: dict[Name, list[AssignedWindow]]
    shared: bool = Field(description="whether other hosts have VMs of these applications, and need what this one tells")


class RefusedItem(Schema):
    """An item of a report that was left out."""

    field: Text = Field(description="such as decisions[3].host")
    message: Text
    id: Text = Field(default="", description="its id, or what else it has of a name")


class ReportOut(Schema):
    """How many records, ticks and windows were stored (repeated records and ticks are not counted)."""

    stored_decisions: Count
    stored_events: Count
    stored_ticks: Count
    stored_windows: Count
    vms_missing: bool = Field(
        default=False,
        description="whether the newest tick has other VMs than the host reported: its next report needs all",
    )
    slots: SlotsOut | None = Field(default=None, description="as they are now, if the report asked for them")
    refused: list[RefusedItem] = Field(
        default_factory=list,
        description="what was left out because it cannot be accepted; not told to agents of protocol 0",
    )
