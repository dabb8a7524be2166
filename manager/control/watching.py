"""How a service that was found is watched: names for its application, and a target from what was measured. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from manager.model.fields import NAME_MAX
from manager.model.traffic import TapProtocol

TARGET_FACTOR = 3.0
"""A suggested target is so many times the measured p95."""
SOURCE_NAME = "wire"
"""Of the tap source of an application that is made from a service."""
_LEAST_MS, _MOST_MS = 1.0, 100_000.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIERS = {TapProtocol.MEMCACHED: "cache", TapProtocol.MEMCACHED_BINARY: "cache"}
_TIER = "web"


def suggested_target_ms(p95_ms: float) -> float:
    """A target of three times the p95 that was measured, rounded up to 1, 2, 5, 10, 20, 25, 50, 100 ms and so on.

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
    name, dash, tier = plain.rpartition("-")
    if not (name and dash and tier):
        name, tier = plain, _TIERS.get(TapProtocol(protocol), _TIER) if protocol in set(TapProtocol) else _TIER
    free, number = name, 2
    while free in taken:
        ending = f"-{number}"
        free, number = name[: NAME_MAX - len(ending)] + ending, number + 1
    return free, tier
