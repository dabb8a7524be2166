"""Shapes of response times that are posted, to the manager or to an agent, and of every error."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from manager.model.fields import Buckets, Count, Moment, Schema

Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


class SamplesIn(Schema):
    """Response times of one application: single times, or a histogram (buckets: docs/reference/api.md), or both."""

    start: Moment | None = Field(default=None, description="begin of the interval; null: one second before end")
    end: Moment | None = Field(default=None, description="end of the interval; null: now")
    times_ms: list[Milliseconds] = Field(default_factory=list, max_length=100_000)
    buckets: Buckets = Field(default_factory=dict)
    requests: Annotated[float, Field(ge=0, le=1e15)] | None = Field(
        default=None, description="requests in the interval, if these times are a sample of them; null: their number"
    )


class SampleLine(Schema):
    """A line of application/x-ndjson: one response time, and when it ended (null: now)."""

    time_ms: Milliseconds
    end: Moment | None = None


class SamplesOut(Schema):
    """How many response times were taken, and how many were too old to be."""

    accepted: Count
    late: Count


class ProblemDetails(BaseModel):
    """Every error, as application/problem+json (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    errors: list[dict[str, str]] = Field(default_factory=list, description="one entry a bad field: field, message")
    request_id: str | None = Field(default=None, description="as in X-Request-Id, and in the manager's log")
