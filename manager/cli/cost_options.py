"""Options for the costs of a host, and the costs that a manager answers with a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from manager.cli.options import NumberRange
from manager.model.costs import COST_RANGES, STUDY_COSTS, HostCosts
from manager.model.fields import adapter_of

_DESCRIPTIONS: Mapping[str, str] = {
    name: shape["description"] for name, shape in adapter_of(HostCosts).json_schema()["properties"].items()
}


def cost_options(default: str) -> Callable[[Any], Any]:
    """An option for each cost, None unless it is given; help says that the default is ``default``."""

    def decorate(function: Any) -> Any:
        for name in reversed(COST_RANGES):
            text = _DESCRIPTIONS[name]
            function = click.option(
                "--" + name.replace("_", "-"),
                name,
                type=NumberRange(*COST_RANGES[name]),
                default=None,
                help=f"{text[0].upper()}{text[1:]}. [default: {default}]",
            )(function)
        return function

    return decorate


def given_costs(options: Mapping[str, float | None]) -> dict[str, float]:
    """Of the options, those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def costs_of(host: Mapping[str, Any], given: Mapping[str, float]) -> HostCosts:
    """The costs of a host as the interface answers it, with those that were given in their place.

    A manager of an earlier version answers none: those of the study count.
    """
    known = {name: value for name, value in (host.get("costs") or {}).items() if name in COST_RANGES}
    return replace(STUDY_COSTS, **{**known, **given})
