"""What a host costs: its price, its power, and what a dollar for electricity comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import CLOSED, bounds_of

_MOST_FACTOR = 10


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What a host costs, for the report of savings. The defaults are those of a study (EuroSys 2014, table 2)."""

    server_usd: Annotated[float, Field(ge=0, le=1e7, description="price of the server, in dollars")] = 2000.0
    years: Annotated[float, Field(ge=0.1, le=20, description="years that it serves")] = 3.0
    usd_per_kwh: Annotated[float, Field(ge=0, le=100, description="price of a kWh of electricity, in dollars")] = 0.08
    peak_watts: Annotated[float, Field(ge=1, le=1e5, description="power of the server at full CPU use, in W")] = 300.0
    idle_percent: Annotated[float, Field(ge=0, le=100, description="power of the idle server, in % of that")] = 50.0
    delivery_factor: Annotated[
        float,
        Field(
            ge=0, le=_MOST_FACTOR, description="dollars for power delivery per dollar of electricity (K1 of the study)"
        ),
    ] = 1.33
    cooling_factor: Annotated[
        float,
        Field(ge=0, le=_MOST_FACTOR, description="W that cooling takes per W of the server (L1 of the study)"),
    ] = 0.8
    cooling_capital_factor: Annotated[
        float,
        Field(
            ge=0,
            le=_MOST_FACTOR,
            description="dollars for cooling equipment per dollar of electricity for cooling (K2 of the study)",
        ),
    ] = 0.25
    __pydantic_config__: ClassVar = CLOSED

    @property
    def idle_part(self) -> float:
        """Of the power at full CPU use, what the idle server draws, 0 .. 1."""
        return self.idle_percent / 100


STUDY_COSTS = HostCosts()
COST_RANGES = bounds_of(HostCosts)
"""Least and largest value of each cost."""
