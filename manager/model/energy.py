"""Energy that the processors and the memory of a host used, as RAPL counts it, and their power."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from manager.model.fields import WIRE

Watts = Annotated[float, Field(ge=0, le=1e6)]


class EnergyPart(StrEnum):
    """What a RAPL domain counts: a processor with its caches, or the memory beside it, which is not in the former."""

    PACKAGE = "package"
    DRAM = "dram"


class EnergyCounter(NamedTuple):
    """What a domain used so far, in microjoules; after ``range_uj`` it begins at 0 again."""

    part: EnergyPart
    energy_uj: int
    range_uj: int


class EnergyUse(NamedTuple):
    """What a host used in ``elapsed_s``, in joules; ``dram_j`` None: not counted apart."""

    package_j: float
    dram_j: float | None
    elapsed_s: float

    @property
    def power(self) -> HostPower:
        """The mean power in that time."""
        dram_watts = None if self.dram_j is None else self.dram_j / self.elapsed_s
        return HostPower(self.package_j / self.elapsed_s, dram_watts)


@dataclass(frozen=True, slots=True)
class HostPower:
    """Mean power since the round of readings before, by RAPL: not that of fans, disks and power supplies."""

    package_watts: Annotated[Watts, Field(description="of all processors")]
    dram_watts: Annotated[
        Watts | None,
        Field(exclude_if=lambda watts: watts is None, description="of their memory; absent: not counted apart"),
    ] = None
    __pydantic_config__: ClassVar = WIRE

    @property
    def watts(self) -> float:
        """Of both."""
        return self.package_watts + (self.dram_watts or 0.0)
