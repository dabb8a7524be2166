"""Shapes of assignments, and of the answers to reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from manager.model.fields import Count, Name, Schema, Text, adapter_of, fields_of
from manager.model.migration import MigrationOrder
from manager.model.registration import Application, Assignment
from manager.model.window import AssignedWindow, Window


@dataclass(frozen=True, slots=True)
class AssignedApplication(Application):
    """An application with the sources that run on this host, and its recent slots, oldest first.

    The slots are what came from elsewhere than this host's agent.
    """

    windows: tuple[AssignedWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignmentOut(Assignment):
    """All that an agent needs to know."""

    applications: tuple[AssignedApplication, ...] = ()
    digest: Annotated[str, Field(description="of all but the applications' windows, see the route for slots alone")] = (
        ""
    )

    @property
    def assignment(self) -> Assignment:
        """The assignment without slots."""
        applications = (Application(**fields_of(Application, application)) for application in self.applications)
        return Assignment(self.host, self.vms, tuple(applications), self.slot_s)

    @property
    def slots(self) -> dict[str, tuple[Window, ...]]:
        """The recent slots of each application that has some."""
        return {
            application.name: tuple(
                Window(application.name, **fields_of(AssignedWindow, window)) for window in application.windows
            )
            for application in self.applications
            if application.windows
        }


def read_window(application: str, item: Mapping[str, Any]) -> Window:
    """A window from JSON that may have more fields. Raises pydantic.ValidationError."""
    return adapter_of(Window).validate_python({**item, "application": application}, extra="ignore")


class SlotsOut(Schema):
    """The recent slots of a host's applications alone, by application, oldest first."""

    digest: str = Field(description="of the assignment as it is now: if it is another, ask for that")
    windows: dict[Name, tuple[AssignedWindow, ...]]
    shared: bool = Field(description="whether other hosts have VMs of these applications, and need this host's reports")


class RefusedItem(Schema):
    """An item of a report that was left out."""

    field: Text = Field(description="such as decisions[3].host")
    message: Text
    id: Text = Field(default="", description="its id, or another field that names it")


class Cadence(Schema):
    """How often an agent reports, where nothing cannot wait: see docs/internals/architecture.md, Two planes."""

    live_s: Annotated[float, Field(gt=0, le=3600, description="the host's state is reported so often, in seconds")]
    history_s: Annotated[
        float, Field(gt=0, le=3600, description="decisions, ticks and closed windows are sent so often, in seconds")
    ]


class ReportOut(Schema):
    """How many records, ticks and windows were stored (repeated records and ticks are not counted)."""

    stored_decisions: Count
    stored_events: Count
    stored_ticks: Count
    stored_windows: Count
    vms_missing: bool = Field(
        default=False,
        description="whether the newest tick has other VMs than the host reported, or the host was not known: its next"
        " report needs all",
    )
    slots: SlotsOut | None = Field(default=None, description="as they are now, if the report asked for them")
    migrations: list[MigrationOrder] = Field(
        default_factory=list,
        exclude_if=lambda orders: not orders,
        description="VMs of this host to be migrated, the oldest order first; absent: none, or not known now",
    )
    cadence: Cadence | None = Field(default=None, description="null: all in each interval, as earlier agents do")
    packed: bool = Field(default=False, description="whether windows may come with `packed` in place of `buckets`")
    packed_ticks: bool = Field(default=False, description="whether `packed_ticks` may come in place of `ticks`")
    refused: list[RefusedItem] = Field(
        default_factory=list,
        description="what was left out because it cannot be accepted; agents of protocol 0 do not get it",
    )
