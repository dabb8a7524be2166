"""How a service that was found is watched: names for its application, and a target from what was measured. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from manager.model.fields import NAME_MAX, NAME_PATTERN
from manager.model.registration import Mode
from manager.model.source import SourceKind
from manager.model.traffic import TapProtocol

TARGET_FACTOR = 3.0
"""A suggested target is so many times the p95 of the baseline."""
_SOURCE_NAME = "wire"
"""Of the tap source."""
_LEAST_MS, _MOST_MS = 1.0, 100_000.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIERS = {TapProtocol.MEMCACHED: "cache", TapProtocol.MEMCACHED_BINARY: "cache"}
_TIER = "web"


def application_body(vm: str, port: int, tier: str, target_ms: float | None) -> dict[str, Any]:
    """The body that registers an application which watches a port of a VM; target None: it has yet to be filled in."""
    source = {"type": SourceKind.TAP.value, "name": _SOURCE_NAME, "port": port}
    return {
        "tiers": [{"name": tier, "vms": [vm]}],
        "sla": {"percentile": 95.0, "response_time_ms": target_ms},
        "mode": Mode.OBSERVE.value,
        "sources": [source],
    }


def baseline_ms(service: Mapping[str, Any]) -> float | None:
    """The p95 that a target of a reported service is derived from: the lowest of half a minute, if any had enough
    response times, so that a neighbour's load now does not raise the target; else that of the last minute.
    """
    quiet_ms: float | None = service.get("quiet_p95_ms")
    p95_ms: float | None = service.get("p95_ms")
    return p95_ms if quiet_ms is None else quiet_ms


def suggested_target_ms(p95_ms: float) -> float:
    """A target of three times this p95, rounded up to 1, 2, 5, 10, 20, 25, 50, 100 ms and so on.

    At most that of an SLA: 100 s.
    """
    wanted_ms = min(max(TARGET_FACTOR * p95_ms, _LEAST_MS), _MOST_MS)
    decade = 10.0 ** math.floor(math.log10(wanted_ms))
    return next(
        target_ms
        for target_ms in (step * scale for scale in (decade, 10 * decade) for step in _STEPS)
        if target_ms >= wanted_ms and target_ms.is_integer()
    )


def application_names(vm: str, protocol: str, taken: Collection[str]) -> tuple[str, str]:
    """Names of the application and the tier that a VM serves, from its own: ``shop-web-1`` is shop, tier web.

    The application's is none of ``taken``.
    """
    plain = re.sub(r"[._-]*\d+$", "", vm) or vm
    name, _, tier = plain.rpartition("-")
    if not (name and re.fullmatch(NAME_PATTERN, tier)):
        name, tier = plain, _TIERS.get(TapProtocol(protocol), _TIER) if protocol in set(TapProtocol) else _TIER
    free, number = name, 2
    while free in taken:
        ending = f"-{number}"
        free, number = name[: NAME_MAX - len(ending)] + ending, number + 1
    return free, tier
