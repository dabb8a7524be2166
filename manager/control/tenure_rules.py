"""Which of several agents serves a host: the first, until it is silent or an operator chooses another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Who:
    """An agent: the random id that its state directory keeps, and the id of its kernel's boot."""

    instance: str
    boot: str


@dataclass(frozen=True, slots=True)
class Tenure:
    """Who serves a host, None: nobody yet; the boot that the same agent had before; and who else asked to last."""

    holder: Who | None = None
    former_boot: str | None = None
    rival: Who | None = None


class ReportOrigin(StrEnum):
    """What a report is by."""

    SAME = "same"
    FIRST = "first"
    REBOOTED = "rebooted"
    TAKEN_OVER = "taken over"
    RETURNED = "returned"
    RIVAL = "rival"


def judge(now: Tenure, who: Who, *, live: bool) -> tuple[ReportOrigin, Tenure]:
    """By which agent a report is, and who serves the host after it. ``live``: the holder reported not long ago.

    A second agent is a rival while the first is live, and takes over after. The same agent after another boot goes on
    at once; but a boot that is over cannot come back, so if one does there are two machines with copies of one state
    directory: the earlier one goes on, and the later one is its rival.
    """
    holder = now.holder
    if holder is None:
        return ReportOrigin.FIRST, Tenure(who, None, now.rival)
    if who == holder:
        return ReportOrigin.SAME, now
    if live and who.instance == holder.instance and who.boot == now.former_boot:
        return ReportOrigin.RETURNED, Tenure(who, None, holder)
    if live and (who.instance != holder.instance or who == now.rival):
        return ReportOrigin.RIVAL, Tenure(holder, now.former_boot, who)
    if who.instance == holder.instance:
        return ReportOrigin.REBOOTED, Tenure(who, holder.boot, None if now.rival == who else now.rival)
    return ReportOrigin.TAKEN_OVER, Tenure(who, None, None)
