"""Whether the memory of a domain is used up: its traffic beside the most that was measured there.

No file tells what a memory can carry. So the most that was seen for a while counts as its maximum, once the traffic has
come back from it: of one that only grows, or stays as it is, nothing can be said. What is said is worth as much as that
maximum: on a host that never was busy it is too little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

HELD = 3
"""So many intervals in a row a traffic lasts to count as the maximum: one alone may be a late reading."""
LEAST_MAXIMUM = 5e9
"""Bytes a second below which nothing is taken for a maximum: a single channel of DDR4 carries more."""
LASTING = 5
"""So many intervals in a row the traffic is above, or below, before it is said, or taken back."""
CLEARANCE = 0.05
"""It is below again this part of the maximum below the share that counts as above."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """What is known of a domain; rates in bytes a second.

    ``maximum``: the most that lasted, None before there was any; ``known``: there was less since. ``recent``: the last
    few rates. ``turning``: for so many intervals it has been otherwise than ``saturated`` says.
    """

    maximum: float | None = None
    known: bool = False
    recent: tuple[float, ...] = ()
    saturated: bool = False
    turning: int = 0


def next_saturation(memory: Saturation, rate: float | None, share: float) -> Saturation:
    """After an interval; ``rate`` None: not known, which changes nothing but that nothing lasts over it.

    ``share`` of the maximum counts as above, 0: nothing does.
    """
    if rate is None:
        return replace(memory, recent=(), turning=0, saturated=memory.saturated and share > 0)
    recent = (*memory.recent, rate)[-HELD:]
    lasted = min(recent) if len(recent) == HELD else 0.0
    maximum, known = memory.maximum, memory.known
    if lasted >= LEAST_MAXIMUM and (maximum is None or lasted > maximum):
        known = known and maximum is not None and lasted <= maximum * (1 + CLEARANCE)
        maximum = lasted
    if not share or maximum is None:
        return Saturation(maximum, known, recent)
    known = known or rate <= (share - CLEARANCE) * maximum
    bound = share - CLEARANCE if memory.saturated else share
    other = (known and rate > bound * maximum) is not memory.saturated
    turning = memory.turning + 1 if other else 0
    if turning < LASTING:
        return Saturation(maximum, known, recent, memory.saturated, turning)
    return Saturation(maximum, known, recent, not memory.saturated)
