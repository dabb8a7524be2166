"""Changes of the wall clock and suspends, by comparison with the monotonic clocks."""

from __future__ import annotations

import time
from dataclasses import dataclass

BOUND_S = 1.0
"""A larger change between two looks is a jump: slewing takes minutes for it."""
_SAME_MOMENT_S = 0.01
_TRIES = 10
_SET_S = 0.1
_UNITS = ((86_400, "days"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Times:
    """One moment by three clocks, in seconds: since the epoch, monotonic, and CLOCK_BOOTTIME.

    The monotonic clock stands still while the machine is suspended; CLOCK_BOOTTIME does not (clock_gettime(2)).
    """

    wall_s: float
    monotonic_s: float
    boot_s: float


@dataclass(frozen=True, slots=True)
class Jump:
    """The wall clock moved ``ahead_s`` more than time passed (negative: back), ``suspended_s`` of it in suspend."""

    ahead_s: float
    suspended_s: float = 0.0

    @property
    def text(self) -> str:
        """What happened, in words."""
        set_s = self.ahead_s - self.suspended_s
        parts = [f"resumed after {_length(self.suspended_s)} of suspend"] if self.suspended_s else []
        if abs(set_s) > BOUND_S or not parts:
            parts.append(f"the wall clock was set {_length(abs(set_s))} {'ahead' if set_s > 0 else 'back'}")
        return "; ".join(parts)


def read_times() -> Times:
    """Now, by all three."""
    for _ in range(_TRIES):
        begin_s = time.monotonic()
        times = Times(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
        if time.monotonic() - begin_s < _SAME_MOMENT_S:  # else it was interrupted in between
            break
    return times


def jump_between(before: Times, now: Times) -> Jump | None:
    """The jump between two looks; None: the wall clock was not set, and the machine not suspended."""
    passed_s = now.monotonic_s - before.monotonic_s
    ahead_s = now.wall_s - before.wall_s - passed_s
    suspended_s = now.boot_s - before.boot_s - passed_s
    if suspended_s > BOUND_S:
        return Jump(ahead_s, suspended_s)
    return Jump(ahead_s) if abs(ahead_s) > BOUND_S else None


class Drift:
    """How far the wall clock was set ahead of the monotonic one since the first look."""

    def __init__(self) -> None:
        """Before the first look."""
        self._before: tuple[float, float] | None = None
        self._ahead_s = 0.0

    def at(self, wall_s: float, monotonic_s: float) -> float:
        """In seconds; exactly 0 until it is set."""
        if self._before is not None:
            moved_s = (wall_s - self._before[0]) - (monotonic_s - self._before[1])
            # Less is the time between reading the two clocks.
            self._ahead_s += moved_s if abs(moved_s) > _SET_S else 0.0
        self._before = wall_s, monotonic_s
        return self._ahead_s


def _length(seconds: float) -> str:
    """Seconds, and from two minutes on also a larger unit."""
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    size, unit = next(unit_size for unit_size in _UNITS if whole >= 2 * unit_size[0])
    larger = f"{whole / size:,.1f}".removesuffix(".0")
    return f"{whole} s ({larger} {unit})"
