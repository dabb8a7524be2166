"""Reads requests into schemas; errors name the field, its value, and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from werkzeug.exceptions import BadRequest

from manager.errors import InvalidRequest
from manager.masking import masked
from manager.model.fields import adapter_of

Model = TypeVar("Model")
Subschemas = list[dict[str, Any]]

_MAX_ERRORS = 20
_MAX_VALUE_TEXT = 80
_MAX_MASKED_TEXT = 4000
_KEY = "[key]"  # pydantic's mark for an error of a mapping's key
_TAG_ERRORS = frozenset({"union_tag_invalid", "union_tag_not_found"})
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_SIZES = frozenset({"too_long", "too_short"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """An invalid field: its JSON path such as ``tiers[0].vms[1]``, and a message with value and range."""

    field: str
    message: str


class InvalidFields(InvalidRequest):
    """Fields hold invalid values; ``errors`` holds the first ``_MAX_ERRORS`` of them."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__(errors[0].field, errors[0].message)
        self.errors = tuple(errors[:_MAX_ERRORS])


def read_json(model: type[Model], text: bytes) -> Model:
    """A request's body. Raises BadRequest for malformed JSON, InvalidFields for invalid values.

    Strict: a number as text, or 1 for true, is refused. Fields have the names of the document alone, not those under
    which values are kept. The parser limits nesting.
    """
    try:
        return adapter_of(model).validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refusal(model, error) from None


def refusal(model: type, error: ValidationError) -> BadRequest | InvalidFields:
    """The error for a body that cannot be read as ``model``."""
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        if detail["type"] == "json_invalid":
            return BadRequest(f"the body {_not_json(detail)}")
    return _invalid_fields(model, error)


def read_lines(model: type[Model], text: bytes, most: int) -> list[Model]:
    """A request's body with one JSON object per line; empty lines are skipped. Raises InvalidFields.

    Errors name fields of ``lines[n]``, n counting from 0 without empty lines.
    """
    lines = [line for line in text.split(b"\n") if line.strip()]
    if len(lines) > most:
        raise InvalidFields([FieldError("lines", f"{len(lines)} are refused; allowed: at most {most}")])
    read: list[Model] = []
    errors: list[FieldError] = []
    for place, line in enumerate(lines):
        try:
            read.append(adapter_of(model).validate_json(line, strict=True))
        except ValidationError as error:
            errors += [_of_line(place, invalid) for invalid in _invalid_fields(model, error).errors]
            if len(errors) >= _MAX_ERRORS:
                break
    if errors:
        raise InvalidFields(errors)
    return read


def _of_line(place: int, error: FieldError) -> FieldError:
    field = f"lines[{place}]" if error.field == "body" else f"lines[{place}].{error.field}"
    return FieldError(field, error.message)


def read_text(model: type[Model], values: Mapping[str, str]) -> Model:
    """Path, query string or headers: values are text. Raises InvalidFields."""
    try:
        return adapter_of(model).validate_python(values)
    except ValidationError as error:
        raise _invalid_fields(model, error) from None


def shown(value: object) -> str:
    """A value as JSON for a message, shortened, with secrets masked."""
    # Masked before it is shortened: the password of a URL is recognised by the text after it.
    text = masked(json.dumps(value, ensure_ascii=False, default=str)[:_MAX_MASKED_TEXT])
    return text if len(text) <= _MAX_VALUE_TEXT else text[:_MAX_VALUE_TEXT] + "…"


def _invalid_fields(model: type, error: ValidationError) -> InvalidFields:
    details = error.errors(include_url=False)
    return InvalidFields([field_error(model, detail) for detail in details[:_MAX_ERRORS]])


@cache
def _schema_of(model: type) -> dict[str, Any]:
    """Cached: generating it takes a millisecond, and each line of a body may be refused."""
    return adapter_of(model).json_schema()


def field_error(model: type, error: ErrorDetails) -> FieldError:
    """The message for one of pydantic's errors about a ``model``."""
    schema = _schema_of(model)
    location = _without_tags(schema, [step for step in error["loc"] if step != _KEY])
    if error["type"] in _TAG_ERRORS:
        return _tag_error(schema, location, error)
    field = _json_path(location)
    if error["type"] in _UNKNOWN:
        names = sorted(name for at in _at(schema, location[:-1]) for name in at.get("properties", {}))
        return FieldError(field, f"is not a known field; known: {', '.join(names) or 'none'}")
    if error["type"] == "json_invalid":
        return FieldError(field, _not_json(error))
    if _KEY in error["loc"]:
        described = (str(at["description"]) for at in _at(schema, location[:-1]) if "description" in at)
        return FieldError(field, f"{shown(error['input'])} is refused; allowed: {' or '.join(described)}")
    allowed = _range_text(schema, location)
    if error["type"] == "missing":
        message = "is required"
    elif any("writeOnly" in at for at in _at(schema, location)):
        message = "is refused"
    else:
        value = error["input"]
        message = f"{len(value)} are refused" if error["type"] in _SIZES else f"{shown(value)} is refused"
    if error["type"] == "value_error":  # raised by our own validators
        message += f": {error['msg'].removeprefix('Value error, ')}"
    return FieldError(field, f"{message}; allowed: {allowed}" if allowed else message)


def _not_json(error: ErrorDetails) -> str:
    return f"is not JSON: {error['msg'].removeprefix('Invalid JSON: ')}"


class _Tag(str):
    """A step of pydantic's locations that names the chosen member of a union; not part of the path."""

    __slots__ = ()


def _without_tags(schema: dict[str, Any], location: Sequence[int | str]) -> list[int | str]:
    """The location with the tags of unions marked as such."""
    steps: list[int | str] = []
    for step in location:
        mappings = [at["discriminator"]["mapping"] for at in _at(schema, steps) if "discriminator" in at]
        steps.append(_Tag(step) if isinstance(step, str) and any(step in tags for tags in mappings) else step)
    return steps


def _tag_error(schema: dict[str, Any], location: Sequence[int | str], error: ErrorDetails) -> FieldError:
    """The error for an object whose tag is missing or unknown."""
    [union] = [at["discriminator"] for at in _at(schema, location) if "discriminator" in at]
    name = union["propertyName"]
    tag = error["input"].get(name) if isinstance(error["input"], dict) else None
    message = "is required" if tag is None else f"{shown(tag)} is refused"
    return FieldError(_json_path([*location, name]), f"{message}; allowed: {', '.join(union['mapping'])}")


def _json_path(location: Sequence[int | str]) -> str:
    steps = [step for step in location if not isinstance(step, _Tag)]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return path.removeprefix(".") or "body"


def _range_text(schema: dict[str, Any], location: Sequence[int | str]) -> str:
    """The values that a field's schema allows, without null; empty: any."""
    texts = (_words(at) for at in _at(schema, location))
    return " or ".join(dict.fromkeys(filter(None, texts)))


def _words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") in {"integer", "number"}:
        bounds = [
            f"{words} {schema[key]:.16g}"
            for key, words in (
                ("minimum", "at least"),
                ("exclusiveMinimum", "more than"),
                ("maximum", "at most"),
                ("exclusiveMaximum", "less than"),
            )
            if key in schema
        ]
        kind = "a whole number" if schema["type"] == "integer" else "a number"
        return " ".join([kind, " and ".join(bounds)]).strip()
    if schema.get("type") == "string":
        return str(schema.get("description", "text"))
    simple = {"boolean": "true or false", "object": "an object"}
    if schema.get("type") == "array":
        return f"a list of at most {schema['maxItems']}" if "maxItems" in schema else "a list"
    return simple.get(schema.get("type", ""), "")


def _at(schema: dict[str, Any], location: Sequence[int | str]) -> Subschemas:
    """The subschemas that may describe the value at a location; empty if the location does not exist."""
    definitions = schema.get("$defs", {})
    subschemas = _alternatives(schema, definitions)
    for step in location:
        below: Subschemas = []
        for at in subschemas:
            inner: object
            if isinstance(step, _Tag):
                inner = {"$ref": at["discriminator"]["mapping"][step]} if "discriminator" in at else None
            elif isinstance(step, int):
                inner = at.get("items")
            else:
                inner = at.get("properties", {}).get(step, at.get("additionalProperties"))
            if isinstance(inner, dict):
                below.extend(_alternatives(inner, definitions))
        subschemas = below
    return subschemas


def _alternatives(schema: dict[str, Any], definitions: Mapping[str, Any]) -> Subschemas:
    if "$ref" in schema:
        return _alternatives(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    if "anyOf" in schema:
        return [inner for option in schema["anyOf"] for inner in _alternatives(option, definitions)]
    return [schema]
