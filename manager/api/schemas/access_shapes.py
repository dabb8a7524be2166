"""Shapes of users, their sessions, and the audit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from manager.model.fields import Name, Schema, Text

UserRole = Literal["viewer", "operator", "admin"]
_SECRET = {"format": "password", "writeOnly": True}  # as OpenAPI says; errors do not quote such values
Password = Annotated[
    str, Field(min_length=10, max_length=200, description="10 to 200 characters", json_schema_extra=_SECRET)
]
CurrentPassword = Annotated[str, Field(max_length=200, description="up to 200 characters", json_schema_extra=_SECRET)]


class UserRoleIn(Schema):
    """What a user may do."""

    role: UserRole


class UserIn(UserRoleIn):
    """A user to make."""

    name: Name
    password: Password


class UserOut(UserRoleIn):
    """A user without the password."""

    name: Name
    created_at: AwareDatetime
    updated_at: AwareDatetime
    signed_in_at: AwareDatetime | None = Field(default=None, description="last time; null: never")


class PasswordIn(Schema):
    """A new password. ``current_password`` is needed for one's own, and ignored for that of others."""

    current_password: CurrentPassword | None = None
    password: Password


class SessionOut(Schema):
    """A session of the dashboard."""

    created_at: AwareDatetime
    last_seen_at: AwareDatetime = Field(description="to the minute")
    expires_at: AwareDatetime = Field(description="or earlier, when there was no request for a while")
    address: Text


class AuditOut(Schema):
    """One action in the audit."""

    id: int
    at: AwareDatetime
    actor_kind: Literal["user", "token", "local", "unknown"] = Field(
        description="local: a command on the manager's machine; unknown: a failed sign-in"
    )
    actor: Text = Field(description="empty: no user has the name of a failed sign-in")
    role: Text
    address: Text = Field(description="empty: none, as on the manager's machine")
    action: Text = Field(description="such as vm.put")
    object_kind: Text
    object: Text
    before: dict[str, Any] | None = Field(default=None, description="what was registered; null: nothing")
    after: dict[str, Any] | None = Field(default=None, description="what is registered since; null: nothing")
