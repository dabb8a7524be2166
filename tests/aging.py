"""How long ago rows arrived, as tests want it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from manager.control.uptime import Boot


def long_ago(_kept: str, _number: Any, _keep: timedelta) -> int:
    """All that is there arrived long ago: only dates count."""
    return 2**31 - 1


@dataclass
class Machine:
    """A machine that managers run on: its time of day and its uptime, which tests move."""

    wall_s: float
    boot: str = "boot-1"
    age_s: float = 100.0

    def clock(self) -> float:
        return self.wall_s

    def boot_clock(self) -> Boot:
        return Boot(self.boot, self.age_s)

    def live(self, length: timedelta) -> None:
        """Time goes by."""
        self.wall_s += length.total_seconds()
        self.age_s += length.total_seconds()
