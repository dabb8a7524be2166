"""Whether the manager's clock is behind, and not those of the hosts ahead: by uptime, and by what hosts find."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.control.dating import behind_s
from manager.control.uptime import Boot
from manager.store.arrivals import clock_ahead_s
from manager.store.models import HostRow


def manager_behind_s(
    session: Session, host: str, ahead_s: float | None, boot: Boot, wall_s: float, skew_s: float
) -> float:
    """By how many seconds the manager's clock is behind, as far as anybody can tell; never below 0.

    ``ahead_s``: by how much the host that reports finds its clock ahead, None: it does not tell.
    """
    others = select(HostRow.clock_ahead_s).where(
        HostRow.name != host, HostRow.silent.is_(False), HostRow.clock_ahead_s.is_not(None)
    )
    found = [*session.scalars(others), ahead_s]
    return behind_s(-clock_ahead_s(session, boot, wall_s), [one for one in found if one is not None], skew_s)
