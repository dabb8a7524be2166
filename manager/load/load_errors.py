"""What the load generator raises on purpose; the text is meant for the person who started it."""

from __future__ import annotations

from manager.errors import EquipoiseError


class LoadError(EquipoiseError):
    """The load could not be produced: the server is not there, or refused what had to come first."""


class SpecError(LoadError):
    """A value of the specification is unusable. ``field`` is its name in LoadSpec, Phase or the options."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value!r} is refused: use {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed
