"""Scenarios as the text of a file: the inverse of ``manager.sim.scenario_files``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from manager.errors import SettingsError
from manager.model.cpus import format_cpus
from manager.sim.scenario import AppSpec, Scenario, TierSpec

_LISTS = ("applications", "batch", "faults", "settings")
_LONG = 4
"""A list of so many tables has a line for each."""


def scenario_text(scenario: Scenario) -> str:
    """TOML that ``parse_scenario`` reads as the same scenario; its name is left out. Defaults are not written.

    Raises SettingsError for a scenario with a cache, whose sizes in files have units.
    """
    if scenario.cache is not None:
        raise SettingsError(f"scenario {scenario.name}: one with a cache cannot be written to a file")
    lines = [f"{name} = {_text(value)}" for name, value in _set(scenario) if name not in ("name", *_LISTS)]
    for name in _LISTS:
        for row in getattr(scenario, name):
            lines += ["", f"[[{name}]]", *(f"{field} = {_text(value)}" for field, value in _set(row))]
    return "\n".join(lines) + "\n"


def _set(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a table that are not as by default, by the names that files give them."""
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if own == made or own is None:
            continue
        if isinstance(value, TierSpec) and field.name == "service":
            yield from (("service" if name == "shape" else name, part) for name, part in _set(own))
        elif isinstance(value, AppSpec) and field.name == "sla":
            yield from _set(own)
        else:
            yield ("source" if isinstance(value, AppSpec) and field.name == "route" else field.name), own


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, frozenset):
        return _text(format_cpus(value))
    if isinstance(value, tuple):
        rows = [_text(part) for part in value]
        return f"[{', '.join(rows)}]" if len(rows) < _LONG else "[\n" + "".join(f"  {row},\n" for row in rows) + "]"
    return "{ " + ", ".join(f"{name} = {_text(part)}" for name, part in _set(value)) + " }"
