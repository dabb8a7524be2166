"""What the files of a fake resctrl say."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from manager.model.cache import BandwidthResource, CacheResource, Mask, Slot, is_cache, union
from manager.model.cpus import CpuSet

COUNTERS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")


@dataclass
class FakeGroup:
    """A group of either kind; ``above``: the control group of a monitoring one."""

    name: str
    values: dict[Slot, int] = field(default_factory=dict)
    mode: str = "shareable"
    cpus: CpuSet = frozenset()
    above: FakeGroup | None = None
    monitored: dict[str, FakeGroup] = field(default_factory=dict)
    counters: dict[tuple[int, str], str] = field(default_factory=dict)
    removed: bool = False

    @property
    def control(self) -> FakeGroup:
        return self.above or self

    def counted(self, domain: int, counter: str) -> str:
        """Its own and those of the groups in it, as far as they can be read (mon_event_count)."""
        texts = [group.counters.get((domain, counter), "0") for group in (self, *self.monitored.values())]
        numbers = [int(text) for text in texts if text.isdecimal()]
        return str(sum(numbers)) if numbers else texts[0]


class Shown(Protocol):
    """What of the tree is shown."""

    kernel: str
    status: str
    rmids: int
    cdp: bool
    bandwidths: tuple[BandwidthResource, ...]

    @property
    def divided(self) -> tuple[CacheResource, ...]: ...

    @property
    def groups(self) -> Mapping[str, FakeGroup]: ...


def lines(tree: Shown, group: FakeGroup, *, sizes: bool) -> str:
    """``schemata`` or ``size``; names are padded to the longest there can be."""
    way_bytes = {cache.name: dict(cache.way_bytes) for cache in tree.divided}
    width = 6 if tree.cdp else max(len(slot.resource) for slot in group.values)

    def shown(slot: Slot) -> str:
        value = group.values[slot]
        if not is_cache(slot.resource):
            return str(value)
        return str(way_bytes[slot.resource].get(slot.domain, 0) * value.bit_count()) if sizes else f"{value:x}"

    return "".join(
        f"{name:>{width}}:{';'.join(f'{slot.domain}={shown(slot)}' for slot in slots)}\n"
        for name, slots in itertools.groupby(group.values, key=lambda slot: slot.resource)
    )


def info(tree: Shown) -> dict[str, str]:
    """The files of ``info`` with their texts."""
    found = {"info/last_cmd_status": tree.status}
    for cache in tree.divided:
        folder = f"info/{cache.name}"
        found[f"{folder}/cbm_mask"] = f"{cache.ways}\n"
        found[f"{folder}/min_cbm_bits"] = f"{cache.minimum}\n"
        found[f"{folder}/num_closids"] = f"{cache.closids}\n"
        found[f"{folder}/shareable_bits"] = f"{cache.shareable}\n"
        found[f"{folder}/bit_usage"] = ";".join(_usage(tree, cache, domain) for domain in cache.domains) + "\n"
        if tree.kernel != "6.1":
            found[f"{folder}/sparse_masks"] = f"{cache.sparse:d}\n"
    for one in tree.bandwidths:
        folder = f"info/{one.name}"
        found[f"{folder}/bandwidth_gran"] = f"{one.step}\n"
        found[f"{folder}/delay_linear"] = f"{one.linear:d}\n"
        found[f"{folder}/min_bandwidth"] = f"{one.least}\n"
        found[f"{folder}/num_closids"] = f"{one.closids}\n"
        if one.throttle:
            found[f"{folder}/thread_throttle_mode"] = f"{one.throttle}\n"
    if tree.rmids:
        found["info/L3_MON/num_rmids"] = f"{tree.rmids}\n"
        found["info/L3_MON/mon_features"] = "".join(f"{name}\n" for name in COUNTERS)
    return found


def _usage(tree: Shown, cache: CacheResource, domain: int) -> str:
    """bit_usage, from the highest way down (rdt_bit_usage_show)."""
    held = [(group.mode, Mask(group.values[Slot(cache.name, domain)])) for group in tree.groups.values()]
    shared = union(mask for mode, mask in held if mode == "shareable")
    exclusive = union(mask for mode, mask in held if mode == "exclusive")

    def letter(way: Mask) -> str:
        hard, soft = way <= cache.shareable, way <= shared
        return ("X" if soft else "H") if hard else "S" if soft else "E" if way <= exclusive else "0"

    return f"{domain}=" + "".join(letter(Mask.span(way, 1)) for way in reversed(range(cache.ways.ways)))
