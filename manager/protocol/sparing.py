"""Reading a body whose lists hold what cannot be accepted: that is left out and named, the rest is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from manager.model.fields import adapter_of

Model = TypeVar("Model")
Place = tuple[str, int | None]
"""A field of the body, and the number of an item where the field is a list."""


@dataclass(frozen=True, slots=True)
class Spoilt:
    """What was left out: where it was, as it came, and the first of its errors."""

    place: Place
    value: Any
    error: ErrorDetails


@dataclass(frozen=True, slots=True)
class Sparing(Generic[Model]):
    """What could be read. ``numbers``: of each list that lost items, the numbers that the others had."""

    model: Model
    spoilt: Sequence[Spoilt]
    numbers: Mapping[str, Sequence[int]]

    def number(self, field: str, index: int) -> int:
        """The number that an item had in the body."""
        return self.numbers[field][index] if field in self.numbers else index


def read_sparing(
    model: type[Model], content: bytes, lists: Sequence[str], parts: Sequence[str] = (), *, strict: bool
) -> Sparing[Model]:
    """Read JSON, passing over fields that are not known, items of ``lists`` and ``parts`` that cannot be accepted.

    ``parts`` are fields that may be null. Raises ValidationError where anything else cannot be accepted.
    """
    try:
        return Sparing(adapter_of(model).validate_json(content, strict=strict, extra="ignore"), (), {})
    except ValidationError as error:
        first: dict[Place, ErrorDetails] = {}
        for detail in error.errors(include_url=False):
            first.setdefault(_place(detail["loc"], lists, parts, error), detail)
        body = from_json(content)
    spoilt = [Spoilt(place, _at(body, place), detail) for place, detail in first.items()]
    numbers: dict[str, list[int]] = {}
    for name, index in first:
        if index is None:
            body[name] = None
        else:
            numbers.setdefault(name, list(range(len(body[name])))).remove(index)
    body |= {name: [body[name][index] for index in kept] for name, kept in numbers.items()}
    rest = to_json(body, inf_nan_mode="constants")
    return Sparing(adapter_of(model).validate_json(rest, strict=strict, extra="ignore"), spoilt, numbers)


def _place(
    location: tuple[int | str, ...], lists: Sequence[str], parts: Sequence[str], error: ValidationError
) -> Place:
    """What is to be left out because of an error there. Raises ``error`` where nothing can be."""
    match location:
        case (str(name), int(index), *_) if name in lists:
            return name, index
        case (str(name), *_) if name in parts:
            return name, None
    raise error


def _at(body: Any, place: Place) -> Any:
    name, index = place
    return body[name] if index is None else body[name][index]
