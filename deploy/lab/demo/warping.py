"""Whether the phase of warps is played: only by a mechanism that was measured to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manager.model.warp import TITLES, Mechanism, WarpUse

_USES = {Mechanism.SCHED_EXT: WarpUse.SCHED_EXT, Mechanism.BVT: WarpUse.ON}
"""What the host is told for each of them, the best first."""


def warp_to_show(offers: Sequence[Mapping[str, Any]]) -> tuple[WarpUse, str]:
    """How the host's ``warp`` is set in that phase, ``off`` where it is left out, and why; by what the agent tells."""
    by_rung = {offer["rung"]: offer for offer in offers}
    for rung, use in _USES.items():
        if by_rung.get(rung, {}).get("there"):
            return use, f"by {TITLES[rung]}"
    lacking = "; ".join(by_rung[rung]["detail"] for rung in _USES if rung in by_rung)
    return WarpUse.OFF, "no mechanism that was measured to help is here" + f": {lacking}" * bool(lacking)
