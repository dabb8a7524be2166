"""A wake-up at an exact time that an epoll can wait for.

``select.epoll.poll`` rounds its timeout up to milliseconds, which would make every request up to a millisecond late.
A timerfd (timerfd_create(2)) expires within microseconds. Python offers it from 3.13 on; until then through ctypes.
"""

from __future__ import annotations

import ctypes
import os
import time

_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class AbsoluteTimer:
    """Becomes readable at a time of ``time.monotonic()``. Setting it anew makes it unreadable: no read is needed.

    Raises OSError when the kernel refuses a timer.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._settime = libc.timerfd_settime
        self._spec = _Itimerspec()
        self._value = self._spec.it_value  # a view into _spec
        self._reference = ctypes.byref(self._spec)

    def set(self, at_s: float) -> None:
        """Expire at ``at_s`` (seconds, above 0), at once if that is past."""
        whole_s = int(at_s)
        self._value.tv_sec = whole_s
        # at least 1 ns: a time of zero would switch the timer off
        self._value.tv_nsec = int((at_s - whole_s) * 1e9) or 1
        if self._settime(self.fd, _TFD_TIMER_ABSTIME, self._reference, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Give the file descriptor back."""
        os.close(self.fd)
