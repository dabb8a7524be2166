"""Until when the windows of a report may end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache

from manager.api.context import ManagerContext
from manager.control.dating import latest_end
from manager.store.manager_clock import manager_behind_s


def latest_ends(context: ManagerContext, host: str, ahead_s: float | None) -> Callable[[datetime], datetime]:
    """The latest end of a window of a host, see ``latest_end``; only ends in the future query the database.

    ``ahead_s``: by how much the host's agent measured its clock to be ahead; None: unknown.
    """
    now, skew = context.now(), timedelta(seconds=context.skew_s)

    @cache
    def ahead() -> datetime:
        with context.database.reading() as session:
            behind_s = manager_behind_s(session, host, ahead_s, context.boot(), now.timestamp(), context.skew_s)
        return latest_end(now, ahead_s, behind_s, skew)

    return lambda end: now + skew if end <= now + skew else ahead()
