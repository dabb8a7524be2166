"""PATCH: changes to single fields of what is registered (RFC 7396)."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel

from manager.api.schemas.registration_shapes import MergePatch
from manager.api.validation import read_json

Model = TypeVar("Model", bound=BaseModel)


def patched(current: Model, patch: MergePatch) -> Model:
    """What ``current`` becomes, read as strictly as the body of a PUT. Raises InvalidFields."""
    merged = _merge(current.model_dump(mode="json", by_alias=True), patch.root)
    return read_json(type(current), json.dumps(merged).encode())


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
