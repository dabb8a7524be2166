"""Which port of an application's VMs is its service, where nobody has said: the one with the most requests. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

MEMORY_S = 300.0
"""Requests count by e^(-age / MEMORY_S)."""
LEAST = 3.0
"""So many requests, by that measure, make a port one that can be chosen: one login over SSH does not."""
CLEARLY = 2.0
"""A port is left for another with so many times its requests."""


@dataclass(frozen=True, slots=True)
class PortChoice:
    """The chosen port, None before there is one, and how many requests each port had lately."""

    port: int | None = None
    recent: Mapping[int, float] = field(default_factory=dict)

    def after(self, requests: Mapping[int, int], passed_s: float) -> PortChoice:
        """The choice once ``passed_s`` seconds more have passed, with so many requests by port."""
        kept = math.exp(-max(passed_s, 0.0) / MEMORY_S)
        ports = self.recent.keys() | requests.keys()
        recent = {port: self.recent.get(port, 0.0) * kept + requests.get(port, 0) for port in ports}
        best = max(sorted(recent), key=lambda port: recent[port], default=None)
        if best is None or recent[best] < LEAST:
            return PortChoice(self.port, recent)
        if self.port is None or recent[best] >= CLEARLY * recent.get(self.port, 0.0):
            return PortChoice(best, recent)
        return PortChoice(self.port, recent)
