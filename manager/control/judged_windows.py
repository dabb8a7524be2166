"""From the slots of response times that sources and other hosts deliver to the windows that are judged.

A *slot* is a window whose begin is a multiple of the slot length (seconds since the epoch). Slots of one application
overlap only where different origins tell of the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat, takewhile
from operator import ge, sub

from manager.model.window import Window, merge


def by_slot(slots: Sequence[Window], slot_s: float) -> tuple[Window, ...]:
    """Merge what different origins know of the same slot; oldest first."""
    ends_s = [slot.end_s for slot in slots]
    if all(map(ge, map(sub, ends_s[1:], ends_s), repeat(slot_s))):  # as of one origin: mostly so, and there are many
        return tuple(slots)
    groups: dict[int, list[Window]] = {}
    for slot in slots:
        groups.setdefault(slot_number(slot.end_s, slot_s), []).append(slot)
    return tuple(group[0] if len(group) == 1 else merge(group) for _, group in sorted(groups.items()))


def slot_number(end_s: float, slot_s: float) -> int:
    """Number of the slot that a response time which ended at ``end_s`` belongs to: slot k covers (k L, (k + 1) L]."""
    number = int(end_s // slot_s)
    return number - 1 if number * slot_s == end_s else number


def latest(slots: Sequence[Window], now_s: float, length_s: float) -> Window | None:
    """The window of an application as of ``now_s``: all slots that reach into the last ``length_s`` seconds.

    Without any, the newest slot, whose age then tells that it is stale; None without slots. ``slots`` are disjoint and
    oldest first.
    """
    current = list(takewhile(lambda slot: slot.end_s > now_s - length_s, reversed(slots)))
    if current:
        return merge(current)
    return slots[-1] if slots else None


def fresh(slots: Sequence[Window], now_s: float, max_age_s: float) -> list[Window]:
    """Those that ended at most ``max_age_s`` ago, newest first. ``slots`` are disjoint and oldest first."""
    return list(takewhile(lambda slot: slot.age_s(now_s) <= max_age_s, reversed(slots)))


def enough(slots: Sequence[Window], now_s: float, max_age_s: float, wanted: int, least: int) -> Window | None:
    """The newest slots merged, as few as hold ``wanted`` response times, or all that are fresh if they hold ``least``.

    ``slots`` are disjoint and oldest first; those that ended more than ``max_age_s`` ago are not fresh.
    """
    taken: list[Window] = []
    count = 0
    for slot in reversed(slots):
        if slot.age_s(now_s) > max_age_s:
            break
        taken.append(slot)
        count += slot.histogram.count
        if slot.ready is not None or count >= wanted:
            return merge(taken)
    return merge(taken) if taken and count >= least else None
