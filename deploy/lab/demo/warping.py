"""Whether the phase of warps is played: only by a mechanism that was measured to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manager.model.warp import TITLES, Mechanism, WarpUse

_USES = {Mechanism.SCHED_EXT: WarpUse.SCHED_EXT, Mechanism.BVT: WarpUse.ON}
"""What the host is set to for each of them, the best first."""


def warp_to_show(offers: Sequence[Mapping[str, Any]]) -> tuple[WarpUse, str]:
    """How the host's ``warp`` is set in that phase, ``off`` where it is left out, and why; by what the agent tells."""
    by_mechanism = {offer["mechanism"]: offer for offer in offers}
    for mechanism, use in _USES.items():
        if by_mechanism.get(mechanism, {}).get("available"):
            return use, f"by {TITLES[mechanism]}"
    lacking = "; ".join(by_mechanism[mechanism]["detail"] for mechanism in _USES if mechanism in by_mechanism)
    return WarpUse.OFF, "no mechanism that was measured to help is here" + f": {lacking}" * bool(lacking)
