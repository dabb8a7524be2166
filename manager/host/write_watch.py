"""In which folders a file was written, so that what nobody wrote need not be read again in each tick."""

from __future__ import annotations

import os
import select
import struct
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from manager.host.files import LIBC, succeeded

# <sys/inotify.h>
_IN_MODIFY = 0x00000002
_IN_Q_OVERFLOW = 0x00004000
_IN_ONLYDIR = 0x01000000
_EVENT = struct.Struct("iIII")  # number of the folder, mask, cookie, length of the name that follows
_AT_ONCE = 1 << 16
UNWATCHED = -1
"""The number of a folder that cannot be watched."""


class WriteWatch:
    """Counts writes to files of control groups, by whatever process: inotify(7).

    The call that writes reports them (fs/read_write.c, vfs_write), so those in cgroupfs, too. What the kernel changes
    by itself, or that a group was removed, is not reported. Nothing is believed before the first report.
    """

    def __init__(self) -> None:
        """Where the kernel has no more of them for this user, nothing is watched."""
        self.total = 0
        """Grows when anything was written in any folder, up to the last look."""
        self._writes: Counter[int] = Counter()
        self._holders: Counter[int] = Counter()
        self._reports = False
        self._poll = select.poll()
        self._descriptor = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor >= 0:
            self._closing = weakref.finalize(self, os.close, self._descriptor)
            self._poll.register(self._descriptor, select.POLLIN)

    def add(self, folder: Path) -> int:
        """The number of a folder, to be removed as often as it was added, or UNWATCHED."""
        try:
            number = succeeded(LIBC.inotify_add_watch(self._descriptor, os.fsencode(folder), _IN_MODIFY | _IN_ONLYDIR))
        except OSError:
            return UNWATCHED
        self._holders[number] += 1
        return number

    def remove(self, number: int) -> None:
        """Of a folder that is gone the kernel has removed it already."""
        self._holders[number] -= 1
        if not self._holders[number]:
            del self._holders[number], self._writes[number]
            LIBC.inotify_rm_watch(self._descriptor, number)

    def look(self) -> None:
        """Count what was written since the last look, in all folders."""
        while self._poll.poll(0):
            self._take()

    def writes(self, number: int) -> int | None:
        """How many writes, or series of them, were seen in a folder up to the last look; None: that is not known."""
        return self._writes[number] if self._reports and number != UNWATCHED else None

    def close(self) -> None:
        """Watch nothing any more, at the latest when nobody uses it; may be called twice."""
        if self._descriptor >= 0:
            self._closing()

    def _take(self) -> None:
        self._reports = True
        self.total += 1
        for number, mask in _events(os.read(self._descriptor, _AT_ONCE)):
            if mask & _IN_Q_OVERFLOW:  # events were lost: there may have been writes in any folder
                self._writes.update(self._holders)
            elif number in self._holders:
                self._writes[number] += 1


def _events(text: bytes) -> Iterator[tuple[int, int]]:
    offset = 0
    while offset < len(text):
        number, mask, _, length = _EVENT.unpack_from(text, offset)
        yield number, mask
        offset += _EVENT.size + length
