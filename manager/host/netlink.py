"""Calls of rtnetlink(7): lists that the kernel answers, such as of neighbours and interfaces, and requests."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Generator, Iterator

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 0x1, 0x4, 0x300
ECHO = 0x8
"""Flag of a request whose object is to be answered."""
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
"""Flags of a request that makes something: over what is there, only where there is nothing, and at all."""
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_TYPE_MASK = 0x3FFF  # the rest says that it is nested, or in network byte order
_BUFFER = 1 << 18
_TIMEOUT_S = 2.0


class RouteSocket:
    """A socket to the kernel of this thread's network namespace. Not thread-safe."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def dump(self, kind: int, request: bytes) -> Generator[tuple[int, bytes], None, None]:
        """Type and body of each message of the answer to a request of that kind. Raises OSError."""
        self._send(kind, _NLM_F_DUMP, request)
        while True:
            for answered, body in self._receive():
                if answered == _NLMSG_DONE:
                    return
                if answered == _NLMSG_ERROR:
                    raise _error(body)
                yield answered, body

    def request(self, kind: int, request: bytes, flags: int = 0) -> list[tuple[int, bytes]]:
        """Have the kernel do something; type and body of what it answers. Raises OSError where it refuses."""
        self._send(kind, _NLM_F_ACK | flags, request)
        answers: list[tuple[int, bytes]] = []
        while True:
            for answered, body in self._receive():
                if answered == _NLMSG_ERROR:
                    if struct.unpack_from("=i", body)[0]:
                        raise _error(body)
                    return answers
                answers.append((answered, body))

    def close(self) -> None:
        """Close it; may be called twice."""
        self._socket.close()

    def _send(self, kind: int, flags: int, request: bytes) -> None:
        self._sequence += 1
        length = _HEADER.size + len(request)
        self._socket.send(_HEADER.pack(length, kind, _NLM_F_REQUEST | flags, self._sequence, 0) + request)

    def _receive(self) -> Iterator[tuple[int, bytes]]:
        """Type and body of each message of a packet that answers the last request. Raises OSError."""
        for kind, sequence, body in _messages(self._socket.recv(_BUFFER)):
            if sequence == self._sequence:
                yield kind, body


def dump(kind: int, request: bytes) -> Generator[tuple[int, bytes], None, None]:
    """Type and body of each message of the answer to a request of that kind. Raises OSError."""
    link = RouteSocket()
    try:
        yield from link.dump(kind, request)
    finally:
        link.close()


def attribute(kind: int, data: bytes) -> bytes:
    """An attribute as it is sent."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes of a message by type, from what follows its fixed part; those before one that is cut short."""
    values: dict[int, bytes] = {}
    place, end = 0, len(data) - _ATTRIBUTE.size
    while place <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, place)
        if length < _ATTRIBUTE.size:
            break
        values[kind & _TYPE_MASK] = data[place + _ATTRIBUTE.size : place + length]
        place += _aligned(length)
    return values


def _error(body: bytes) -> OSError:
    number = -int(struct.unpack_from("=i", body)[0]) or errno.EIO
    return OSError(number, f"rtnetlink: {os.strerror(number)}")


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, sequence number and body of each message of a packet."""
    place, end = 0, len(data) - _HEADER.size
    while place <= end:
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, place)
        if length < _HEADER.size:
            return
        yield kind, sequence, data[place + _HEADER.size : place + length]
        place += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
