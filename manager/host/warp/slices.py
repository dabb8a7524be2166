"""EEVDF's slice of a thread, through sched_setattr(2): honoured since Linux 6.12 for SCHED_OTHER."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Collection

from manager.errors import HostError
from manager.host.process import refusal

DEFAULT = 0
"""Stands for the kernel's own slice, which it follows when that changes: sched_runtime 0."""
TRIED_NS = 300_000
_SCHED_OTHER = 0
# Numbers of sched_setattr and sched_getattr: asm/unistd_64.h and its like; aarch64 and riscv64 share the generic table.
_SYSCALLS = {
    "x86_64": (314, 315),
    "aarch64": (274, 275),
    "riscv64": (274, 275),
    "ppc64le": (355, 356),
    "s390x": (345, 346),
}
_libc = ctypes.CDLL(None, use_errno=True)


class Attributes(ctypes.Structure):
    """struct sched_attr, linux/sched/types.h; times in nanoseconds."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def attributes(tid: int) -> Attributes:
    """How a thread (0: the calling one) is scheduled. Raises VmVanished when it is gone, HostError."""
    found = Attributes()
    _call(1, tid, ctypes.byref(found), ctypes.sizeof(found), 0)
    return found


def set_attributes(tid: int, wanted: Attributes) -> None:
    """Schedule a thread so. Raises VmVanished when it is gone, HostError."""
    wanted.size = ctypes.sizeof(wanted)
    _call(0, tid, ctypes.byref(wanted), 0)


def set_slice(tid: int, slice_ns: int) -> None:
    """Set the slice, 0.1 to 100 ms or DEFAULT; all else of the thread stays. Raises VmVanished, HostError."""
    wanted = attributes(tid)
    if wanted.policy != _SCHED_OTHER:
        raise HostError(f"thread {tid} is not in SCHED_OTHER: its slice would be something else", errno.EINVAL)
    wanted.runtime = slice_ns
    set_attributes(tid, wanted)


def slice_of(tid: int, defaults: Collection[int | None]) -> int | None:
    """The slice of a thread in nanoseconds, DEFAULT for one of ``defaults``; None for a thread not in SCHED_OTHER.

    The kernel does not tell a slice that was set from one of the same length that was not. Raises VmVanished,
    HostError.
    """
    found = attributes(tid)
    if found.policy != _SCHED_OTHER:
        return None
    slice_ns = int(found.runtime)
    return DEFAULT if slice_ns in defaults else slice_ns


def default_slice_ns() -> int | None:
    """The kernel's slice, None where slices of threads are not honoured; tried on a thread that ends with it."""
    seen: list[int] = []

    def look() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # it has the policy of who started it
            for slice_ns in (TRIED_NS, DEFAULT):
                set_slice(0, slice_ns)
                seen.append(int(attributes(0).runtime))
        except (HostError, OSError):
            return

    thread = threading.Thread(target=look, name="slice")
    thread.start()
    thread.join()
    return seen[1] if len(seen) == 2 and seen[0] == TRIED_NS and seen[1] else None


def _call(which: int, *arguments: object) -> None:
    numbers = _SYSCALLS.get(os.uname().machine)
    if numbers is None:
        raise HostError(f"the number of sched_setattr on {os.uname().machine} is not known here", errno.ENOSYS)
    if _libc.syscall(numbers[which], *arguments) != 0:
        code = ctypes.get_errno()
        name = ("sched_setattr", "sched_getattr")[which]
        raise refusal(f"{name} of thread {arguments[0]}", OSError(code, os.strerror(code)))
