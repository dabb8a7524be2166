"""Schemas of users, sessions, tokens and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from manager.model.fields import Moment, Name, Schema, Text

UserRole = Literal["viewer", "operator", "admin"]
_SECRET = {"format": "password", "writeOnly": True}  # as in OpenAPI; errors do not quote such values
Password = Annotated[
    str, Field(min_length=10, max_length=200, description="10 to 200 characters", json_schema_extra=_SECRET)
]
CurrentPassword = Annotated[str, Field(max_length=200, description="up to 200 characters", json_schema_extra=_SECRET)]
JoinSecret = Annotated[str, Field(max_length=200, description="the secret of a join token", json_schema_extra=_SECRET)]


class UserRoleIn(Schema):
    """The role of a user."""

    role: UserRole


class UserIn(UserRoleIn):
    """A new user."""

    name: Name
    password: Password


class UserOut(UserRoleIn):
    """A user without the password."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    signed_in_at: AwareDatetime | None = Field(default=None, description="last time; null: never")


class PasswordIn(Schema):
    """A new password. ``current_password`` is required for your own, and ignored for other users."""

    current_password: CurrentPassword | None = None
    password: Password


class SessionOut(Schema):
    """A session of the dashboard."""

    created_at: AwareDatetime
    last_seen_at: AwareDatetime = Field(description="to the minute")
    expires_at: AwareDatetime = Field(description="or earlier, after a while without requests")
    address: Text


class AuditOut(Schema):
    """One action in the audit."""

    id: int
    at: AwareDatetime
    actor_kind: Literal["user", "token", "local", "unknown"] = Field(
        description="local: a command on the manager's machine; unknown: a failed sign-in"
    )
    actor: Text = Field(description="empty: failed sign-in with an unknown name")
    role: Text
    address: Text = Field(description="empty: none, as for local commands")
    action: Text = Field(description="such as vm.put")
    object_kind: Text
    object: Text
    before: dict[str, Any] | None = Field(default=None, description="what was registered; null: nothing")
    after: dict[str, Any] | None = Field(default=None, description="what is registered now; null: nothing")


class TokenIn(Schema):
    """A new token. ``host`` binds a host token to one host, ``application`` a source token to one application.

    Each is required for that role only.
    """

    name: Name
    role: Literal["viewer", "operator", "admin", "host", "source"]
    host: Name | None = Field(default=None, description="for role host only: the host whose agent uses it")
    application: Name | None = Field(
        default=None, description="for role source only: the application whose response times it sends"
    )
    expires_at: Moment | None = Field(default=None, description="when it expires; null: never")


class TokenOut(TokenIn):
    """A token without its secret."""

    created_at: AwareDatetime
    last_used_at: AwareDatetime | None = None


class TokenSecret(TokenOut):
    """A new token; its secret is shown once and stored as a hash."""

    token: Text


class JoinTokenIn(Schema):
    """A single-use join token. ``host`` null: for any host that has not joined yet."""

    name: Name
    host: Name | None = None
    replace: bool = Field(
        default=False,
        description="needs `host`: replaces the agent of a host that has joined, and revokes the tokens of the host",
    )
    expires_at: Moment | None = Field(default=None, description="at most 30 days from now; null: in a day")


class JoinTokenOut(JoinTokenIn):
    """A join token without its secret."""

    created_at: AwareDatetime
    expires_at: AwareDatetime
    used_at: AwareDatetime | None = Field(default=None, description="null: not yet")
    used_by: Name | None = Field(default=None, description="the host that joined with it")


class JoinTokenSecret(JoinTokenOut):
    """A new join token; its secret is shown once and stored as a hash."""

    token: Text


class JoinIn(Schema):
    """The request of a host to join."""

    token: JoinSecret


class JoinOut(Schema):
    """The token for the host's agent; its secret is shown once and stored as a hash."""

    host: Name
    name: Name = Field(description="of the token")
    token: Text
