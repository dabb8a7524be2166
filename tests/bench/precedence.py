"""Who gives way where processes share a machine that have machines of their own in a fleet."""

from __future__ import annotations

import os
from pathlib import Path

_SESSION = Path("/proc/self/autogroup")
_LAST = 19


def give_way() -> None:
    """Let this process, in a session of its own from now on, run only while nothing else wants to.

    Where the kernel groups processes by session (``kernel.sched_autogroup_enabled``, sched(7)), niceness and SCHED_IDLE
    count within a session alone, and all sessions are equal; so this one gets the least weight.
    """
    os.setsid()
    if _SESSION.exists():
        _SESSION.write_text(str(_LAST))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
