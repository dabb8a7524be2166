"""What arrived how long ago, by clocks that nobody sets.

A clock that is a year ahead for ten minutes must not have a year of history deleted, and no date alone shows that it is
wrong, least of all after a restart. So what is kept for a time is kept for as long by uptime, too: by the boot clocks
of the machines that managers run on, which count from a machine's start, also while it sleeps. How long managers have
been up in all is known across restarts and in a fleet; while no machine was up, nothing arrived that needs room.

Every now and then a mark notes the newest row of a table. What had arrived at a mark that is old enough may go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

_MARKS = 100
"""Marks in the time that something is kept: so it is kept by 1 % longer at most."""


@dataclass(frozen=True, slots=True)
class Boot:
    """A start of a machine, named so that none is named like another, and ``age_s`` seconds ago."""

    name: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Noted:
    """Managers had been up for ``total_s`` in all when a boot's age was ``boot_s``."""

    boot_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest row was ``newest_id`` when managers had been up for ``total_s``, at ``wall_s`` by the time of day."""

    total_s: float
    wall_s: float
    newest_id: int


def uptime_s(noted: Mapping[str, Noted], boot: Boot) -> float:
    """How long managers have been up in all, by what was noted of each boot. It never shrinks.

    Of a boot that was not noted yet nothing counts: how long ago the last one ended, only the time of day could tell.
    """
    most_s = max((note.total_s for note in noted.values()), default=0.0)
    note = noted.get(boot.name)
    return most_s if note is None else max(most_s, note.total_s + max(boot.age_s - note.boot_s, 0.0))


def arrived(marks: Sequence[Mark], total_s: float, keep_s: float) -> int:
    """The number of the newest row that arrived ``keep_s`` ago or earlier; 0: none is known to have. Oldest first."""
    return next((mark.newest_id for mark in reversed(marks) if mark.total_s <= total_s - keep_s), 0)


def marked(marks: Sequence[Mark], now: Mark, keep_s: float) -> tuple[Mark, ...]:
    """The marks with one of now, where that is due, and without those that nobody needs any more. Oldest first.

    Where rows had higher numbers before, their numbers were given again: then earlier marks tell nothing.
    """
    if marks and now.newest_id < marks[-1].newest_id:
        marks = ()
    if not marks or now.total_s - marks[-1].total_s >= keep_s / _MARKS:
        marks = (*marks, now)
    while len(marks) > 1 and marks[1].total_s <= now.total_s - keep_s:
        marks = marks[1:]
    return tuple(marks)


def ahead_s(marks: Sequence[Mark], total_s: float, wall_s: float) -> float:
    """By how much the time of day went further than uptime did since most marks; below 0: it was set back.

    That is a clock that was set, or a time in which no manager was up. A clock that was wrong for less than half of the
    time counts for nothing.
    """
    return wall_s - total_s - median(mark.wall_s - mark.total_s for mark in marks) if marks else 0.0
