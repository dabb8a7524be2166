"""The wall clock against those that nobody sets: whether it was set, by how much, and whether the machine slept."""

from __future__ import annotations

import time
from dataclasses import dataclass

BOUND_S = 1.0
"""A wall clock that moves by more than this between two looks was set: slewing takes minutes for it."""
_SAME_MOMENT_S = 0.01
_TRIES = 10
_SET_S = 0.1
_UNITS = ((86_400, "days"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Times:
    """One moment by three clocks, in seconds.

    ``wall_s``: since the epoch. ``monotonic_s``: that of waits, which stands still while the machine is suspended.
    ``boot_s``: the same, but goes on (CLOCK_BOOTTIME, clock_gettime(2)).
    """

    wall_s: float
    monotonic_s: float
    boot_s: float


@dataclass(frozen=True, slots=True)
class Jump:
    """The wall clock went ``ahead_s`` further than time passed, below 0 back; ``suspended_s`` of that while asleep."""

    ahead_s: float
    suspended_s: float = 0.0

    @property
    def text(self) -> str:
        """What happened, for people."""
        set_s = self.ahead_s - self.suspended_s
        parts = [f"resumed after {_length(self.suspended_s)} of suspend"] if self.suspended_s else []
        if abs(set_s) > BOUND_S or not parts:
            parts.append(f"the wall clock was set {_length(abs(set_s))} {'ahead' if set_s > 0 else 'back'}")
        return "; ".join(parts)


def read_times() -> Times:
    """Now, by all three as of one moment."""
    for _ in range(_TRIES):
        begin_s = time.monotonic()
        times = Times(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
        if time.monotonic() - begin_s < _SAME_MOMENT_S:  # else it was stopped between two clocks
            break
    return times


def jump_between(before: Times, now: Times) -> Jump | None:
    """How the wall clock jumped from one look to the next; None: it did not, and the machine was not suspended."""
    passed_s = now.monotonic_s - before.monotonic_s
    ahead_s = now.wall_s - before.wall_s - passed_s
    suspended_s = now.boot_s - before.boot_s - passed_s
    if suspended_s > BOUND_S:
        return Jump(ahead_s, suspended_s)
    return Jump(ahead_s) if abs(ahead_s) > BOUND_S else None


class Drift:
    """By how much the wall clock was set ahead of the monotonic one since the first look."""

    def __init__(self) -> None:
        """Nothing was looked at."""
        self._before: tuple[float, float] | None = None
        self._ahead_s = 0.0

    def at(self, wall_s: float, monotonic_s: float) -> float:
        """In seconds, as of now; exactly 0 until it is set."""
        if self._before is not None:
            moved_s = (wall_s - self._before[0]) - (monotonic_s - self._before[1])
            # Less is the time between reading the one clock and the other.
            self._ahead_s += moved_s if abs(moved_s) > _SET_S else 0.0
        self._before = wall_s, monotonic_s
        return self._ahead_s


def _length(seconds: float) -> str:
    """Seconds, and what they come to where that is hard to see."""
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    size, unit = next(unit_size for unit_size in _UNITS if whole >= 2 * unit_size[0])
    return f"{whole} s ({whole / size:.3g} {unit})"
