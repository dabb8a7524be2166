"""Groups of applications: how many are in each, in which states, and the worst group first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from manager.model.window import SlaState

ApplicationGroup = Literal["state", "host", "policy", "mode"]

WORST_FIRST = (SlaState.VIOLATED, SlaState.AT_RISK, SlaState.NO_DATA, SlaState.MET)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group: its value, empty for applications that have none, and the number of applications by state."""

    value: str
    states: Mapping[SlaState, int]

    @property
    def count(self) -> int:
        """All of its applications."""
        return sum(self.states.values())

    @property
    def worst(self) -> SlaState:
        """The state of its worst application."""
        return next((state for state in WORST_FIRST if self.states[state]), SlaState.MET)


def summarise(members: Iterable[tuple[SlaState, Iterable[str]]]) -> list[GroupSummary]:
    """The groups of applications, each a state and the values of its groups: none is the group without a value.

    Worst first: by the number of violated applications, then of those at risk, without data, and met; then by value.
    """
    counts: dict[str, Counter[SlaState]] = {}
    for state, values in members:
        for value in tuple(values) or ("",):
            counts.setdefault(value, Counter())[state] += 1
    groups = [GroupSummary(value, dict.fromkeys(SlaState, 0) | count) for value, count in counts.items()]
    return sorted(groups, key=_place)


def _place(group: GroupSummary) -> tuple[int | str, ...]:
    return (*(-group.states[state] for state in WORST_FIRST), group.value)
