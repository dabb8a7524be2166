"""When something happened that an agent dated: by the agent's clock, unless that is ahead of the manager's.

Windows of response times keep the agent's date, as far ahead as that may be right, and are refused otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median

_STEP = timedelta(microseconds=1)
_DAY_S = 86_400.0


def behind_s(set_back_s: float, aheads_s: Sequence[float], skew_s: float) -> float:
    """By how much a manager's clock is behind that which is right; 0: it is not, or that is not known.

    ``set_back_s``: by uptime, see ``manager.control.uptime``. ``aheads_s``: by how much hosts find theirs ahead of it,
    which counts where most agree to ``skew_s``, and more than one.
    """
    middle_s = median(aheads_s) if aheads_s else 0.0
    alike = sum(abs(ahead_s - middle_s) <= skew_s for ahead_s in aheads_s)
    agreed_s = middle_s if alike > 1 and 2 * alike > len(aheads_s) else 0.0
    return max(set_back_s, agreed_s, 0.0)


def latest_end(now: datetime, ahead_s: float | None, behind_s: float, skew: timedelta) -> datetime:
    """Until when a window of response times may end that arrives ``now`` by the manager's clock, ``behind_s`` behind.

    That is what is now by the right clock, or by the host's own, if that is found ahead by ``ahead_s``, a day at most.
    """
    own_s = ahead_s if ahead_s is not None and 0 < ahead_s < _DAY_S else 0.0
    return now + skew + timedelta(seconds=max(own_s, behind_s))


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
    dates = {moment: moment for moment in claimed if moment <= latest}
    ahead = sorted(set(claimed) - dates.keys())
    taken = set(dates)
    for place, moment in enumerate(ahead):
        date = moment - offset
        if date > latest or date < now - skew or date in taken:
            date = now - _STEP * (len(ahead) - 1 - place)
        while date in taken:
            date -= _STEP
        taken.add(date)
        dates[moment] = date
    return dates
