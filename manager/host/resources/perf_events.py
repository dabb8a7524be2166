"""Instructions, cycles and misses of the last-level cache of a control group: perf_event_open(2), by group and pCPU.

No library that is kept up does this: the tools around perf run it as a program. An event of a group counts on one pCPU,
so a group takes three descriptors for each. Where the machine has no PMU, as most virtual machines, there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

from manager.errors import HostError
from manager.host.files import LIBC, refusal, succeeded

_CALLS = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_HARDWARE = 0  # PERF_TYPE_HARDWARE of linux/perf_event.h
_EVENTS = ((_HARDWARE, 1), (_HARDWARE, 0), (_HARDWARE, 3))  # instructions, cycles, misses of the last-level cache
_PID_CGROUP, _CLOEXEC = 1 << 2, 1 << 3
_TIMES_AND_GROUP = 0x1 | 0x2 | 0x8  # PERF_FORMAT_TOTAL_TIME_ENABLED, _RUNNING and _GROUP
_SIZE = 128  # of perf_event_attr, as of version 7
_ATTRIBUTES = struct.Struct("=IIQQQQQ")  # type, size, config, period, sample type, read format, flags
_MOST_BYTES = 256

Event = tuple[int, int]
"""Type and config of perf_event_attr."""
FILES_PER_PCPU = len(_EVENTS)
"""So many descriptors does a group take."""


class GroupCounters:
    """Counts of one control group, held open. Not thread-safe."""

    def __init__(self, folder: int, pcpus: Iterable[int], events: tuple[Event, ...] = _EVENTS) -> None:
        """``folder`` is a descriptor of the group's folder, in the hierarchy that has perf_event.

        Raises HostError: ENOENT or EOPNOTSUPP without a PMU, EACCES without CAP_PERFMON, EMFILE.
        """
        self._leaders: list[int] = []
        self._descriptors: list[int] = []
        self._events = len(events)
        try:
            for pcpu in pcpus:
                leader = -1
                for event in events:
                    descriptor = open_event(event, folder, pcpu, leader, _PID_CGROUP)
                    self._descriptors.append(descriptor)
                    leader = descriptor if leader < 0 else leader
                self._leaders.append(leader)
        except OSError as error:
            self.close()
            raise refusal("performance counters", error) from error

    def read(self) -> tuple[int, ...]:
        """The sum over pCPUs of each event, in their order. Raises HostError."""
        totals = [0] * self._events
        try:
            for leader in self._leaders:
                for place, count in enumerate(scaled(os.read(leader, _MOST_BYTES), self._events)):
                    totals[place] += count
        except OSError as error:
            raise refusal("performance counters", error) from error
        return tuple(totals)

    def close(self) -> None:
        """Close all; may be called twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._leaders.clear()


def scaled(data: bytes, events: int) -> list[int]:
    """The counts of one answer, each as if the PMU had counted all the time. Raises HostError for no such answer."""
    if len(data) < 8 * (3 + events):
        raise HostError("performance counters: the kernel's answer is cut short", errno.EIO)
    _, enabled_ns, running_ns, *counts = struct.unpack_from(f"={3 + events}Q", data)
    if not running_ns:
        return [0] * events
    return [round(count * enabled_ns / running_ns) for count in counts]


def open_event(event: Event, group: int, pcpu: int, leader: int = -1, flags: int = 0) -> int:
    """A descriptor of an event. Raises OSError."""
    number = _CALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open is not known on {platform.machine()}")
    kind, config = event
    attributes = ctypes.create_string_buffer(_SIZE)
    _ATTRIBUTES.pack_into(attributes, 0, kind, _SIZE, config, 0, 0, _TIMES_AND_GROUP, 0)
    call = LIBC.syscall
    return succeeded(call(number, attributes, group, pcpu, leader, ctypes.c_ulong(flags | _CLOEXEC)))


def why_none() -> str:
    """Why this machine has no performance counters; empty: it has."""
    try:
        descriptor = open_event(_EVENTS[0], 0, -1)
    except OSError as error:
        return os.strerror(error.errno or 0)
    with contextlib.suppress(OSError):
        os.close(descriptor)
    return ""
