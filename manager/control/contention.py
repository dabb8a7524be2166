"""How long critical VMs wait for pCPUs under other weights: a small model of their host.

Each VM's runnable vCPUs share its weight, and VMs share the pCPUs by weight with nobody getting more than it can use
(generalised processor sharing, Parekh and Gallager 1993). Which vCPUs are runnable together is a matter of chance: a
vCPU that needs ``u`` of a pCPU is runnable with probability ``u`` times its slowdown, independently of the others. The
slowdown follows from all slowdowns, so it is found by repetition, over a fixed set of draws: equal inputs give equal
results, and two settings are compared on the same draws.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

DRAWS = ((20, 24), (60, 12))
"""So many draws for up to so many VMs, as (VMs, draws): of many, fewer say as much."""
FEWEST_DRAWS = 6
ROUNDS = 5
SETTLED = 1e-3
"""Or fewer, where no slowdown changes by more any more: mostly at once where there are pCPUs enough."""
FULL = 0.97
"""No vCPU is busy for a larger part of the time in the model: above it, queues would have no end."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Contender:
    """A VM: the pCPUs that its work needs if it never waits, and how many vCPUs it has."""

    needed_pcpus: float
    vcpus: int


def slowdowns(
    contenders: Sequence[Contender],
    weights: Sequence[float],
    batch_weight: float,
    pcpus: float,
    backlogged: Collection[int] = frozenset(),
) -> tuple[float, ...]:
    """How many times as long each contender's work takes as without the others, at least 1, in their order.

    ``weights`` are those of the VMs, ``batch_weight`` that of all batch VMs together, which want every pCPU. All vCPUs
    of the contenders at the positions ``backlogged`` are runnable all the time.
    """
    draws = next((draws for vms, draws in DRAWS if len(contenders) <= vms), FEWEST_DRAWS)
    points = [_points(index, contender.vcpus, draws) for index, contender in enumerate(contenders)]
    slower = [1.0] * len(contenders)
    for _ in range(ROUNDS):
        busy = [
            1.0 if index in backlogged else min(FULL, contender.needed_pcpus * slower[index] / contender.vcpus)
            for index, contender in enumerate(contenders)
        ]
        wanted = [0.0] * len(contenders)
        got = [0.0] * len(contenders)
        for draw in range(draws):
            runnable = [bisect_left(of_vm[draw], part) for of_vm, part in zip(points, busy, strict=True)]
            for index, rate in enumerate(_shares(runnable, weights, batch_weight, pcpus)):
                wanted[index] += runnable[index]
                got[index] += rate
        before, slower = (
            slower,
            [
                (then + want / rate) / 2 if rate > 0 else then
                for then, want, rate in zip(slower, wanted, got, strict=True)
            ],
        )
        if all(abs(now - then) < SETTLED for now, then in zip(slower, before, strict=True)):
            break
    return tuple(slower)


@lru_cache(maxsize=4096)
def _points(index: int, vcpus: int, draws: int) -> tuple[tuple[float, ...], ...]:
    """For each draw the sorted points of a VM's vCPUs: one is runnable if it is busy for more than its point."""
    return tuple(
        tuple(
            sorted(
                ((draw + 0.5) / draws * _stride(index, vcpu) + _GOLDEN * (index * 17 + vcpu)) % 1.0
                for vcpu in range(vcpus)
            )
        )
        for draw in range(draws)
    )


def _stride(index: int, vcpu: int) -> int:
    """Another permutation of the draws for each vCPU, coprime to their number: they are runnable independently."""
    coprime = (1, 5, 7, 11, 13, 17, 19, 23)
    return coprime[(index * 3 + vcpu) % len(coprime)]


def _shares(runnable: Sequence[int], weights: Sequence[float], batch_weight: float, pcpus: float) -> list[float]:
    """The pCPUs that each VM gets with so many runnable vCPUs."""
    rates = [float(count) for count in runnable]
    open_ = [index for index, count in enumerate(runnable) if count]
    left, total = pcpus, batch_weight + sum(weights[index] for index in open_)
    while open_:
        part = left / total
        capped = [index for index in open_ if weights[index] * part >= runnable[index]]
        if not capped:
            for index in open_:
                rates[index] = weights[index] * part
            break
        for index in capped:
            left -= runnable[index]
            total -= weights[index]
        if left <= 0 or total <= 0:
            for index in set(open_).difference(capped):
                rates[index] = 0.0
            break
        open_ = [index for index in open_ if weights[index] * part < runnable[index]]
    return rates


def response_factor(needed_pcpus: float, vcpus: int, slowdown: float) -> float:
    """How many times its CPU time a request takes in a VM: slowdown, and the queue for a free vCPU.

    Sakasegawa's approximation of the M/M/c queue (1977): W = u^(sqrt(2 (c + 1)) - 1) / (c (1 - u)) service times.
    """
    busy = min(FULL, needed_pcpus * slowdown / vcpus)
    return slowdown * (1 + math.pow(busy, math.sqrt(2 * (vcpus + 1)) - 1) / (vcpus * (1 - busy)))
