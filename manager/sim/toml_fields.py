"""Reads tables of a TOML file with errors that name field, value and range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from manager.errors import SettingsError
from manager.model.fields import NAME_PATTERN

Choice = TypeVar("Choice", bound=StrEnum)


class Fields:
    """One table; ``where`` is its path in error messages, such as ``applications[0].sla``."""

    def __init__(self, table: object, where: str = "") -> None:
        """Raises SettingsError when it is not a table."""
        if not isinstance(table, dict):
            raise SettingsError(f"{where or 'the file'}: {table!r} is refused: use a table")
        self._table: Mapping[str, object] = table
        self._where = where
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """The full name of a field."""
        return f"{self._where}.{name}" if self._where else name

    def refuse(self, name: str, use: str) -> SettingsError:
        """The error for an unusable value."""
        shown = repr(self._table[name]) if name in self._table else "nothing"
        return SettingsError(f"{self.path(name)} = {shown} is refused: use {use}")

    def has(self, name: str) -> bool:
        """Whether the field is given."""
        return name in self._table

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A number between two bounds. Without a default it must be given."""
        value = self._take(name, default)
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        if not usable or not low <= float(str(value)) <= high:
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(str(value))

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number between two bounds."""
        value = self._take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refuse(name, f"a whole number from {low} to {high}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Any text."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self.refuse(name, "a text")
        return value

    def name(self, name: str) -> str:
        """The name of an application, tier or VM."""
        value = self.text(name)
        if not re.fullmatch(NAME_PATTERN, value):
            raise self.refuse(
                name, "1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit"
            )
        return value

    def choice(self, name: str, kind: type[Choice], default: Choice | None = None) -> Choice:
        """One of the names of an enumeration."""
        value = self._take(name, default)
        if value not in list(kind):
            raise self.refuse(name, " or ".join(repr(str(one)) for one in kind))
        return kind(str(value))

    def table(self, name: str) -> Fields | None:
        """A table inside, None where it is not given."""
        value = self._take(name, None, optional=True)
        return None if value is None else Fields(value, self.path(name))

    def tables(self, name: str, least: int = 0) -> list[Fields]:
        """A list of tables."""
        value = self._take(name, None, optional=True)
        rows = [] if value is None else value
        if not isinstance(rows, list) or len(rows) < least:
            raise self.refuse(name, f"a list of {'at least one table' if least else 'tables'}")
        return [Fields(row, f"{self.path(name)}[{number}]") for number, row in enumerate(rows)]

    def close(self) -> None:
        """Raises SettingsError when a field was given that nobody read."""
        unknown = sorted(self._table.keys() - self._read)
        if unknown:
            known = ", ".join(sorted(self._read))
            raise SettingsError(f"{self.path(unknown[0])} is not a field here: use {known}")

    def _take(self, name: str, default: object, optional: bool = False) -> object:
        self._read.add(name)
        if name not in self._table and default is None and not optional:
            raise SettingsError(f"{self.path(name)} is missing")
        return self._table.get(name, default)
