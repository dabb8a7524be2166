"""Which pCPU each vCPU of a critical VM gets.

First rules of placement (design, section 4): a vCPU gets a pCPU of its own, no VM is stacked on itself, no pCPU
carries two critical vCPUs, and a VM that stays keeps the pCPUs it has. A VM is placed whole or not at all, because its
slowest vCPU sets its tail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manager.model.cpus import CpuSet
from manager.model.decision import Placement


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A critical VM that wants ``vcpus`` pCPUs of its own."""

    vm: str
    vcpus: int


def place(requests: Sequence[PlacementRequest], cpus: CpuSet, previous: Mapping[str, tuple[int, ...]]) -> Placement:
    """Give each VM pCPUs of its own out of ``cpus``; VMs in ``previous`` keep theirs while those are still usable.

    Deterministic: VMs are served in name order and take the lowest free numbers. The result is sorted by VM name.
    """
    ordered = sorted(requests, key=lambda request: request.vm)
    placed: dict[str, tuple[int, ...]] = {}
    free = set(cpus)
    for request in ordered:
        kept = previous.get(request.vm, ())
        if len(kept) == request.vcpus and len(set(kept)) == len(kept) and free.issuperset(kept):
            placed[request.vm] = kept
            free.difference_update(kept)
    floating: list[PlacementRequest] = []
    for request in ordered:
        if request.vm in placed:
            continue
        if request.vcpus > len(free):
            floating.append(request)
            continue
        chosen = tuple(sorted(free)[: request.vcpus])
        placed[request.vm] = chosen
        free.difference_update(chosen)
    reasons = ((one.vm, f"floats: needs {one.vcpus} pCPUs of its own, {len(free)} are free") for one in floating)
    return Placement(tuple(sorted(placed.items())), tuple(reasons))
