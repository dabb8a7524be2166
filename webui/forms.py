"""Forms made from the shapes of the REST interface, so that a form and a request are judged by the same rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flask import Response

from manager.model.fields import adapter_of
from webui.filled import PASSWORD, Schema, Sheet, covers, holds_rows, resolved, row_schema, text_of
from webui.rest import Json
from webui.site import page
from webui.words import CHOICES, label_of, range_words

Choices = tuple[tuple[str, str], ...]
"""Values and the words for them."""

_LONG_TEXT = frozenset({"query", "rate_query"})
_NAMES_OF_ROWS = ("name", "interface")
"""Fields that a new row of a list begins with."""


@dataclass(frozen=True, slots=True)
class Input:
    """One field; ``kind`` is text, number, long, lines, select, check, many, secret or hidden.

    ``values`` is what it shows: one text, or those chosen of ``many``. ``choices`` of a text are suggestions.
    ``listed`` is the address of the list that the choices are only a part of, empty: they are all; ``search``: its part
    that has this in its names.
    """

    path: str
    label: str
    help: str
    kind: str
    values: tuple[str, ...]
    error: str = ""
    required: bool = False
    max_length: int | None = None
    choices: Choices = ()
    focus: bool = False
    listed: str = ""
    search: str = ""
    part: str = "input"


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """Fields that belong together, or the rows of a list.

    ``removable``: a row of a list; ``folded``: away unless ``open``; ``kinds``: rows that can be added, with words.
    """

    path: str
    label: str
    help: str
    parts: tuple[Part, ...]
    error: str = ""
    removable: bool = False
    folded: bool = False
    open: bool = False
    kinds: Choices = ()
    part: str = "group"


Part = Input | FieldGroup


@dataclass(frozen=True, slots=True)
class Look:
    """What the shapes do not say. Paths are without numbers: ``tiers[].vms``.

    ``choices``: values to pick from, those of one row under its path with numbers; ``suggested``: values beside which
    others may stand; ``listed``: the addresses of lists that these are only a part of; ``searched``: what was searched
    for in such a list, by path with numbers; ``folded``: parts at the top that few need; ``only``: the parts at the top
    that are shown, empty: all; ``needed``: parts that may not be left out though the shape lets them; ``labels``: what
    fields are called here; ``focus``: the row to begin with, or the list that a row was removed from.
    """

    choices: Mapping[str, Choices] = field(default_factory=dict)
    suggested: Mapping[str, Sequence[str]] = field(default_factory=dict)
    listed: Mapping[str, str] = field(default_factory=dict)
    searched: Mapping[str, str] = field(default_factory=dict)
    folded: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    focus: str = ""


def parts_of(
    model: type, body: Json, errors: Mapping[str, str] | None = None, look: Look | None = None
) -> tuple[Part, ...]:
    """The form of a shape, showing ``body``, with ``errors`` at their fields."""
    schema = adapter_of(model).json_schema()
    look = look or Look()
    maker = _Maker(schema.get("$defs", {}), errors or {}, look)
    made = [part for part in maker.properties(schema, "", body) if not look.only or part.path in look.only]
    inputs = tuple(part for part in made if isinstance(part, Input) and part.path in look.folded)
    changed = any(part.error or body.get(part.path) is not None for part in inputs)
    more = [FieldGroup("more", "More settings", "", inputs, folded=True, open=changed)] if inputs else []
    return (*(maker.folded(part) for part in made if part not in inputs), *more)


def summary_of(parts: Sequence[Part], errors: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Errors as (path of the field that shows it, empty where none does; label, that of its row before it; message)."""
    inputs = [(shown.path, f"{row}{shown.label}") for shown, row in inputs_of(parts) if shown.kind != "hidden"]
    return [
        (*next((shown for shown in inputs if covers(shown[0], path)), ("", label_of(path))), message)
        for path, message in errors.items()
    ]


def form_page(template: str, sheet: Sheet, parts: Sequence[Part], **values: object) -> Response:
    """A page with a form, and what was refused of it."""
    summary = summary_of(parts, sheet.errors)
    return page(template, sheet.status, sheet=sheet, parts=parts, summary=summary, **values)


def inputs_of(parts: Sequence[Part], row: str = "") -> Iterator[tuple[Input, str]]:
    """All fields, with the label of the row of a list that they are in."""
    for part in parts:
        if isinstance(part, Input):
            yield part, row
        else:
            yield from inputs_of(part.parts, f"{part.label}: " if part.removable else row)


@dataclass(frozen=True, slots=True)
class _Maker:
    definitions: Schema
    errors: Mapping[str, str]
    look: Look

    def properties(self, schema: Schema, path: str, body: Mapping[str, Any]) -> tuple[Part, ...]:
        required = schema.get("required", ())
        return tuple(
            self.part(inner, at, body.get(name), name in required or at in self.look.needed)
            for name, inner in schema["properties"].items()
            for at in [f"{path}.{name}".removeprefix(".")]
        )

    def folded(self, part: Part) -> Part:
        if part.path not in self.look.folded or not isinstance(part, FieldGroup):
            return part
        wrong = any(covers(part.path, path) for path in self.errors)
        pressed = covers(part.path, self.look.focus)
        return FieldGroup(part.path, part.label, part.help, part.parts, part.error, folded=True, open=wrong or pressed)

    def part(self, schema: Schema, path: str, value: Any, required: bool) -> Part:
        found, nullable = resolved(schema, self.definitions)
        if "properties" in found:
            optional = nullable and path not in self.look.needed
            if optional:  # all of it may be left out, so nothing of it must be filled in
                found = {**found, "required": ()}
            inner = self.properties(found, path, value if isinstance(value, dict) else {})
            help_ = "Leave all of it empty for none." if optional else _sentence(found)
            return FieldGroup(path, label_of(path), help_, inner, self.errors.get(path, ""))
        if found.get("type") == "array" and holds_rows(found, self.definitions):
            return self.rows(found, path, value if isinstance(value, list) else [])
        return self.input(found, nullable, path, value, required)

    def rows(self, schema: Schema, path: str, value: Sequence[Any]) -> FieldGroup:
        kinds = schema["items"].get("discriminator", {}).get("mapping", {})
        made = []
        for place, row in enumerate(value):
            at, body = f"{path}[{place}]", row if isinstance(row, dict) else {}
            inner = row_schema(schema["items"], body, self.definitions) or {"properties": {}}
            label = CHOICES.get(str(body.get("type")), f"{label_of(path).removesuffix('s')} {place + 1}")
            parts = self.properties(inner, at, body)
            made.append(FieldGroup(at, label, _sentence(inner), parts, self.errors.get(at, ""), removable=True))
        label = label_of(path)
        row = label.removesuffix("s").lower()
        article = "an" if row.startswith(("a", "e", "i", "o", "u")) else "a"
        addable = tuple((kind, CHOICES.get(kind, kind)) for kind in kinds) or (("", f"{article} {row}"),)
        return FieldGroup(path, label, _sentence(schema), tuple(made), self.errors.get(path, ""), kinds=addable)

    def input(self, schema: Schema, nullable: bool, path: str, value: Any, required: bool) -> Input:
        plain = re.sub(r"\[\d+\]", "[]", path)
        choices = self.look.choices.get(path if path in self.look.choices else plain, ())
        many = schema.get("type") == "array" and plain in self.look.listed
        kind = _kind(schema, nullable, bool(choices) or many, path)
        said, _, unset = schema.get("description", "").partition("null: ")
        if kind == "hidden":
            value = schema["const"]
        elif value is None and not nullable:
            value = schema.get("default")
        if kind == "select":
            words = schema.get("enum", () if choices else ("true", "false"))
            choices = choices or tuple((one, CHOICES.get(one, one)) for one in words)
            if value is not None and text_of(value) not in dict(choices):
                choices = (*choices, (text_of(value), text_of(value)))  # what is registered stays, known or not
            if nullable or value is None:  # nothing is chosen for anybody
                choices = (("", unset or "choose"), *choices)
        elif kind == "text":
            choices = tuple((one, one) for one in self.look.suggested.get(plain, ()))
        notes = [said.rstrip("; "), range_words(schema), f"empty: {unset}" if unset and kind != "select" else ""]
        if kind == "select" and schema.get("type") != "boolean":
            notes = []  # what can be chosen says it
        return Input(
            path,
            self.look.labels.get(plain) or label_of(path),
            _capital("; ".join(filter(None, notes))),
            kind,
            tuple(map(text_of, value)) if isinstance(value, list) else (text_of(value),),
            "; ".join(message for at, message in self.errors.items() if covers(path, at)),
            required,
            schema.get("maxLength"),
            choices,
            listed=self.look.listed.get(plain, ""),
            search=self.look.searched.get(path, ""),
            focus=bool(self.look.focus) and path in {f"{self.look.focus}.{name}" for name in _NAMES_OF_ROWS},
        )


def _kind(schema: Schema, nullable: bool, choices: bool, path: str) -> str:
    kind = schema.get("type")
    if "const" in schema:
        return "hidden"
    if kind == "array":
        return "many" if choices else "lines"
    if kind == "boolean" and not nullable:
        return "check"
    if choices or "enum" in schema or kind == "boolean":
        return "select"
    if path.rsplit(".", 1)[-1] in _LONG_TEXT:
        return "long"
    return "number" if kind in {"integer", "number"} else "secret" if path.endswith(PASSWORD) else "text"


def _sentence(schema: Schema) -> str:
    """A shape's description as help; one with names of fields is for programmers."""
    text = schema.get("description", "")
    return "" if "``" in text else _capital(text.replace("`", ""))


def _capital(text: str) -> str:
    """With a capital at its beginning, unless its first word has one already, as pCPU has."""
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]
