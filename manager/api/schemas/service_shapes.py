"""Shapes of policies, tokens, health, and errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from manager.model.fields import Moment, Name, Schema, Text


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


Role = Literal["viewer", "operator", "admin", "host", "source"]


class TokenIn(Schema):
    """A token to make. ``host`` binds a host token to one host, ``application`` a source token to one application.

    Each is required for that role only.
    """

    name: Name
    role: Role
    host: Name | None = Field(default=None, description="for role host only: the host whose agent uses it")
    application: Name | None = Field(
        default=None, description="for role source only: the application whose response times it sends"
    )
    expires_at: Moment | None = Field(default=None, description="when it ends; null: not before it is revoked")


class TokenOut(TokenIn):
    """A token without its secret."""

    created_at: AwareDatetime
    last_used_at: AwareDatetime | None = None


class TokenSecret(TokenOut):
    """A new token; the secret is shown once and stored as a hash."""

    token: Text


class JoinTokenIn(Schema):
    """A token to join with, which works once. ``host`` null: for any host that has not joined yet."""

    name: Name
    host: Name | None = None
    replace: bool = Field(
        default=False, description="needs `host`: it joins a host that is served already, and revokes its tokens"
    )
    expires_at: Moment | None = Field(default=None, description="at most 30 days from now; null: in a day")


class JoinTokenOut(Schema):
    """A token to join with, without its secret."""

    name: Name
    host: Name | None
    replace: bool = Field(description="it joins a host that is served already, and revokes its tokens")
    created_at: AwareDatetime
    expires_at: AwareDatetime
    used_at: AwareDatetime | None = Field(description="null: not yet")
    used_by: Name | None = Field(description="the host that joined with it")


class JoinTokenSecret(JoinTokenOut):
    """A new one; the secret is shown once and stored as a hash."""

    token: Text


class JoinIn(Schema):
    """What a host joins with."""

    token: Annotated[
        str,
        Field(
            max_length=200,
            description="the secret of a join token",
            json_schema_extra={"format": "password", "writeOnly": True},
        ),
    ]


class JoinOut(Schema):
    """The token that the host's agent uses from now on; it is shown once and stored as a hash."""

    host: Name
    name: Name = Field(description="of the token")
    token: Text
