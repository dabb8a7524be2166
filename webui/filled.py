"""Forms that were filled in, as JSON bodies of requests, not judged yet.

A form's fields are named by the paths that errors name, such as ``sla.response_time_ms`` or ``tiers[0].vms``. Text that
is no number stays text: the interface refuses it at its field, and the form shows it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from flask import abort
from werkzeug.datastructures import MultiDict

from manager.api.validation import InvalidFields, read_json
from manager.model.fields import adapter_of
from webui import rest
from webui.rest import ApiAnswer, Json, RequestRefused
from webui.words import label_of

Given = MultiDict[str, str]
Schema = Mapping[str, Any]

PASSWORD = "password"  # noqa: S105 - how the names of such fields end
_NUMBER = re.compile(r"[-+]?\d{1,300}(\.\d+)?([eE][-+]?\d{1,2})?", re.ASCII)
_MAX_ROWS = 1000
_NOT_FOR_A_FORM = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""Refusals that no other values would change."""


@dataclass(slots=True)
class Sheet:
    """A form while it is worked on: its values, what is wrong with them, and the answer once they were sent.

    ``theirs`` are the fields that another user has registered otherwise since: (field, here, there).
    """

    name: str = ""
    body: Json = field(default_factory=dict)
    etag: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""
    theirs: list[tuple[str, str, str]] = field(default_factory=list)
    focus: str = ""
    status: int = HTTPStatus.OK
    answer: ApiAnswer | None = None

    def invalid(self, errors: Mapping[str, str]) -> bool:
        """Refuse the values if these are errors of its fields; whether there is any error."""
        self.errors = {**self.errors, **errors}
        if self.errors:
            self.status, self.detail = HTTPStatus.UNPROCESSABLE_ENTITY, "some fields are invalid"
        return bool(self.errors)

    def send(self, method: str, path: str, *, body: object = None, new: bool = False) -> bool:
        """Ask the interface; False: it refused, and the sheet says why. Raises RequestRefused where rights lack."""
        try:
            self.answer = rest.call(method, path, body=body, etag=self.etag, new=new)
        except RequestRefused as refused:
            if refused.status in _NOT_FOR_A_FORM:
                raise
            self.status, self.detail, self.errors = refused.status, refused.detail, _discreet(refused.errors)
        return self.answer is not None

    def submit(self, model: type, given: Given, method: str, path: str) -> bool:
        """Send what was filled in, unless the shape refuses it already; False: it was refused."""
        self.body = read_form(model, given)
        return not self.invalid(check(model, self.body)) and self.send(method, path, body=self.body)


def etag_of(given: Given) -> str:
    """The version that a form was made from, empty for a new object. Aborts with 400 where it cannot be one."""
    etag = given.get("etag", "")
    if not re.fullmatch(r"[\w.-]{0,100}", etag, re.ASCII):
        abort(HTTPStatus.BAD_REQUEST)
    return etag


def read_form(model: type, given: Given) -> Json:
    """The body that was filled in."""
    schema = adapter_of(model).json_schema()
    body: Json = _read(schema, schema.get("$defs", {}), "", given)
    return body


def check(model: type, body: Json) -> dict[str, str]:
    """What the shape refuses of a body: messages by field, those of the interface itself."""
    try:
        read_json(model, json.dumps(body).encode())
    except InvalidFields as refused:
        return _discreet({error.field: error.message for error in refused.errors})
    return {}


def _discreet(errors: Mapping[str, str]) -> dict[str, str]:
    """The errors without the passwords that they quote."""
    quoted = " is refused: "
    return {
        path: message.rpartition(quoted)[2] if path.endswith(PASSWORD) and quoted in message else message
        for path, message in errors.items()
    }


def press(body: Json, button: str) -> tuple[Json, str]:
    """The body after a button such as ``add tiers``, ``add sources push`` or ``remove network.uplinks[1]``.

    The second answer is the path of the row that was added, or of the list that has one less; empty: nothing was done.
    """
    found = re.fullmatch(r"(add|remove) ([\w.]+)(?:\[(\d{1,4})\]|(?: (\w+))?)", button, re.ASCII)
    rows = _below(body, found[2].split(".")) if found else None
    if not found or not isinstance(rows, list):
        return body, ""
    path = found[2]
    if found[1] == "add" and len(rows) < _MAX_ROWS:
        return _with(body, path.split("."), [*rows, {"type": found[4]} if found[4] else {}]), f"{path}[{len(rows)}]"
    place = int(found[3] or _MAX_ROWS)
    return _with(body, path.split("."), rows[:place] + rows[place + 1 :]), path


def _below(body: Any, names: Sequence[str]) -> Any:
    """What a body holds under these names, one inside the other; None: nothing."""
    for name in names:
        body = body.get(name) if isinstance(body, dict) else None
    return body


def _with(body: Json, names: Sequence[str], value: object) -> Json:
    """The body with another value under these names."""
    name, *others = names
    return {**body, name: _with(body[name], others, value) if others else value}


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, str, str]]:
    """Where two bodies differ: (path, ours, theirs), as text."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = list(dict.fromkeys([*ours, *theirs]))
        below = [(ours.get(key), theirs.get(key), f"{path}.{key}".removeprefix(".")) for key in keys]
    elif isinstance(ours, list) and isinstance(theirs, list) and any(isinstance(one, dict) for one in [*ours, *theirs]):
        both = max(len(ours), len(theirs))
        mine, other = (one + [None] * (both - len(one)) for one in (ours, theirs))
        below = [(mine[place], other[place], f"{path}[{place}]") for place in range(both)]
    else:
        return [] if ours == theirs else [(path, shown(ours), shown(theirs))]
    return [one for mine, other, at in below for one in differences(mine, other, at)]


def shown(value: object) -> str:
    """A value of a body as a person reads it."""
    if value in (None, "", []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return "; ".join(f"{label_of(str(key))}: {shown(one)}" for key, one in value.items())
    return text_of(value)


def text_of(value: object) -> str:
    """A value of a body as a field shows it, such as ``95`` for 95.0, and nothing for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    return "" if value is None else str(value)


def covers(path: str, other: str) -> bool:
    """Whether a path names the other one or something above it."""
    return other == path or other.startswith((f"{path}[", f"{path}."))


def resolved(schema: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """A schema without references, its own words above those it refers to, and whether null is allowed beside it."""
    own = dict(schema)
    options = own.pop("anyOf", [])
    inner: Schema = next((option for option in options if option.get("type") != "null"), {})
    reference = own.pop("$ref", inner.get("$ref"))
    target = dict(inner if reference is None else definitions[reference.rsplit("/", 1)[-1]])
    if "enum" in target:
        target.pop("description", None)  # that of the type is for programmers
    return {**target, **own}, len(options) > 1


def row_schema(items: Schema, row: Mapping[str, Any], definitions: Schema) -> Schema | None:
    """The schema of one item of a list. Of several kinds it is the one that the item's type names, None for no kind."""
    if "discriminator" not in items:
        return resolved(items, definitions)[0]
    reference = items["discriminator"]["mapping"].get(str(row.get(items["discriminator"]["propertyName"])))
    return None if reference is None else resolved({"$ref": reference}, definitions)[0]


def holds_rows(schema: Schema, definitions: Schema) -> bool:
    """Whether the items of a list are objects."""
    items = schema["items"]
    return "discriminator" in items or "properties" in resolved(items, definitions)[0]


def _read(schema: Schema, definitions: Schema, path: str, given: Given) -> Any:
    """What was filled in for a schema; None where nothing was."""
    if "properties" in schema:
        return _read_object(schema, definitions, path, given)
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "array":
        if holds_rows(schema, definitions):
            return _read_rows(schema, definitions, path, given)
        return [line.strip() for text in given.getlist(path) for line in text.splitlines() if line.strip()]
    text = given.get(path, "")
    return _value(schema.get("type"), text if path.endswith(PASSWORD) else text.strip().replace("\r\n", "\n"))


def _value(kind: str | None, text: str) -> object:
    if kind == "boolean" and text in {"true", "false"}:
        return text == "true"
    if kind in {"integer", "number"} and _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    return text or None


def _read_object(schema: Schema, definitions: Schema, path: str, given: Given) -> Json:
    body: Json = {}
    for name, inner in schema["properties"].items():
        below, nullable = resolved(inner, definitions)
        value = _read(below, definitions, f"{path}.{name}".removeprefix("."), given)
        if nullable and "properties" in below and _untouched(below, value):
            value = None
        if value is None and not nullable:
            # An unticked box is not sent, and an emptied field is at its default only if that is empty.
            value = {"boolean": False, "string": below.get("default")}.get(below.get("type", ""))
        if value is not None or nullable:
            body[name] = value
    return body


def _read_rows(schema: Schema, definitions: Schema, path: str, given: Given) -> list[Any]:
    numbered = re.compile(rf"{re.escape(path)}\[(\d{{1,4}})\]")
    rows: list[Any] = []
    for place in sorted({int(found[1]) for key in given if (found := numbered.match(key))})[:_MAX_ROWS]:
        at = f"{path}[{place}]"
        kind = {"type": given.get(f"{at}.type", "")}
        row = row_schema(schema["items"], kind, definitions)
        rows.append(kind if row is None else _read(row, definitions, at, given))
    return rows


def _untouched(schema: Schema, value: Mapping[str, Any]) -> bool:
    """Whether an object that may be left out was: each field is empty or at its default."""
    return all(one is None or one == schema["properties"][name].get("default") for name, one in value.items())
