"""How much load an application may have beside batch VMs: the rows of its interference tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import WIRE, Count, Text

ANY_LOSS = 1.0
LOSS_BOUNDS = (0.05, 0.1, 0.25, 0.5, ANY_LOSS)
"""Parts of their CPU time that batch VMs may lose, for each of which a table has a row."""

_Load = Annotated[float, Field(ge=0)]
_Part = Annotated[float, Field(ge=0, le=1)]


class BatchClass(StrEnum):
    """How much CPU time batch VMs want on a host, over that of all its pCPUs.

    ``none``: below 5 %, ``light``: below 25 %, ``moderate``: below 50 %, ``heavy``: below 100 %, ``full``: all of it
    or more.
    """

    NONE = "none"
    LIGHT = "light"
    MODERATE = "moderate"
    HEAVY = "heavy"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class LargestLoad:
    """The largest load of an application beside one class of batch VMs that lose at most ``max_loss``, in req/s.

    It meets the SLA up to ``load_rps`` and does not from ``violated_rps`` on, each with 95 % confidence. What is
    between them is not known.
    """

    batch: BatchClass
    max_loss: Annotated[_Part, Field(description="part of their CPU time that batch VMs lose at most; 1: any")]
    load_rps: Annotated[_Load | None, Field(description="largest load that is known to do; null: none is")]
    peak_share: Annotated[_Part | None, Field(description="of the largest load that was measured beside any batch VMs")]
    violated_rps: Annotated[_Load | None, Field(description="from this load on it does not; null: none is known")]
    measured_rps: Annotated[_Load | None, Field(description="largest load that was measured in this class; null: none")]
    minutes: Annotated[Count, Field(description="minutes that were measured in this class")]
    why: Annotated[Text, Field(description="why no load is known, or no larger one")]
    __pydantic_config__: ClassVar = WIRE
