"""Registrations from the bodies of PUT and PATCH (RFC 7396)."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic_core import to_json

from manager.api.schemas.registration_shapes import MergePatch
from manager.api.validation import read_json
from manager.model.fields import fields_of, json_fields
from manager.model.registration import Application, ApplicationIn, HostIn, HostSpec, VmIn, VmSpec

Body = TypeVar("Body", ApplicationIn, HostIn, VmIn)
Value = TypeVar("Value", Application, HostSpec, VmSpec)


def named(kind: type[Value], name: str, body: ApplicationIn | HostIn | VmIn) -> Value:
    """The value that a body registers under a name."""
    return kind(name, **fields_of(type(body), body))


def patched(current: Body, patch: MergePatch) -> Body:
    """``current`` with the patch applied, validated like the body of a PUT. Raises InvalidFields."""
    return read_json(type(current), to_json(_merge(json_fields(current), patch.root)))


def _merge(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result
