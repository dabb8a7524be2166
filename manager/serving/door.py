"""Who may stay connected, and for how long without asking: limits by address and in all.

The server's listening sockets are doors. Each hands out connections that the ``Guests`` know until they are closed, TLS
handshakes included. Limits are those of connections whose sender the application does not know; an address of IPv6
stands for its /64, all of which one subscriber has. Above one the connection that has waited for longest gives way,
before any whose request is being answered: of the address that has too many, or else of the one with the most. So a
flood displaces itself, and who comes and asks at once is let in.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from manager.rate_limit import network
from manager.serving.exchange import UNIX

Key = tuple[str, int]
"""Address and port of a peer; of one at a Unix socket ``unix`` and a number."""


@dataclass(frozen=True, slots=True)
class GuestLimits:
    """``address`` and ``all``: connections whose sender is not known, of one address and together.

    ``wait_s``: how long such a connection may take for the head of a request, TLS handshake included, or be idle.
    ``idle_s``: the same of one whose sender is known; ``known`` is how many of these there may be. ``a_turn``: how many
    are let in before those that are in get a turn, so that none is displaced before what it sent was read.
    """

    address: int = 64
    all: int = 512
    a_turn: int = 32
    wait_s: float = 10.0
    idle_s: float = 130.0
    known: int = 4096

    def shared_by(self, processes: int) -> GuestLimits:
        """Those of each process of several at the same sockets, which take connections one by one."""
        address, every = -(-self.address // processes), -(-self.all // processes)
        return replace(self, address=address, all=every, a_turn=1)


TLS_LIMITS = GuestLimits(address=32, all=96, a_turn=4)
"""Handshakes take time, and what a connection by TLS holds is several times as much."""


_COLLECT_EVERY = 64
"""Connections by TLS leave cycles of 64 KiB behind, which the collector counts as a few objects."""


class DoorSocket(socket.socket):
    """A connection that a door let in."""

    key: Key = ("", 0)
    trusted = False
    busy = served = False
    since_s = 0.0
    guests: Guests | None = None

    def getpeername(self) -> Any:
        """Address and port, also of one that came by a Unix socket."""
        return self.key if self.family == socket.AF_UNIX else super().getpeername()

    def cut(self) -> None:
        """End it, whatever is under way; the kernel notifies whoever reads or writes."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close, and be forgotten."""
        if self.guests is not None:
            self.guests.forget(self)
        super().close()


class Guests:
    """All connections of a server. Used by the thread of its loop alone; ``clock`` returns seconds that only grow."""

    def __init__(self, limits: GuestLimits, free: frozenset[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Addresses in ``free``, such as a proxy's, have no limit of their own."""
        self.limits = limits
        self._free = free
        self._clock = clock
        self._all: dict[Key, DoorSocket] = {}
        # Those whose sender is not known, by network: the one that has waited for longest first.
        self._unknown: dict[str, OrderedDict[Key, DoorSocket]] = {}
        self._count = 0
        self._closed = 0
        self.on_first: Callable[[], object] = lambda: None
        """Called when a connection comes and there was none."""

    @property
    def present(self) -> bool:
        """Whether there is any connection."""
        return bool(self._all)

    def enter(self, guest: DoorSocket) -> None:
        """Let one in; another may have to leave."""
        if not self._all:
            self.on_first()
        self._all[guest.key] = guest
        guest.guests = self
        guest.since_s = self._clock()
        unknown = self._unknown.setdefault(self._block(guest), OrderedDict())
        unknown[guest.key] = guest
        self._count += 1
        if len(unknown) > self.limits.address and guest.key[0] not in self._free:
            self._displace(unknown)
        elif self._count > self.limits.all:
            self._displace(max(self._unknown.values(), key=len))

    def find(self, client: Key | None) -> DoorSocket | None:
        """The connection of a peer."""
        return self._all.get(client) if client is not None else None

    def begin(self, guest: DoorSocket) -> None:
        """The head of a request has come."""
        guest.busy = guest.served = True

    def trust(self, guest: DoorSocket) -> None:
        """Its sender is known."""
        if not guest.trusted and guest.key in self._all:
            self._take(guest)
            guest.trusted = True
            if len(self._all) - self._count > self.limits.known:
                self._displace_known()

    def end(self, guest: DoorSocket) -> None:
        """A request was answered: it waits again, and from now on."""
        guest.busy = False
        guest.since_s = self._clock()
        unknown = self._unknown.get(self._block(guest))
        if unknown is not None and guest.key in unknown:
            unknown.move_to_end(guest.key)

    def forget(self, guest: DoorSocket) -> None:
        """It was closed."""
        if self._all.get(guest.key) is guest:
            self._take(guest)
            del self._all[guest.key]
            self._closed += 1
            if self._closed % _COLLECT_EVERY == 0:
                gc.collect(1)

    def sweep(self) -> None:
        """End those that have waited for too long."""
        now_s = self._clock()
        for guest in list(self._all.values()):
            most_s = self.limits.idle_s if guest.trusted else self.limits.wait_s
            if not guest.busy and now_s - guest.since_s > most_s:
                guest.cut()

    def leave_all(self) -> None:
        """End those that never asked for anything, of which the server itself may not know yet."""
        for guest in list(self._all.values()):
            if not guest.served:
                guest.cut()

    def _displace(self, unknown: OrderedDict[Key, DoorSocket]) -> None:
        waiting = (guest for guest in unknown.values() if not guest.busy)
        guest = next(waiting, None) or next(iter(unknown.values()))
        self._take(guest)
        guest.cut()

    def _displace_known(self) -> None:
        idle = (guest for guest in self._all.values() if guest.trusted and not guest.busy)
        oldest = min(idle, key=lambda guest: guest.since_s, default=None)
        if oldest is not None:
            oldest.cut()

    def _block(self, guest: DoorSocket) -> str:
        """The addresses with which one counts: those of a proxy are no neighbour's."""
        address = guest.key[0]
        return address if address in self._free else network(address)

    def _take(self, guest: DoorSocket) -> None:
        """Count it no more among those whose sender is not known."""
        unknown = self._unknown.get(self._block(guest))
        if unknown is not None and unknown.pop(guest.key, None) is not None:
            self._count -= 1
            if not unknown:
                del self._unknown[self._block(guest)]


class Door(socket.socket):
    """A listening socket whose connections are guests."""

    guests: Guests
    _accepted = 0
    _numbers = count(1)

    def accept(self) -> tuple[socket.socket, Any]:
        """As of any socket; BlockingIOError also comes when it is the turn of others."""
        if self._accepted >= self.guests.limits.a_turn:
            self._accepted = 0
            raise BlockingIOError
        try:
            connection, address = super().accept()
        except OSError:
            self._accepted = 0
            raise
        self._accepted += 1
        guest = DoorSocket(connection.family, connection.type, connection.proto, fileno=connection.detach())
        guest.key = (UNIX, next(self._numbers)) if self.family == socket.AF_UNIX else (address[0], address[1])
        self.guests.enter(guest)
        return guest, guest.key if self.family == socket.AF_UNIX else address


def tcp_doors(host: str, port: int, *, listening: bool = True) -> list[Door]:
    """Doors that listen at all addresses of a host, or are bound alone; port 0 takes a free one. Raises OSError."""
    doors: list[Door] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            door = Door(family, kind, protocol)
            doors.append(door)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            door.bind(address)
            door.setblocking(False)
            if listening:
                # A connection that finds no room here comes again after a second: longer than a probe should wait.
                door.listen(BACKLOG)
    except OSError:
        for door in doors:
            door.close()
        raise
    return doors


def inherited_doors(files: Sequence[int]) -> list[Door]:
    """Doors at sockets that another process bound, by their file descriptors; others may listen at them, too."""
    doors = [Door(fileno=file) for file in files]
    for door in doors:
        door.setblocking(False)
    return doors


def unix_door(path: Path) -> Door:
    """A door at a Unix socket, which its owner and the group of its folder, where that is inherited, may use.

    A folder that is not there is made, for its owner alone. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    if path.is_socket():
        path.unlink()  # of a process that ended; one at a time has the state directory
    door = Door(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind_unix(door, path)
        path.chmod(0o660)  # nobody is let in before it listens
        door.listen(BACKLOG)
        door.setblocking(False)
    except OSError:
        door.close()
        raise
    return door


def _bind_unix(door: Door, path: Path) -> None:
    if len(os.fsencode(path)) <= _LONGEST_PATH_BYTES:
        door.bind(str(path))
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        door.bind(f"/dev/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


BACKLOG = 4096
_LONGEST_PATH_BYTES = 107  # sun_path of unix(7), without the zero at its end
