"""What may stand in the path, the query string and the headers of a request."""

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
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=1000, description="most items in the answer, 1 to 1000")] = 100
    cursor: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="`next` of the previous part; absent: the first part"
    )


class VmQuery(PageQuery):
    """Which VMs."""

    host: Name | None = Field(default=None, description="registered for this host, or last seen on it")
    vm_class: VmClass | None = Field(default=None, alias="class")
    application: Name | None = None


class DomainQuery(PageQuery):
    """Which running domains."""

    registered: bool | None = Field(default=None, description="true: only registered ones, false: only others")


class HostPreviewQuery(Schema):
    """What of a host would be another."""

    mode: Mode | None = Field(default=None, description="absent: as it is")
    policy: Name | None = Field(default=None, description="absent: as it is")


class ModePreviewQuery(Schema):
    """The mode that a VM or an application would have."""

    mode: Mode | None = Field(default=None, description="absent: as what is above it says")


class WindowQuery(PageQuery):
    """Which windows."""

    since: Moment | None = Field(default=None, description="windows that began at this time or later")
    until: Moment | None = Field(default=None, description="windows that began earlier than this time")
    buckets: bool = Field(default=False, description="answer `buckets` and `ready` of each window, too")


class TickQuery(PageQuery):
    """Which ticks."""

    since: Moment | None = Field(default=None, description="of this time or later")
    until: Moment | None = Field(default=None, description="earlier than this time")


class HistoryQuery(Schema):
    """Which range of time, and how finely."""

    since: Moment | None = Field(default=None, description="absent: an hour before `until`")
    until: Moment | None = Field(default=None, description="absent, or later than now: now")
    points: Annotated[int, Field(ge=10, le=2000, description="most steps in the answer, 10 to 2000")] = 300


class EvidenceQuery(Schema):
    """Which violation."""

    at: Moment | None = Field(default=None, description="that which went on then; absent: the latest")


class WhatIfQuery(Schema):
    """Which policy, and for how long back."""

    policy: Name = Field(description="an installed policy")
    published: bool = Field(default=False, description="take the feedback law exactly as printed")
    minutes: Annotated[float, Field(ge=1, le=60, description="1 to 60")] = 60


class RecordQuery(PageQuery):
    """Which decisions or events."""

    host: Name | None = None
    vm: Name | None = None
    since: Moment | None = Field(default=None, description="of this time or later")
    until: Moment | None = Field(default=None, description="earlier than this time")


class DecisionQuery(RecordQuery):
    """Which decisions."""

    knob: Knob | None = None


class StoryQuery(RecordQuery):
    """Which entries of the story."""

    application: Name | None = Field(default=None, description="those of VMs that serve it now")
    outcome: OutcomeKind | None = Field(default=None, description="only changes of which this came")


class EventQuery(RecordQuery):
    """Which events."""

    severity: Severity | None = None
    kind: Name | None = Field(default=None, description="such as second-agent")


class AuditQuery(PageQuery):
    """Which rows of the audit."""

    actor: Name | None = Field(default=None, description="name of who did it")
    object_kind: Name | None = Field(default=None, description="such as vm")
    object: Name | None = Field(default=None, description="name of what it was done to")
    since: Moment | None = Field(default=None, description="of this time or later")
    until: Moment | None = Field(default=None, description="earlier than this time")


class Conditions(Schema):
    """Preconditions of a write (RFC 9110, section 13). They compare with the ETag that reads and writes answer."""

    if_match: str | None = Field(default=None, alias="If-Match", description="only if this is the object's ETag")
    if_none_match: str | None = Field(default=None, alias="If-None-Match", description="`*`: only if it is new")

    def check(self, etag: str | None) -> None:
        """Raises PreconditionFailed (412) unless an object with this ETag, None where there is none, may be written."""
        if self.if_match is not None and (etag is None or not parse_etags(self.if_match).contains(etag)):
            raise PreconditionFailed("If-Match: it was changed or removed meanwhile; read it again")
        if self.if_none_match is not None and etag is not None and parse_etags(self.if_none_match).contains(etag):
            raise PreconditionFailed("If-None-Match: it exists already")


class AssignmentConditions(Schema):
    """Precondition of a read."""

    if_none_match: str | None = Field(default=None, alias="If-None-Match", description="ETag of what the caller has")
