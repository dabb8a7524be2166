"""The colocation map of two applications: at which pairs of loads do both, one or none of them meet their SLA?

Loads are levels: level k of n is k/n of an application's peak. More load of either never helps the other, so a pair
above one at which none met its SLA is not tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from manager.control.load_search import LoadVerdict

PAIR_LEVELS = (2, 20)
"""Fewest and most levels."""


class PairVerdict(StrEnum):
    """Who meets the SLA; ``unknown``: one of them could not be judged."""

    BOTH = "both"
    FIRST = "first"
    SECOND = "second"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PairPoint:
    """A pair of levels, from 1 on, and what became of the first and of the second application."""

    levels: tuple[int, int]
    verdicts: tuple[LoadVerdict, LoadVerdict]

    @property
    def verdict(self) -> PairVerdict:
        """Who meets the SLA."""
        return pair_verdict(*self.verdicts)


def pair_verdict(first: LoadVerdict, second: LoadVerdict) -> PairVerdict:
    """Who meets the SLA. A load that the service does not take violates it."""
    if not {first, second} <= _JUDGED:
        return PairVerdict.UNKNOWN
    met = (first is LoadVerdict.MET, second is LoadVerdict.MET)
    return {
        (True, True): PairVerdict.BOTH,
        (True, False): PairVerdict.FIRST,
        (False, True): PairVerdict.SECOND,
        (False, False): PairVerdict.NONE,
    }[met]


def next_pair(levels: int, points: Sequence[PairPoint]) -> tuple[int, int] | None:
    """The pair of levels to try next, from little load to much; None: the map is complete."""
    known = pair_map(levels, points)
    pairs = [(first, second) for first in range(1, levels + 1) for second in range(1, levels + 1)]
    return min((pair for pair in pairs if pair not in known), key=lambda pair: (sum(pair), pair), default=None)


def pair_map(levels: int, points: Sequence[PairPoint]) -> dict[tuple[int, int], PairVerdict]:
    """What is known of each pair of levels, by measurement or because less load was too much already."""
    known = {
        (first, second): PairVerdict.NONE
        for point in points
        if point.verdict is PairVerdict.NONE
        for first in range(point.levels[0], levels + 1)
        for second in range(point.levels[1], levels + 1)
    }
    return known | {point.levels: point.verdict for point in points}


def most_together(known: Mapping[tuple[int, int], PairVerdict]) -> tuple[int, int] | None:
    """The pair of most load at which both meet their SLAs; None where there is none.

    A pair counts only where both do at each measured pair of less load, too: what is met by luck counts for nothing.
    """
    good = [
        pair
        for pair, verdict in known.items()
        if verdict is PairVerdict.BOTH
        and all(
            other is PairVerdict.BOTH or other is PairVerdict.UNKNOWN
            for levels, other in known.items()
            if levels[0] <= pair[0] and levels[1] <= pair[1]
        )
    ]
    return max(good, key=lambda pair: (sum(pair), min(pair), pair), default=None)


_JUDGED = frozenset({LoadVerdict.MET, LoadVerdict.VIOLATED, LoadVerdict.UNREACHED})
