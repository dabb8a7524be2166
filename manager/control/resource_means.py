"""Many rounds of what is used besides CPU time as one.

Records leave out what has little to do, so what is not in one counts as nothing there; what no record knows stays
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from manager.model.resource_use import DeviceUse, DiskUse, LinkUse, ResourceUse, Signal, VirtualDiskUse, VmResources

Use = TypeVar("Use", VmResources, DiskUse, VirtualDiskUse, LinkUse, DeviceUse, ResourceUse)
Item = TypeVar("Item", VmResources, DiskUse, VirtualDiskUse, LinkUse, DeviceUse)
Timed = TypeVar("Timed", VirtualDiskUse, DeviceUse)


def mean_resources(rounds: Sequence[tuple[ResourceUse, int]]) -> ResourceUse | None:
    """The mean of rounds, each with how many it is the mean of itself; None for none."""
    count = sum(weight for _, weight in rounds)
    if not count:
        return None
    return replace(
        _mean(rounds, count),
        vms=_each(rounds, lambda use: use.vms, lambda vm: vm.vm, _mean_vm, count),
        disks=_each(rounds, lambda use: use.disks, lambda disk: disk.device, _mean_timed, count),
        uplinks=_each(rounds, lambda use: use.uplinks, lambda link: link.interface, _mean_link, count),
        missing=tuple(signal for signal in Signal if any(signal in use.missing for use, _ in rounds)),
    )


def _each(
    rounds: Iterable[tuple[Use, int]],
    items: Callable[[Use], Sequence[Item]],
    key: Callable[[Item], str],
    mean: Callable[[Sequence[tuple[Item, int]], int], Item],
    count: int,
) -> tuple[Item, ...]:
    """The mean of each that is in any of the rounds, by its key."""
    by_key: dict[str, list[tuple[Item, int]]] = {}
    for use, weight in rounds:
        for item in items(use):
            by_key.setdefault(key(item), []).append((item, weight))
    return tuple(mean(found, count) for _, found in sorted(by_key.items()))


def _mean_vm(uses: Sequence[tuple[VmResources, int]], count: int) -> VmResources:
    """Memory is that of the last one; what is no rate is the mean of those that are known."""
    resident = [use.resident_bytes for use, _ in uses if use.resident_bytes is not None]
    return replace(
        _mean(uses, count),
        resident_bytes=resident[-1] if resident else None,
        cycles_per_instruction=_mean_of_known([(use.cycles_per_instruction, weight) for use, weight in uses]),
        resume_us=_mean_of_known([(use.resume_us, weight) for use, weight in uses]),
        clock_part=_mean_of_known([(use.clock_part, weight) for use, weight in uses]),
        disks=_each(uses, lambda use: use.disks, lambda disk: disk.device, _mean, count),
        interfaces=_each(uses, lambda use: use.interfaces, lambda link: link.interface, _mean_link, count),
        virtual_disks=_each(uses, lambda use: use.virtual_disks, lambda disk: disk.disk, _mean_timed, count),
    )


def _mean_of_known(values: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _mean_link(uses: Sequence[tuple[LinkUse, int]], count: int) -> LinkUse:
    return replace(_mean(uses, count), speed_bytes_per_s=uses[-1][0].speed_bytes_per_s)


def _mean_timed(uses: Sequence[tuple[Timed, int]], count: int) -> Timed:
    """Its latency is that of all requests."""
    timed = [(use.latency_ms, use.requests_per_s * weight) for use, weight in uses if use.latency_ms is not None]
    requests = sum(number for _, number in timed)
    latency_ms = sum(latency * number for latency, number in timed) / requests if requests else None
    mean: Timed = replace(_mean(uses, count), latency_ms=latency_ms)
    return mean


def _mean(uses: Sequence[tuple[Use, int]], count: int) -> Use:
    """The last one, with each of its numbers the mean of so many rounds."""
    whole: Any = uses[-1][0]  # mypy would have each value of the mapping fit each field
    means: dict[str, float] = {}
    for field in fields(whole):
        known = [(value, weight) for use, weight in uses if isinstance(value := getattr(use, field.name), float)]
        if known:
            means[field.name] = sum(value * weight for value, weight in known) / count
    mean: Use = replace(whole, **means)
    return mean
