"""How often pCPUs went offline or came back, by the kernel's uevents: one may do both between two looks."""

from __future__ import annotations

import contextlib
import errno
import socket
import weakref

_KOBJECT_UEVENT = 15  # NETLINK_KOBJECT_UEVENT of linux/netlink.h
_KERNELS = 1  # the group of those that the kernel sends: netlink(7)
_LONGEST = 8192
_CPUS = tuple(f"{action}@/devices/system/cpu/".encode() for action in ("online", "offline"))


class Replugs:
    """Counts since it was made. Where the kernel tells nothing, as without netlink, there are none."""

    def __init__(self) -> None:
        self._count = 0
        self._socket: socket.socket | None = None
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with contextlib.suppress(OSError):
            listening = socket.socket(socket.AF_NETLINK, kind, _KOBJECT_UEVENT)
            try:
                listening.bind((0, _KERNELS))
            except OSError:
                listening.close()
                raise
            self._socket = listening
            weakref.finalize(self, listening.close)

    @property
    def count(self) -> int:
        """So far. Where events were lost there may have been one."""
        while self._socket is not None:
            try:
                text, (sender, _) = self._socket.recvfrom(_LONGEST)
            except BlockingIOError:
                break
            except OSError as error:
                self._count += 1
                if error.errno != errno.ENOBUFS:
                    self._socket = None
                continue
            self._count += sender == 0 and text.startswith(_CPUS)
        return self._count
