"""When something happened that an agent dated: by the agent's clock, unless that is ahead of the manager's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

_STEP = timedelta(microseconds=1)


def dated(
    claimed: Sequence[datetime], now: datetime, ahead_s: float | None, skew: timedelta
) -> dict[datetime, datetime]:
    """The dates that count, by those that are claimed; each date is another one. Arrived are they all ``now``.

    What is at most ``skew`` ahead keeps its date. What is further ahead is dated by how far the agent finds its clock
    ahead, ``ahead_s``, None: it does not know; and by arrival, in its order, where that does not explain it: otherwise
    it would stand first in lists, and before all that comes later, until that time comes.
    """
    latest = now + skew
    offset = timedelta(seconds=ahead_s) if ahead_s is not None and ahead_s > 0 else timedelta(0)
    found = {moment: moment for moment in claimed if moment <= latest}
    ahead = sorted(set(claimed) - found.keys())
    taken = set(found.values())
    for place, moment in enumerate(ahead):
        date = moment - offset
        if date > latest or date < now - skew or date in taken:
            date = now - _STEP * (len(ahead) - 1 - place)
        while date in taken:
            date -= _STEP
        taken.add(date)
        found[moment] = date
    return found
