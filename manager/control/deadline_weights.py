"""How batch VMs divide among themselves what they get together, so that work with deadlines is done in time.

Earliest deadline first (Liu and Layland, "Scheduling algorithms for multiprogramming in a hard-real-time environment",
JACM 1973), as weights: the VM with the earliest deadline is granted what it needs, then the next, and what is left is
for all alike. The sum of the weights stays, so that critical VMs lose nothing; only where weights are so near the
kernel's minimum that nothing can be divided it may rise, to a few times that minimum, and never above the weight of the
batch VMs' floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from manager.control.feedback_law import floor_weight, within

MARGIN = 1.2
"""A VM is granted so many times what it needs: shares are not kept to the second."""
ROOM = 10
"""So many times the kernel's minimum a VM's weight is, on average, where sums of weights are raised."""


@dataclass(frozen=True, slots=True)
class WorkClaim:
    """What a batch VM needs at least, and can use at most, in CPU seconds a second.

    ``deadline_s`` is in seconds since the epoch, infinite without one; ``needed_pcpus`` 0: nothing is agreed.
    """

    vm: str
    most_pcpus: float
    needed_pcpus: float = 0.0
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class DividedThen:
    """The weights that were given, and the order of deadlines and the sum that they followed from."""

    weights: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    total: int = 0


def grants(claims: Sequence[WorkClaim], budget_pcpus: float) -> dict[str, float]:
    """How much of ``budget_pcpus`` each VM is to get, in CPU seconds a second; together they get all of it."""
    left = budget_pcpus
    granted: dict[str, float] = {}
    for claim in in_order(claims):
        granted[claim.vm] = min(claim.needed_pcpus * MARGIN, claim.most_pcpus, left)
        left = max(left - granted[claim.vm], 0.0)
    return {vm: part + left / len(granted) for vm, part in granted.items()}


def in_order(claims: Sequence[WorkClaim]) -> list[WorkClaim]:
    """Earliest deadline first."""
    return sorted(claims, key=lambda claim: (claim.deadline_s, claim.vm))


def divided(total: int, least: int, claims: Sequence[WorkClaim], budget_pcpus: float) -> dict[str, int]:
    """Weights by VM, each at least ``least``, whose sum is ``total``, in proportion to what is granted above that.

    Raises ValueError where ``total`` is less than ``least`` for each.
    """
    spare = total - least * len(claims)
    if spare < 0:
        raise ValueError(f"{total} cannot be divided into {len(claims)} weights of {least} or more")
    granted = grants(claims, budget_pcpus)
    whole = math.fsum(granted.values())
    parts = {vm: spare * (part / whole if whole > 0 else 1 / len(granted)) for vm, part in granted.items()}
    weights = {vm: math.floor(part) for vm, part in parts.items()}
    # Of the remainders the largest are rounded up; of equal ones those of the earliest deadlines.
    missing = spare - sum(weights.values())
    for vm in sorted(parts, key=lambda vm: weights[vm] - parts[vm])[:missing]:
        weights[vm] += 1
    return {vm: least + weight for vm, weight in weights.items()}


def total_weight(weights: Sequence[int], least: int, critical: int, floor: float) -> int:
    """The sum to be divided: that of ``weights``, or more where these are too near ``least`` to be divided.

    Never more than what gives batch VMs their ``floor`` (a share, 0 .. 1) beside ``critical``, the sum of those VMs'
    weights, which they are to get in any case.
    """
    own = sum(weights)
    enough = ROOM * least * len(weights)
    bound = floor_weight(critical, floor, 1) if critical else enough
    return max(own, min(enough, bound))


def steady(
    before: DividedThen, claims: Sequence[WorkClaim], total: int, least: int, budget_pcpus: float, dead_band: float
) -> DividedThen:
    """The weights; those given before while the same VMs claim in the same order and none changes by ``dead_band``."""
    order = tuple(claim.vm for claim in in_order(claims) if claim.needed_pcpus > 0)
    weights = divided(total, least, claims, budget_pcpus)
    same = before.weights.keys() == weights.keys() and (before.order, before.total) == (order, total)
    if same and all(within(before.weights[vm], weight, dead_band) for vm, weight in weights.items()):
        return before
    return DividedThen(weights, order, total)
