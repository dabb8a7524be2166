"""Lists that the kernel answers over rtnetlink(7): neighbours, and counters of interfaces."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Generator, Iterator

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_BUFFER = 1 << 18
_TIMEOUT_S = 2.0


def dump(kind: int, request: bytes) -> Generator[tuple[int, bytes], None, None]:
    """Type and body of each message of the answer to a request of that kind. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        link.send(_HEADER.pack(_HEADER.size + len(request), kind, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + request)
        while True:
            for answered, body in _messages(link.recv(_BUFFER)):
                if answered == _NLMSG_DONE:
                    return
                if answered == _NLMSG_ERROR:
                    number = -int(struct.unpack_from("=i", body)[0]) or errno.EIO
                    raise OSError(number, f"rtnetlink: {os.strerror(number)}")
                yield answered, body


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes of a message by type, from what follows its fixed part; those before one that is cut short."""
    values: dict[int, bytes] = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]
    return values


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message of a packet."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
