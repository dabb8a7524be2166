"""Parameters in the path, the query string and the headers of requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from werkzeug.exceptions import PreconditionFailed
from werkzeug.http import parse_etags

from manager.model.fields import Moment, Name, Schema
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Mode, VmClass


class NamePath(Schema):
    """The name of the object."""

    name: Name


class PageQuery(Schema):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=1000, description="most items per page, 1 to 1000")] = 100
    # That of the story is the longest: a time and two names.
    cursor: Annotated[str, Field(max_length=300)] | None = Field(
        default=None, description="`next` of the previous page; absent: the first page"
    )


DomainSearch = Annotated[
    str, Field(max_length=255, pattern=r"^[^\x00]*$", description="up to 255 characters, none of them NUL")
]


class SearchQuery(PageQuery):
    """Which page of a list by name, and of which names."""

    search: (
        Annotated[str, Field(max_length=63, pattern=r"^[^\x00]*$", description="up to 63 characters, none of them NUL")]
        | None
    ) = Field(default=None, description="part of the name")


class HostQuery(SearchQuery):
    """Which hosts."""

    reporting: bool | None = Field(
        default=None,
        description="true: only those whose agents report, false: only silent ones and those that never did",
    )


class ApplicationQuery(SearchQuery):
    """Which applications."""

    host: Name | None = Field(default=None, description="one of its VMs runs there")
    sla: bool | None = Field(default=None, description="true: only with an SLA, false: only without")


class VmQuery(SearchQuery):
    """Which VMs."""

    host: Name | None = Field(default=None, description="registered for this host, or last seen on it")
    vm_class: VmClass | None = Field(default=None, alias="class")
    application: Name | None = None
    serving: bool | None = Field(
        default=None, description="true: only those that serve an application, false: only those that serve none"
    )


class DomainQuery(PageQuery):
    """Which running domains, by libvirt's names, which are longer than others."""

    search: DomainSearch | None = Field(default=None, description="part of libvirt's name")
    registered: bool | None = Field(default=None, description="true: only registered, false: only unregistered")


class ServiceQuery(PageQuery):
    """Which services."""

    vm: Name | None = Field(default=None, description="only those of the domain that is registered as this VM")


class HostPreviewQuery(Schema):
    """The mode and policy that a host would have."""

    mode: Mode | None = Field(default=None, description="absent: unchanged")
    policy: Name | None = Field(default=None, description="absent: unchanged")


class ModePreviewQuery(Schema):
    """The mode that a VM or an application would have."""

    mode: Mode | None = Field(default=None, description="absent: inherited from application and host")


class WindowQuery(PageQuery):
    """Which windows."""

    since: Moment | None = Field(default=None, description="windows that begin at this time or later")
    until: Moment | None = Field(default=None, description="windows that begin before this time")
    buckets: bool = Field(default=False, description="include `buckets` and `ready` of each window")


class TickQuery(PageQuery):
    """Which ticks."""

    since: Moment | None = Field(default=None, description="at this time or later")
    until: Moment | None = Field(default=None, description="before this time")


class HistoryQuery(Schema):
    """The range of time, and its resolution."""

    since: Moment | None = Field(default=None, description="absent: an hour before `until`")
    until: Moment | None = Field(default=None, description="absent, or later than now: now")
    points: Annotated[int, Field(ge=10, le=2000, description="most steps in the answer, 10 to 2000")] = 300


class EvidenceQuery(Schema):
    """Which violation."""

    at: Moment | None = Field(default=None, description="a time during the violation; absent: the latest")


class WhatIfQuery(Schema):
    """Which policy, and how far back."""

    policy: Name = Field(description="an installed policy")
    published: bool = Field(default=False, description="use the feedback law exactly as published")
    minutes: Annotated[float, Field(ge=1, le=60, description="1 to 60")] = 60
    closed_loop: bool = Field(default=True, description="simulate the twin; false: answer the open loop only, sooner")


class RecordQuery(PageQuery):
    """Which decisions or events."""

    host: Name | None = None
    vm: Name | None = None
    since: Moment | None = Field(default=None, description="at this time or later")
    until: Moment | None = Field(default=None, description="before this time")


class DecisionQuery(RecordQuery):
    """Which decisions."""

    knob: Knob | None = None


class StoryQuery(RecordQuery):
    """Which entries of the story."""

    application: Name | None = Field(default=None, description="only VMs that serve it at the time")
    outcome: OutcomeKind | None = Field(default=None, description="only changes with this outcome")


class EventQuery(RecordQuery):
    """Which events."""

    severity: Severity | None = None
    kind: Name | None = Field(default=None, description="such as second-agent")


class AuditQuery(PageQuery):
    """Which rows of the audit."""

    actor: Name | None = Field(default=None, description="name of the user or token")
    object_kind: Name | None = Field(default=None, description="such as vm")
    object: Name | None = Field(default=None, description="name of the object")
    since: Moment | None = Field(default=None, description="at this time or later")
    until: Moment | None = Field(default=None, description="before this time")


class Conditions(Schema):
    """Preconditions of a write (RFC 9110, section 13). They refer to the ETag of an earlier answer."""

    if_match: str | None = Field(default=None, alias="If-Match", description="only if this is the object's ETag")
    if_none_match: str | None = Field(default=None, alias="If-None-Match", description="`*`: only if it is new")

    def check(self, etag: str | None) -> None:
        """Raises PreconditionFailed (412) unless the object with this ETag may be written; None: there is no object."""
        if self.if_match is not None and (etag is None or not parse_etags(self.if_match).contains(etag)):
            raise PreconditionFailed("If-Match: the object was changed or removed meanwhile; read it again")
        if self.if_none_match is not None and etag is not None and parse_etags(self.if_none_match).contains(etag):
            raise PreconditionFailed("If-None-Match: the object exists already")


class AssignmentConditions(Schema):
    """Precondition of a read."""

    if_none_match: str | None = Field(
        default=None, alias="If-None-Match", description="ETag of the assignment that the agent has"
    )
