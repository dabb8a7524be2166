"""What the page of a host says of who has how much of its cache and of its memory's bandwidth. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manager.model.numbers import NOTHING

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrafficLine:
    """What a VM has in one domain, in words. ``share`` of the most that was measured there, 0 to 1; None: not known."""

    vm: str
    domain: int
    occupancy: str
    total: str
    local: str
    share: float | None


def bandwidth(value: float | None) -> str:
    """Bytes a second, such as ``12.3 GB/s``."""
    return NOTHING if value is None else f"{value / 1e9:.3g} GB/s"


def traffic_lines(cache: Json | None) -> list[TrafficLine]:
    """A line for each VM and domain that anything is known of, the most traffic first."""
    memories = {one["domain"]: one for one in cache["memories"]} if cache else {}
    parts = [(vm["vm"], part) for vm in cache["vms"] for part in vm["parts"]] if cache else []
    known = [(vm, part) for vm, part in parts if any(part[name] is not None for name in part if name != "domain")]
    known.sort(key=lambda one: (-(one[1]["bandwidth_total_bytes_per_s"] or 0), one[0], one[1]["domain"]))
    return [_line(vm, part, memories.get(part["domain"])) for vm, part in known]


def _line(vm: str, part: Json, memory: Json | None) -> TrafficLine:
    size, total = part["occupancy_bytes"], part["bandwidth_total_bytes_per_s"]
    known = [memory[name] or 0.0 for name in ("bandwidth_bytes_per_s", "maximum_bytes_per_s")] if memory else []
    most = max([*known, total or 0.0])
    return TrafficLine(
        vm,
        part["domain"],
        NOTHING if size is None else f"{size / (1 << 20):.3g} MiB",
        bandwidth(total),
        bandwidth(part["bandwidth_local_bytes_per_s"]),
        None if total is None or not most else total / most,
    )


def memory_words(cache: Json | None) -> list[str]:
    """The memory of each domain whose traffic is known now."""
    return [
        f"Memory of domain {one['domain']}: {bandwidth(one['bandwidth_bytes_per_s'])}"
        + (f", at most {bandwidth(one['maximum_bytes_per_s'])} measured" if one["maximum_bytes_per_s"] else "")
        + (", saturated" if one["saturated"] else "")
        for one in (cache["memories"] if cache else ())
        if one["bandwidth_bytes_per_s"] is not None
    ]
