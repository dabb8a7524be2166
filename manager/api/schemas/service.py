"""Shapes of policies, tokens, health, and errors."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from manager.api.schemas.fields import Name, Schema, Text


class PolicyOut(Schema):
    """An installed policy."""

    name: Name
    summary: Text
    provided_by: Text


class HealthOut(Schema):
    """Whether the manager can serve requests."""

    status: Literal["ok"]
    version: Text
    database: Literal["ok"]


Role = Literal["viewer", "operator", "admin", "host"]


class TokenIn(Schema):
    """A token to make. ``host`` binds a host token to one host and is required for that role only."""

    name: Name
    role: Role
    host: Name | None = Field(default=None, description="for role host only: the host whose agent uses it")


class TokenOut(TokenIn):
    """A token without its secret."""

    created_at: AwareDatetime
    last_used_at: AwareDatetime | None = None


class TokenSecret(TokenOut):
    """A new token; the secret is shown once and stored as a hash."""

    token: Text


class Problem(BaseModel):
    """Every error, as application/problem+json (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    errors: list[dict[str, str]] = Field(default_factory=list, description="one entry a bad field: field, message")
