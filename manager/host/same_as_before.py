"""VMs of which nothing but counters changed: mostly so, and there are many in each tick."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from manager.errors import HostError
from manager.host.files import SHORT
from manager.host.thread_times import ThreadTimes, VmTimes
from manager.host.write_watch import WriteWatch
from manager.model.host import CpuCounters, VmState

_counters: Callable[[Iterable[object]], CpuCounters] = partial(tuple.__new__, CpuCounters)
"""As CpuCounters._make, at half the cost."""


class CpuTime:
    """Where the CPU time of a VM is read: the number in file ``plain_fd`` is in ``unit_ns`` and comes on top of
    ``before_ns``; None: only ``read`` knows.
    """

    __slots__ = ("before_ns", "plain_fd", "read", "unit_ns")

    def __init__(self, read: Callable[[], int], plain_fd: int | None, unit_ns: int, before_ns: int) -> None:
        self.read, self.plain_fd, self.unit_ns, self.before_ns = read, plain_fd, unit_ns, before_ns


class SameAsBefore:
    """What was read of a VM, which holds for so many readings more as are ``left``.

    That is as long as nothing was written to any CPU group and no thread of its own is another.
    """

    __slots__ = ("_changes", "_fd", "_left", "_most", "_place", "_read", "_state", "_times", "_total", "_unit")

    def __init__(self) -> None:
        """Nothing holds yet."""
        self._left = self._most = 0

    def begin(self, state: VmState, most: int, total: int, times: VmTimes, cpu_time: CpuTime) -> None:
        """This was read just now. ``most``: so many readings; ``total`` of the watch then."""
        self._left = self._most = most
        self._state, self._total, self._times, self._changes = state, total, times, -1
        self._place = slice(times.vcpu_places.start, times.vcpu_places.stop)
        self._fd, self._read = cpu_time.plain_fd, cpu_time.read
        self._unit = cpu_time.unit_ns, cpu_time.before_ns

    def end(self) -> int:
        """It holds no longer. How many readings were spared."""
        spared = self._most - self._left
        self._left = self._most = 0
        return spared


def counters_of(
    vms: Sequence[tuple[str, SameAsBefore]], watch: WriteWatch, times: ThreadTimes
) -> dict[str, tuple[VmState, CpuCounters]]:
    """The counters of all of which the rest holds, with that.

    All in one, and without looking at anything twice: what a VM's data cost is finding them in memory.
    """
    found: dict[str, tuple[VmState, CpuCounters]] = {}
    total, changes, run_ns, delay_ns, pread = watch.total, times.changes, times.run_ns, times.delay_ns, os.pread
    for uuid, same in vms:
        left = same._left
        if not left or same._total != total:
            continue
        if same._changes != changes:
            if not same._times.unchanged:
                continue
            same._changes = changes
        fd, place = same._fd, same._place
        try:
            if fd is None:
                cpu_ns = same._read()
            else:
                unit_ns, before_ns = same._unit
                cpu_ns = int(pread(fd, SHORT, 0)) * unit_ns + before_ns
        except (HostError, OSError, ValueError, IndexError):  # reading all of it will say what that means
            continue
        same._left = left - 1
        found[uuid] = same._state, _counters((cpu_ns, run_ns[place], delay_ns[place]))
    return found
