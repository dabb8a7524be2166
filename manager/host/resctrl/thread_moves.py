"""Moving VMs, thread by thread, between groups of resctrl.

Only a thread that is written moves; those that it starts from then on inherit its group.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from manager.errors import HostError
from manager.host.resctrl.groups import Groups
from manager.model.cache import DEFAULT, is_ours

MOST_ROUNDS = 20
"""So often a VM's threads are looked at while new ones keep appearing outside the group."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How a VM was moved: threads written, those that had died meanwhile, and how often was looked."""

    threads: int
    dead: int
    rounds: int


def group_of_others(groups: Groups, tids: Iterable[int]) -> str | None:
    """The first group of another tool that has one of the threads (libvirt's cachetune puts single vCPUs into such).

    None where none has. Raises HostError.
    """
    wanted = frozenset(tids)
    others = (name for name in groups.names() if name != DEFAULT and not is_ours(name))
    return next((name for name in others if not wanted.isdisjoint(groups.tasks(name))), None)


def move(groups: Groups, group: str, threads: Callable[[], Iterable[int]]) -> Moved:
    """Put all threads of a VM into ``group`` and look again until none is missing.

    That is a group of ours, the default one, or a monitoring group of ours inside the control group they are in.

    ``threads`` lists them as they are now. Raises HostError: EBUSY, before anything is moved, when one is in such a
    group; EAGAIN when new ones appear for ever; otherwise with the kernel's errno. What ``threads`` raises goes on.
    """
    if group != DEFAULT and not is_ours(group.rpartition("/")[2]):
        raise HostError(f"resctrl group {group!r} is not ours", errno.EPERM)
    other = group_of_others(groups, threads())
    if other is not None:
        raise HostError(f"threads of the VM are in resctrl group {other}, which another tool made", errno.EBUSY)
    written = dead = 0
    for rounds in range(1, MOST_ROUNDS + 1):
        # The list first: a thread that is in neither was started later, by one that had been moved or is in the list.
        missing = frozenset(threads()) - groups.tasks(group)
        if not missing:
            return Moved(written, dead, rounds)
        for tid in sorted(missing):
            try:
                groups.command(group, "tasks", f"{tid}\n")
                written += 1
            except HostError as error:
                if error.errno != errno.ESRCH:
                    raise
                dead += 1
    raise HostError(f"threads keep appearing outside resctrl group {group or 'default'}", errno.EAGAIN)
