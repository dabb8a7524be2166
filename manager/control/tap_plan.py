"""What batch VMs may send at their taps: the same for each, where nobody else has set anything there.

Shares divide what leaves the host. What a VM sends to others on its bridge, and the pCPU time that its packets take,
only a limit at its tap holds back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manager.model.decision import Goal, VmView
from manager.model.knobs import KnobKey
from manager.model.network import ANOTHER

_KBIT_PER_MBIT = 1000


@dataclass(frozen=True, slots=True)
class TapPlan:
    """The goals, and what an operator should know."""

    goals: tuple[Goal, ...] = ()
    problems: tuple[str, ...] = ()


def plan_taps(
    views: Sequence[VmView],
    uuids: Mapping[str, str],
    limit_mbit: int | None,
    limits: Mapping[KnobKey, int],
    journalled: Mapping[KnobKey, int],
) -> TapPlan:
    """``limits``: what taps are limited to now; ``journalled``: what they were given. None: there is to be no limit."""
    if limit_mbit is None:
        return TapPlan()
    goals: list[Goal] = []
    kept: list[str] = []
    for view in sorted((view for view in views if not view.critical), key=lambda view: view.name):
        for key, held in sorted(limits.items()):
            if key.uuid != uuids[view.name]:
                continue
            if held == ANOTHER and key not in journalled:
                kept.append(view.name)
            else:
                goals.append(Goal(key, limit_mbit * _KBIT_PER_MBIT, "batch VM: batch_tap_mbit of the host", view.mode))
    problems = [
        f"VM {name} is not limited to {limit_mbit} Mbit/s: another tool, such as libvirt for <bandwidth>, "
        "has set what its tap takes, which stays"
        for name in dict.fromkeys(kept)
    ]
    return TapPlan(tuple(goals), tuple(problems))
