"""Shapes of the lists that the REST interface answers."""

from __future__ import annotations

from manager.api.schemas.access_shapes import AuditOut, SessionOut, UserOut
from manager.api.schemas.history_shapes import StoryOut
from manager.api.schemas.registration_shapes import ApplicationOut, DomainOut, HostOut, SourceOut, VmOut, WindowOut
from manager.api.schemas.service_shapes import JoinTokenOut, PolicyOut, TokenOut
from manager.model.fields import Name, Schema
from manager.model.host import Capabilities
from manager.model.records import DecisionRecord, Event, TickRecord


class Page(Schema):
    """A part of a list. ``next`` is the ``cursor`` of the following part; null: this is the last one."""

    next: str | None = None


class HostPage(Page):
    """Hosts by name."""

    items: list[HostOut]


class VmPage(Page):
    """VMs by name."""

    items: list[VmOut]


class ApplicationPage(Page):
    """Applications by name."""

    items: list[ApplicationOut]


class WindowPage(Page):
    """Windows of an application, newest first."""

    items: list[WindowOut]


class SourcePage(Page):
    """Sources of an application by name, then by host."""

    items: list[SourceOut]


class TickPage(Page):
    """Ticks of a host, newest first."""

    items: list[TickRecord]


class PolicyPage(Page):
    """Policies by name."""

    items: list[PolicyOut]


class RecordPage(Page):
    """Decisions, newest first."""

    items: list[DecisionRecord]


class StoryPage(Page):
    """The story of decisions, newest first."""

    items: list[StoryOut]


class EventPage(Page):
    """Events, newest first."""

    items: list[Event]


class DomainPage(Page):
    """Running domains by host and UUID."""

    items: list[DomainOut]


class JoinTokenPage(Page):
    """Tokens to join with, by name."""

    items: list[JoinTokenOut]


class TokenPage(Page):
    """Tokens by name."""

    items: list[TokenOut]


class UserPage(Page):
    """Users by name."""

    items: list[UserOut]


class SessionPage(Page):
    """Sessions, newest first."""

    items: list[SessionOut]


class AuditPage(Page):
    """What was done, newest first."""

    items: list[AuditOut]


class HostCapabilities(Schema):
    """A host and what it offers; null: its agent never reported."""

    host: Name
    capabilities: Capabilities | None


class CapabilitiesPage(Page):
    """Capabilities by name of the host."""

    items: list[HostCapabilities]
